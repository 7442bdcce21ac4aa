package redistest

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	clusterSlots = 16384
	clusterLimit = 4 * time.Minute // a vote of Sentinels that fails is repeated after twice their failover-timeout
	clusterPause = 50 * time.Millisecond
)

var clusterNode = []string{"--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"}

// StartCluster starts a Redis Cluster of masters without replicas, and returns once every node knows all of them. A node that
// is restarted comes back empty and outside the cluster.
func StartCluster(tb testing.TB, nodes int) []*Server {
	tb.Helper()
	servers := make([]*Server, nodes)
	for i := range servers {
		servers[i] = Start(tb, clusterNode...)
	}
	if err := join(servers); err != nil {
		tb.Fatal(err)
	}
	return servers
}

// RunCluster does the same for a program that is no test. The caller must call
// Stop of each node.
func RunCluster(binary string, nodes int) ([]*Server, error) {
	servers := make([]*Server, 0, nodes)
	err := error(nil)
	for range nodes {
		var s *Server
		if s, err = Run(binary, clusterNode...); err != nil {
			break
		}
		servers = append(servers, s)
	}
	if err == nil {
		err = join(servers)
	}
	if err != nil {
		for _, s := range servers {
			s.Stop()
		}
		return nil, err
	}
	return servers, nil
}

// join makes a cluster of servers.
func join(servers []*Server) error {
	if len(servers) < 1 {
		return errors.New("redistest: a cluster needs at least one node")
	}
	for i, s := range servers {
		// A different epoch for each node avoids a conflict that they would have to resolve after they have met.
		if _, err := s.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		if _, err := s.Do(ownSlots(i, len(servers))...); err != nil {
			return err
		}
	}
	for _, other := range servers[1:] {
		host, port, err := net.SplitHostPort(other.Addr())
		if err != nil {
			return err
		}
		if _, err := servers[0].Do("CLUSTER", "MEET", host, port); err != nil {
			return err
		}
	}
	for _, server := range servers {
		if err := server.awaitCluster(len(servers)); err != nil {
			return err
		}
	}
	return nil
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

// awaitCluster returns once the server sees all nodes and all slots served, and has a link to each node: before, it would not
// forward published messages.
func (s *Server) awaitCluster(nodes int) error {
	for deadline := time.Now().Add(clusterLimit); ; time.Sleep(clusterPause) {
		info, err := s.Do("CLUSTER", "INFO")
		if err != nil {
			return err
		}
		links, err := s.Do("CLUSTER", "NODES")
		if err != nil {
			return err
		}
		if !strings.Contains(links, "disconnected") && field(info, "cluster_state") == "ok" &&
			field(info, "cluster_size") == strconv.Itoa(nodes) &&
			field(info, "cluster_slots_ok") == strconv.Itoa(clusterSlots) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("redistest: no cluster of %d nodes within %v; %s says:\n%s\n%s", nodes, clusterLimit, s.Addr(), info, links)
		}
	}
}
