package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Lock.

func TestLock_CancelledWhileWaitingForThisProcess(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry().Obtain("42")
		w.Lock(l)
		sent := f.LockCommands()
		ctx, cancel := context.WithCancel(w.Context())
		given, behind := kit.LockElsewhere(l, ctx), w.Goroutine()
		if w.Fake {
			w.Settle() // so that given waits before behind
		}
		locked := behind.Starts(l)
		if w.Fake {
			w.Settle()
		}
		w.Pending(given)
		start := time.Now()
		cancel()
		w.Fails(<-given, context.Canceled, "lock", "orders:42")
		if w.Fake {
			require.Zero(w, time.Since(start))
		}
		w.Pending(locked)
		require.True(w, l.IsHeld())
		require.Equal(w, sent, f.LockCommands(), "who waits for this process does not talk to Redis")
		w.Unlock(l)
		require.NoError(w, <-locked)
		require.NoError(w, behind.Unlock(l))
		w.IsFree("orders:42")
		require.True(w, w.TryElsewhere(l))
	})
}

func TestLock_CancelledWhileWaitingForRedis(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		f := w.Flaky()
		mine, theirs := f.Registry().Obtain("42"), w.Registry().Obtain("42")
		w.Lock(theirs)
		value := w.Do("GET", "orders:42")
		ctx, cancel := context.WithCancel(w.Context())
		given := kit.LockElsewhere(mine, ctx)
		w.Await("the waiter has asked Redis", func() bool { return f.Count("obtain") > 0 })
		locked := w.Goroutine().Starts(mine) // waits behind it, in this process
		if w.Fake {
			w.Settle()
		}
		w.Pending(given)
		start := time.Now()
		cancel()
		if err := <-given; w.Fake {
			w.Fails(err, context.Canceled, "lock", "orders:42")
			require.Zero(w, time.Since(start), "without waiting for a poll")
		} else { // it may not have learned anything yet
			require.ErrorIs(w, err, context.Canceled)
		}
		// The mark says that somebody waits, as the other call may by now.
		require.Equal(w, value, strings.TrimSuffix(w.Do("GET", "orders:42"), "+"))
		require.False(w, mine.IsHeld())
		w.Pending(locked)
		w.Unlock(theirs)
		require.NoError(w, <-locked)
	})
}

func TestLock_NothingIsLeftOfACancelledLock(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		mine := w.RegistryOn(f.Client(kit.Unasked)).Obtain("42")
		w.Do("SET", "orders:42", "for ever")
		ctx, cancel := context.WithCancel(w.Context())
		given := kit.LockElsewhere(mine, ctx)
		w.Settle()
		cancel()
		require.ErrorIs(w, <-given, context.Canceled)
		w.Do("DEL", "orders:42")
		sent := f.LockCommands()
		w.Pass(time.Hour)
		require.True(w, w.Free("orders:42"))
		require.Equal(w, sent, f.LockCommands())
		require.True(w, w.TryElsewhere(mine))
	})
}

func TestLock_CauseOfACancelledLock(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Do("SET", "orders:42", "for ever")
		why := errors.New("the user went away")
		ctx, cancel := context.WithCancelCause(w.Context())
		given := kit.LockElsewhere(l, ctx)
		w.Settle()
		cancel(why)
		err := <-given
		w.Fails(err, context.Canceled, "lock", "orders:42")
		require.ErrorIs(w, err, why)
	})
}

func TestLock_DeadlineOfALock(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Do("SET", "orders:42", "for ever")
		ctx, cancel := context.WithTimeout(w.Context(), 1234*time.Millisecond)
		defer cancel()
		start := time.Now()
		other := w.Goroutine().Start(func() error { return l.Lock(ctx) }) // one waits for Redis, the other for this process
		w.Fails(l.Lock(ctx), context.DeadlineExceeded, "lock", "orders:42")
		w.Fails(<-other, context.DeadlineExceeded, "lock", "orders:42")
		require.Equal(w, 1234*time.Millisecond, time.Since(start))
		w.Do("DEL", "orders:42")
		require.True(w, w.TryElsewhere(l))
	})
}
