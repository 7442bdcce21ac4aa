package doctor

import (
	"cmp"
	"fmt"
	"time"

	"github.com/redis/rueidis"
)

// clientSettings checks the options of the client. It concerns no node.
func (x *examination) clientSettings(o rueidis.ClientOption) {
	x.found(Finding{ID: "client", Severity: OK, Seen: "the settings of the client are fine"})
	mode := x.client.Mode()
	say := func(id string, s Severity, seen, why, do string) {
		x.found(Finding{ID: "client-" + id, Severity: s, Seen: seen, Why: why, Do: do})
	}
	if !o.DisableCache {
		say("cache", Info, "the client has a cache: DisableCache is not set",
			"Each connection then uses tracking. Without Redis 6, RESP3 and +client|tracking the client does not connect. This "+
				"library does not use the cache.",
			"This concerns only programs that make their own client for New and do not call DoCache. Set DisableCache: true after "+
				"rueidis.ParseURL, or client_cache=0 in the address.")
	}
	if o.AlwaysRESP2 {
		say("resp2", Warning, "the client speaks RESP2: AlwaysRESP2, or protocol=2 in the address",
			"There is no tracking then: waiting calls do not learn when a lock expires.", "Leave it out.")
	}
	dial, write := cmp.Or(o.Dialer.Timeout, rueidis.DefaultDialTimeout), writeTimeout(o)
	if third := x.opts.Lease / 3; dial > third {
		say("dial-timeout", Warning, fmt.Sprintf("making a connection may take %v, with leases of %v", dial, x.opts.Lease),
			"A frozen server accepts connections, but does not answer. A renewal, for which two thirds of a lease are left, may wait "+
				"for that server for too long.",
			"Set Dialer.Timeout, or dial_timeout in the address, to a few seconds at most.")
	}
	if third := x.opts.Lease / 3; write > third {
		say("write-timeout", Warning, fmt.Sprintf("a silent connection is given up after %v, with leases of %v", write, x.opts.Lease),
			"A renewal on it may hang for longer than what is left of the lease.",
			"Set ConnWriteTimeout, or write_timeout in the address, to a few seconds at most, but above the slowest answer of a "+
				"healthy server.")
	}
	pool, need := cmp.Or(o.BlockingPoolSize, rueidis.DefaultPoolSize), 2
	if x.opts.Replicas > 0 {
		need = 4
	}
	if mode == rueidis.ClientModeStandalone {
		need++ // the dedicated connection
	}
	if pool < need {
		say("pool", Warning, fmt.Sprintf("BlockingPoolSize is %d", pool),
			"The connections for wake-ups, for replicas, for commands sent one at a time, and to verify answers come from this pool. "+
				"When none is left, waiting calls poll, and other calls fail with ErrUnavailable.",
			fmt.Sprintf("Leave room for %d, besides what the program itself needs.", need))
	}
	if o.ReplicaOnly || o.SendToReplicas != nil {
		say("replicas", Error, "the client reads from replicas: ReplicaOnly or SendToReplicas is set",
			"Replicas lag behind: a lock that was lost looks held there, and a new lock looks free.",
			"Leave both out in the client that registries use.")
	}
	if o.ConnLifetime > 0 {
		say("lifetime", Warning, fmt.Sprintf("connections end after %v: ConnLifetime is set", o.ConnLifetime),
			"If such a connection breaks before a reply, rueidis sends the command again. A lock that was granted may then stay until "+
				"its lease is over.",
			"Leave it out in the client that registries use.")
	}
	if o.Standalone.EnableRedirect {
		say("redirect", Warning, "the client follows redirections: Standalone.EnableRedirect is set",
			"Servers do not redirect scripts. After a failover no lock is granted until a command of the program is redirected.",
			"Leave it out. Use an address that leads to the master, Sentinels, or a cluster.")
	}
	if mode == rueidis.ClientModeCluster && o.ClusterOption.ShardsRefreshInterval == 0 {
		say("refresh", Info, "the client does not refresh its view of the cluster: ClusterOption.ShardsRefreshInterval is 0",
			"The client learns of new nodes only by errors. When a master does not answer, the client looks for the successor only "+
				"among the nodes that it knows.",
			"Set it to a second in the program. An address has no such setting.")
	}
	if mode == rueidis.ClientModeSentinel && o.Sentinel.TopologyRefreshInterval == 0 {
		say("refresh", Info, "the client does not ask the Sentinels regularly: Sentinel.TopologyRefreshInterval is 0",
			"A client that has missed the message of a failover stays with the old master.",
			"Set it to 5 s in the program. An address has no such setting.")
	}
}

// writeTimeout returns the timeout that rueidis derives from its options.
func writeTimeout(o rueidis.ClientOption) time.Duration {
	const probes = 10
	return cmp.Or(o.ConnWriteTimeout, max(rueidis.DefaultTCPKeepAlive, o.Dialer.KeepAlive)*probes)
}
