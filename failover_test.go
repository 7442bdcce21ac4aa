package lockregistry_test

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// When the connection for wake-ups is lost, holds whose keys a failover has lost are told so at once, and not only with their
// next renewal or their leases' ends. Those that are not lost go on.
func TestFailover_ALostConnectionHasHoldsLookedAt(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{
		"with a context": nil,
		"renewed":        {lockregistry.WithRenewal()},
		"redisson":       {lockregistry.WithLayout(lockregistry.LayoutRedisson)},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				r := w.registry(opts...)
				gone, kept, silent := r.Obtain("42"), r.Obtain("43"), r.Obtain("44")
				w.lock(gone)
				w.lock(kept)
				w.lock(silent) // without a context
				told, goesOn := gone.Context(w.Context()), kept.Context(w.Context())
				elsewhere := w.registry(opts...).Obtain("46")
				w.lock(elsewhere)
				waiter := lockElsewhere(r.Obtain("46"), w.Context())
				w.await("it listens", func() bool { return strings.Contains(w.do("PUBSUB", "CHANNELS", "orders-channel@*"), "@") })
				w.do("DEL", theKey, "orders:44")
				start := time.Now()
				w.do("CLIENT", "KILL", "TYPE", "pubsub")
				<-told.Done()
				w.await("the loss of the other one", func() bool { return !silent.IsHeld() })
				require.ErrorIs(w, context.Cause(told), lockregistry.ErrLockLost)
				require.Less(w, time.Since(start), time.Second)
				require.NoError(w, goesOn.Err())
				w.unlock(kept)
				w.unlock(elsewhere)
				require.NoError(w, <-waiter)
			})
		})
	}
}

// A removal that was confirmed just before the connection broke may be lost by a failover. It is sent once more, so that the
// path is not blocked for a lease.
func TestFailover_ARemovalIsSentOnceMore(t *testing.T) {
	realWorlds(t, func(w *world) {
		r := w.registry()
		elsewhere, l := w.registry().Obtain("46"), r.Obtain("42")
		w.lock(elsewhere)
		waiter := lockElsewhere(r.Obtain("46"), w.Context())
		w.await("it listens", func() bool { return strings.Contains(w.do("PUBSUB", "CHANNELS", "orders-channel@*"), "@") })
		w.lock(l)
		value, newer := w.do("GET", theKey), r.Obtain("43")
		w.unlock(l)
		w.lock(newer)
		w.do("SET", theKey, value, "PX", "600000") // as the server that has taken over has it
		w.do("CLIENT", "KILL", "TYPE", "pubsub")
		w.awaitGone(theKey)
		require.True(w, newer.IsHeld())
		w.unlock(newer)
		w.unlock(elsewhere)
		require.NoError(w, <-waiter)
	})
}

// In a cluster a lost connection says something about the holds of its node only.
func TestFailover_ALostConnectionOfANodeHasItsHoldsLookedAt(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	if !sharded(t, nodes[0]) {
		return // it has no connection for each node
	}
	r, other := onCluster(t, nodes), onCluster(t, nodes)
	held, taken, waiters := make([]*lockregistry.Lock, 2), make([]*lockregistry.Lock, 2), make([]<-chan error, 2)
	for n, i := 0, 0; n < len(held); i++ {
		path := strconv.Itoa(i)
		if _, err := nodes[n].Do("EXISTS", "orders:"+path); err != nil {
			continue // it is another node's
		}
		if held[n] == nil {
			held[n] = r.Obtain(path)
			require.NoError(t, held[n].Lock(t.Context()))
			continue
		}
		taken[n] = other.Obtain(path)
		require.NoError(t, taken[n].Lock(t.Context()))
		waiters[n] = lockElsewhere(r.Obtain(path), t.Context())
		listens := func() bool { return nodes[n].Command(t, "PUBSUB", "SHARDCHANNELS") != "[]" }
		require.Eventually(t, listens, 10*time.Second, time.Millisecond)
		nodes[n].Command(t, "DEL", held[n].Key())
		n++
	}
	for n, l := range held {
		nodes[n].Command(t, "CLIENT", "KILL", "TYPE", "pubsub")
		require.Eventually(t, func() bool { return !l.IsHeld() }, 10*time.Second, time.Millisecond)
		if n == 0 {
			require.Never(t, func() bool { return !held[1].IsHeld() }, 300*time.Millisecond, 10*time.Millisecond)
		}
	}
	for n, l := range taken {
		require.NoError(t, l.Unlock(t.Context()))
		require.NoError(t, <-waiters[n])
	}
}
