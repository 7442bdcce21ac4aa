package lock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestLock_FirstInFirstOut(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Lock(l)
		const waiters = 12
		order := make(chan int, waiters)
		leave := map[int]context.CancelFunc{}
		left := make(chan error, waiters)
		for i := range waiters {
			ctx, cancel := context.WithCancel(w.Context())
			defer cancel()
			leave[i] = cancel
			go func() {
				if err := l.Lock(ctx); err != nil {
					left <- err
					return
				}
				order <- i
				left <- l.Unlock(w.Context())
			}()
			w.Settle()
		}
		for _, i := range []int{0, 4, 5, waiters - 1} { // the first, some in between, and the last
			leave[i]()
			require.ErrorIs(w, <-left, context.Canceled)
		}
		require.Empty(w, order)
		start := time.Now()
		w.Unlock(l)
		for _, i := range []int{1, 2, 3, 6, 7, 8, 9, 10} {
			require.Equal(w, i, <-order)
			require.NoError(w, <-left)
		}
		require.Zero(w, time.Since(start), "local waiters do not poll")
	})
}

// A call that arrives when a waiter's turn has come cannot overtake the waiter.
func TestLock_NobodyOvertakesWhoWaits(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(lockregistry.WithHandoff(0)).Obtain("42")
		w.Lock(l)
		locked := w.Goroutine().Starts(l)
		w.Settle()
		delivery, turn := make(chan struct{}), make(chan struct{})
		f.Fate("release", kit.HeldUp(delivery))
		f.Fates("obtain", kit.HeldUp(turn))
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		w.Unavailable(l.Unlock(ctx), "unlock") // continues in the background
		w.Settle()
		ok, err := w.Goroutine().Try(l)
		require.False(w, ok)
		require.NoError(w, err, "the removal's answer is not late yet: the key is there")
		w.Pending(locked)
		close(delivery)
		w.Settle()
		require.False(w, w.TryElsewhere(l))
		w.Pending(locked)
		close(turn)
		require.NoError(w, <-locked)
	})
}
