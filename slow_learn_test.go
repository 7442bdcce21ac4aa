package lockregistry_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
)

// Calls that are not sent because the server is far away learn that it is near again.
func TestLock_AServerThatIsNearAgain(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]func(w *world, l *lockregistry.Lock) error{
		"a lease that is too short": func(w *world, l *lockregistry.Lock) error {
			_, err := l.TryLock(w.Context(), lockregistry.Lease(time.Second))
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

// A server becomes so slow that a hold's lease is too short. A call that is handed the hold gives it back: it waits no longer for
// that than for an answer under way when its time is over, and has not had the lock as far as an observer can tell.
func TestLock_HandedOverForTooShortALease(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const (
			trip  = 300 * time.Millisecond
			lease = 1500 * time.Millisecond // five trips, and it must be six
			wait  = 200 * time.Millisecond
		)
		dial, d := w.far(time.Millisecond)
		o := w.witness()
		r := w.registryOn(w.clientWith(dial), o.option(), lockregistry.WithHandoff(time.Hour))
		w.known(r)
		l, other := r.Obtain("42"), r.Obtain("other")
		h := w.acquires(l, lockregistry.Lease(lease))
		d.Set(trip)
		w.lock(other)
		w.unlock(other)
		require.NoError(w, h.Renew(w.Context(), lease))
		for len(o.released) > 0 {
			<-o.released
		}
		result := make(chan error, 1)
		begun := time.Now()
		go func() { result <- l.Lock(w.Context(), lockregistry.Lease(lease), lockregistry.Wait(wait)) }()
		w.pass(wait - time.Millisecond)
		d.Set(5 * time.Second)
		w.releases(h)
		require.ErrorContains(w, <-result, "a lease of 1.5s is too short")
		require.LessOrEqual(w, time.Since(begun), wait+250*time.Millisecond+2*trip)
		require.Equal(w, observe.EndHandedOver, (<-o.released).How)
		require.Empty(w, o.released)
	})
}
