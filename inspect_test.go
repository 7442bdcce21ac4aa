package lockregistry_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
)

// look inspects a path as another process does.
func (w *world) look(r *lockregistry.Registry, path string) observe.LockInfo {
	w.Helper()
	info, err := r.Inspect(w.Context(), path)
	require.NoError(w, err)
	require.Equal(w, path, info.Path)
	require.Equal(w, "orders:"+path, info.Key)
	return info
}

func TestInspect_TellsKindsApart(t *testing.T) {
	worlds(t, func(w *world) {
		spring := w.registry(lockregistry.WithClientID("billing"))
		redisson := w.registry(lockregistry.WithLayout(lockregistry.LayoutRedisson))
		viewer := w.registry()

		info := w.look(viewer, "free")
		require.Equal(w, observe.LockInfo{Path: "free", Key: "orders:free"}, info)

		w.lock(spring.Obtain("plain"))
		info = w.look(viewer, "plain")
		require.Equal(w, observe.KindLock, info.Kind)
		require.Equal(w, lockregistry.LayoutSpring, info.Layout)
		require.Equal(w, 1, info.HolderCount)
		require.Equal(w, w.do("GET", "orders:plain"), info.Holders[0].Holder)
		require.False(w, info.Holders[0].Shared)
		require.InDelta(w, time.Minute, info.Holders[0].Lease, float64(20*time.Second))

		w.lock(redisson.Obtain("hash"))
		info = w.look(viewer, "hash")
		require.Equal(w, observe.KindLock, info.Kind)
		require.Equal(w, lockregistry.LayoutRedisson, info.Layout)
		require.True(w, strings.HasPrefix(info.Holders[0].Holder, redisson.ClientID()+":"), info.Holders[0].Holder)
		require.NoError(w, viewer.ForceUnlock(w.Context(), "plain"))

		w.lock(spring.ReadWrite("rw").Reader())
		w.lock(redisson.ReadWrite("rw").Reader())
		info = w.look(viewer, "rw")
		require.Equal(w, observe.KindReadWrite, info.Kind)
		require.Equal(w, 2, info.HolderCount)
		require.Len(w, info.Holders, 2)
		for _, h := range info.Holders {
			require.True(w, h.Shared)
			require.Positive(w, h.Lease)
		}

		w.lock(spring.ReadWrite("write").Writer())
		info = w.look(viewer, "write")
		require.Equal(w, observe.KindReadWrite, info.Kind)
		require.False(w, info.Holders[0].Shared)
		require.True(w, strings.HasSuffix(info.Holders[0].Holder, ":write"))

		hold, err := spring.Acquire(w.Context(), "kept", lockregistry.AtLeast(time.Hour))
		require.NoError(w, err)
		require.NoError(w, hold.Release(w.Context()))
		info = w.look(viewer, "kept")
		require.True(w, info.Holders[0].Kept)
		require.Greater(w, info.Holders[0].Lease, 59*time.Minute)

		w.do("SET", "orders:java", "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55")
		info = w.look(viewer, "java")
		require.Equal(w, observe.KindLock, info.Kind)
		require.False(w, info.Holders[0].Label.Known())
		require.Zero(w, info.Holders[0].Since)
		require.Negative(w, info.Holders[0].Lease, "it has no end")

		w.do("HSET", "orders:redisson", "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55:83", "2")
		info = w.look(viewer, "redisson")
		require.Equal(w, observe.KindLock, info.Kind)
		require.Zero(w, info.Holders[0].Since, "a thread is no time")
		w.do("SET", "orders:far", "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55:4611686018427387904")
		w.do("ZADD", "orders:{orders:far}:waiters", "4611686018427387904", "4d3c8a52-96c1-4d0e-9d6b-1f7f6f0f7a55:1")
		info = w.look(viewer, "far")
		require.Zero(w, info.Holders[0].Since, "in 148107 nobody is left")
		require.Zero(w, info.Waiters[0].Since)
	})
}

func TestInspect_RefusesWhatIsNoLock(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		w.do("RPUSH", "orders:list", "a")
		w.do("HSET", "orders:hash", "customer", "7")
		w.do("SET", "orders:long", strings.Repeat("x", 5000))
		for _, path := range []string{"list", "hash", "long"} {
			_, err := r.Inspect(w.Context(), path)
			w.fails(err, lockregistry.ErrWrongType, "inspect", "orders:"+path)
		}
		_, err := r.Inspect(w.Context(), "")
		require.ErrorContains(w, err, "the path is empty")
		_, err = r.Inspect(w.Context(), "{a}:registry")
		require.ErrorContains(w, err, "reserved")
		_, err = r.Inspect(nil, "a") //nolint:staticcheck // that is the case
		require.ErrorContains(w, err, "the context is nil")
		over, cancel := context.WithCancel(w.Context())
		cancel()
		_, err = r.Inspect(over, "a")
		w.fails(err, context.Canceled, "inspect", "orders:a")
		require.NoError(w, r.Close())
		_, err = r.Inspect(w.Context(), "a")
		w.fails(err, lockregistry.ErrClosed, "inspect", "orders:a")
	})
}

// A record has the registry in braces at the end of its key. Braces elsewhere, as those of a prefix on a cluster, reserve
// nothing.
func TestInspect_APathThatEndsAsARecordDoes(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r, err := lockregistry.New(w.client(), "{app}:locks")
		require.NoError(w, err)
		defer func() { require.NoError(w, r.Close()) }()
		l := r.Obtain("docker:registry")
		w.lock(l)
		info, err := r.Inspect(w.Context(), "docker:registry")
		require.NoError(w, err)
		require.Equal(w, 1, info.HolderCount)
		w.unlock(l)
		require.ErrorContains(w, r.Obtain("{docker}:registry").Lock(w.Context()), "reserved")
	})
}

func TestInspect_ShowsTheQueue(t *testing.T) {
	realWorlds(t, func(w *world) {
		holder, viewer := w.registry(lockregistry.WithFencing()), w.registry()
		l := holder.Obtain("42")
		w.lock(l)
		var waiters []*lockregistry.Registry
		var owners []context.Context
		var locked []<-chan error
		for range 3 {
			waiter := w.registry()
			waiters = append(waiters, waiter)
			owners = append(owners, lockregistry.NewOwner(w.Context()))
			locked = append(locked, lockElsewhere(waiter.Obtain("42"), owners[len(owners)-1]))
			w.await("it waits", func() bool { return w.look(viewer, "42").WaiterCount == len(waiters) })
		}
		info := w.look(viewer, "42")
		for i, waiter := range waiters {
			require.Equal(w, waiter.ClientID(), info.Waiters[i].Registry, "in order")
			require.WithinDuration(w, time.Now(), info.Waiters[i].Since, time.Minute)
			require.False(w, info.Waiters[i].Shared)
		}
		require.NotZero(w, info.Holders[0].Token)
		require.True(w, w.look(holder, "42").Holders[0].Label.Known(), "its own")
		require.Equal(w, os.Getpid(), w.look(holder, "42").Holders[0].Label.PID)

		require.NoError(w, viewer.ForceUnlock(w.Context(), "42"))
		for i, waiter := range waiters {
			require.NoError(w, <-locked[i])
			require.NoError(w, waiter.Obtain("42").Unlock(owners[i]))
		}
	})
}

// A reader whose own lease is over holds nothing, although the hash names it for as long as others read.
func TestInspect_LeavesOutReadersWhoseLeaseIsOver(t *testing.T) {
	worlds(t, func(w *world) {
		a, b := w.registry(), w.registry()
		w.lock(a.ReadWrite("42").Reader())
		w.lock(b.ReadWrite("42").Reader())
		for _, h := range w.look(a, "42").Holders {
			if strings.HasPrefix(h.Holder, a.ClientID()) {
				w.do("DEL", "{orders:42}:"+h.Holder+":rwlock_timeout:1")
			}
		}
		info := w.look(a, "42")
		require.Equal(w, 1, info.HolderCount)
		require.Len(w, info.Holders, 1)
		require.True(w, strings.HasPrefix(info.Holders[0].Holder, b.ClientID()))
	})
}

// The first hundred of many, and how many there are.
func TestInspect_OfACrowd(t *testing.T) {
	worlds(t, func(w *world) {
		const many = 1000
		w.do("EVAL", `redis.call('HSET', 'orders:42', 'mode', 'read')
			for i = 1, 1000 do
				redis.call('HSET', 'orders:42', ARGV[1] .. ':' .. i, '1')
				redis.call('SET', '{orders:42}:' .. ARGV[1] .. ':' .. i .. ':rwlock_timeout:1', '1', 'PX', 1000 * i + 60000)
				redis.call('ZADD', 'orders:{orders:42}:waiters', 1795278376000000 + i, ARGV[1] .. ':' .. (5000 + i) .. '|60000w')
			end
			redis.call('ZADD', 'orders:{orders:42}:waiters', -5, 'open', -1, 'wide', 1795278376000000, 'guest')`, "0", aUUID)
		info := w.look(w.registry(), "42")
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
