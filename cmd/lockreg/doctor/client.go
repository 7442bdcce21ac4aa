package doctor

import (
	"cmp"
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

// clientSettings checks the options of the client. It concerns no node.
func (x *examination) clientSettings(o rueidis.ClientOption) {
	x.found(Finding{ID: "client", Severity: OK, Seen: "the settings of the client are well"})
	mode := x.client.Mode()
	say := func(id string, s Severity, seen, why, do string) {
		x.found(Finding{ID: "client-" + id, Severity: s, Seen: seen, Why: why, Do: do})
	}
	if !o.DisableCache {
		say("cache", Info, "the client has a cache: DisableCache is not set",
			"Each connection has tracking then, which needs Redis 6, RESP3 and +client|tracking, or the client does not connect. "+
				"This library does not use the cache.",
			"Only if the program makes its own client for New: set DisableCache: true after rueidis.ParseURL, if it does "+
				"not yet, or client_cache=0 in the address, unless it calls DoCache.")
	}
	if o.AlwaysRESP2 {
		say("resp2", Warning, "the client speaks RESP2: AlwaysRESP2, or protocol=2 in the address",
			"There is no tracking then: waiting calls do not hear of a lock that expires.", "Leave it out.")
	}
	dial, write := cmp.Or(o.Dialer.Timeout, rueidis.DefaultDialTimeout), writeTimeout(o)
	if third := x.opts.Lease / 3; dial > third {
		say("dial-timeout", Warning, fmt.Sprintf("making a connection may take %v, with leases of %v", dial, x.opts.Lease),
			"A server that is frozen accepts connections and greets nobody: a renewal, which is due in the last two thirds of a lease, "+
				"may wait for it for too long.",
			"Set Dialer.Timeout, or dial_timeout in the address, to a second or a few.")
	}
	if third := x.opts.Lease / 3; write > third {
		say("write-timeout", Warning, fmt.Sprintf("a silent connection is given up after %v, with leases of %v", write, x.opts.Lease),
			"Renewals on it may hang for longer than a lease has left.",
			"Set ConnWriteTimeout, or write_timeout in the address, to a second or a few; above the slowest answer of a healthy server.")
	}
	pool, need := cmp.Or(o.BlockingPoolSize, rueidis.DefaultPoolSize), 2
	if x.opts.Replicas > 0 {
		need = 4
	}
	if pool < need {
		say("pool", Warning, fmt.Sprintf("BlockingPoolSize is %d", pool),
			"Connections for wake-ups and for doubtful commands, and those for replicas, come from this pool. When none is left, "+
				"waiting calls poll, and others fail with ErrUnavailable.",
			fmt.Sprintf("Leave room for %d, besides what the program itself needs.", need))
	}
	if o.ReplicaOnly || o.SendToReplicas != nil {
		say("replicas", Error, "the client reads from replicas: ReplicaOnly or SendToReplicas is set",
			"A replica says late who holds a lock: a lock that was lost counts as held, and a new one as free.",
			"Leave both out in the client that registries use.")
	}
	if mode == rueidis.ClientModeCluster && o.ClusterOption.ShardsRefreshInterval == 0 {
		say("refresh", Info, "the client does not refresh its view of the cluster: ClusterOption.ShardsRefreshInterval is 0",
			"It learns of new nodes by errors only. When a master does not answer, its successor is looked for among the nodes known.",
			"Set it to a second. An address cannot say so; the program can.")
	}
	if mode == rueidis.ClientModeSentinel && o.Sentinel.TopologyRefreshInterval == 0 {
		say("refresh", Info, "the client does not ask the Sentinels regularly: Sentinel.TopologyRefreshInterval is 0",
			"One that has missed the message of a failover stays with the old master.",
			"Set it to 5 s. An address cannot say so; the program can.")
	}
	if o.SelectDB != 0 && mode == rueidis.ClientModeCluster {
		say("database", Error, fmt.Sprintf("the client selects database %d of a cluster", o.SelectDB),
			"A cluster of Redis has database 0 only.", "Leave it out.")
	}
}

// writeTimeout returns the timeout that rueidis derives from its options.
func writeTimeout(o rueidis.ClientOption) time.Duration {
	const probes = 10
	return cmp.Or(o.ConnWriteTimeout, max(rueidis.DefaultTCPKeepAlive, o.Dialer.KeepAlive)*probes)
}
