package lockregistry_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// A ticket whose process is gone is told from one whose process listens. Where the user may not ask, nothing is said.
func TestInspect_WaitersWhoseProcessIsGone(t *testing.T) {
	realWorlds(t, func(w *world) {
		holder, waiter := w.registry(), w.registry()
		viewer := w.registryOn(w.user("+@all", "-pubsub"))
		l := holder.Obtain("42")
		w.lock(l)
		owner := lockregistry.NewOwner(w.Context())
		locked := lockElsewhere(waiter.Obtain("42"), owner)
		w.await("it waits", func() bool { return w.look(holder, "42").WaiterCount == 1 })
		w.do("ZADD", "orders:{orders:42}:waiters", "1795278376064288", aUUID+":5|60000")
		for _, h := range w.look(holder, "42").Waiters {
			require.Equal(w, h.Registry == aUUID, h.Gone, h.Registry)
		}
		for _, h := range w.look(viewer, "42").Waiters {
			require.False(w, h.Gone, "it is not known")
		}
		w.unlock(l)
		require.NoError(w, <-locked)
		require.NoError(w, waiter.Obtain("42").Unlock(owner))
	})
}

// On a cluster the channel is in the slot of the key.
func TestInspect_WaitersWhoseProcessIsGoneOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	if !sharded(t, nodes[0]) {
		return // there is no queue
	}
	holder, waiter := onCluster(t, nodes), onCluster(t, nodes)
	for _, path := range []string{"a", "b", "{tag}d"} {
		l := holder.Obtain(path)
		require.NoError(t, l.Lock(t.Context()))
		ctx, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _ = waiter.Obtain(path).Lock(ctx) })
		for found := false; !found; <-time.After(time.Millisecond) {
			info, err := holder.Inspect(t.Context(), path)
			require.NoError(t, err)
			if found = info.WaiterCount == 1; found {
				require.Equal(t, waiter.ClientID(), info.Waiters[0].Registry)
				require.False(t, info.Waiters[0].Gone)
			}
		}
		end()
		all.Wait()
		require.NoError(t, l.Unlock(t.Context()))
	}
}

// What is held for so long at most is renewed until its end is near, and not overdue then.
func TestInspect_RenewalsUpToABound(t *testing.T) {
	fakeWorld(t, func(w *world) {
		viewer := w.registry()
		h := w.acquires(w.registry(lockregistry.WithLease(9*time.Second)).Obtain("42"), lockregistry.AtMost(25*time.Second))
		ctx, seen := h.Context(w.Context()), map[time.Duration]bool{}
		for w.pass(time.Second); ctx.Err() == nil; w.pass(time.Second) {
			holder := w.look(viewer, "42").Holders[0]
			require.Zero(w, holder.Overdue())
			seen[holder.Renewed] = true
		}
		require.Equal(w, map[time.Duration]bool{0: true, 9 * time.Second: true}, seen)
	})
}

// A holder whose lease runs down further than to its renewal does not renew it.
func TestInspect_RenewalsThatAreOverdue(t *testing.T) {
	fakeWorld(t, func(w *world) {
		viewer := w.registry()
		for name, opts := range map[string][]lockregistry.Option{"renewed": {lockregistry.WithRenewal()}, "not": nil} {
			l := w.registry(opts...).Obtain(name)
			w.lock(l)
			for range 50 {
				w.pass(time.Second)
				require.Zero(w, w.look(viewer, name).Holders[0].Overdue())
			}
		}
		l := w.registry(lockregistry.WithRenewal()).Obtain("42")
		w.lock(l)
		w.pass(recorded)
		w.do("PEXPIRE", "orders:42", "35000")
		require.Equal(w, time.Minute, w.look(viewer, "42").Holders[0].Renewed)
		require.Zero(w, w.look(viewer, "42").Holders[0].Overdue(), "it may be chance")
		w.do("PEXPIRE", "orders:42", "33000")
		require.InDelta(w, 7, w.look(viewer, "42").Holders[0].Overdue().Seconds(), 0.1)
		w.do("PERSIST", "orders:42")
		require.Zero(w, w.look(viewer, "42").Holders[0].Overdue(), "it has no end")
	})
}
