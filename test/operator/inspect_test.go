package operator_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A ticket of a dead process is marked as such. If the user may not ask, nothing is said about the process.
func TestInspect_WaitersWhoseProcessIsGone(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		holder, waiter := w.Registry(), w.Registry()
		viewer := w.RegistryOn(w.User("+@all", "-pubsub"))
		l := holder.Obtain("42")
		w.Lock(l)
		owner := lockregistry.ContextWithOwner(w.Context())
		locked := kit.LockElsewhere(waiter.Obtain("42"), owner)
		w.Await("it waits", func() bool { return look(w, holder, "42").WaiterCount == 1 })
		w.Do("ZADD", "orders:{orders:42}:waiters", "1795278376064288", aUUID+":5|60000")
		for _, h := range look(w, holder, "42").Waiters {
			require.Equal(w, h.Registry == aUUID, h.Gone, h.Registry)
		}
		for _, h := range look(w, viewer, "42").Waiters {
			require.False(w, h.Gone, "it is not known")
		}
		w.Unlock(l)
		require.NoError(w, <-locked)
		w.Released(waiter.Obtain("42").Unlock(owner))
	})
}

// A hold with AtMost is renewed until its end is near, and then is not overdue.
func TestInspect_RenewalsUpToABound(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		viewer := w.Registry()
		h := w.Acquires(w.Registry(lockregistry.WithLease(9*time.Second)).Obtain("42"), lockregistry.AtMost(25*time.Second))
		ctx, seen := h.Context(w.Context()), map[time.Duration]bool{}
		for w.Pass(time.Second); ctx.Err() == nil; w.Pass(time.Second) {
			holder := look(w, viewer, "42").Holders[0]
			require.Zero(w, holder.Overdue())
			seen[holder.Renewed] = true
		}
		require.Equal(w, map[time.Duration]bool{0: true, 9 * time.Second: true}, seen)
	})
}

// A holder whose lease runs down past the time of its renewal does not renew it.
func TestInspect_RenewalsThatAreOverdue(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		viewer := w.Registry()
		for name, opts := range map[string][]lockregistry.Option{"renewed": {lockregistry.WithRenewal()}, "not": nil} {
			l := w.Registry(opts...).Obtain(name)
			w.Lock(l)
			for range 50 {
				w.Pass(time.Second)
				require.Zero(w, look(w, viewer, name).Holders[0].Overdue())
			}
		}
		l := w.Registry(lockregistry.WithRenewal()).Obtain("42")
		w.Lock(l)
		w.Pass(recorded)
		w.Do("PEXPIRE", "orders:42", "35000")
		require.Equal(w, time.Minute, look(w, viewer, "42").Holders[0].Renewed)
		require.Zero(w, look(w, viewer, "42").Holders[0].Overdue(), "it may be chance")
		w.Do("PEXPIRE", "orders:42", "33000")
		require.InDelta(w, 7, look(w, viewer, "42").Holders[0].Overdue().Seconds(), 0.1)
		w.Do("PERSIST", "orders:42")
		require.Zero(w, look(w, viewer, "42").Holders[0].Overdue(), "it has no end")
	})
}

// look inspects a path as another process would.
func look(w *kit.World, r *lockregistry.Registry, path string) inspect.Lock {
	w.Helper()
	info, err := inspect.Of(r).Inspect(w.Context(), path)
	require.NoError(w, err)
	require.Equal(w, path, info.Path)
	require.Equal(w, "orders:"+path, info.Key)
	return info
}

func TestInspect_TellsKindsApart(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		spring := w.Registry(lockregistry.WithClientID("billing"))
		redisson := w.Registry(lockregistry.WithRedissonLayout())
		viewer := w.Registry()

		info := look(w, viewer, "free")
		require.Equal(w, inspect.Lock{Path: "free", Key: "orders:free", Layout: observe.LayoutSpring}, info)

		w.Lock(spring.Obtain("plain"))
		info = look(w, viewer, "plain")
		require.Equal(w, observe.KindLock, info.Kind)
		require.Equal(w, observe.LayoutSpring, info.Layout)
		require.Equal(w, 1, info.HolderCount)
		require.Equal(w, w.Do("GET", "orders:plain"), info.Holders[0].Holder)
		require.False(w, info.Holders[0].Shared)
		require.InDelta(w, time.Minute, info.Holders[0].Lease, float64(20*time.Second))

		w.Lock(redisson.Obtain("hash"))
		info = look(w, viewer, "hash")
		require.Equal(w, observe.KindLock, info.Kind)
		require.Equal(w, observe.LayoutRedisson, info.Layout)
		require.True(w, strings.HasPrefix(info.Holders[0].Holder, kit.ClientID(redisson)+":"), info.Holders[0].Holder)
		w.Released(inspect.Of(viewer).ForceUnlock(w.Context(), "plain"))

		w.Lock(spring.ReadWrite("rw").Reader())
		w.Lock(redisson.ReadWrite("rw").Reader())
		info = look(w, viewer, "rw")
		require.Equal(w, observe.KindReadWrite, info.Kind)
		require.Equal(w, 2, info.HolderCount)
		require.Len(w, info.Holders, 2)
		for _, h := range info.Holders {
			require.True(w, h.Shared)
			require.Positive(w, h.Lease)
		}

		w.Lock(spring.ReadWrite("write").Writer())
		info = look(w, viewer, "write")
		require.Equal(w, observe.KindReadWrite, info.Kind)
		require.False(w, info.Holders[0].Shared)
		require.True(w, strings.HasSuffix(info.Holders[0].Holder, ":write"))

		hold, err := spring.Acquire(w.Context(), "kept", lockregistry.AtLeast(time.Hour))
		require.NoError(w, err)
		w.Released(hold.Release(w.Context()))
		info = look(w, viewer, "kept")
		require.True(w, info.Holders[0].Kept)
		require.Greater(w, info.Holders[0].Lease, 59*time.Minute)

		w.Do("SET", "orders:java", "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55")
		info = look(w, viewer, "java")
		require.Equal(w, observe.KindLock, info.Kind)
		require.False(w, info.Holders[0].Label.Known())
		require.Zero(w, info.Holders[0].Since)
		require.Negative(w, info.Holders[0].Lease, "it has no end")

		w.Do("HSET", "orders:redisson", "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55:83", "2")
		info = look(w, viewer, "redisson")
		require.Equal(w, observe.KindLock, info.Kind)
		require.Zero(w, info.Holders[0].Since, "a thread is no time")
		w.Do("SET", "orders:far", "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55:4611686018427387904")
		w.Do("ZADD", "orders:{orders:far}:waiters", "4611686018427387904", "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55:1")
		info = look(w, viewer, "far")
		require.Zero(w, info.Holders[0].Since, "in 148107 nobody is left")
		require.Zero(w, info.Waiters[0].Since)
	})
}

func TestInspect_RefusesWhatIsNoLock(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		w.Do("RPUSH", "orders:list", "a")
		w.Do("HSET", "orders:hash", "customer", "7")
		w.Do("SET", "orders:long", strings.Repeat("x", 5000))
		for _, path := range []string{"list", "hash", "long"} {
			_, err := inspect.Of(r).Inspect(w.Context(), path)
			w.Fails(err, lockregistry.ErrWrongType, "inspect", "orders:"+path)
		}
		_, err := inspect.Of(r).Inspect(w.Context(), "")
		require.ErrorContains(w, err, "the path is empty")
		_, err = inspect.Of(r).Inspect(w.Context(), "{a}:registry")
		require.ErrorContains(w, err, "reserved")
		_, err = inspect.Of(r).Inspect(nil, "a") //nolint:staticcheck // that is the case
		require.ErrorContains(w, err, "the context is nil")
		over, cancel := context.WithCancel(w.Context())
		cancel()
		_, err = inspect.Of(r).Inspect(over, "a")
		w.Fails(err, context.Canceled, "inspect", "orders:a")
		require.NoError(w, r.Close())
		_, err = inspect.Of(r).Inspect(w.Context(), "a")
		w.Fails(err, lockregistry.ErrClosed, "inspect", "orders:a")
	})
}

// The key of a record ends with its registry in braces. Braces elsewhere, such as those of a prefix on a cluster, reserve
// nothing.
func TestInspect_APathThatEndsAsARecordDoes(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r, err := lockregistry.New(w.Client(), "{app}:locks")
		require.NoError(w, err)
		defer func() { require.NoError(w, r.Close()) }()
		l := r.Obtain("docker:registry")
		w.Lock(l)
		info, err := inspect.Of(r).Inspect(w.Context(), "docker:registry")
		require.NoError(w, err)
		require.Equal(w, 1, info.HolderCount)
		w.Unlock(l)
		require.ErrorContains(w, r.Obtain("{docker}:registry").Lock(w.Context()), "reserved")
	})
}

func TestInspect_ShowsTheQueue(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		holder, viewer := w.Registry(lockregistry.WithFencing()), w.Registry()
		l := holder.Obtain("42")
		w.Lock(l)
		var waiters []*lockregistry.Registry
		var owners []context.Context
		var locked []<-chan error
		for range 3 {
			waiter := w.Registry()
			waiters = append(waiters, waiter)
			owners = append(owners, lockregistry.ContextWithOwner(w.Context()))
			locked = append(locked, kit.LockElsewhere(waiter.Obtain("42"), owners[len(owners)-1]))
			w.Await("it waits", func() bool { return look(w, viewer, "42").WaiterCount == len(waiters) })
		}
		info := look(w, viewer, "42")
		for i, waiter := range waiters {
			require.Equal(w, kit.ClientID(waiter), info.Waiters[i].Registry, "in order")
			require.WithinDuration(w, time.Now(), info.Waiters[i].Since, time.Minute)
			require.False(w, info.Waiters[i].Shared)
		}
		require.NotZero(w, info.Holders[0].Token)
		require.True(w, look(w, holder, "42").Holders[0].Label.Known(), "its own")
		require.Equal(w, os.Getpid(), look(w, holder, "42").Holders[0].Label.PID)

		w.Released(inspect.Of(viewer).ForceUnlock(w.Context(), "42"))
		for i, waiter := range waiters {
			require.NoError(w, <-locked[i])
			w.Released(waiter.Obtain("42").Unlock(owners[i]))
		}
	})
}

// A reader whose own lease is over holds nothing, although the hash lists it for as long as others read.
func TestInspect_LeavesOutReadersWhoseLeaseIsOver(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		a, b := w.Registry(), w.Registry()
		w.Lock(a.ReadWrite("42").Reader())
		w.Lock(b.ReadWrite("42").Reader())
		for _, h := range look(w, a, "42").Holders {
			if strings.HasPrefix(h.Holder, kit.ClientID(a)) {
				w.Do("DEL", "{orders:42}:"+h.Holder+":rwlock_timeout:1")
			}
		}
		info := look(w, a, "42")
		require.Equal(w, 1, info.HolderCount)
		require.Len(w, info.Holders, 1)
		require.True(w, strings.HasPrefix(info.Holders[0].Holder, kit.ClientID(b)))
	})
}

// Of a crowd of waiters, the first hundred are shown, and how many there are.
func TestInspect_OfACrowd(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		const many = 1000
		w.Do("EVAL", `redis.call('HSET', 'orders:42', 'mode', 'read')
			for i = 1, 1000 do
				redis.call('HSET', 'orders:42', ARGV[1] .. ':' .. i, '1')
				redis.call('SET', '{orders:42}:' .. ARGV[1] .. ':' .. i .. ':rwlock_timeout:1', '1', 'PX', 1000 * i + 60000)
				redis.call('ZADD', 'orders:{orders:42}:waiters', 1795278376000000 + i, ARGV[1] .. ':' .. (5000 + i) .. '|60000w')
			end
			redis.call('ZADD', 'orders:{orders:42}:waiters', -5, 'open', -1, 'wide', 1795278376000000, 'guest')`, "0", aUUID)
		info := look(w, w.Registry(), "42")
		require.Equal(w, many, info.HolderCount)
		require.Equal(w, many, info.WaiterCount)
		require.Len(w, info.Holders, 100)
		require.Len(w, info.Waiters, 100)
		seen := map[string]bool{}
		for i := range 100 {
			require.False(w, seen[info.Holders[i].Holder])
			seen[info.Holders[i].Holder] = true
			require.Greater(w, info.Holders[i].Lease, 30*time.Second)
			require.Equal(w, time.UnixMicro(1795278376000001+int64(i)), info.Waiters[i].Since)
			require.False(w, info.Waiters[i].Shared)
		}
	})
}
