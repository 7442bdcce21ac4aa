package lockregistry

import (
	"slices"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// routes tell which lane a key has. A lane is a master: what is known of one says nothing about another. So in a cluster there
// is a lane for each master that the nodes have named, and one, the first, for slots whose master nobody knows yet. A single
// server has the first one only.
//
// They are never changed, but replaced, so that a command finds its lane without a mutex. One may be sent while its slot goes to
// another master. Rueidis follows that by itself, and the lane of the former master takes in an answer of the new one: a fast one
// only makes it stricter, and one that took long is late.
type routes struct {
	lanes []*lane
	of    *[protocol.Slots]uint16 // which lane each slot has; nil: not a cluster
}

// lane returns the lane of a key.
func (t *transport) lane(key string) *lane {
	r := t.routes.Load()
	if r.of == nil {
		return r.lanes[0]
	}
	return r.lanes[r.of[protocol.Slot(key)]]
}

// lanes are those that there are now.
func (t *transport) lanes() []*lane { return t.routes.Load().lanes }

// masters are the lanes that lead to servers, by what the nodes of a cluster say now, or will have said at the next call.
func (t *transport) masters() []*lane {
	if t.resolver == nil {
		return t.lanes()
	}
	if len(t.lanes()) == 1 {
		t.resolver.Hear(topology.FreshFor)
	}
	t.resolver.Refresh(topology.FreshFor)
	lanes := t.lanes()
	return lanes[min(1, len(lanes)-1):] // nothing is left for the first
}

// farthest is the lane of the master that is farthest away.
func (t *transport) farthest() *lane {
	most := t.first
	for _, l := range t.lanes() {
		if l.trip().base > most.trip().base {
			most = l
		}
	}
	return most
}

// laneAt returns the lane of a node of a cluster, or the first one where it is no master that is known.
func (t *transport) laneAt(address string) *lane {
	lanes := t.lanes()
	return lanes[max(0, slices.IndexFunc(lanes, func(l *lane) bool { return l.address == address }))]
}

// reroute takes in which masters the nodes name. Slots that are missing keep their lanes: while nodes disagree, what is known of
// the master that they had is of use. So do lanes that are wary: the word of nodes may change back. Only one goroutine calls
// it at a time.
func (t *transport) reroute(all topology.Map) {
	old := t.routes.Load()
	of := *old.of
	lanes := slices.Clone(old.lanes)
	for _, r := range all {
		n := slices.IndexFunc(lanes, func(l *lane) bool { return l.address == r.Address })
		if n < 0 {
			n = len(lanes)
			lanes = append(lanes, newLane(t, r.Address))
		}
		for slot := max(r.First, 0); slot <= min(r.Last, protocol.Slots-1); slot++ {
			if wary := lanes[of[slot]].wary.Load(); wary > lanes[n].wary.Load() {
				lanes[n].wary.Store(wary) // the client may not have heard of it, and go on to ask the former one
			}
			of[slot] = uint16(n) //nolint:gosec // a cluster has no more masters than slots
		}
	}
	if of == *old.of {
		return
	}
	used := make([]bool, len(lanes))
	for _, n := range of {
		used[n] = true
	}
	next, place := &routes{of: &of}, make([]uint16, len(lanes))
	for n, l := range lanes {
		if n == 0 || used[n] || l.isWary(t.clock.Now()) {
			place[n] = uint16(len(next.lanes)) //nolint:gosec // as above
			next.lanes = append(next.lanes, l)
		}
	}
	for slot, n := range of {
		of[slot] = place[n]
	}
	t.routes.Store(next)
}
