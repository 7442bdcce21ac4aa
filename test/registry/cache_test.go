package registry_test

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestLock_OrderOfEviction(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := kit.Capped(w.Registry(), 3)
		a, b, c := r.Obtain("a"), r.Obtain("b"), r.Obtain("c")
		require.Same(w, a, r.Obtain("a"))
		d := r.Obtain("d") // b is the least recently obtained
		require.Equal(w, 3, kit.CachedLocks(r))
		require.Same(w, c, r.Obtain("c"))
		require.Same(w, a, r.Obtain("a"))
		require.Same(w, d, r.Obtain("d"))
		require.NotSame(w, b, r.Obtain("b")) // c goes
		require.Same(w, a, r.Obtain("a"))
		require.Same(w, d, r.Obtain("d"))
		require.Equal(w, 3, kit.CachedLocks(r))
	})
}

func TestCache_LocksInUseStay(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := kit.Capped(w.Registry(), 2)
		held := r.Obtain("held")
		w.Lock(held)
		for i := range 10 {
			r.Obtain(fmt.Sprint("idle ", i))
		}
		require.Equal(w, 2, kit.CachedLocks(r))
		require.Same(w, held, r.Obtain("held"))

		second := r.Obtain("second")
		w.Lock(second)
		third := r.Obtain("third")
		require.NotNil(w, third)
		w.Fails(third.Lock(w.Context()), lockregistry.ErrCapacity, "lock", "orders:third")
		_, err := third.TryLock(w.Context())
		w.Fails(err, lockregistry.ErrCapacity, "trylock", "orders:third")
		w.Fails(r.Do(w.Context(), "third", kit.DoNothing), lockregistry.ErrCapacity, "do", "orders:third")
		require.True(w, w.Free("orders:third"))
		require.Equal(w, 2, kit.CachedLocks(r))
		require.Same(w, held, r.Obtain("held"))
		require.Same(w, second, r.Obtain("second"))

		w.Lock(held) // a lock in use can be locked again
		w.Unlock(held)
		w.Unlock(second)
		w.Lock(third)
		require.Same(w, third, r.Obtain("third"))
		w.Unlock(third)
		w.Unlock(held)
	})
}

// A lock that a call waits for is in use, even if this process does not hold it.
func TestCache_LocksThatAreWaitedForStay(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := kit.Capped(w.Registry(), 1)
		w.Do("SET", "orders:42", "for ever")
		l := r.Obtain("42")
		locked := w.Goroutine().Starts(l)
		w.Settle()
		other := r.Obtain("other")
		w.Fails(other.Lock(w.Context()), lockregistry.ErrCapacity, "lock", "orders:other")
		require.Same(w, l, r.Obtain("42"))
		w.Do("DEL", "orders:42")
		require.NoError(w, <-locked)
		require.Same(w, l, r.Obtain("42"))
	})
}

func TestCache_LocksKeptAcrossEviction(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := kit.Capped(w.Registry(), 1)
		old := r.Obtain("42")
		r.Obtain("other")
		now := r.Obtain("42")
		require.NotSame(w, old, now)

		// Both objects are the same lock.
		w.Lock(old)
		require.True(w, now.IsHeld())
		require.True(w, old.IsHeld())
		require.False(w, w.TryElsewhere(now))
		require.False(w, w.TryElsewhere(old))
		w.Lock(now)
		require.NoError(w, old.Renew(w.Context(), time.Hour))
		require.NoError(w, r.Renew(w.Context(), "42", time.Hour))
		ctx := now.Context(w.Context())
		w.Unlock(old)
		require.NoError(w, ctx.Err())
		require.False(w, w.TryElsewhere(old))
		w.Unlock(now)
		require.Error(w, ctx.Err())
		w.IsFree("orders:42")

		// An object that was not replaced comes back.
		r.Obtain("other")
		w.Lock(old)
		require.Same(w, old, r.Obtain("42"))
		require.False(w, w.TryElsewhere(now))
		w.Unlock(now)
		require.True(w, w.TryElsewhere(old))
	})
}

// Goroutines lock one path through different objects, while these are dropped from the cache all the time.
func TestCache_EvictionNeverAllowsTwoHolders(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := kit.Capped(w.Registry(), 2)
		var all sync.WaitGroup
		inside := make(chan int, 1)
		for i := range 8 {
			kept := r.Obtain("42")
			all.Go(func() {
				for round := range 20 {
					l := kept
					if round%2 == 0 {
						l = r.Obtain("42")
					}
					if err := l.Lock(w.Context()); err != nil {
						w.Error(err)
						return
					}
					select {
					case inside <- i:
						r.Obtain(fmt.Sprint(i, round))
						<-inside
					default:
						w.Error("two at once")
					}
					if err := w.UnlessLate(kept.Unlock(w.Context())); err != nil {
						w.Error(err)
					}
					r.Obtain(fmt.Sprint(i, round, "more"))
					r.ExpireUnusedOlderThan(0)
				}
			})
		}
		all.Wait()
	})
}

func TestLock_SetCapacity(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		locks := map[string]*lockregistry.Lock{}
		for _, path := range []string{"a", "b", "c", "d"} {
			locks[path] = r.Obtain(path)
		}
		w.Lock(locks["a"])
		require.NoError(w, r.SetCapacity(2))
		require.Equal(w, 2, kit.CachedLocks(r))
		require.Same(w, locks["a"], r.Obtain("a"), "in use")
		require.Same(w, locks["d"], r.Obtain("d"), "the most recently obtained")
		require.NoError(w, r.SetCapacity(3))
		b := r.Obtain("b")
		require.NotSame(w, locks["b"], b)
		require.Same(w, locks["d"], r.Obtain("d"))

		w.Lock(b)
		require.NoError(w, r.SetCapacity(1))
		require.Equal(w, 2, kit.CachedLocks(r), "locks in use stay")
		w.Fails(r.Obtain("c").Lock(w.Context()), lockregistry.ErrCapacity, "lock", "orders:c")
		for _, n := range []int{0, -1} {
			require.ErrorContains(w, r.SetCapacity(n), "capacity")
		}
	})
}

func TestCache_ExpireUnusedOlderThan(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		held, idle, never := r.Obtain("held"), r.Obtain("idle"), r.Obtain("never locked")
		w.Lock(held)
		w.Lock(idle)
		w.Unlock(idle)
		require.Equal(w, 0, r.ExpireUnusedOlderThan(10*time.Second))
		w.Pass(6 * time.Second)
		w.Lock(idle)
		w.Unlock(idle)
		w.Pass(6 * time.Second)
		young := r.Obtain("young")
		require.Equal(w, 1, r.ExpireUnusedOlderThan(10*time.Second), "the one that was never locked")
		require.Equal(w, 3, kit.CachedLocks(r))
		require.NotSame(w, never, r.Obtain("never locked"))
		require.Same(w, idle, r.Obtain("idle"))
		require.Same(w, held, r.Obtain("held"))
		require.Same(w, young, r.Obtain("young"))

		w.Pass(20 * time.Second)
		require.Equal(w, 3, r.ExpireUnusedOlderThan(10*time.Second))
		require.Same(w, held, r.Obtain("held"))
		require.False(w, w.TryElsewhere(r.Obtain("held")))
		require.NotSame(w, idle, r.Obtain("idle"))
		w.Unlock(held)
		require.True(w, w.TryElsewhere(idle), "a dropped lock keeps working")
	})
}

// A nested Lock counts as use, and so does the Lock of a reader that shares a hold, whether or not it has to renew the hold.
func TestCache_ExpireUnusedAfterANestedLock(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		for name, c := range map[string]struct {
			kind   string
			shares bool
			lease  time.Duration
		}{
			"nested":                      {"plain", false, time.Minute},
			"nested in the writer":        {"writer", false, time.Minute},
			"shared":                      {"reader", true, time.Minute},
			"shared, with a longer lease": {"reader", true, time.Hour},
		} {
			r := w.Registry()
			l, owner := kit.LockKinds[c.kind](r), lockregistry.ContextWithOwner(w.Context())
			require.NoError(w, l.Lock(owner), name)
			w.Pass(6 * time.Second)
			again := owner
			if c.shares {
				again = lockregistry.ContextWithOwner(w.Context())
			}
			require.NoError(w, l.Lock(again, lockregistry.Lease(c.lease)), name)
			require.NoError(w, l.Unlock(again), name)
			require.NoError(w, l.Unlock(owner), name)
			w.Pass(6 * time.Second)
			require.Zero(w, r.ExpireUnusedOlderThan(10*time.Second), name)
			w.Pass(4 * time.Second)
			require.Equal(w, 1, r.ExpireUnusedOlderThan(10*time.Second), name)
		}
	})
}

func TestCache_SetCapacityThatMakesNoSense(t *testing.T) {
	r := kit.Capped(kit.UnusedRegistry(t), 2)
	for _, n := range []int{0, -1, math.MinInt} {
		kit.Complains(t, r.SetCapacity(n), fmt.Sprintf("SetCapacity(%d): the capacity must be positive", n))
	}
	for i := range 5 {
		r.Obtain(strconv.Itoa(i))
	}
	require.Equal(t, 2, kit.CachedLocks(r), "it is what it was")
	require.NoError(t, r.SetCapacity(math.MaxInt))
}
