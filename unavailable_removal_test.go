package lockregistry_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// An outage that is over is none for a call that comes then, although the removal of the last hold failed in it, and its next
// try is yet to come.
func TestUnavailable_AfterARemovalThatFailed(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fate{"refused": refused(loading), "cut": cut, "silent": silence} {
		for op, call := range locking {
			for kind, opts := range map[string][]lockregistry.LockOption{
				"waits": nil, "does not wait": {lockregistry.NoWait()}, "waits a while": {lockregistry.Wait(2 * time.Second)},
				"waits a moment": {lockregistry.Wait(250 * time.Millisecond)},
			} {
				if name == "silent" && (kind == "does not wait" || kind == "waits a moment" || op == "trylock") {
					continue // to make a new connection may take a second then
				}
				t.Run(name+"/"+op+"/"+kind, func(t *testing.T) {
					fakeWorld(t, func(w *world) {
						f := w.flaky()
						r := f.registry()
						w.known(r)
						l := r.Obtain("42")
						w.lock(l)
						f.all(anything, what)
						w.unavailable(l.Unlock(w.Context()), "unlock")
						w.pass(5 * time.Second)
						start := time.Now()
						ok, err := l.TryLock(w.Context())
						require.False(w, ok)
						w.unavailable(err, "trylock")
						require.LessOrEqual(w, time.Since(start), 5*time.Second)
						w.pass(500 * time.Millisecond)
						f.reconnect()
						require.NoError(w, call(w.Context(), r, opts...))
						if op != "do" {
							w.unlock(l)
						}
						w.pass(time.Minute)
						w.leftNothing()
					})
				})
			}
		}
	}
}
