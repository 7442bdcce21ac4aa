package lockregistry_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// Calls that are not sent because the server is far away learn that it is near again.
func TestLock_AServerThatIsNearAgain(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]func(w *world, l *lockregistry.Lock) error{
		"a lease that is too short": func(w *world, l *lockregistry.Lock) error {
			_, err := l.TryLock(w.Context(), lockregistry.TTL(time.Second))
			return err
		},
		"a context that is too short": func(w *world, l *lockregistry.Lock) error {
			ctx, cancel := context.WithTimeout(w.Context(), 100*time.Millisecond)
			defer cancel()
			_, err := l.TryLock(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				dial, d := w.far(300 * time.Millisecond)
				r := w.registryOn(w.clientWith(dial))
				w.known(r)
				l := r.Obtain("42")
				require.Error(w, try(w, l))
				require.Error(w, try(w, l))
				d.Set(time.Millisecond)
				begun := time.Now()
				for try(w, l) != nil {
					require.Less(w, time.Since(begun), 2*time.Second)
					w.pass(10 * time.Millisecond)
				}
				w.unlock(l)
			})
		})
	}
}
