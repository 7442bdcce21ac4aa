package lock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestReentry(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Lock(l)
		value := w.Do("GET", "orders:42")
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err)
		require.True(w, ok)
		w.Lock(l)
		require.Equal(w, value, w.Do("GET", "orders:42"), "still the same hold")
		for range 2 {
			w.Unlock(l)
			require.True(w, l.IsHeld())
			require.False(w, w.Free("orders:42"))
			require.False(w, w.TryElsewhere(l))
		}
		w.Unlock(l)
		require.False(w, l.IsHeld())
		w.IsFree("orders:42")
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42")
		require.True(w, w.TryElsewhere(l))
	})
}

func TestReentry_RefreshesTheLease(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Lock(l, lockregistry.Lease(40*time.Second))
		shorten := func() { require.Equal(w, "1", w.Do("PEXPIRE", "orders:42", "5000")) }

		shorten()
		w.Lock(l)
		require.Greater(w, w.Pttl("orders:42"), 30*time.Second, "the lease that it had, not the registry's")
		require.LessOrEqual(w, w.Pttl("orders:42"), 40*time.Second)

		shorten()
		ok, err := l.TryLock(w.Context(), lockregistry.Lease(2*time.Minute))
		require.NoError(w, err)
		require.True(w, ok)
		require.Greater(w, w.Pttl("orders:42"), time.Minute, "the lease that was asked for")
	})
}

// The refreshed lease also counts in this process.
func TestReentry_ProlongsTheHold(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry(lockregistry.WithLease(10 * time.Second)).Obtain("42")
		w.Lock(l)
		ctx := l.Context(w.Context())
		w.Pass(9 * time.Second)
		w.Lock(l)
		w.Pass(9 * time.Second)
		require.True(w, l.IsHeld())
		require.NoError(w, ctx.Err())
		w.Unlock(l)
		w.Unlock(l)
	})
}

func TestReentry_AfterLoss(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Lock(l)
		w.Do("DEL", "orders:42")
		w.Fails(l.Lock(w.Context()), lockregistry.ErrLockLost, "lock", "orders:42")
		_, err := l.TryLock(w.Context())
		w.Fails(err, lockregistry.ErrLockLost, "trylock", "orders:42")
		require.True(w, w.Free("orders:42"), "the lock is not taken anew")
		require.False(w, l.IsHeld())
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", "orders:42") // the failed calls do not count
		w.Lock(l)
		w.Unlock(l)
	})
}

// Even if the key is still there, or there again, the hold is lost.
func TestReentry_AfterTheLease(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry().Obtain("42")
		w.Lock(l, lockregistry.Lease(10*time.Second))
		value := w.Do("GET", "orders:42")
		w.Pass(10 * time.Second)
		w.Do("SET", "orders:42", value, "PX", "5000")
		sent := f.LockCommands()
		w.Fails(l.Lock(w.Context()), lockregistry.ErrLockLost, "lock", "orders:42")
		require.Equal(w, sent, f.LockCommands(), "no need to ask")
		require.Equal(w, 5*time.Second, w.Pttl("orders:42"))
	})
}
