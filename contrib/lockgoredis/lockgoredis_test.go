package lockgoredis_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/lockgoredis"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(redistest.Patient{M: m, Leaks: leaks}, outlives) }

// When a client of a cluster has asked for the slots, a goroutine of rueidis sleeps for up to a second.
var outlives = goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1")

func leaks() error { return goleak.Find(outlives) }

const limit = 30 * time.Second

// open makes a registry beside rdb, and closes both at the test's end.
func open(t *testing.T, rdb redis.UniversalClient, opts ...lockregistry.Option) *lockregistry.Registry {
	t.Helper()
	t.Cleanup(func() { _ = rdb.Close() }) // after a failover it complains of a connection that it has closed itself
	reg, err := lockgoredis.Open(t.Context(), rdb, "orders", opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, reg.Close()) })
	return reg
}

// works shows that reg locks where rdb looks.
func works(t *testing.T, reg *lockregistry.Registry, rdb redis.UniversalClient) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	h, err := reg.Acquire(ctx, "42", lockregistry.Wait(limit))
	require.NoError(t, err)
	n, err := rdb.Exists(ctx, "orders:42").Result()
	require.NoError(t, err)
	require.EqualValues(t, 1, n, "the key is where the client looks")
	releases(t, h)
	require.True(t, redistest.Await(limit, func() bool {
		n, err := rdb.Exists(ctx, "orders:42").Result()
		require.NoError(t, err)
		return n == 0
	}))
}

// releases gives a hold back. On a busy machine the answer may be late: the key is removed all the same.
func releases(t *testing.T, h *lockregistry.Hold) {
	t.Helper()
	if err := h.Release(t.Context()); !errors.Is(err, fault.NoAnswer) && !errors.Is(err, fault.Late) {
		require.NoError(t, err)
	}
}

func TestOpen_TheClientStaysAsItIs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ClientName: "service"})
	t.Cleanup(func() { require.NoError(t, rdb.Close()) })
	reg, err := lockgoredis.Open(t.Context(), rdb, "orders")
	require.NoError(t, err)
	require.Zero(t, rdb.PoolStats().TotalConns, "it has sent nothing")
	works(t, reg, rdb)
	require.NoError(t, reg.Close())
	require.NoError(t, rdb.Ping(t.Context()).Err(), "it is not closed")
}

// What docs/operations.md says of connections.
func TestOpen_Connections(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	named := func(o *rueidis.ClientOption) { o.ClientName = "locks" }
	reg := open(t, rdb, lockregistry.WithClientOption(named))
	connections := func() int { return strings.Count(server.Command(t, "CLIENT", "LIST"), " name=locks ") }

	for range 100 {
		h, err := reg.Acquire(t.Context(), "42", lockregistry.Wait(limit))
		require.NoError(t, err)
		releases(t, h)
	}
	has := func(want int) bool { // after a late answer there is one more for half a minute
		return redistest.Await(2*limit, func() bool { return connections() == want })
	}
	require.True(t, has(2), "for commands, and for a goroutine that is alone")

	other := open(t, redis.NewClient(&redis.Options{Addr: server.Addr()}))
	h, err := other.Acquire(t.Context(), "42", lockregistry.Wait(limit))
	require.NoError(t, err)
	waited := make(chan *lockregistry.Hold, 1)
	go func() {
		h, err := reg.Acquire(t.Context(), "42", lockregistry.Wait(2*limit))
		assert.NoError(t, err)
		waited <- h
	}()
	require.True(t, redistest.Await(limit, func() bool { return reg.Stats().Tickets == 1 }))
	releases(t, h)
	h = <-waited
	require.NotNil(t, h)
	releases(t, h)
	require.True(t, has(3), "one more once a call has waited")
}

func TestOpen_Refused(t *testing.T) {
	t.Parallel()
	slots := func(context.Context) ([]redis.ClusterSlot, error) { return nil, nil }
	cluster := func(o redis.ClusterOptions) redis.UniversalClient {
		o.Addrs = []string{"127.0.0.1:1"}
		return redis.NewClusterClient(&o)
	}
	for _, c := range []struct {
		name, says string
		rdb        redis.UniversalClient
	}{
		{"nothing", "the client is nil", nil},
		{"a nil client", "the client is nil", (*redis.Client)(nil)},
		{"a nil cluster client", "the client is nil", (*redis.ClusterClient)(nil)},
		{"ring", "use a client for one of its servers", redis.NewRing(&redis.RingOptions{})},
		{"read only", "reads from replicas", cluster(redis.ClusterOptions{ReadOnly: true})},
		{"by latency", "reads from replicas", cluster(redis.ClusterOptions{RouteByLatency: true})},
		{"randomly", "reads from replicas", cluster(redis.ClusterOptions{RouteRandomly: true})},
		{"slots of its own", "ClusterSlots", cluster(redis.ClusterOptions{ClusterSlots: slots})},
		{"no address", "no address", redis.NewClusterClient(&redis.ClusterOptions{})},
		{"something else", "other: it is neither a *redis.Client nor a *redis.ClusterClient", other{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			reg, err := lockgoredis.Open(t.Context(), c.rdb, "orders")
			require.Nil(t, reg)
			require.ErrorContains(t, err, "lockgoredis: open: ")
			require.ErrorContains(t, err, c.says)
			require.NotErrorIs(t, err, lockregistry.ErrUnavailable)
			if c.rdb != nil && !strings.Contains(c.name, "nil") && c.name != "something else" {
				require.NoError(t, c.rdb.Close())
			}
		})
	}
}

type other struct{ redis.UniversalClient }

func TestOpenFailover_Refused(t *testing.T) {
	t.Parallel()
	at := []string{"127.0.0.1:1"}
	for _, c := range []struct {
		name, says string
		o          *redis.FailoverOptions
	}{
		{"nothing", "the options are nil", nil},
		{"no Sentinel", "SentinelAddrs", &redis.FailoverOptions{MasterName: "main"}},
		{"no master", "MasterName", &redis.FailoverOptions{SentinelAddrs: at}},
		{"replicas", "reads from replicas", &redis.FailoverOptions{SentinelAddrs: at, MasterName: "main", ReplicaOnly: true}},
		{"by latency", "reads from replicas", &redis.FailoverOptions{SentinelAddrs: at, MasterName: "main", RouteByLatency: true}},
		{"randomly", "reads from replicas", &redis.FailoverOptions{SentinelAddrs: at, MasterName: "main", RouteRandomly: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := lockgoredis.OpenFailover(t.Context(), c.o, "orders")
			require.ErrorContains(t, err, "lockgoredis: open: ")
			require.ErrorContains(t, err, c.says)
			require.NotErrorIs(t, err, lockregistry.ErrUnavailable)
		})
	}
}

func TestOpen_NobodyAnswers(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", Password: "a secret"})
	defer func() { _ = rdb.Close() }()
	_, err := lockgoredis.Open(t.Context(), rdb, "orders")
	require.ErrorIs(t, err, lockregistry.ErrUnavailable)
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.NotContains(t, err.Error(), "secret")
}

func TestOpen_OptionsOfTheCallerComeLast(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), DB: 1})
	seen := 0
	open(t, rdb, lockregistry.WithClientOption(func(o *rueidis.ClientOption) { seen = o.SelectDB }))
	require.Equal(t, 1, seen)
}

// Go-redis does not send a user without a password, and neither does the registry.
func TestOpen_UserWithoutPassword(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, o := range []*redis.Options{
		{Username: "nobody"},
		{CredentialsProvider: func() (string, string) { return "nobody", "" }},
	} {
		o.Addr = server.Addr()
		rdb := redis.NewClient(o)
		works(t, open(t, rdb), rdb)
	}
	failover(t, redistest.StartSentinels(t, 1, 3), &redis.FailoverOptions{Username: "nobody", SentinelUsername: "nobody"})
}

func TestOpen_Cluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[1].Addr(), nodes[2].Addr()}})
	reg := open(t, rdb)
	for _, path := range []string{"a", "b", "c", "d"} { // on more than one node
		h, err := reg.Acquire(t.Context(), path, lockregistry.Wait(limit))
		require.NoError(t, err)
		n, err := rdb.Exists(t.Context(), "orders:"+path).Result()
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		releases(t, h)
	}
}

// A client for one server that happens to be a cluster's node stays with that server, as the go-redis client does.
func TestOpen_ANodeOfACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	var moved error
	for _, path := range []string{"a", "b", "c", "d"} {
		rdb := redis.NewClient(&redis.Options{Addr: nodes[0].Addr()})
		err := open(t, rdb).Do(t.Context(), path, func(context.Context) error { return nil }, lockregistry.NoWait())
		moved = errors.Join(moved, err)
	}
	require.ErrorContains(t, moved, "MOVED")
}

// Open follows a failover client once the former master is demoted, or gone.
func TestOpen_AfterAFailover(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 1, 3)
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: redistest.MasterSet, SentinelAddrs: d.Addresses()})
	reg := open(t, rdb)
	works(t, reg, rdb)
	promoted, _ := d.Failover("orders:42")
	// A Sentinel demotes the former master after 10 to 20 s, or after 30 s if it has been down once more.
	require.True(t, redistest.Await(4*limit, func() bool { return locksOn(t, reg, promoted) }))
}

// OpenFailover locks on the new master from the first call on.
func TestOpenFailover_AfterAFailover(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 1, 3)
	o := &redis.FailoverOptions{MasterName: redistest.MasterSet, SentinelAddrs: d.Addresses()}
	reg, err := lockgoredis.OpenFailover(t.Context(), o, "orders")
	require.NoError(t, err)
	defer func() { require.NoError(t, reg.Close()) }()
	require.True(t, locksOn(t, reg, d.Servers[0]))
	promoted, _ := d.Failover("orders:42")
	require.True(t, locksOn(t, reg, promoted))
}

// locksOn reports whether a lock of reg is on server. A failover may lose the lock of a server that is demoted.
func locksOn(t *testing.T, reg *lockregistry.Registry, server *redistest.Server) (is bool) {
	t.Helper()
	err := reg.Do(t.Context(), "42", func(context.Context) error {
		is = server.Command(t, "EXISTS", "orders:42") == "1"
		return nil
	}, lockregistry.Wait(4*limit))
	if errors.Is(err, lockregistry.ErrLockLost) {
		return false
	}
	if !is || !errors.Is(err, fault.NoAnswer) && !errors.Is(err, fault.Late) { // see releases
		require.NoError(t, err)
	}
	return is
}
