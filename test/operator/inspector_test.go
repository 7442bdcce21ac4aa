package operator_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// An inspector without a registry sees everything that a registry's inspector sees, and frees plain locks of both layouts.
func TestInspector_WithoutARegistry(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		all, err := inspect.New(w.Client(), "orders")
		require.NoError(w, err)
		spring, redisson := w.Registry(), w.Registry(lockregistry.WithRedissonLayout())
		pair, seats := spring.ReadWrite("pair"), spring.Semaphore("seat", 2)
		w.Lock(spring.Obtain("string"))
		w.Lock(redisson.Obtain("hash"))
		w.Lock(pair.Reader())
		one, two := w.Permit(seats), w.Permit(seats)

		want := map[string]inspect.Lock{}
		for lock, err := range inspect.Of(spring).Locks(w.Context()) {
			require.NoError(w, err)
			want[lock.Path] = lock
		}
		require.Len(w, want, 4)
		for lock, err := range all.Locks(w.Context()) {
			require.NoError(w, err)
			require.Equal(w, want[lock.Path].Kind, lock.Kind, lock.Path)
			require.Equal(w, want[lock.Path].Layout, lock.Layout, lock.Path)
			require.Equal(w, want[lock.Path].HolderCount, lock.HolderCount, lock.Path)
			delete(want, lock.Path)
		}
		require.Empty(w, want)
		found, err := all.Deadlocks(w.Context())
		require.NoError(w, err)
		require.Empty(w, found)

		require.NoError(w, all.ForceUnlockHolder(w.Context(), "seat", one.Holder()))
		w.Fails(one.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
		w.Release(two)
		for path, l := range map[string]*lockregistry.Lock{
			"string": spring.Obtain("string"), "hash": redisson.Obtain("hash"), "pair": pair.Reader(),
		} {
			w.Fails(all.ForceUnlockHolder(w.Context(), path, "any:1"), lockregistry.ErrNotOwner, "forceunlock", "orders:"+path)
			w.Released(all.ForceUnlock(w.Context(), path))
			w.Released(all.ForceUnlock(w.Context(), path)) // the path is free
			w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:"+path)
			info, err := all.Inspect(w.Context(), path)
			require.NoError(w, err)
			require.Equal(w, inspect.Lock{Path: path, Key: "orders:" + path, Layout: observe.LayoutSpring}, info)
		}
		w.Do("LPUSH", "orders:list", "x")
		w.Fails(all.ForceUnlock(w.Context(), "list"), lockregistry.ErrWrongType, "forceunlock", "orders:list")
		w.Do("DEL", "orders:list")
	})
}

// Looking leaves nothing in Redis, not even a record of the viewer, and a waiter wakes when a lock is freed.
func TestInspector_WithoutARegistryPublishesNothing(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		all, err := inspect.New(w.Client(), "orders")
		require.NoError(w, err)
		before := w.Do("KEYS", "*")
		for lock, err := range all.Locks(w.Context()) {
			require.Fail(w, "there is no lock", "%v %v", lock, err)
		}
		_, err = all.Inspect(w.Context(), "42")
		require.NoError(w, err)
		_, err = all.Deadlocks(w.Context())
		require.NoError(w, err)
		w.Released(all.ForceUnlock(w.Context(), "42"))
		require.Equal(w, before, w.Do("KEYS", "*"))

		l := w.Registry().Obtain("42")
		w.Lock(l)
		locked := w.Goroutine().Starts(w.Registry().Obtain("42"))
		w.Await("it waits", func() bool { return w.Waiting("42") })
		w.Released(all.ForceUnlock(w.Context(), "42"))
		require.NoError(w, <-locked)
		info, err := all.Inspect(w.Context(), "42")
		require.NoError(w, err)
		require.Equal(w, observe.KindLock, info.Kind)
		require.Equal(w, 1, info.HolderCount)
	})
}

func TestInspector_BadInput(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		_, err := inspect.New(nil, "")
		require.EqualError(w, err, "inspect: new: the client is nil; the prefix is empty")
		all, err := inspect.New(w.Client(), "orders")
		require.NoError(w, err)
		_, err = all.Inspect(w.Context(), "")
		kit.Refuses(w.T, err, "inspect", "orders:", "the path is empty")
		var none context.Context
		_, err = all.Deadlocks(none)
		kit.Refuses(w.T, err, "deadlocks", "orders:*", "the context is nil")
		over, end := context.WithCancel(w.Context())
		end()
		w.Fails(all.ForceUnlock(over, "42"), context.Canceled, "forceunlock", "orders:42")
		_, err = all.Inspect(over, "42")
		w.Fails(err, context.Canceled, "inspect", "orders:42")
	})
}
