package lockregistry_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
)

// What others see of a semaphore, and do with it.

func TestSemaphore_Inspect(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		r := w.registry()
		s := r.Semaphore("seat", 3)
		info, err := r.Inspect(w.Context(), "seat")
		require.NoError(w, err)
		require.Empty(w, info.Kind)
		one, two := w.permit(s), w.permit(s, lockregistry.Permits(2), lockregistry.Lease(time.Hour))
		large, small := w.asks("large", s, lockregistry.Permits(3)), w.asks("small", s)
		info, err = r.Inspect(w.Context(), "seat")
		require.NoError(w, err)
		require.Equal(w, observe.KindSemaphore, info.Kind)
		require.Equal(w, w.layout, info.Layout)
		require.Equal(w, 3, info.Permits)
		require.Equal(w, 2, info.HolderCount)
		require.Len(w, info.Holders, 2)
		require.Equal(w, []int{1, 2}, []int{info.Holders[0].Permits, info.Holders[1].Permits})
		require.Less(w, info.Holders[0].Lease, time.Minute+time.Second)
		require.Greater(w, info.Holders[1].Lease, 59*time.Minute)
		require.Equal(w, r.ClientID(), info.Holders[0].Label.Registry)
		require.WithinDuration(w, time.Now(), info.Holders[0].Since, time.Minute)
		require.Equal(w, 2, info.WaiterCount)
		require.Equal(w, []int{3, 1}, []int{info.Waiters[0].Permits, info.Waiters[1].Permits})
		require.False(w, info.Waiters[0].Gone)

		listed := 0
		for info, err := range r.Locks(w.Context()) {
			require.NoError(w, err)
			require.Equal(w, "seat", info.Path)
			listed++
		}
		require.Equal(w, 1, listed)
		w.release(one, two)
		w.release(large.comes())
		w.release(small.comes())
		for info, err := range r.Locks(w.Context()) {
			require.NoError(w, err)
			w.Fatal("nobody has it: ", info)
		}
		info, err = r.Inspect(w.Context(), "seat")
		require.NoError(w, err)
		require.Equal(w, observe.KindSemaphore, info.Kind)
		require.Empty(w, info.Holders)

		w.do("ZADD", "orders:other", "1", "any")
		_, err = r.Inspect(w.Context(), "other")
		w.fails(err, lockregistry.ErrWrongType, "inspect", "orders:other")
	})
}

// A process that has nothing but permits says of itself and of them what others do of locks.
func TestSemaphore_Records(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		a, b := w.registry(lockregistry.WithName("a")), w.registry(lockregistry.WithName("b"))
		h := w.permit(a.Semaphore("seat", 1))
		waits := w.asks("waits", b.Semaphore("seat", 1))
		other := w.registry()
		w.await("they say so", func() bool {
			info, err := other.Inspect(w.Context(), "seat")
			require.NoError(w, err)
			require.Len(w, info.Holders, 1)
			require.Len(w, info.Waiters, 1)
			return info.Holders[0].Label.Name == "a" && !info.Holders[0].Granted.IsZero() && info.Waiters[0].Label.Name == "b"
		})
		own, err := a.Inspect(w.Context(), "seat")
		require.NoError(w, err)
		require.False(w, own.Holders[0].Granted.IsZero())
		w.release(h)
		w.release(waits.comes())
	})
}

// A permit that a failover brings back, because its release was of just before, is removed once more.
func TestSemaphore_ReleaseIsSentOnceMore(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		r := w.registry()
		elsewhere, s := w.registry().Obtain("46"), r.Semaphore("seat", 4)
		w.lock(elsewhere)
		waiter := lockElsewhere(r.Obtain("46"), w.Context())
		w.await("it listens", func() bool { return strings.Contains(w.do("PUBSUB", "CHANNELS", "orders-channel@*"), "@") })
		one, two := w.permit(s), w.permit(s)
		set := seat
		if w.redissons() {
			set = "{" + seat + "}:timeout"
		}
		members := w.do("ZRANGEBYSCORE", set, "0", "+inf", "WITHSCORES")
		stays := w.permit(s)
		w.release(one, two)
		require.Equal(w, 1, w.inside())
		back := strings.Fields(strings.Trim(members, "[]"))
		w.do("ZADD", set, back[1], back[0], back[3], back[2]) // as the server that has taken over has it
		if w.redissons() {
			w.do("DECRBY", seat, "2")
		}
		require.Equal(w, 3, w.inside())
		w.do("CLIENT", "KILL", "TYPE", "pubsub")
		w.await("they are removed", func() bool { return w.inside() == 1 })
		if w.redissons() {
			require.Equal(w, "3", w.do("GET", seat))
		}
		w.release(stays)
		w.unlock(elsewhere)
		require.NoError(w, <-waiter)
	})
}

// Who waits gets what a holder by force no longer has.
func TestSemaphore_ForceUnlock(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		a, b := w.registry(), w.registry()
		s := a.Semaphore("seat", 3)
		one, two := w.permit(s), w.permit(b.Semaphore("seat", 3), lockregistry.Permits(2), lockregistry.Lease(time.Hour))
		ctx := one.Context(w.Context())
		info, err := b.Inspect(w.Context(), "seat")
		require.NoError(w, err)
		waits := w.asks("waits", s)
		require.NoError(w, a.ForceUnlockHolder(w.Context(), "seat", info.Holders[0].Holder))
		require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
		got := waits.comes()
		w.fails(a.ForceUnlockHolder(w.Context(), "seat", info.Holders[0].Holder), lockregistry.ErrNotOwner, "forceunlock", seat)
		w.fails(one.Release(w.Context()), lockregistry.ErrLockLost, "release", seat)
		require.Equal(w, 3, w.inside())
		info, err = b.Inspect(w.Context(), "seat")
		require.NoError(w, err)
		for _, none := range []string{"permits", info.Holders[0].Holder + "*", info.Holders[1].Holder + "*", "*", "any"} {
			w.fails(a.ForceUnlockHolder(w.Context(), "seat", none), lockregistry.ErrNotOwner, "forceunlock", seat)
			require.Equal(w, 3, w.inside())
		}
		w.full(s)

		require.NoError(w, b.ForceUnlock(w.Context(), "seat"))
		require.Zero(w, w.inside())
		w.fails(two.Release(w.Context()), lockregistry.ErrLockLost, "release", seat)
		w.fails(got.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost, "renew", seat)
		require.NoError(w, b.ForceUnlock(w.Context(), "seat"), "nobody has it")

		w.do("ZADD", "orders:other", "1", "any")
		w.fails(a.ForceUnlock(w.Context(), "other"), lockregistry.ErrWrongType, "forceunlock", "orders:other")
		w.fails(a.ForceUnlockHolder(w.Context(), "other", "any"), lockregistry.ErrWrongType, "forceunlock", "orders:other")
		require.Equal(w, "1", w.do("ZCARD", "orders:other"))
	})
}

// All holds of one moment go, however many they are. Those who wait get their permits, and keep them.
func TestSemaphore_ForceUnlockOfMany(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		a, b := w.registry(), w.registry()
		s := a.Semaphore("seat", 150)
		holds := make([]*lockregistry.Hold, 150)
		for i := range holds {
			holds[i] = w.permit(s)
		}
		calls := make([]*waiting, 120)
		for i := range calls {
			calls[i] = w.asks("waits", s)
		}
		require.NoError(w, b.ForceUnlock(w.Context(), "seat"))
		for _, c := range calls {
			w.release(c.comes())
		}
		for _, h := range holds {
			w.fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", seat)
		}
		require.Zero(w, w.inside())
	})
}
