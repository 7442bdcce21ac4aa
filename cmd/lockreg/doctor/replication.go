package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// replica is a line of INFO about one: "ip=127.0.0.1,port=6380,state=online,offset=14,lag=0".
type replica struct {
	address, state string
	lag            time.Duration // since it was heard of
}

func (n *node) replicas() (all []replica) {
	for i := 0; ; i++ {
		text, ok := n.info[fmt.Sprintf("slave%d", i)]
		if !ok {
			return all
		}
		words := map[string]string{}
		for word := range strings.SplitSeq(text, ",") {
			name, value, _ := strings.Cut(word, "=")
			words[name] = value
		}
		lag, _ := strconv.Atoi(words["lag"])
		all = append(all, replica{words["ip"] + ":" + words["port"], words["state"], time.Duration(lag) * time.Second})
	}
}

// lagLimit: a replica acknowledges its data once a second.
const lagLimit = 5 * time.Second

// replication looks at masters and their replicas.
func (x *examination) replication() {
	standalone := x.client.Mode() == rueidis.ClientModeStandalone
	for _, n := range x.nodes {
		x.found(Finding{ID: "role", Severity: OK, Seen: "the servers for locks are masters"})
		switch {
		case n.role() == "replica" && x.client.Mode() != rueidis.ClientModeCluster:
			master := n.info["master_host"] + ":" + n.info["master_port"]
			x.found(Finding{
				ID: "role", Severity: Error, Nodes: []string{n.address}, Seen: "the server is a replica of " + master,
				Why: "A replica accepts no writes, so nothing can be locked. What it shows lags behind.",
				Do:  "Connect to its master, " + master + ", or to the Sentinels.",
			})
			continue
		case n.role() != "master" || n.info["role"] == "":
			continue
		}
		x.replicated(n, standalone)
	}
}

// replicated looks at the replicas of a master.
func (x *examination) replicated(n *node, standalone bool) {
	replicas := n.replicas()
	if n.empty() {
		return // it needs none
	}
	x.found(Finding{ID: "replicas", Severity: OK, Seen: "all replicas follow"})
	online := 0
	for _, r := range replicas {
		if r.state == "online" && r.lag < lagLimit {
			online++
			continue
		}
		seen := fmt.Sprintf("replica %s has not been heard of for %v or more", r.address, lagLimit)
		if r.state != "online" {
			seen = fmt.Sprintf("replica %s is not online but %q", r.address, r.state)
		}
		x.found(Finding{
			ID: "replicas", Severity: Warning, Nodes: []string{n.address}, Seen: seen,
			Why: "If it is promoted, the locks that it does not have are free. With WithReplicas no lock is granted while this " +
				"replica is needed for the number.",
			Do: "Look at its log and its network. Restart it if it hangs.",
		})
	}
	if len(replicas) == 0 && !standalone {
		x.found(Finding{
			ID: "replicas", Severity: Warning, Nodes: []string{n.address}, Seen: "the master has no replica",
			Why: "When it fails, no server takes its place, and nothing can be locked there.",
			Do:  "Add a replica.",
		})
	}
	x.counted(n, len(replicas), online)

	least, ok := number(n.config, "min-replicas-to-write")
	switch good, told := number(n.info, "min_slaves_good_slaves"); {
	case !ok && !told:
	case told && ok && good < least:
		x.found(Finding{
			ID: "min-replicas", Severity: Error, Nodes: []string{n.address},
			Seen:     fmt.Sprintf("min-replicas-to-write is %d, and %d replicas are up to date", least, good),
			Why:      "The server refuses writes (NOREPLICAS), so nothing can be locked.",
			Do:       "Bring the replicas back. Until then ask for fewer.",
			Commands: []string{fmt.Sprintf("CONFIG SET min-replicas-to-write %d", good)},
		})
	case ok && least == 0 && len(replicas) > 0:
		x.found(Finding{
			ID: "min-replicas", Severity: Info, Nodes: []string{n.address}, Seen: "min-replicas-to-write is 0",
			Why: "A master that is cut off from its replicas keeps granting locks. These locks are lost once a replica is " +
				"promoted. With 1 the master stops after min-replicas-max-lag (10 s). This does not prevent two owners at once; " +
				"WithReplicas does more.",
			Do:       "With two replicas or more this costs nothing. With one replica, nothing can be locked while it is down.",
			Commands: []string{"CONFIG SET min-replicas-to-write 1"},
		})
	default:
		x.found(Finding{ID: "min-replicas", Severity: OK, Seen: "writes are not refused"})
	}
}

// counted compares the replicas of a master with what WithReplicas asks for.
func (x *examination) counted(n *node, all, online int) {
	want := x.opts.Replicas
	if want == 0 {
		return
	}
	x.found(Finding{ID: "with-replicas", Severity: OK, Seen: fmt.Sprintf("there are %d replicas, as WithReplicas asks for", want)})
	switch {
	case online < want:
		x.found(Finding{
			ID: "with-replicas", Severity: Error, Nodes: []string{n.address},
			Seen: fmt.Sprintf("WithReplicas asks for %d replicas, and %d follow the master", want, online),
			Why:  "No lock is granted: calls wait, or fail with ErrUnavailable.",
			Do:   "Bring back or add replicas, or have all processes ask for fewer.",
		})
	case all > want:
		x.found(Finding{
			ID: "with-replicas", Severity: Warning, Nodes: []string{n.address},
			Seen: fmt.Sprintf("WithReplicas asks for %d replicas, and the master has %d", want, all),
			Why:  "A replica that does not have a lock may be promoted. The lock is then free while it is held.",
			Do:   fmt.Sprintf("Use WithReplicas(%d, ...) in all processes.", all),
		})
	}
}

// empty reports whether it is a node of a cluster without slots.
func (n *node) empty() bool {
	for text := range strings.Lines(n.view) {
		words := strings.Fields(text)
		if len(words) > 2 && slices.Contains(strings.Split(words[2], ","), "myself") {
			return len(words) < 9
		}
	}
	return false
}

// failover compares the duration of a failover with the rest of a lease when its renewal is due.
func (x *examination) failover(addresses []string, setting string, timeout time.Duration, command string) {
	const id = "failover-time"
	takes, left := 2*timeout+time.Second, x.opts.Lease*2/3
	x.found(Finding{
		ID: id, Severity: OK, Seen: fmt.Sprintf("%s is %v: a failover is over before a lease of %v", setting, timeout, x.opts.Lease),
	})
	if takes > left {
		x.found(Finding{
			ID: id, Severity: Warning, Nodes: addresses,
			Seen: fmt.Sprintf("%s is %v: a failover takes about %v, and a lease of %v that is due for renewal has %v left",
				setting, timeout, takes, x.opts.Lease, left),
			Why:      "Nothing can be renewed during the failover, so locks are lost while they are held.",
			Do:       fmt.Sprintf("Make failovers faster, or use leases of %v or more.", takes*3/2),
			Commands: []string{command},
		})
	}
}

// soon is the timeout of docs/clusters.md.
const soon = 2000

// cluster checks what the nodes report about their cluster.
func (x *examination) cluster(ctx context.Context) {
	clustered := x.client.Mode() == rueidis.ClientModeCluster
	for _, n := range x.nodes {
		if n.clustered() {
			x.found(Finding{ID: "cluster-client", Severity: OK, Seen: "the client knows that this is a cluster"})
			if !clustered {
				x.found(Finding{
					ID: "cluster-client", Severity: Error, Nodes: []string{n.address},
					Seen: "the server is a node of a cluster, and the client takes it for a single server",
					Why:  "Locks whose keys are on other nodes fail with MOVED.",
					Do: "The user needs these permissions on each node. Without them rueidis silently treats the node as a single server. " +
						"Leave out ForceSingleClient. Then connect again.",
					// From version 8 of the server on, rueidis asks for CLUSTER SHARDS, and this library for CLUSTER SLOTS.
					Commands: []string{line("ACL", "SETUSER", x.user, "+cluster|slots", "+cluster|shards")},
				})
			}
		}
		if !clustered {
			continue
		}
		x.clusterState(ctx, n)
		if milliseconds, ok := number(n.config, "cluster-node-timeout"); ok {
			x.failover([]string{n.address}, "cluster-node-timeout", time.Duration(milliseconds)*time.Millisecond,
				fmt.Sprintf("CONFIG SET cluster-node-timeout %d", soon))
		}
	}
}

func (x *examination) clusterState(ctx context.Context, n *node) {
	const id = "cluster-state"
	reply, err := n.do(ctx, "CLUSTER", "INFO").ToString()
	if err != nil {
		if answered(err) {
			x.miss("+cluster|info")
		}
		return
	}
	state := fields(reply)
	x.found(Finding{ID: id, Severity: OK, Seen: "the nodes of the cluster report no problem"})
	if state["cluster_state"] != "ok" {
		x.found(Finding{
			ID: id, Severity: Error, Nodes: []string{n.address},
			Seen: fmt.Sprintf("cluster_state is %s; %s of 16384 slots are served", state["cluster_state"], state["cluster_slots_ok"]),
			Why:  "Paths in the other slots cannot be locked. By default no path can.",
			Do:   "Start the nodes that are down, or give their slots to others: redis-cli --cluster fix.",
		})
	}
	for text := range strings.Lines(n.view) {
		words := strings.Fields(text)
		if len(words) < 3 {
			continue
		}
		flags := strings.Split(words[2], ",")
		if slices.Contains(flags, "fail") || slices.Contains(flags, "fail?") {
			address, _, _ := strings.Cut(words[1], "@")
			x.found(Finding{
				ID: id, Severity: Warning, Nodes: []string{n.address}, Seen: "it considers node " + address + " failed",
				Why: "A replica that is down cannot be promoted. If a master is down, its locks cannot be reached until a replica is " +
					"promoted.",
				Do: "Start it, or let the cluster forget it: CLUSTER FORGET on each node.",
			})
		}
	}
}

// unnamed looks for Sentinels that watch the server of a client which does not know them.
func (x *examination) unnamed(ctx context.Context, n *node) {
	const channel = "__sentinel__:hello" // each Sentinel subscribes to it
	reply, err := n.do(ctx, "PUBSUB", "NUMSUB", channel).AsIntMap()
	if err != nil {
		if answered(err) {
			x.miss("+pubsub|numsub")
		}
		return
	}
	x.found(Finding{ID: "sentinel", Severity: OK, Seen: "no Sentinel watches the server"})
	if reply[channel] > 0 && x.opts.Replicas == 0 {
		x.found(Finding{
			ID: "sentinel", Severity: Warning, Nodes: []string{n.address},
			Seen: fmt.Sprintf("%d Sentinels watch the server, and the client does not know them", reply[channel]),
			Why: "After a failover the former master goes on granting locks for about 10 s. Until then the client may stay with it, " +
				"so a lock can be held twice.",
			Do: "Give the addresses of the Sentinels with master_set=NAME instead of the server's, or use WithReplicas for all replicas.",
		})
	}
}

// sentinels asks each Sentinel that the client was given.
func (x *examination) sentinels(ctx context.Context) {
	if x.client.Mode() == rueidis.ClientModeStandalone {
		for _, n := range x.nodes {
			x.unnamed(ctx, n)
		}
	}
	option := x.opts.Client
	if option == nil || x.client.Mode() != rueidis.ClientModeSentinel {
		return
	}
	const id = "sentinel"
	x.found(Finding{ID: id, Severity: OK, Seen: "the Sentinels answer, and report no problem"})
	for _, address := range option.InitAddress {
		about, err := x.sentinel(ctx, address)
		if err != nil {
			x.found(Finding{
				ID: id, Severity: Warning, Nodes: []string{address}, Seen: "the Sentinel does not answer: " + err.Error(),
				Why: "Without a majority of Sentinels no replica is promoted when the master fails.",
				Do:  "Start it, or look at the network between it and this host.",
			})
			continue
		}
		others, _ := number(about, "num-other-sentinels")
		quorum, _ := number(about, "quorum")
		if others+1 < 3 {
			x.found(Finding{
				ID: id, Severity: Warning, Nodes: []string{address}, Seen: fmt.Sprintf("there are %d Sentinels", others+1),
				Why: "With fewer than three Sentinels, no replica is promoted while one Sentinel is down.",
				Do:  "Run three or more, on hosts of their own.",
			})
		}
		if majority := (others+1)/2 + 1; quorum > others+1 || quorum < 1 {
			x.found(Finding{
				ID: id, Severity: Error, Nodes: []string{address},
				Seen:     fmt.Sprintf("quorum is %d, and there are %d Sentinels", quorum, others+1),
				Why:      "The master is never declared down, so no replica is promoted.",
				Do:       "Set the quorum to a majority, on each Sentinel.",
				Commands: []string{line("SENTINEL", "SET", option.Sentinel.MasterSet, "quorum", strconv.FormatInt(majority, 10))},
			})
		}
		if flags := about["flags"]; flags != "" && flags != "master" {
			x.found(Finding{
				ID: id, Severity: Error, Nodes: []string{address}, Seen: "to the Sentinel the master is " + flags,
				Why: "Either the master is down, and nothing can be locked until a replica is promoted; or only the Sentinels cannot " +
					"reach it, and they may promote a replica soon.",
				Do: "Look at the master, and at the network between it and the Sentinel.",
			})
		}
		if milliseconds, ok := number(about, "down-after-milliseconds"); ok {
			x.failover([]string{address}, "down-after-milliseconds", time.Duration(milliseconds)*time.Millisecond,
				line("SENTINEL", "SET", option.Sentinel.MasterSet, "down-after-milliseconds", strconv.Itoa(soon)))
		}
	}
}

// sentinel asks one Sentinel about the master.
func (x *examination) sentinel(ctx context.Context, address string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	o := x.opts.Client
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{address}, ForceSingleClient: true, DisableCache: true, DisableRetry: true,
		Username: o.Sentinel.Username, Password: o.Sentinel.Password, ClientName: o.Sentinel.ClientName,
		TLSConfig: o.Sentinel.TLSConfig, Dialer: o.Sentinel.Dialer, DialCtxFn: o.DialCtxFn, AlwaysRESP2: o.AlwaysRESP2,
		ConnWriteTimeout: cmp.Or(o.ConnWriteTimeout, answerLimit),
	})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Do(ctx, client.B().Arbitrary("SENTINEL", "MASTER", o.Sentinel.MasterSet).Build()).AsStrMap()
}
