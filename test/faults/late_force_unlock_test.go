package faults_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A lock is removed by force, the reply comes late, and a waiter gets the lock. The removal is not sent again: that would take
// the lock from the waiter.
func TestForceUnlock_ALateAnswerIsNoReasonToRemoveAgain(t *testing.T) {
	late := kit.SlowReply(800 * time.Millisecond)
	t.Run("lock", func(t *testing.T) {
		kit.RealWorlds(t, func(w *kit.World) {
			f := w.Flaky()
			operator := f.Registry()
			w.Known(operator)
			gone, next, last := w.Registry(), w.Registry().Obtain("42"), w.Registry().Obtain("42")
			w.Released(inspect.Of(operator).ForceUnlock(w.Context(), "42")) // the server knows the script
			w.Lock(gone.Obtain("42"))
			first := w.Goroutine()
			locks := first.Starts(next)
			w.Await("one waits", func() bool { return w.Tickets() == 1 })
			waits := w.Goroutine().Starts(last)
			w.Await("two wait", func() bool { return w.Tickets() == 2 })
			f.Fates("unlock", late)
			w.Unavailable(inspect.Of(operator).ForceUnlock(w.Context(), "42"), "forceunlock")
			require.NoError(w, <-locks)
			w.Pending(waits)
			require.NoError(w, first.Unlock(next))
			require.NoError(w, <-waits)
		})
	})
	t.Run("semaphore", func(t *testing.T) {
		kit.RealWorlds(t, func(w *kit.World) {
			f := w.Flaky()
			operator := f.Registry()
			w.Known(operator)
			gone := w.Registry().Semaphore("seat", 1)
			w.Permit(gone)
			w.Released(inspect.Of(operator).ForceUnlock(w.Context(), "seat")) // the server knows the scripts
			w.Permit(gone)
			next := w.Asks("next", w.Registry().Semaphore("seat", 1))
			last := w.Asks("last", w.Registry().Semaphore("seat", 1))
			f.Fates("release", late)
			require.NoError(w, inspect.Of(operator).ForceUnlock(w.Context(), "seat"), "it is asked for those that were there")
			held := next.Comes()
			require.Empty(w, last.Got)
			w.Release(held)
			w.Release(last.Comes())
		})
	})
	// A removal of one holder reports success in time: that holder cannot come back.
	t.Run("of one holder", func(t *testing.T) {
		kit.RealWorlds(t, func(w *kit.World) {
			f := w.Flaky()
			operator := f.Registry()
			w.Known(operator)
			w.Released(inspect.Of(operator).ForceUnlock(w.Context(), "42")) // the server knows the script
			held := w.Acquires(w.Registry().Obtain("42"))
			next := w.Registry().Obtain("42")
			locks := w.Goroutine().Starts(next, lockregistry.Lease(time.Minute))
			w.Await("one waits", func() bool { return w.Tickets() == 1 })
			f.Fates("unlock", late)
			require.NoError(w, inspect.Of(operator).ForceUnlockHolder(w.Context(), "42", held.Holder()))
			require.NoError(w, <-locks)
			require.True(w, next.IsHeld())
		})
	})
	// A server that refuses the second command does not say what became of the first.
	for name, script := range map[string]string{"a lock": "unlock", "a semaphore": "release"} {
		t.Run("of one holder, and refused, "+name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				f := w.Flaky()
				operator := f.Registry()
				w.Known(operator)
				w.Released(inspect.Of(operator).ForceUnlock(w.Context(), "42")) // the server knows the script
				var held *lockregistry.Hold
				if script == "unlock" {
					held = w.Acquires(w.Registry().Obtain("42"))
				} else {
					gone := w.Permit(w.Registry().Semaphore("42", 1))
					w.Released(inspect.Of(operator).ForceUnlockHolder(w.Context(), "42", gone.Holder()))
					held = w.Permit(w.Registry().Semaphore("42", 1))
				}
				f.Fates(script, late, kit.Refused("MISCONF the disk is full"))
				err := inspect.Of(operator).ForceUnlockHolder(w.Context(), "42", held.Holder())
				require.ErrorIs(w, err, fault.Late)
				w.Unavailable(err, "forceunlock")
				require.NotContains(w, err.Error(), "MISCONF")
				is, err := inspect.Of(w.Registry()).Inspect(w.Context(), "42")
				require.NoError(w, err)
				require.Empty(w, is.Holders)
			})
		})
	}
}
