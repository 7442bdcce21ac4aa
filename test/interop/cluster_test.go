package interop

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/interop/monitor"
)

// cluster is a Redis Cluster, with the commands that each of its nodes gets.
type cluster struct {
	nodes   []*redistest.Server
	watches []*monitor.Monitor
	sharded bool // it has sharded channels: servers before version 7 have none
}

func startCluster(t *testing.T) cluster {
	t.Helper()
	c := cluster{nodes: redistest.StartCluster(t, 3)}
	for _, node := range c.nodes {
		c.watches = append(c.watches, monitor.Start(t, node.Addr()))
		c.sharded = node.Command(t, "COMMAND", "INFO", "SPUBLISH") != "(nil)"
	}
	return c
}

// nodeOf returns the node that has a key; the others refuse commands for it.
func (c cluster) nodeOf(t *testing.T, key string) (*redistest.Server, *monitor.Monitor) {
	t.Helper()
	for i, node := range c.nodes {
		if _, err := node.Do("EXISTS", key); err == nil {
			return node, c.watches[i]
		}
	}
	require.Fail(t, "no node has the key", key)
	return nil, nil
}

// onCluster returns Redisson as it is configured for a cluster; this library detects one by itself.
func onCluster(l library) library {
	if l.module != "" {
		l.settings = map[string]string{"mode": "cluster"}
	}
	return l
}

// On a cluster with sharded channels Redisson listens only to these or, before 3.29, only to the others. A release by this
// library wakes it at once.
func TestClusterWaiterWakesAtOnce(t *testing.T) {
	t.Parallel()
	servers := startCluster(t)
	same := func(s *side) *side { return s }
	kinds := append([]change{{"plain", same, same}}, changes...)
	pairs := []pair{beside(redissonRow, "pubsub")}
	for _, java := range redissons() {
		pairs = append(pairs, beside(java, "auto"))
	}
	for _, r := range bothWays(pairs, always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			sharded := 0
			if servers.sharded {
				sharded = 1 // the release by this library
				if r.holder.sharded || r.waiter.sharded {
					sharded++
				}
			}
			for _, c := range kinds {
				prefix := uniquePrefix()
				o := opening{prefix: prefix, unhurried: true, at: servers.nodes[0]}
				holder := c.from(open(t, onCluster(r.holder), o))
				waiter := c.to(open(t, onCluster(r.waiter), o))
				for _, path := range []string{"a", "b", "c", "{tag}", "d e"} {
					node, watch := servers.nodeOf(t, holder.key(path))
					holder.lock(t, path)
					waiting := waiter.startWaiting(t, watch, path)
					mark := watch.Mark()
					release := holder.unlock(t, path)
					got := ended(t, waiting)
					require.Less(t, got.End.Sub(release.Begin), soon, "%s: no wake-up for %q", c.name, holder.key(path))
					waiter.unlock(t, path)
					require.Equal(t, "0", node.Command(t, "EXISTS", holder.key(path)))
					requireSharded(t, watch, mark, holder.key(path), sharded)
				}
			}
		})
	}
}

// requireSharded checks that at least so many releases are published on the sharded channel of a key.
func requireSharded(t *testing.T, watch *monitor.Monitor, mark monitor.Mark, key string, releases int) {
	t.Helper()
	watch.Mark() // everything that the releases sent came before this
	published := watch.Since(mark, func(c monitor.Command) bool {
		return c.Words[0] == "SPUBLISH" && strings.Contains(c.Words[1], key)
	})
	require.GreaterOrEqual(t, len(published), releases)
}
