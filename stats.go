package lockregistry

import (
	"cmp"
	"slices"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/health"
	"github.com/lockregistry/lockregistry/internal/topology"
	"github.com/lockregistry/lockregistry/observe"
)

// Stats returns figures about what the registry does, all taken at about the same moment. It blocks no other call, and also works
// after Close.
//
// # Details
//
// Stats looks at every cached lock, which takes about 0.1 µs for each, or 1 µs for each one in use. It sends nothing, except in a
// cluster: there it asks the nodes for their slots, at most once a second, and the first time waits for the answers, for at most
// 0.3 s and two round trips.
func (r *Registry) Stats() observe.Stats {
	s := observe.Stats{Handoffs: r.reports.handoffs.Load(), Windows: r.queues.Windows.Load()}
	for l := range r.cache.all() {
		if l == l.anchor() { // counted here, so that there are not more holds than locks have
			s.Locks++
		}
		l.count(&s)
	}
	for _, l := range r.permits.All() {
		l.count(&s)
	}
	s.Removals = r.background.Cleaner.Unconfirmed()
	s.Wakeups = observe.Wakeups{Messages: r.queues.Grants.Load(), Polls: r.queues.Polls.Load()}
	server := ""
	if all := topology.Servers(r.client); len(all) == 1 {
		server = all[0]
	}
	nodes := r.masters(server)
	if l := r.queues.Listening; l != nil {
		states, messages, invalidations := l.States()
		s.Wakeups.Changes = messages + invalidations
		for _, state := range states {
			if !r.queues.Cluster { // there is one
				state.Node = server
			}
			n := nodes.at(state.Node)
			n.Waiters, n.Lost = state.Waiters, state.Lost
			if state.Up {
				n.Since, n.Wakeup = state.Since, "pubsub"
				if state.Tracks {
					n.Wakeup = "tracking"
				}
			}
		}
	}
	for _, n := range nodes {
		s.Nodes = append(s.Nodes, *n)
	}
	slices.SortFunc(s.Nodes, func(a, b observe.NodeStats) int { return cmp.Compare(a.Address, b.Address) })
	return s
}

// count adds a lock to the figures. How long a leader leads, and its candidates wait, says nothing about a fault.
func (l *Lock) count(s *observe.Stats) {
	if l.entry().Pins() <= 0 { // not in use
		return
	}
	now := l.reg.now()
	// A call with a ticket has left the queue of its process before, so it is not counted twice.
	first, queued, leads := l.redis.Waits()
	if h := l.hold.Load(); h != nil {
		held := h.Held(now)
		leads = leads || held.Leads
		if held.Fresh {
			s.Holds++
		}
		if held.Fresh && !leads {
			s.Oldest = max(s.Oldest, held.Owned)
		}
	}
	if l != l.anchor() { // a pair has one queue for both sides
		return
	}
	if first > 0 {
		s.Waiters++
	}
	if queued {
		s.Tickets++
	}
	here, since := l.half().Queued()
	s.Waiters += here
	for _, began := range [...]clock.Instant{first, since} {
		if began > 0 && !leads {
			s.OldestWait = max(s.OldestWait, began.Until(now))
		}
	}
}

type nodesStats map[string]*observe.NodeStats

func (n nodesStats) at(address string) *observe.NodeStats {
	if n[address] == nil {
		n[address] = &observe.NodeStats{Address: address, Wakeup: "poll"}
	}
	return n[address]
}

// masters returns the servers of the nodes, with what is known of them. Without a cluster there is one, the given one.
func (r *Registry) masters(server string) nodesStats {
	nodes := nodesStats{}
	for _, l := range r.transport.Masters() {
		address := l.Address
		if !r.queues.Cluster {
			address = server
		}
		n := nodes.at(address)
		n.LastAnswer = r.timeOf(l.LastReply())
		n.RenewalsFailing = r.timeOf(r.background.Health.Since(l, health.Renewals))
		n.RemovalsFailing = r.timeOf(r.background.Health.Since(l, health.Removals))
	}
	return nodes
}

// timeOf returns the time of an instant; unset if there is none.
func (r *Registry) timeOf(i clock.Instant) (t time.Time) {
	if i > 0 {
		t = r.transport.Clock.Time(i)
	}
	return t
}
