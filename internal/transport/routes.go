package transport

import (
	"context"
	"slices"
	"weak"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// routes map keys to Nodes. A Node is about one master, since what is known of one says nothing about another. So on a cluster
// there is a Node for each master that the cluster's nodes have named, and the first Node, for slots whose master is not known
// yet. A single server has only the first one.
//
// They are replaced, never changed, so that a command finds its Node without a mutex. A command may be sent while its slot
// moves to another master. Rueidis follows the move, and the Node of the former master gets the new master's reply. That is
// harmless: a fast reply only makes its limits stricter, and a slow one is late.
type routes struct {
	nodes []*Node
	of    *[protocol.Slots]uint16 // the index of each slot's node; nil: not a cluster

	closed bool // the client is closed: Nodes that are made from now on are closed, too

	// dropped are Nodes to which no slot leads any more, but which a waiting call, or a command that is about to be sent, may
	// still use. Only Close needs them, so they are not kept from the garbage collector.
	dropped []weak.Pointer[Node]
}

// Node returns the node of a key.
func (t *Client) Node(key string) *Node {
	r := t.routes.Load()
	if r.of == nil {
		return r.nodes[0]
	}
	return r.nodes[r.of[protocol.Slot(key)]]
}

func (t *Client) nodes() []*Node { return t.routes.Load().nodes }

// Leads reports whether any slot leads to the node.
func (t *Client) Leads(s *Node) bool {
	r := t.routes.Load()
	n := slices.Index(r.nodes, s)
	return n >= 0 && (r.of == nil || slices.Contains(r.of[:], uint16(n))) //nolint:gosec // as in remap
}

// Masters returns the nodes that lead to servers. In a cluster it asks the nodes; their answers may count only at the next
// call.
func (t *Client) Masters() []*Node {
	if t.resolver == nil {
		return t.nodes()
	}
	if len(t.nodes()) == 1 {
		t.resolver.Hear(topology.FreshFor)
	}
	t.resolver.Refresh(topology.FreshFor)
	nodes := t.nodes()
	return nodes[min(1, len(nodes)-1):] // no slot is left to the first
}

// Slots asks the nodes of a cluster which master has which slots, see [topology.Resolver.Masters]. It returns nil without a
// cluster.
func (t *Client) Slots(ctx context.Context) topology.Map {
	if t.resolver == nil {
		return nil
	}
	return t.resolver.Masters(ctx)
}

// Farthest returns the node with the longest round trip.
func (t *Client) Farthest() *Node {
	most := t.First
	for _, s := range t.nodes() {
		if s.RoundTrip().Base > most.RoundTrip().Base {
			most = s
		}
	}
	return most
}

// NodeAt returns the Node of a cluster's master by its address, or the first Node if no such master is known.
func (t *Client) NodeAt(address string) *Node {
	nodes := t.nodes()
	return nodes[max(0, slices.IndexFunc(nodes, func(s *Node) bool { return s.Address == address }))]
}

// remap replaces the routes by the masters that the nodes name. Slots that are missing keep their nodes: while nodes disagree,
// what is known of their former master is useful. Suspect nodes are kept, too: the nodes may change back.
func (t *Client) remap(all topology.Map) {
	for {
		if old := t.routes.Load(); t.routes.CompareAndSwap(old, t.remapped(old, all)) {
			return
		}
	}
}

// suspectFormer makes a former master suspect if it does not answer; others have its slots now. This process may have sent it
// nothing, and so have noticed nothing. Its successors inherit the suspicion. So commands go to the successors at once, not
// where the client leads: it does not look for successors while its connections are silent.
func (t *Client) suspectFormer(s *Node) {
	now := t.Clock.Now()
	if !s.IsSuspect(now) && t.resolver.Silent(s.Address) { // mutant: silent former master believed
		s.foundSilent(now, now)
	}
}

// endRoutes returns the Nodes that were made so far. Those that are made from now on are closed at once.
func (t *Client) endRoutes() (made []*Node) {
	for {
		old := t.routes.Load()
		next := *old
		next.closed = true
		if !t.routes.CompareAndSwap(old, &next) {
			continue
		}
		made = slices.Clone(old.nodes)
		for _, s := range old.dropped {
			if s := s.Value(); s != nil {
				made = append(made, s)
			}
		}
		return made
	}
}

// remapped returns the routes with which remap replaces old.
func (t *Client) remapped(old *routes, all topology.Map) *routes {
	of := *old.of
	nodes := slices.Clone(old.nodes)
	for _, r := range all {
		n := slices.IndexFunc(nodes, func(s *Node) bool { return s.Address == r.Address })
		if n < 0 {
			n = len(nodes)
			s := newNode(t, r.Address)
			if old.closed { // mutant: node made after close
				s.close()
			}
			nodes = append(nodes, s)
		}
		var last *Node // the former master that was met last
		for slot := max(r.First, 0); slot <= min(r.Last, protocol.Slots-1); slot++ {
			if former := nodes[of[slot]]; former != nodes[n] && former != last {
				t.suspectFormer(former) // first, since the successor inherits the suspicion
				nodes[n].belief.Succeeds(&former.belief)
				last = former
			}
			of[slot] = uint16(n) //nolint:gosec // a cluster has no more masters than slots
		}
	}
	if of == *old.of {
		return old
	}
	used := make([]bool, len(nodes))
	for _, n := range of {
		used[n] = true
	}
	next := &routes{of: &of, closed: old.closed, dropped: slices.DeleteFunc(slices.Clone(old.dropped), isGone)}
	index := make([]uint16, len(nodes))
	for n, s := range nodes {
		if n == 0 || used[n] || s.IsSuspect(t.Clock.Now()) {
			index[n] = uint16(len(next.nodes)) //nolint:gosec // as above
			next.nodes = append(next.nodes, s)
		} else {
			next.dropped = append(next.dropped, weak.Make(s))
		}
	}
	for slot, n := range of {
		of[slot] = index[n]
	}
	return next
}

func isGone(s weak.Pointer[Node]) bool { return s.Value() == nil }
