package cluster_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestWakeup_Cluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	addresses := make([]string, 0, len(nodes))
	for _, node := range nodes {
		addresses = append(addresses, node.Addr())
	}
	cluster := func(t *testing.T) rueidis.Client {
		t.Helper()
		client, err := kit.NewClient(rueidis.ClientOption{InitAddress: addresses})
		require.NoError(t, err)
		require.Equal(t, rueidis.ClientModeCluster, client.Mode())
		t.Cleanup(client.Close)
		return client
	}
	subscribed := func(t *testing.T, channel string) bool {
		t.Helper()
		for _, node := range nodes {
			if strings.HasSuffix(node.Command(t, "PUBSUB", "NUMSUB", channel), "1") {
				return true
			}
		}
		return false
	}
	tracked := func(t *testing.T) (n int) {
		t.Helper()
		for _, node := range nodes {
			n += kit.RealWorld(t, node).Tracked()
		}
		return n
	}
	for name, mode := range kit.Wakeups {
		t.Run(name, func(t *testing.T) {
			w := kit.RealWorld(t, nodes[0])
			var log kit.Journal
			made := func(opts ...lockregistry.Option) *lockregistry.Registry {
				r, err := lockregistry.New(cluster(t), "orders", append(opts,
					kit.WithWakeup(mode), lockregistry.WithPollInterval(kit.NoPoll))...)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, r.Close()) })
				return r
			}
			holds, waits := made(), made(log.Option())
			// Keys on every node, so that most messages have to cross from one to another.
			for _, path := range []string{"1", "2", "3", "4", "5", "{eu}:1", "{eu}:2", "{us}:1", "{jp}:{x}", "{"} {
				key := "orders:" + path
				require.NoError(t, holds.Obtain(path).Lock(t.Context()), path)
				g := w.Goroutine()
				result := g.Starts(waits.Obtain(path))
				if mode == kit.WakeupPubSub {
					w.Await("a subscription for "+path, func() bool { return subscribed(t, kit.OldChannel+":"+key) })
				} else {
					w.Await(path+" is tracked", func() bool { return tracked(t) == 1 })
				}
				w.Pending(result)
				start := time.Now()
				require.NoError(t, kit.UnlessLate(holds.Obtain(path).Unlock(t.Context())))
				t.Log(path, w.Takes(start, result))
				require.NoError(t, g.Unlock(waits.Obtain(path)))
			}
			if kit.HasShardedChannels(t, nodes[0]) {
				require.Empty(t, log.Lines())
			} else {
				require.Equal(t, log.Lines("way=queueing"), log.Lines(), "one line: there is no queue")
			}
		})
	}
}
