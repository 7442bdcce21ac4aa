package transport

import (
	"context"
	"slices"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// routes map keys to shards. A shard is a master: what is known of one says nothing about another. So in a cluster there is a
// shard for each master that the nodes have named, and the first shard, for slots whose master is not known yet. A single
// server has only the first one.
//
// They are replaced, never changed, so that a command finds its shard without a mutex. A command may be sent while its slot
// moves to another master. Rueidis follows the move, and the shard of the former master gets the new master's reply: a fast
// reply only makes it stricter, and a slow one is late.
type routes struct {
	shards []*Shard
	of     *[protocol.Slots]uint16 // the index of each slot's shard; nil: not a cluster
}

// Shard returns the shard of a key.
func (t *Client) Shard(key string) *Shard {
	r := t.routes.Load()
	if r.of == nil {
		return r.shards[0]
	}
	return r.shards[r.of[protocol.Slot(key)]]
}

func (t *Client) shards() []*Shard { return t.routes.Load().shards }

// Leads reports whether any slot has the shard.
func (t *Client) Leads(s *Shard) bool {
	r := t.routes.Load()
	n := slices.Index(r.shards, s)
	return n >= 0 && (r.of == nil || slices.Contains(r.of[:], uint16(n))) //nolint:gosec // as in remap
}

// Masters returns the shards that lead to servers. In a cluster it asks the nodes; their answers may count only at the next
// call.
func (t *Client) Masters() []*Shard {
	if t.resolver == nil {
		return t.shards()
	}
	if len(t.shards()) == 1 {
		t.resolver.Hear(topology.FreshFor)
	}
	t.resolver.Refresh(topology.FreshFor)
	shards := t.shards()
	return shards[min(1, len(shards)-1):] // no slot is left to the first
}

// Slots asks the nodes of a cluster who has which slots; see [topology.Resolver.Masters]. It returns nil without a cluster.
func (t *Client) Slots(ctx context.Context) topology.Map {
	if t.resolver == nil {
		return nil
	}
	return t.resolver.Masters(ctx)
}

// Farthest returns the shard with the longest round trip.
func (t *Client) Farthest() *Shard {
	most := t.First
	for _, s := range t.shards() {
		if s.RoundTrip().Base > most.RoundTrip().Base {
			most = s
		}
	}
	return most
}

// ShardAt returns the shard of a node of a cluster, or the first one if the node is no known master.
func (t *Client) ShardAt(address string) *Shard {
	shards := t.shards()
	return shards[max(0, slices.IndexFunc(shards, func(s *Shard) bool { return s.Address == address }))]
}

// remap replaces the routes by the masters that the nodes name. Slots that are missing keep their shards: while nodes disagree,
// what is known of their former master is useful. Suspect shards are kept, too: the nodes may change back. Only one goroutine
// calls it at a time.
func (t *Client) remap(all topology.Map) {
	old := t.routes.Load()
	of := *old.of
	shards := slices.Clone(old.shards)
	for _, r := range all {
		n := slices.IndexFunc(shards, func(s *Shard) bool { return s.Address == r.Address })
		if n < 0 {
			n = len(shards)
			shards = append(shards, newShard(t, r.Address))
		}
		for slot := max(r.First, 0); slot <= min(r.Last, protocol.Slots-1); slot++ {
			shards[n].belief.Succeeds(&shards[of[slot]].belief)
			of[slot] = uint16(n) //nolint:gosec // a cluster has no more masters than slots
		}
	}
	if of == *old.of {
		return
	}
	used := make([]bool, len(shards))
	for _, n := range of {
		used[n] = true
	}
	next, index := &routes{of: &of}, make([]uint16, len(shards))
	for n, s := range shards {
		if n == 0 || used[n] || s.IsSuspect(t.Clock.Now()) {
			index[n] = uint16(len(next.shards)) //nolint:gosec // as above
			next.shards = append(next.shards, s)
		}
	}
	for slot, n := range of {
		of[slot] = index[n]
	}
	t.routes.Store(next)
}
