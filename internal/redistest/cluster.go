package redistest

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	clusterSlots = 16384
	clusterLimit = 60 * time.Second
	clusterPause = 20 * time.Millisecond
)

// StartCluster starts a Redis Cluster of so many masters, without replicas, and
// returns once every node knows the whole of it. A node that is restarted comes
// back empty and outside the cluster.
func StartCluster(tb testing.TB, nodes int) []*Server {
	tb.Helper()
	if nodes < 1 {
		tb.Fatalf("redistest: a cluster needs at least one node, not %d", nodes)
	}
	servers := make([]*Server, nodes)
	for i := range servers {
		servers[i] = Start(tb,
			"--cluster-enabled", "yes",
			"--cluster-announce-ip", "127.0.0.1",
		)
		// An epoch of its own for each node spares them the conflict that they
		// would else have to settle after they have met.
		servers[i].Command(tb, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		servers[i].Command(tb, ownSlots(i, nodes)...)
	}
	for _, other := range servers[1:] {
		host, port, err := net.SplitHostPort(other.Addr())
		if err != nil {
			tb.Fatal(err)
		}
		servers[0].Command(tb, "CLUSTER", "MEET", host, port)
	}
	for _, server := range servers {
		server.awaitCluster(tb, nodes)
	}
	return servers
}

// ownSlots is the command that gives node i its share of the slots. It lists
// them one by one: ADDSLOTSRANGE is unknown to servers before version 7.
func ownSlots(i, nodes int) []string {
	command := []string{"CLUSTER", "ADDSLOTS"}
	for slot := i * clusterSlots / nodes; slot < (i+1)*clusterSlots/nodes; slot++ {
		command = append(command, strconv.Itoa(slot))
	}
	return command
}

// awaitCluster returns once the server sees all nodes and all slots served, and
// has a link to each node: before, it would not pass on what is published.
func (s *Server) awaitCluster(tb testing.TB, nodes int) {
	tb.Helper()
	for deadline := time.Now().Add(clusterLimit); ; time.Sleep(clusterPause) {
		info, links := s.Command(tb, "CLUSTER", "INFO"), s.Command(tb, "CLUSTER", "NODES")
		if !strings.Contains(links, "disconnected") && field(info, "cluster_state") == "ok" &&
			field(info, "cluster_size") == strconv.Itoa(nodes) &&
			field(info, "cluster_slots_ok") == strconv.Itoa(clusterSlots) {
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("redistest: no cluster of %d nodes within %v; %s says:\n%s\n%s", nodes, clusterLimit, s.Addr(), info, links)
		}
	}
}
