package lock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// The promises of the documentation of locks, sentence by sentence.

// Owners.

func TestLock_AnOwnerIsNotBoundToAGoroutine(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		other := w.Goroutine()
		ctx := lockregistry.ContextWithOwner(w.Context())

		require.NoError(w, l.Lock(ctx))
		require.NoError(w, other.Do(func() error { return l.Lock(ctx) }), "nests elsewhere")
		require.NoError(w, other.Do(func() error { return l.Renew(ctx, time.Hour) }))
		require.NoError(w, other.Do(func() error { return l.Context(ctx).Err() }))
		require.NoError(w, other.Do(func() error { return r.Do(ctx, "42", func(ctx context.Context) error { return ctx.Err() }) }))
		require.False(w, w.TryElsewhere(l))
		w.Released(other.Do(func() error { return l.Unlock(ctx) }))
		require.True(w, l.IsHeld())
		require.False(w, w.TryElsewhere(l))
		w.Released(other.Do(func() error { return l.Unlock(ctx) })) // unlocks elsewhere
		w.IsFree("orders:42")
		w.Fails(l.Unlock(ctx), lockregistry.ErrNotOwner, "unlock", "orders:42")
	})
}

func TestLock_OwnersExcludeEachOtherOnOneGoroutine(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		a, b := lockregistry.ContextWithOwner(w.Context()), lockregistry.ContextWithOwner(w.Context())
		require.NoError(w, l.Lock(a))
		for _, other := range []context.Context{b, w.Context(), lockregistry.ContextWithOwner(a)} {
			ok, err := l.TryLock(other)
			require.NoError(w, err)
			require.False(w, ok)
			w.Fails(l.Unlock(other), lockregistry.ErrNotOwner, "unlock", "orders:42")
			w.Fails(l.Renew(other, time.Hour), lockregistry.ErrNotOwner, "renew", "orders:42")
			require.ErrorIs(w, context.Cause(l.Context(other)), lockregistry.ErrNotOwner)
		}
		type key struct{}
		child, cancel := context.WithTimeout(context.WithValue(a, key{}, 1), time.Hour)
		defer cancel()
		require.NoError(w, l.Lock(child), "a child of the context carries the owner")
		w.Released(l.Unlock(child))
		require.LessOrEqual(w, w.Pttl("orders:42"), time.Minute)
		require.NoError(w, l.Unlock(a))

		w.Lock(l)
		ok, err := l.TryLock(a)
		require.NoError(w, err)
		require.False(w, ok, "an owner in the context goes before the goroutine")
		w.Unlock(l)
	})
}

// Two goroutines of one owner lock at the same time, while somebody else holds the lock: when one gets it, both have it.
func TestLock_AnOwnerWaitsOnTwoGoroutines(t *testing.T) {
	t.Parallel()
	for _, remote := range []bool{false, true} {
		t.Run(map[bool]string{false: "local", true: "remote"}[remote], func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				r := w.Registry()
				l := r.Obtain("42")
				holder := l
				if remote {
					holder = w.Registry().Obtain("42")
				}
				w.Lock(holder)
				ctx := lockregistry.ContextWithOwner(w.Context())
				first, second := kit.LockElsewhere(l, ctx), kit.LockElsewhere(l, ctx)
				if w.Fake {
					w.Settle()
					w.Pass(time.Second)
				}
				w.Pending(first)
				w.Pending(second)
				w.Unlock(holder)
				require.NoError(w, <-first)
				require.NoError(w, <-second)
				w.Released(l.Unlock(ctx))
				require.True(w, l.IsHeld())
				require.False(w, w.TryElsewhere(l))
				require.False(w, w.Free("orders:42"))
				w.Released(l.Unlock(ctx))
				w.IsFree("orders:42")
				w.Fails(l.Unlock(ctx), lockregistry.ErrNotOwner, "unlock", "orders:42")
			})
		})
	}
}

// The second goroutine of an owner must not believe that it holds the lock while the first one is still asking Redis.
func TestLock_AnOwnerHoldsNothingBeforeRedisHasAnswered(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry().Obtain("42")
		delivery := make(chan struct{})
		f.Fates("obtain", kit.HeldUp(delivery))
		ctx := lockregistry.ContextWithOwner(w.Context())
		first := kit.LockElsewhere(l, ctx)
		w.Settle()
		second := kit.LockElsewhere(l, ctx)
		w.Settle()
		w.Pending(second)
		ok, err := l.TryLock(ctx)
		require.NoError(w, err)
		require.False(w, ok)
		w.Fails(l.Unlock(ctx), lockregistry.ErrNotOwner, "unlock", "orders:42")
		close(delivery)
		require.NoError(w, <-first)
		require.NoError(w, <-second)
		w.Released(l.Unlock(ctx))
		w.Released(l.Unlock(ctx))
	})
}
