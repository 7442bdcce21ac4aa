package lock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestUnlock_AfterExpiry(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Lock(l, lockregistry.Lease(kit.ShortLease))
		w.AwaitGone("orders:42")
		require.False(w, l.IsHeld())
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")
		require.True(w, w.TryElsewhere(l), "the local half is free")
	})
}

func TestUnlock_AfterExpiryAndTakeover(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		mine, theirs := w.Registry().Obtain("42"), w.Registry().Obtain("42")
		w.Lock(mine, lockregistry.Lease(kit.ShortLease))
		w.Lock(theirs) // waits for the lease to end
		value := w.Do("GET", "orders:42")
		w.Fails(mine.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		require.Equal(w, value, w.Do("GET", "orders:42"))
		require.True(w, theirs.IsHeld())
		require.False(w, w.TryElsewhere(mine))
		w.Unlock(theirs)
		require.True(w, w.TryElsewhere(mine))
	})
}

// The key is gone before the lease is over, as after FLUSHALL or a failover.
func TestUnlock_AfterRemovalByHand(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Lock(l)
		w.Do("DEL", "orders:42")
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		require.True(w, w.TryElsewhere(l))
	})
}

func TestUnlock_WithADoneContext(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		l := r.Obtain("42")
		w.Lock(l)
		hold := l.Context(w.Context())
		delivery := make(chan struct{})
		f.Fate("release", kit.HeldUp(delivery))
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		start := time.Now()
		w.Fails(l.Unlock(ctx), lockregistry.ErrUnavailable, "unlock", "orders:42")
		require.Equal(w, 100*time.Millisecond, time.Since(start))
		require.False(w, l.IsHeld())
		require.Error(w, hold.Err())
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")

		w.Settle()
		locked := w.Goroutine().Starts(l)
		w.Settle()
		require.False(w, w.Free("orders:42"))
		w.Pending(locked)
		ok, err := w.Goroutine().Try(l)
		require.False(w, ok, "the local half is not free before the key is removed")
		require.NoError(w, err, "the removal's answer is not late yet: the key is there")
		w.Pass(3 * time.Second)
		ok, err = w.Goroutine().Try(l)
		require.False(w, ok)
		w.Fails(err, lockregistry.ErrUnavailable, "trylock", "orders:42")
		require.Equal(w, 1, f.Count("obtain"), "and nobody asks Redis for it")

		close(delivery)
		require.NoError(w, <-locked)
		require.True(w, l.IsHeld())
	})
}

// When the time is over without a reply, Unlock says so, whichever connection the next removal uses.
func TestUnlock_OneConnectionIsStuck(t *testing.T) {
	t.Parallel()
	for range 10 { // the client chooses a connection at random
		t.Run("", func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				l := f.Registry(lockregistry.WithHandoff(0)).Obtain("42")
				w.Lock(l)
				delivery := make(chan struct{})
				f.Fates("release", kit.HeldUp(delivery))
				ctx, cancel := context.WithCancel(w.Context())
				cancel()
				start := time.Now()
				w.Unavailable(l.Unlock(ctx), "unlock")
				require.Equal(w, 100*time.Millisecond, time.Since(start))
				close(delivery)
				w.AwaitGone(kit.TheKey)
			})
		})
	}
}

func TestUnlock_WithADoneContextRemovesTheKey(t *testing.T) { // alone: Unlock waits for 100 ms then
	kit.WorldsAlone(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		ctx, cancel := context.WithCancel(w.Context())
		require.NoError(w, l.Lock(ctx))
		cancel()
		w.Released(l.Unlock(ctx))
		w.AwaitGone("orders:42")
		w.Lock(l)
		w.Unlock(l)
	})
}
