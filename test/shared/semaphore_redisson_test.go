package shared_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A semaphore has one format, whatever the layout of locks: registries of both layouts share it, wait for each other, and see
// and end each other's holds. With LayoutRedisson a hold has Redisson's lease.
func TestSemaphoreRedisson_SharedByBothLayouts(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		spring, redisson := w.Registry(), w.Registry(lockregistry.WithRedissonLayout())
		began := time.Now()
		one, two := w.Permit(spring.Semaphore("seat", 2)), w.Permit(redisson.Semaphore("seat", 2))
		require.Equal(w, 2, w.Inside())
		require.InDelta(w, 30*time.Second, two.Remaining(), float64(2*time.Second+time.Since(began)))
		full(w, spring.Semaphore("seat", 2))
		full(w, redisson.Semaphore("seat", 2))
		waits := w.Asks("spring's", spring.Semaphore("seat", 2))
		w.Release(two)
		two = waits.Comes()
		waits = w.Asks("redisson's", redisson.Semaphore("seat", 2))
		for layout, r := range map[observe.Layout]*lockregistry.Registry{
			observe.LayoutSpring: spring, observe.LayoutRedisson: redisson,
		} {
			info, err := inspect.Of(r).Inspect(w.Context(), "seat")
			require.NoError(w, err)
			require.Equal(w, observe.KindSemaphore, info.Kind)
			require.Equal(w, layout, info.Layout, "the registry's")
			require.Equal(w, []int{2, 2, 1}, []int{info.Permits, info.HolderCount, info.WaiterCount})
		}
		require.NoError(w, inspect.Of(redisson).ForceUnlockHolder(w.Context(), "seat", one.Holder()))
		w.Fails(one.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
		last := waits.Comes()
		require.NoError(w, inspect.Of(redisson).ForceUnlock(w.Context(), "seat"))
		require.Zero(w, w.Inside())
		w.Fails(two.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
		w.Fails(last.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
	})
}

// redissons are Redisson's semaphores at the path's key. RSemaphore keeps the number of free permits there.
// RPermitExpirableSemaphore also has a set of the held ones, each with an id of 16 bytes and the end of its lease.
var redissons = map[string][][]string{
	"RSemaphore":                      {{"SET", kit.SeatKey, "3"}},
	"RSemaphore, none is free":        {{"SET", kit.SeatKey, "0"}},
	"RSemaphore, fewer than none are": {{"SET", kit.SeatKey, "-2"}},
	"RPermitExpirableSemaphore": {
		{"SET", kit.SeatKey, "2"}, {"ZADD", "{" + kit.SeatKey + "}:timeout", "922337203685477", "\x00\xff23456789abcdef"},
	},
}

// Redisson's semaphores are different objects: calls return an error that names them, and change nothing. Redisson also refuses
// this library's semaphore, since it expects a string at the key; see interop.
func TestSemaphoreRedisson_OthersAreRefusedByName(t *testing.T) {
	t.Parallel()
	for name, made := range redissons {
		for layoutName, layout := range kit.Layouts {
			t.Run(name+", "+layoutName, func(t *testing.T) {
				kit.Worlds(t, func(w *kit.World) {
					w.Layout = layout
					for _, command := range made {
						w.Do(command...)
					}
					there := func() []string { return []string{w.Keys(), w.Do("GET", kit.SeatKey)} }
					before := there()
					r := w.Registry()
					s := r.Semaphore("seat", 3)
					refused := func(op string, err error) {
						w.Helper()
						w.Fails(err, lockregistry.ErrWrongType, op, kit.SeatKey)
						require.ErrorContains(w, err, "a number, as Redisson's RSemaphore and RPermitExpirableSemaphore keep there")
					}
					for _, opts := range [][]lockregistry.SemaphoreOption{nil, {lockregistry.Permits(2)}, {lockregistry.Permits(4)}} {
						_, err := s.Acquire(w.Context(), opts...)
						refused("acquire", err)
						_, _, err = kit.TryAcquire(w.Context(), s, opts...)
						refused("acquire", err)
					}
					_, err := w.Registry(lockregistry.WithFencing()).Semaphore("seat", 3).Acquire(w.Context())
					refused("acquire", err)
					_, err = w.Registry(lockregistry.WithPolling()).Semaphore("seat", 3).Acquire(w.Context())
					refused("acquire", err)
					refused("setpermits", s.SetPermits(w.Context(), 4))
					_, err = inspect.Of(r).Inspect(w.Context(), "seat")
					refused("inspect", err)
					refused("forceunlock", inspect.Of(r).ForceUnlock(w.Context(), "seat"))
					for _, holder := range []string{"3", "00ff3233343536373839616263646566"} {
						refused("forceunlock", inspect.Of(r).ForceUnlockHolder(w.Context(), "seat", holder))
					}
					require.Empty(w, kit.PathsOf(w.T, r))
					require.Equal(w, before, there())
				})
			})
		}
	}
}

// Java writes its semaphore while a call waits: the call's next look finds it. A number with a lease is a lock, as before.
func TestSemaphoreRedisson_NumbersThatAreNone(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry()
		waits, held := r.Semaphore("seat", 1), w.Permit(r.Semaphore("seat", 1))
		failed := make(chan error, 1)
		go func() {
			_, err := waits.Acquire(w.Context())
			failed <- err
		}()
		w.Await("it waits", func() bool { return w.Seats() == 1 })
		w.Do("SET", kit.SeatKey, "3")
		err := <-failed
		w.Fails(err, lockregistry.ErrWrongType, "acquire", kit.SeatKey)
		require.ErrorContains(w, err, "Redisson's RSemaphore")
		require.Error(w, held.Release(w.Context()))
		require.Equal(w, "3", w.Do("GET", kit.SeatKey))

		w.Do("SET", "orders:other", "1", "PX", "60000")
		info, err := inspect.Of(r).Inspect(w.Context(), "other")
		require.NoError(w, err)
		require.Equal(w, observe.KindLock, info.Kind)
		_, err = r.Semaphore("other", 1).Acquire(w.Context())
		w.Fails(err, lockregistry.ErrWrongType, "acquire", "orders:other")
		require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), "other"))
		require.True(w, w.Free("orders:other"))
	})
}
