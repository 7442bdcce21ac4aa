package redistest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// SharedCluster is a cluster of three masters that many tests use at the same time. It starts when the first of them asks for
// it. Each test takes names of its own for its keys. None may move slots, stop nodes or change their configuration: Stop
// reports an error if one did.
type SharedCluster struct {
	mu    sync.Mutex
	begun bool
	nodes []*Server
	was   [][]string // what each node said about the cluster and its configuration at the start
	err   error      // why there is no cluster
}

// Nodes returns the nodes of the cluster. A test that cannot get a cluster fails.
func (c *SharedCluster) Nodes(tb testing.TB) []*Server {
	tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun {
		c.begun = true
		if c.nodes, c.err = RunCluster("", 3); c.err == nil {
			c.was, c.err = states(c.nodes)
		}
	}
	if c.err != nil {
		stop(tb, c.err)
	}
	return c.nodes
}

// Stop stops the nodes. It returns an error if the cluster is not as it was at its start. The test program calls it when all
// tests have ended.
func (c *SharedCluster) Stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		for _, node := range c.nodes {
			node.Stop()
		}
		c.nodes = nil
	}()
	if len(c.nodes) == 0 || c.err != nil { // no test has used it, or those that wanted to have failed
		return nil
	}
	return c.changed()
}

// changed returns an error when the cluster is not as it was at its start.
func (c *SharedCluster) changed() error {
	is, err := states(c.nodes)
	if err != nil {
		return fmt.Errorf("redistest: a test has stopped a node of the shared cluster: %w", err)
	}
	for i, before := range c.was {
		for _, line := range is[i] {
			if !slices.Contains(before, line) {
				return fmt.Errorf("redistest: a test has changed the shared cluster: %s now says %q", c.nodes[i].Addr(), line)
			}
		}
		if len(is[i]) != len(before) {
			return errors.New("redistest: a test has changed the shared cluster: " + c.nodes[i].Addr() + " has forgotten a node")
		}
	}
	return nil
}

// states returns what each node says of the cluster, its configuration and its users, as far as only a command changes it.
func states(nodes []*Server) (all [][]string, err error) {
	for _, node := range nodes {
		known, err := node.Do("CLUSTER", "NODES")
		if err != nil {
			return nil, err
		}
		var lines []string
		for line := range strings.Lines(known) {
			const untilMaster = 8 // id, address, flags, master, when it was asked and answered, epoch, link; then slots
			words := strings.Fields(line)
			if len(words) < untilMaster {
				return nil, fmt.Errorf("redistest: %s says of a node: %q", node.Addr(), line)
			}
			lines = append(lines, strings.Join(append([]string{words[0], words[1]}, words[untilMaster:]...), " "))
		}
		config, err := node.Do("CONFIG", "GET", "*")
		if err != nil {
			return nil, err
		}
		names := strings.Split(config, "\n")
		for pair := range slices.Chunk(names, 2) {
			lines = append(lines, strings.Join(pair, " "))
		}
		users, err := node.Do("ACL", "LIST")
		if err != nil {
			return nil, err
		}
		lines = append(lines, strings.Split(users, "\n")...)
		all = append(all, lines)
	}
	return all, nil
}
