package kit

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// ReplicatedWorld is a real server with a replica.
type ReplicatedWorld struct {
	*World
	Replica *redistest.Server
}

// ReplicatedWorlds runs a test on every real server, with a replica.
func ReplicatedWorlds(t *testing.T, test func(w *ReplicatedWorld)) {
	t.Helper()
	RealWorlds(t, func(w *World) { test(w.WithReplica()) })
}

// WithReplica gives the server of a world a replica, which follows it when this returns.
func (w *World) WithReplica() *ReplicatedWorld {
	w.Helper()
	host, port, err := net.SplitHostPort(w.Server.Addr())
	require.NoError(w, err)
	w.Server.Command(w, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
	f := &ReplicatedWorld{w, redistest.StartBinary(w, w.Server.Binary(), "--replicaof", host, port)}
	// The first key may arrive with the snapshot. The stream of commands may begin a second later.
	for _, key := range []string{"first", "second"} {
		w.Do("SET", key, "1")
		w.Await("the replica follows", func() bool { return f.Replica.Command(w, "GET", key) == "1" })
		w.Do("DEL", key)
	}
	return f
}

// ReplicaWait is how long registries of a ReplicatedWorld wait for the replica to acknowledge a write.
const ReplicaWait = 300 * time.Millisecond

// Replicated returns a registry whose grants a replica must have.
func (w *ReplicatedWorld) Replicated(opts ...lockregistry.Option) *lockregistry.Registry {
	w.Helper()
	return w.Registry(append([]lockregistry.Option{lockregistry.WithReplicas(1, ReplicaWait)}, opts...)...)
}

// ClusterClient returns a client of a cluster, closed at the end of the test.
func ClusterClient(t *testing.T, nodes []*redistest.Server) rueidis.Client {
	t.Helper()
	client, err := NewClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// OnCluster returns a registry on a cluster, with a client of its own. Both are closed at the end of the test.
func OnCluster(t *testing.T, nodes []*redistest.Server, opts ...lockregistry.Option) *lockregistry.Registry {
	t.Helper()
	r, err := lockregistry.New(ClusterClient(t, nodes), "orders", opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// shared is the cluster of the tests of a package. Main stops it.
var shared redistest.SharedCluster

// SharedCluster gives a test a cluster of three masters that other tests of its package use at the same time. A test that moves
// slots, stops nodes, breaks connections, or counts what a node does starts a cluster of its own.
type SharedCluster struct {
	Nodes  []*redistest.Server
	Prefix string // of all registries of the test
}

// ShareCluster returns the shared cluster for a test, with the test's name as the prefix.
func ShareCluster(t *testing.T) *SharedCluster {
	t.Helper()
	return &SharedCluster{Nodes: shared.Nodes(t), Prefix: t.Name()}
}

// Client returns a client of its own, closed at the end of the test.
func (c *SharedCluster) Client(t *testing.T, change ...func(*rueidis.ClientOption)) rueidis.Client {
	t.Helper()
	option := rueidis.ClientOption{InitAddress: []string{c.Nodes[0].Addr()}}
	for _, change := range change {
		change(&option)
	}
	client, err := NewClient(option)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	require.Equal(t, rueidis.ClientModeCluster, client.Mode())
	return client
}

// Registry returns a registry with a client of its own that caches nothing. Both are closed at the end of the test.
func (c *SharedCluster) Registry(t *testing.T, opts ...lockregistry.Option) *lockregistry.Registry {
	t.Helper()
	return c.RegistryOn(t, c.Client(t, func(o *rueidis.ClientOption) { o.DisableCache = true }), opts...)
}

// RegistryOn is Registry with a client.
func (c *SharedCluster) RegistryOn(t *testing.T, client rueidis.Client, opts ...lockregistry.Option) *lockregistry.Registry {
	t.Helper()
	r, err := lockregistry.New(client, c.Prefix, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// Keys returns the keys of the test on all nodes, except the records of its registries.
func (c *SharedCluster) Keys(t *testing.T) (all []string) {
	t.Helper()
	for _, node := range c.Nodes {
		for key := range strings.FieldsFuncSeq(node.Command(t, "KEYS", "*"+c.Prefix+"*"), func(r rune) bool { return r == '\n' }) {
			if !strings.HasSuffix(key, ":registry") {
				all = append(all, key)
			}
		}
	}
	return all
}

// LeftNothingSoon waits until no keys are left except records of registries.
func (w *World) LeftNothingSoon() {
	w.Helper()
	w.Await("nothing is left", func() bool { return w.Keys() == "0" })
}

// Redisson is the option for Redisson's format.
var Redisson = lockregistry.WithRedissonLayout()

// Hears waits for the next message on a channel.
func (w *World) Hears(heard <-chan string, want string) {
	w.Helper()
	select {
	case got := <-heard:
		require.Equal(w, want, got)
	case <-time.After(20 * time.Second):
		w.Fatal("nobody published ", want)
	}
}

// HasShardedChannels reports whether a server has sharded channels, without which there is no queue on a cluster.
func HasShardedChannels(t *testing.T, server *redistest.Server) bool {
	t.Helper()
	major, _, _ := strings.Cut(server.Version(t), ".")
	n, err := strconv.Atoi(major)
	require.NoError(t, err)
	return n >= 7
}
