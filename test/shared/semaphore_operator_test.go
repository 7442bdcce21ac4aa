package shared_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// What others see of a semaphore, and what they can do with it.

func TestSemaphore_Inspect(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry()
		s := r.Semaphore("seat", 3)
		info, err := inspect.Of(r).Inspect(w.Context(), "seat")
		require.NoError(w, err)
		require.Empty(w, info.Kind)
		one, two := w.Permit(s), w.Permit(s, lockregistry.Permits(2), lockregistry.Lease(time.Hour))
		large, small := w.Asks("large", s, lockregistry.Permits(3)), w.Asks("small", s)
		info, err = inspect.Of(r).Inspect(w.Context(), "seat")
		require.NoError(w, err)
		require.Equal(w, observe.KindSemaphore, info.Kind)
		require.Equal(w, w.Layout, info.Layout)
		require.Equal(w, 3, info.Permits)
		require.Equal(w, 2, info.HolderCount)
		require.Len(w, info.Holders, 2)
		require.Equal(w, []int{1, 2}, []int{info.Holders[0].Permits, info.Holders[1].Permits})
		require.Less(w, info.Holders[0].Lease, time.Minute+time.Second)
		require.Greater(w, info.Holders[1].Lease, 59*time.Minute)
		require.Equal(w, kit.ClientID(r), info.Holders[0].Label.Registry)
		require.WithinDuration(w, time.Now(), info.Holders[0].Since, time.Minute)
		require.Equal(w, 2, info.WaiterCount)
		require.Equal(w, []int{3, 1}, []int{info.Waiters[0].Permits, info.Waiters[1].Permits})
		require.False(w, info.Waiters[0].Gone)

		listed := 0
		for info, err := range inspect.Of(r).Locks(w.Context()) {
			require.NoError(w, err)
			require.Equal(w, "seat", info.Path)
			listed++
		}
		require.Equal(w, 1, listed)
		w.Release(one, two)
		w.Release(large.Comes())
		w.Release(small.Comes())
		for info, err := range inspect.Of(r).Locks(w.Context()) {
			require.NoError(w, err)
			w.Fatal("nobody has it: ", info)
		}
		info, err = inspect.Of(r).Inspect(w.Context(), "seat")
		require.NoError(w, err)
		require.Equal(w, observe.KindSemaphore, info.Kind)
		require.Empty(w, info.Holders)

		w.Do("ZADD", "orders:other", "1", "any")
		_, err = inspect.Of(r).Inspect(w.Context(), "other")
		w.Fails(err, lockregistry.ErrWrongType, "inspect", "orders:other")
	})
}

// A process that has only permits writes a record, and others see it as with locks.
func TestSemaphore_Records(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		a, b := w.Registry(lockregistry.WithName("a")), w.Registry(lockregistry.WithName("b"))
		h := w.Permit(a.Semaphore("seat", 1))
		waits := w.Asks("waits", b.Semaphore("seat", 1))
		other := w.Registry()
		w.Await("they say so", func() bool {
			info, err := inspect.Of(other).Inspect(w.Context(), "seat")
			require.NoError(w, err)
			require.Len(w, info.Holders, 1)
			require.Len(w, info.Waiters, 1)
			return info.Holders[0].Label.Name == "a" && !info.Holders[0].Granted.IsZero() && info.Waiters[0].Label.Name == "b"
		})
		own, err := inspect.Of(a).Inspect(w.Context(), "seat")
		require.NoError(w, err)
		require.False(w, own.Holders[0].Granted.IsZero())
		w.Release(h)
		w.Release(waits.Comes())
	})
}

// A permit that a failover brings back, because its release was recent, is removed again.
func TestSemaphore_ReleaseIsSentOnceMore(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry()
		elsewhere, s := w.Registry().Obtain("46"), r.Semaphore("seat", 4)
		w.Lock(elsewhere)
		waiter := kit.LockElsewhere(r.Obtain("46"), w.Context())
		w.Await("it waits, with a connection that counts", func() bool { return r.Stats().Tickets == 1 })
		one, two := w.Permit(s), w.Permit(s)
		members := w.Do("ZRANGEBYSCORE", kit.SeatKey, "0", "+inf", "WITHSCORES")
		stays := w.Permit(s)
		w.Release(one, two)
		require.Equal(w, 1, w.Inside())
		back := strings.Fields(strings.Trim(members, "[]"))
		w.Do("ZADD", kit.SeatKey, back[1], back[0], back[3], back[2]) // as on the server that has taken over
		require.Equal(w, 3, w.Inside())
		w.Do("CLIENT", "KILL", "TYPE", "pubsub")
		w.Await("they are removed", func() bool { return w.Inside() == 1 })
		w.Release(stays)
		w.Unlock(elsewhere)
		require.NoError(w, <-waiter)
	})
}

// A waiting call gets the permits that a holder loses by force.
func TestSemaphore_ForceUnlock(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		a, b := w.Registry(), w.Registry()
		s := a.Semaphore("seat", 3)
		one, two := w.Permit(s), w.Permit(b.Semaphore("seat", 3), lockregistry.Permits(2), lockregistry.Lease(time.Hour))
		ctx := one.Context(w.Context())
		info, err := inspect.Of(b).Inspect(w.Context(), "seat")
		require.NoError(w, err)
		waits := w.Asks("waits", s)
		require.NoError(w, inspect.Of(a).ForceUnlockHolder(w.Context(), "seat", info.Holders[0].Holder))
		require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
		got := waits.Comes()
		err = inspect.Of(a).ForceUnlockHolder(w.Context(), "seat", info.Holders[0].Holder)
		w.Fails(err, lockregistry.ErrNotOwner, "forceunlock", kit.SeatKey)
		w.Fails(one.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
		require.Equal(w, 3, w.Inside())
		info, err = inspect.Of(b).Inspect(w.Context(), "seat")
		require.NoError(w, err)
		for _, none := range []string{"permits", info.Holders[0].Holder + "*", info.Holders[1].Holder + "*", "*", "any"} {
			w.Fails(inspect.Of(a).ForceUnlockHolder(w.Context(), "seat", none), lockregistry.ErrNotOwner, "forceunlock", kit.SeatKey)
			require.Equal(w, 3, w.Inside())
		}
		full(w, s)

		require.NoError(w, inspect.Of(b).ForceUnlock(w.Context(), "seat"))
		require.Zero(w, w.Inside())
		w.Fails(two.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
		w.Fails(got.Renew(w.Context(), time.Minute), lockregistry.ErrLockLost, "renew", kit.SeatKey)
		require.NoError(w, inspect.Of(b).ForceUnlock(w.Context(), "seat"), "nobody has it")

		w.Do("ZADD", "orders:other", "1", "any")
		w.Fails(inspect.Of(a).ForceUnlock(w.Context(), "other"), lockregistry.ErrWrongType, "forceunlock", "orders:other")
		w.Fails(inspect.Of(a).ForceUnlockHolder(w.Context(), "other", "any"), lockregistry.ErrWrongType, "forceunlock", "orders:other")
		require.Equal(w, "1", w.Do("ZCARD", "orders:other"))
	})
}

// All holds of one moment are removed, however many. Waiting calls get their permits, and keep them.
func TestSemaphore_ForceUnlockOfMany(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		a, b := w.Registry(), w.Registry()
		s := a.Semaphore("seat", 150)
		holds := make([]*lockregistry.Hold, 150)
		for i := range holds {
			holds[i] = w.Permit(s)
		}
		calls := make([]*kit.Waiting, 120)
		for i := range calls {
			calls[i] = w.Asks("waits", s)
		}
		require.NoError(w, inspect.Of(b).ForceUnlock(w.Context(), "seat"))
		for _, c := range calls {
			w.Release(c.Comes())
		}
		for _, h := range holds {
			w.Fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
		}
		require.Zero(w, w.Inside())
	})
}

// A removal with a late reply may have been executed by a former master: it is sent again, and the result covers both.
func TestSemaphore_ForceUnlockIsAnsweredLate(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]kit.Fate{
		"removed":                      kit.SlowReply(kit.LateAfter),
		"removed by a former master":   kit.DeposedAnswer(":1\r\n"),
		"not known to a former master": kit.DeposedAnswer(":0\r\n"),
	} {
		for whose, holder := range map[string]func(h *lockregistry.Hold) string{
			"all": func(*lockregistry.Hold) string { return "" }, "one": (*lockregistry.Hold).Holder,
		} {
			t.Run(name+"/"+whose, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					f := w.Flaky()
					r := f.Registry()
					w.Known(r)
					h, own := w.Permit(w.Registry().Semaphore("seat", 2)), w.Permit(r.Semaphore("seat", 2))
					sent := f.Count("release")
					f.Fates("release", what)
					if one := holder(h); one != "" {
						require.NoError(w, inspect.Of(r).ForceUnlockHolder(w.Context(), "seat", one))
						require.Equal(w, 1, w.Inside())
						w.Release(own)
					} else {
						require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), "seat"))
						w.Fails(own.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
					}
					require.GreaterOrEqual(w, f.Count("release"), sent+2)
					require.Zero(w, w.Inside())
					w.Fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
				})
			})
		}
	}
}

// A semaphore that ends during the removal counts as free.
func TestSemaphore_ForceUnlockOfOneThatEnds(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		wrong := kit.Refused("WRONGTYPE Operation against a key holding the wrong kind of value") // a moment ago it held a semaphore
		f.Fates("unlock", wrong, wrong)
		require.NoError(w, inspect.Of(r).ForceUnlock(w.Context(), "seat"))
		w.Fails(inspect.Of(r).ForceUnlockHolder(w.Context(), "seat", "any:1"), lockregistry.ErrNotOwner, "forceunlock", kit.SeatKey)
		w.Do("ZADD", kit.SeatKey, "1", "any")
		f.Fates("unlock", wrong)
		w.Fails(inspect.Of(r).ForceUnlock(w.Context(), "seat"), lockregistry.ErrWrongType, "forceunlock", kit.SeatKey)
	})
}

// A hold that is granted while all holds are removed may be removed, too: it is soon reported lost, although nobody renews it.
func TestSemaphore_ForceUnlockWhileOneIsGranted(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		s := r.Semaphore("seat", 2)
		first := w.Permit(s)
		arrives := make(chan struct{})
		f.Fates("release", kit.HeldUp(arrives))
		forced := make(chan error, 1)
		go func() { forced <- inspect.Of(r).ForceUnlock(w.Context(), "seat") }()
		w.Pass(700 * time.Millisecond) // by then commands go over another connection
		w.Pending(forced)
		second := w.Permit(s, lockregistry.Lease(time.Hour))
		w.Pending(forced)
		require.Equal(w, 2, w.Inside())
		ctx := second.Context(w.Context())
		close(arrives)
		require.NoError(w, <-forced)
		require.Zero(w, w.Inside())
		w.Pass(time.Second)
		require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
		w.Fails(first.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
		w.Fails(second.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
	})
}
