package cluster_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// On a cluster the channel is in the slot of the key.
func TestInspect_WaitersWhoseProcessIsGoneOnACluster(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	if !kit.HasShardedChannels(t, cluster.Nodes[0]) {
		return // there is no queue
	}
	holder, waiter := cluster.Registry(t), cluster.Registry(t)
	for _, path := range []string{"a", "b", "{tag}d"} {
		l := holder.Obtain(path)
		require.NoError(t, l.Lock(t.Context()))
		ctx, end := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _ = waiter.Obtain(path).Lock(ctx) })
		for found := false; !found; <-time.After(time.Millisecond) {
			info, err := inspect.Of(holder).Inspect(t.Context(), path)
			require.NoError(t, err)
			if found = info.WaiterCount == 1; found {
				require.Equal(t, kit.ClientID(waiter), info.Waiters[0].Registry)
				require.False(t, info.Waiters[0].Gone)
			}
		}
		end()
		all.Wait()
		require.NoError(t, kit.UnlessLate(l.Unlock(t.Context())))
	}
}
