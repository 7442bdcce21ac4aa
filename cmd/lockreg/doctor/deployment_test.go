package doctor_test

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/doctor"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

// configure sets something on all servers of a deployment.
func configure(t *testing.T, d *redistest.Deployment, command ...string) {
	t.Helper()
	for _, s := range d.Servers {
		s.Command(t, command...)
	}
}

// replicas is for a program that uses WithReplicas.
func replicas(n int) func(*doctor.Options) { return func(o *doctor.Options) { o.Replicas = n } }

// masters are those of a deployment's servers.
func masters(t *testing.T, d *redistest.Deployment) (all []*redistest.Server) {
	t.Helper()
	for _, s := range d.Servers {
		if strings.HasPrefix(s.Command(t, "ROLE"), "master") {
			all = append(all, s)
		}
	}
	return all
}

func TestCluster(t *testing.T) {
	d := redistest.StartReplicatedCluster(t, 3, 1)
	configure(t, d, "CONFIG", "SET", "min-replicas-to-write", "1")
	o := option(d.Addresses()...)
	everything := func(o *doctor.Options) { o.Need, o.Replicas = doctor.Modes(), 1 }
	r := awaitFindings(t, false, "", func() doctor.Report { return examine(t, o, everything) })
	require.Equal(t, "cluster", r.Mode)
	require.Len(t, r.Nodes, 6)
	require.Empty(t, findings(examine(t, o, everything, func(o *doctor.Options) { o.Layout = observe.LayoutRedisson }), ""))

	// A setting that is wrong on all nodes is one finding.
	configure(t, d, "CONFIG", "SET", "cluster-node-timeout", "30000")
	f := has(t, examine(t, o), "failover-time", doctor.Warning)
	require.Len(t, f.Nodes, 6)
	for _, s := range d.Servers {
		follow(t, s, f)
	}
	hasNot(t, examine(t, o), "failover-time")
	configure(t, d, "CONFIG", "SET", "cluster-node-timeout", "19000")
	hasNot(t, examine(t, o), "failover-time")
	has(t, examine(t, o, func(o *doctor.Options) { o.Layout = observe.LayoutRedisson }), "failover-time", doctor.Warning)
	configure(t, d, "CONFIG", "SET", "cluster-node-timeout", "2000")

	// On one node it is that one's.
	s := d.Servers[4]
	s.Command(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	f = has(t, examine(t, o), "eviction", doctor.Info)
	require.Equal(t, []string{s.Addr()}, f.Nodes)
	follow(t, s, f)
	hasNot(t, examine(t, o), "eviction")

	// Leftovers are found wherever they are.
	var left []string
	for i := range 20 {
		s := d.Master("orders:"+strconv.Itoa(i), nil)
		s.Command(t, "SET", "orders:"+strconv.Itoa(i), "by hand")
	}
	for _, f := range findings(examine(t, o), "key-lease") {
		for _, s := range d.Servers {
			if s.Addr() == f.Nodes[0] {
				follow(t, s, f)
			}
		}
		left = append(left, f.Commands...)
	}
	require.Len(t, left, 20)
	hasNot(t, examine(t, o), "key-lease")

	// A client that does not know that it is a cluster, for lack of a right or by its settings.
	configure(t, d, strings.Fields("ACL SETUSER app reset on >secret ~* &* +@all -cluster")...)
	app := o
	app.InitAddress, app.Username, app.Password = d.Addresses()[:1], "app", "secret"
	f = has(t, examine(t, app), "cluster-client", doctor.Error)
	for _, s := range d.Servers {
		follow(t, s, f)
	}
	hasNot(t, examine(t, app), "cluster-client")
	single := o
	single.InitAddress, single.ForceSingleClient = d.Addresses()[:1], true
	has(t, examine(t, single), "cluster-client", doctor.Error)

	// Rights are looked at on each node.
	configure(t, d, strings.Fields("ACL SETUSER app reset on >secret ~* &* +@all")...)
	app.InitAddress = d.Addresses()
	d.Servers[1].Command(t, "ACL", "SETUSER", "app", "-pexpire")
	d.Servers[5].Command(t, "ACL", "SETUSER", "app", "-spublish", "-ssubscribe")
	r = examine(t, app)
	f = has(t, r, "permission-lock", doctor.Error)
	require.Equal(t, []string{d.Servers[1].Addr()}, f.Nodes)
	follow(t, d.Servers[1], f)
	found := findings(r, "permission-queue") // which needs pexpire, too
	require.Len(t, found, 2)
	last := found[slices.IndexFunc(found, func(f doctor.Finding) bool { return f.Nodes[0] == d.Servers[5].Addr() })]
	require.Equal(t, []string{"ACL SETUSER app +spublish +ssubscribe"}, last.Commands)
	follow(t, d.Servers[5], last)
	require.Empty(t, findings(examine(t, app), ""))

	// A setting of the client.
	unaware := o
	unaware.ClusterOption.ShardsRefreshInterval = 0
	has(t, examine(t, unaware), "client-refresh", doctor.Info)

	// The clock of one server is far ahead.
	skewed := through(o, func(c net.Conn) net.Conn {
		if c.RemoteAddr().String() != d.Servers[1].Addr() {
			return c
		}
		return pretending{c, "$10\r\n1", "$10\r\n2"}
	})
	apart := findings(examine(t, skewed), "clock-servers")
	require.NotEmpty(t, apart)
	for _, f := range apart {
		require.Equal(t, doctor.Warning, f.Severity)
		require.Contains(t, f.Nodes, d.Servers[1].Addr())
	}
	require.Empty(t, findings(examine(t, o), "clock-servers"))

	// A replica that does not answer.
	client := dial(t, o)
	opts := doctor.Options{Prefix: "orders", Client: &o, Replicas: 1}
	copied := d.Replicas(masters(t, d)[0])[0]
	look := func() doctor.Report {
		report, err := doctor.Check(t.Context(), client, opts)
		require.NoError(t, err)
		return report
	}
	defer copied.Thaw()
	for missed := false; !missed; { // until the cluster takes it for failed, and tells clients no more of it
		copied.Freeze()
		missed = len(findings(look(), "answers")) > 0
		if !missed {
			copied.Thaw()
			d.AwaitHealthy()
		}
	}
	report := awaitFindings(t, true, "replicas", look)
	has(t, report, "with-replicas", doctor.Error)
	copied.Thaw()
	d.AwaitHealthy()
	awaitFindings(t, false, "", look)
	require.Len(t, findings(examine(t, o, replicas(2)), "with-replicas"), 1)
}

// A cluster whose masters have no replica, one of which goes.
func TestClusterWithoutReplicas(t *testing.T) {
	servers := redistest.StartCluster(t, 3)
	var addresses []string
	for _, s := range servers {
		s.Command(t, "CONFIG", "SET", "appendonly", "yes")
		s.Command(t, "CONFIG", "SET", "cluster-node-timeout", "1000")
		addresses = append(addresses, s.Addr())
	}
	o := option(addresses...)
	has(t, examine(t, o), "replicas", doctor.Warning)
	client := dial(t, o)
	servers[2].Freeze()
	defer servers[2].Thaw()
	look := func() doctor.Report {
		report, err := doctor.Check(t.Context(), client, doctor.Options{Prefix: "orders"})
		require.NoError(t, err)
		return report
	}
	await(t, "the cluster is down", func() bool {
		return slices.ContainsFunc(findings(look(), "cluster-state"), func(f doctor.Finding) bool { return f.Severity == doctor.Error })
	})
	servers[2].Thaw()
	awaitFindings(t, false, "cluster-state", look)
}

func TestSentinel(t *testing.T) {
	d := redistest.StartSentinels(t, 2, 3)
	configure(t, d, "CONFIG", "SET", "min-replicas-to-write", "1")
	o := option(d.Addresses()...)
	o.Sentinel = rueidis.SentinelOption{MasterSet: redistest.MasterSet, Dialer: o.Dialer, TopologyRefreshInterval: time.Second}
	o.Sentinel.Dialer.Timeout, o.ConnWriteTimeout = 3*time.Second, 3*time.Second
	r := awaitFindings(t, false, "", func() doctor.Report { return examine(t, o, replicas(2)) })
	require.Equal(t, "sentinel", r.Mode)
	hasNot(t, r, "sentinel")

	has(t, examine(t, o, replicas(1)), "with-replicas", doctor.Warning)
	has(t, examine(t, o, replicas(3)), "with-replicas", doctor.Error)

	for _, s := range d.Sentinels {
		s.Command(t, "SENTINEL", "SET", redistest.MasterSet, "down-after-milliseconds", "30000")
	}
	f := has(t, examine(t, o), "failover-time", doctor.Warning)
	require.Len(t, f.Nodes, 3)
	for _, s := range d.Sentinels {
		follow(t, s, f)
	}
	hasNot(t, examine(t, o), "failover-time")

	d.Sentinels[1].Command(t, "SENTINEL", "SET", redistest.MasterSet, "quorum", "7")
	f = has(t, examine(t, o), "sentinel", doctor.Error)
	require.Equal(t, []string{d.Sentinels[1].Addr()}, f.Nodes)
	follow(t, d.Sentinels[1], f)
	hasNot(t, examine(t, o), "sentinel")

	unaware := o
	unaware.Sentinel.TopologyRefreshInterval = 0
	has(t, examine(t, unaware), "client-refresh", doctor.Info)

	// Too few replicas for writes, and then none that are asked for.
	master := masters(t, d)[0]
	master.Command(t, "CONFIG", "SET", "min-replicas-to-write", "3")
	f = has(t, examine(t, o), "min-replicas", doctor.Error)
	_, err := master.Do("SET", "orders:42", "a:1", "PX", "1000")
	require.ErrorContains(t, err, "NOREPLICAS")
	follow(t, master, f)
	hasNot(t, examine(t, o), "min-replicas")
	master.Command(t, "CONFIG", "SET", "min-replicas-to-write", "0")
	follow(t, master, has(t, examine(t, o), "min-replicas", doctor.Info))
	hasNot(t, examine(t, o), "min-replicas")

	// A client that connects to the master itself.
	alone := option(masters(t, d)[0].Addr())
	f = has(t, examine(t, alone), "sentinel", doctor.Warning)
	require.Contains(t, f.Seen, "3 Sentinels")
	hasNot(t, examine(t, alone, replicas(2)), "sentinel")

	// A replica that stands still, and a Sentinel.
	client := dial(t, o)
	copied := d.Replicas(master)[0]
	copied.Freeze()
	defer copied.Thaw()
	d.Sentinels[2].Freeze()
	defer d.Sentinels[2].Thaw()
	look := func() doctor.Report {
		report, err := doctor.Check(t.Context(), client, doctor.Options{Prefix: "orders", Client: &o, Replicas: 2})
		require.NoError(t, err)
		return report
	}
	report := awaitFindings(t, true, "replicas", look)
	has(t, report, "with-replicas", doctor.Error)
	f = has(t, report, "sentinel", doctor.Warning)
	require.Equal(t, []string{d.Sentinels[2].Addr()}, f.Nodes)
	copied.Thaw()
	d.Sentinels[2].Thaw()
	awaitFindings(t, false, "", look)
}

// One Sentinel decides nothing.
func TestFewSentinels(t *testing.T) {
	d := redistest.StartSentinels(t, 1, 1)
	o := option(d.Addresses()...)
	o.Sentinel = rueidis.SentinelOption{MasterSet: redistest.MasterSet, Dialer: o.Dialer, TopologyRefreshInterval: time.Second}
	has(t, examine(t, o), "sentinel", doctor.Warning)
	follow(t, d.Servers[0], has(t, examine(t, o), "min-replicas", doctor.Info))
}
