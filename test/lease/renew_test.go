package lease_test

import (
	"context"
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
		w.IsFree("orders:42")
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
		w.IsFree("orders:42")
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
		l := f.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(4*time.Second)).Obtain("42")
		w.Lock(l)
		value := w.Do("GET", "orders:42")
		w.Await("more renewals than one lease has", func() bool { return f.Count("renew") >= 4 })
		require.True(w, l.IsHeld())
		require.Equal(w, value, w.Do("GET", "orders:42"))
		require.False(w, w.TryElsewhere(l))
		w.Unlock(l)
		w.IsFree("orders:42")
	})
}

// looked is a context that calls a function when it is asked for the nth time.
type looked struct {
	context.Context
	looks, at int
	meanwhile func()
}

func (c *looked) Err() error {
	if c.looks++; c.looks == c.at {
		c.meanwhile()
	}
	return c.Context.Err()
}

// While one goroutine of an owner renews, another one unlocks, at any moment. The owner that follows has the lease that it
// asked for.
func TestRenew_WhileAnotherGoroutineUnlocks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lock   func(r *lockregistry.Registry) *lockregistry.Lock
		shared bool
	}{
		"plain":  {func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") }, false},
		"writer": {func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() }, false},
		"reader": {func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Reader() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				l := c.lock(w.Registry(lockregistry.WithHandoff(time.Hour)))
				for at := 1; unlocksAtLook(w, l, at, c.shared); at++ { //nolint:revive // until the context is not asked that often
				}
			})
		})
	}
}

// unlocksAtLook has one goroutine unlock when the renewal of another goroutine of its owner asks its context for the nth time.
// It reports whether the context is asked that often.
func unlocksAtLook(w *kit.World, l *lockregistry.Lock, at int, shared bool) bool {
	w.Helper()
	asked := lockregistry.Lease(30 * time.Second)
	owner, other := lockregistry.ContextWithOwner(w.Context()), w.Goroutine()
	require.NoError(w, l.Lock(owner, asked))
	got := other.Starts(l, asked)
	w.Settle()
	if !shared {
		w.Pending(got)
	}
	unlock := func() {
		w.Released(l.Unlock(owner))
		require.NoError(w, <-got)
	}
	ctx := &looked{Context: owner, at: at, meanwhile: unlock}
	err := l.Renew(ctx, 2*time.Second)
	if ctx.looks < at {
		unlock()
	}
	if err != nil {
		w.Fails(err, lockregistry.ErrNotOwner, "renew", kit.TheKey)
	}
	w.Pass(15 * time.Second)
	require.True(w, l.IsHeld(), "look %d", at)
	require.NoError(w, other.Unlock(l))
	w.IsFree(kit.TheKey)
	return ctx.looks >= at
}

// A lock that is unlocked before the reply to a renewal arrives was not lost.
func TestRenew_UnlockBeforeTheReply(t *testing.T) {
	t.Parallel()
	for name, renew := range map[string]func(owner context.Context, r *lockregistry.Registry) error{
		"by any goroutine": func(ctx context.Context, r *lockregistry.Registry) error {
			return r.Renew(ctx, "42", time.Hour)
		},
		"by another goroutine of its owner": func(owner context.Context, r *lockregistry.Registry) error {
			return r.Obtain("42").Renew(owner, time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry()
				w.Known(r)
				l, owner := r.Obtain("42"), lockregistry.ContextWithOwner(w.Context())
				require.NoError(w, l.Lock(owner))
				arrives := make(chan struct{})
				f.Fates("renew", kit.HeldUp(arrives))
				renewed := w.Goroutine().Start(func() error { return renew(owner, r) })
				w.Settle()
				unlocked := w.Goroutine().Start(func() error { return l.Unlock(owner) })
				w.Settle()
				close(arrives)
				require.NoError(w, <-unlocked)
				w.Fails(<-renewed, lockregistry.ErrNotOwner, "renew", kit.TheKey)
				require.True(w, w.Free(kit.TheKey))
			})
		})
	}
}

// An owner that has unlocked before a late reply does not renew again.
func TestRenew_LateReplyAfterUnlock(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithHandoff(time.Hour))
		w.Known(r)
		l, owner := r.Obtain("42"), lockregistry.ContextWithOwner(w.Context())
		require.NoError(w, l.Lock(owner, lockregistry.Lease(30*time.Second)))
		other, sent := w.Goroutine(), f.Count("renew")
		got := other.Starts(l, lockregistry.Lease(30*time.Second))
		f.Fates("renew", kit.SlowReply(kit.LateAfter))
		renewed := w.Goroutine().Start(func() error { return l.Renew(owner, 40*time.Second) })
		w.Settle()
		w.Pending(got)
		w.Released(l.Unlock(owner))
		require.NoError(w, <-got)
		w.Fails(<-renewed, lockregistry.ErrNotOwner, "renew", kit.TheKey)
		require.Equal(w, sent+1, f.Count("renew"))
		require.NoError(w, other.Unlock(l))
		require.True(w, w.Free(kit.TheKey))
	})
}
