package redistest

import (
	"slices"
	"strconv"
	"strings"
)

// member is what a node of a cluster says about another node, or itself.
type member struct {
	id, address, master string
	failed              bool // according to most nodes: one alone may have been kept waiting
	slots               []string
}

// view returns what a node says about all nodes, except nodes that it is about to meet.
func (d *Deployment) view(s *Server) (all []member) {
	d.tb.Helper()
	for line := range strings.Lines(d.ask(s, "CLUSTER", "NODES")) {
		words := strings.Fields(line)
		if len(words) < 8 || strings.Contains(words[2], "handshake") || strings.Contains(words[2], "noaddr") {
			continue
		}
		address, _, _ := strings.Cut(words[1], "@")
		failed := slices.Contains(strings.Split(words[2], ","), "fail")
		all = append(all, member{words[0], address, strings.TrimPrefix(words[3], "-"), failed, words[8:]})
	}
	return all
}

func (m member) has(slot int) bool {
	return slices.ContainsFunc(m.slots, func(s string) bool {
		first, last, ok := slotRange(s)
		return ok && first <= slot && slot <= last
	})
}

func slotRange(text string) (first, last int, ok bool) {
	from, to, several := strings.Cut(text, "-")
	if !several {
		to = from
	}
	first, err1 := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	return first, last, err1 == nil && err2 == nil // otherwise the slot is being moved
}

// Add starts another master of a cluster, which has no slots yet.
func (d *Deployment) Add() *Server {
	d.tb.Helper()
	s := d.node()
	s.Command(d.tb, append([]string{"CLUSTER", "MEET"}, hostPort(d.witness(s))...)...)
	d.AwaitHealthy()
	return s
}

// Follow starts another replica of a master of a cluster, which has the data when Follow returns.
func (d *Deployment) Follow(master *Server) *Server {
	d.tb.Helper()
	s := d.Add()
	s.Command(d.tb, "CLUSTER", "REPLICATE", d.id(master))
	d.AwaitHealthy()
	return s
}

// Move moves slots with their keys to another master, one slot after the other, as redis-cli does when it reshards. Both
// masters go on meanwhile.
func (d *Deployment) Move(to *Server, slots ...int) {
	d.tb.Helper()
	owners := map[int]*Server{}
	view := d.view(d.witness(nil))
	for _, slot := range slots {
		for _, m := range view {
			for _, s := range m.slots {
				if first, last, ok := slotRange(s); ok && first <= slot && slot <= last {
					owners[slot] = d.at(m.address)
				}
			}
		}
	}
	for _, slot := range slots {
		if from := owners[slot]; from != to {
			d.move(from, to, slot)
		}
	}
	d.await("that all know who has the slots", func() bool {
		id := d.id(to)
		for _, s := range d.Servers {
			if slices.Contains(d.removed, s) || !s.Running() {
				continue
			}
			for _, m := range d.view(s) {
				if m.id != id && slices.ContainsFunc(slots, m.has) {
					return false
				}
			}
		}
		return true
	})
}

func (d *Deployment) move(from, to *Server, slot int) {
	d.tb.Helper()
	number := strconv.Itoa(slot)
	to.Command(d.tb, "CLUSTER", "SETSLOT", number, "IMPORTING", d.id(from))
	from.Command(d.tb, "CLUSTER", "SETSLOT", number, "MIGRATING", d.id(to))
	for {
		keys := from.Command(d.tb, "CLUSTER", "GETKEYSINSLOT", number, "100")
		if keys == "" {
			break
		}
		host := hostPort(to)
		from.Command(d.tb, slices.Concat(
			[]string{"MIGRATE", host[0], host[1], "", "0", "5000", "KEYS"}, strings.Split(keys, "\n"))...)
	}
	to.Command(d.tb, "CLUSTER", "SETSLOT", number, "NODE", d.id(to)) // first, so that the slot always has an owner
	for _, s := range d.Servers {
		if s == to || !s.Running() || slices.Contains(d.removed, s) || isReplica(d.ask(s, "ROLE")) {
			continue
		}
		_, err := s.Do("CLUSTER", "SETSLOT", number, "NODE", d.id(to))
		if err != nil && !isReplica(d.ask(s, "ROLE")) { // a master that has lost its last slot has just become a replica of to
			d.tb.Fatalf("redistest: SETSLOT %s on %s: %v", number, s.Addr(), err)
		}
	}
}

// isReplica reports whether a reply to ROLE is that of a replica.
func isReplica(role string) bool { return strings.HasPrefix(role, "slave") }

// Slots returns the slots of a master of a cluster.
func (d *Deployment) Slots(master *Server) (all []int) {
	id := d.id(master)
	for _, m := range d.view(d.witness(nil)) {
		for _, s := range m.slots {
			if first, last, ok := slotRange(s); ok && m.id == id {
				for slot := first; slot <= last; slot++ {
					all = append(all, slot)
				}
			}
		}
	}
	return all
}

// Remove takes a node without slots out of a cluster, as redis-cli --cluster del-node does. It goes on running, outside the
// cluster; without reset it does not know that it was removed.
func (d *Deployment) Remove(node *Server, reset bool) {
	d.tb.Helper()
	id := d.id(node)
	for _, s := range d.Servers {
		if s != node && !slices.Contains(d.removed, s) {
			s.Command(d.tb, "CLUSTER", "FORGET", id)
		}
	}
	if reset {
		node.Command(d.tb, "CLUSTER", "RESET", "SOFT")
	}
	d.removed = append(d.removed, node)
}
