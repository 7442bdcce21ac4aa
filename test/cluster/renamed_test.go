package cluster_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// All nodes of a cluster announce other addresses, as when it is changed to host names. No server redirects, and no connection
// breaks. The client learns of it all the same, so waiting calls do not have to poll.
func TestWakeup_RenamedNodes(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	if !kit.HasShardedChannels(t, nodes[0]) { // before version 7 a node does not report what it announces itself
		return
	}
	leads := map[string]string{} // where an announced address leads; constant once clients dial
	for i, node := range nodes {
		leads[node.Addr()] = node.Addr()
		leads[renamed(i)] = node.Addr()
	}
	registry := func() (*lockregistry.Registry, rueidis.Client) {
		client, err := kit.NewClient(rueidis.ClientOption{
			InitAddress: []string{nodes[0].Addr()}, DisableCache: true,
			DialCtxFn: func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return d.DialContext(ctx, "tcp", leads[address])
			},
		})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		r, err := lockregistry.New(client, "orders", lockregistry.WithPollInterval(kit.NoPoll))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		return r, client
	}
	w := kit.RealWorld(t, nodes[0])
	holds, _ := registry()
	waits, client := registry()
	locked := func(path string) {
		require.NoError(t, holds.Obtain(path).Lock(t.Context()))
		g := w.Goroutine()
		result := g.Starts(waits.Obtain(path))
		w.Await(path+" is tracked", func() bool {
			tracked := 0
			for _, node := range nodes {
				tracked += kit.RealWorld(t, node).Tracked()
			}
			return tracked == 1
		})
		start := time.Now()
		require.NoError(t, kit.UnlessLate(holds.Obtain(path).Unlock(t.Context())))
		t.Log(path, w.Takes(start, result))
		require.NoError(t, g.Unlock(waits.Obtain(path)))
	}
	locked("1")
	for i, node := range nodes {
		node.Command(t, "CONFIG", "SET", "cluster-announce-port", strconv.Itoa(1+i))
	}
	w.Await("the client knows the new addresses", func() bool {
		_ = waits.Stats() // asks the nodes
		known := client.Nodes()
		for i := range nodes {
			if known[renamed(i)] == nil {
				return false
			}
		}
		return true
	})
	for _, path := range []string{"1", "2", "3", "4", "5"} {
		locked(path)
	}
}

// renamed returns the address that node i announces in the end.
func renamed(i int) string { return fmt.Sprintf("127.0.0.1:%d", 1+i) }
