package lease_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestRenew(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithLease(30 * time.Second))
		l := r.Obtain("42")
		w.Lock(l)
		value := w.Do("GET", "orders:42")

		require.NoError(w, l.Renew(w.Context(), 10*time.Minute))
		require.Greater(w, w.Pttl("orders:42"), 9*time.Minute)
		require.NoError(w, w.Goroutine().Do(func() error { return r.Renew(w.Context(), "42", time.Hour) }), "by anybody")
		require.Greater(w, w.Pttl("orders:42"), 50*time.Minute)
		require.NoError(w, l.Renew(w.Context(), 20*time.Second), "a lease may become shorter")
		require.LessOrEqual(w, w.Pttl("orders:42"), 20*time.Second)

		require.Equal(w, value, w.Do("GET", "orders:42"))
		require.True(w, l.IsHeld())
		w.Unlock(l)
		require.True(w, w.Free("orders:42"))
	})
}

func TestRenew_WhatIsNotHeld(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r, other := w.Registry(), w.Registry()
		l := r.Obtain("42")
		w.Fails(l.Renew(w.Context(), time.Minute), lockregistry.ErrNotOwner, "renew", "orders:42")
		w.Fails(r.Renew(w.Context(), "42", time.Minute), lockregistry.ErrNotOwner, "renew", "orders:42")
		w.Fails(r.Renew(w.Context(), "unknown", time.Minute), lockregistry.ErrNotOwner, "renew", "orders:unknown")
		require.True(w, w.Free("orders:42"))

		w.Lock(other.Obtain("42"), lockregistry.Lease(20*time.Second))
		w.Fails(r.Renew(w.Context(), "42", time.Hour), lockregistry.ErrNotOwner, "renew", "orders:42")
		require.LessOrEqual(w, w.Pttl("orders:42"), 20*time.Second)
		w.Unlock(other.Obtain("42"))

		w.Lock(l)
		w.Fails(w.Goroutine().Do(func() error { return l.Renew(w.Context(), time.Hour) }),
			lockregistry.ErrNotOwner, "renew", "orders:42")
		require.LessOrEqual(w, w.Pttl("orders:42"), time.Minute)
		w.Unlock(l)
		w.Fails(l.Renew(w.Context(), time.Minute), lockregistry.ErrNotOwner, "renew", "orders:42")
		require.True(w, w.Free("orders:42"))
	})
}

func TestRenew_WhatIsLost(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		renewals := map[string]func() error{
			"lock":     func() error { return l.Renew(w.Context(), time.Hour) },
			"registry": func() error { return r.Renew(w.Context(), "42", time.Hour) },
		}
		for name, renew := range renewals {
			w.Lock(l, lockregistry.Lease(kit.ShortLease))
			w.AwaitGone("orders:42")
			w.Fails(renew(), lockregistry.ErrLockLost, "renew", "orders:42")
			require.True(w, w.Free("orders:42"), name)
			w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")

			w.Lock(l)
			w.Do("SET", "orders:42", uuid.NewString(), "PX", "20000")
			w.Fails(renew(), lockregistry.ErrLockLost, "renew", "orders:42")
			require.LessOrEqual(w, w.Pttl("orders:42"), 20*time.Second, name)
			require.False(w, l.IsHeld())
			w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:42")
			w.Do("DEL", "orders:42")
		}
	})
}

func TestRenew_RenewalKeepsLocks(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(3*kit.ShortLease)).Obtain("42")
		w.Lock(l)
		value := w.Do("GET", "orders:42")
		w.Await("more renewals than one lease has", func() bool { return f.Count("renew") >= 4 })
		require.True(w, l.IsHeld())
		require.Equal(w, value, w.Do("GET", "orders:42"))
		require.False(w, w.TryElsewhere(l))
		w.Unlock(l)
		require.True(w, w.Free("orders:42"))
	})
}
