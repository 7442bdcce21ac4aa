package lockregistry

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/health"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// Stats is what a registry does at the moment, and has done since it was made.
type Stats struct {
	Locks   int // lock objects that the registry keeps; a read-write lock counts as one. The same as Len
	Holds   int // locks, readers and writers that are held here, with a lease that is not over; readers that share count as one
	Waiters int // calls that wait: for an owner in this process, or for one elsewhere
	Tickets int // of these, calls with a place in a queue in Redis

	Strays int // removals that are not confirmed, and grants without an answer, that are removed in the background

	// Oldest is the age of the oldest of the holds, since its owner has it; of one that readers share, since the first of them
	// had it. It is 0 without holds. One that is much older than its work takes is of an owner that hangs, or that has
	// forgotten to unlock.
	Oldest time.Duration

	HandOvers uint64 // holds that went from one goroutine of this process to the next
	Wakeups   WakeupCounts
	Nodes     []NodeStats // by address
}

// WakeupCounts is why calls that waited for others looked at Redis, or had the lock, since the registry was made.
type WakeupCounts struct {
	ByMessage      uint64 // a release was published
	ByInvalidation uint64 // the server announced a change of the key
	ByGrant        uint64 // a release of another process made the call the owner
	ByPoll         uint64 // the time had come: a poll interval, the end of a lease, or a look after the ticket
}

// NodeStats is about one server: a single one, the master that Sentinels name, or a master of a cluster. A server that calls wait
// for a word of is there although it is no master any more.
type NodeStats struct {
	Address string // host and port; empty: nobody knows the master, or the client does not name its servers

	// Wakeup is how waiting calls of this registry learn of changes: WakeupTracking or WakeupPubSub with a connection, else
	// WakeupPoll. The connection is that of all registries on the client.
	Wakeup  Wakeup
	Since   time.Time // since when there is that connection; zero when there is none
	Lost    uint64    // connections for wake-ups to it that were lost since the first call waited
	Waiters int       // calls of this registry that rely on it for wake-ups

	// LastAnswer is when it answered a command about a lock last, of any registry on the client; zero when it has not. In a
	// cluster it is that of its slots, 256 of them together.
	LastAnswer time.Time

	// RenewalsFailing and RemovalsFailing tell since when those that the registry sends in the background fail, zero when they
	// do not. One that succeeds ends that, or a minute in which none is tried: their holds were released, say.
	RenewalsFailing time.Time
	RemovalsFailing time.Time
}

// Stats tells what the registry does. It sends nothing, except where the client has several servers. In a cluster it asks the
// nodes once a second at most which slots they have; the first time it waits for their answers, for 0.3 s at most, later it does
// not. Where the client has replicas, too, it asks as often which server is the master (ROLE), for 0.3 s at most. It looks
// at each lock that the registry keeps, which takes about 0.1 µs for each, and 1 µs for each in use, and disturbs no other
// call. The numbers belong to about the same moment. They are there after Close, too.
func (r *Registry) Stats() Stats {
	s := Stats{Locks: r.Len(), HandOvers: r.reports.handOvers.Load()}
	for l := range r.cache.all() {
		l.count(&s)
	}
	s.Strays = r.background.cleaner.Len()
	s.Wakeups = WakeupCounts{ByGrant: r.queues.Grants.Load(), ByPoll: r.queues.Polls.Load()}
	server := ""
	if !r.queues.Cluster {
		server = r.others.master.of(r.client, r.clock)
	}
	nodes := r.masters(server)
	if r.queues.Waker.Listening != nil {
		states, messages, invalidations := r.queues.Waker.Listening.States()
		s.Wakeups.ByMessage, s.Wakeups.ByInvalidation = messages, invalidations
		for _, state := range states {
			if !r.queues.Cluster { // there is one
				state.Node = server
			}
			n := nodes.at(state.Node)
			n.Waiters, n.Lost = state.Waiters, state.Lost
			if state.Up {
				n.Since, n.Wakeup = state.Since, WakeupPubSub
				if state.Tracks {
					n.Wakeup = WakeupTracking
				}
			}
		}
	}
	for _, n := range nodes {
		s.Nodes = append(s.Nodes, *n)
	}
	slices.SortFunc(s.Nodes, func(a, b NodeStats) int { return cmp.Compare(a.Address, b.Address) })
	return s
}

// count adds a lock to what there is.
func (l *Lock) count(s *Stats) {
	if l.anchor().entry.Pins() <= 0 { // nobody uses it
		return
	}
	if h := l.hold.Load(); h != nil {
		if owned, _, fresh := h.Held(l.reg.clock.Now()); fresh {
			s.Holds++
			s.Oldest = max(s.Oldest, owned)
		}
	}
	if l != l.anchor() { // the waiters for either side of a pair are together
		return
	}
	// A call with a ticket has left the queue of its process before, so it is not counted twice.
	if waits, queued, _ := l.redis.Waits(); waits {
		s.Waiters++
		if queued {
			s.Tickets++
		}
	}
	s.Waiters += l.half().Queued()
}

type nodesStats map[string]*NodeStats

func (n nodesStats) at(address string) *NodeStats {
	if n[address] == nil {
		n[address] = &NodeStats{Address: address, Wakeup: WakeupPoll}
	}
	return n[address]
}

// masters are the servers that have the shards, with what is known of those. Outside of a cluster there is one, the given one.
func (r *Registry) masters(server string) nodesStats {
	nodes := nodesStats{}
	for _, l := range r.transport.Masters() {
		address := l.Address
		if !r.queues.Cluster {
			address = server
		}
		n := nodes.at(address)
		if last := l.LastReply(); last > 0 {
			n.LastAnswer = latest(n.LastAnswer, r.clock.Time(last))
		}
		n.RenewalsFailing = earliest(n.RenewalsFailing, r.background.health.Since(l, health.Renewals), r.clock)
		n.RemovalsFailing = earliest(n.RemovalsFailing, r.background.health.Since(l, health.Removals), r.clock)
	}
	return nodes
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// earliest is the earlier one of two times, each of which may be none.
func earliest(a time.Time, i clock.Instant, c clock.Clock) time.Time {
	if i == 0 {
		return a
	}
	if b := c.Time(i); a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// masterOf is which server of a client outside of a cluster takes writes, where replicas are among its servers.
type masterOf struct {
	mu      sync.Mutex
	servers []string      // that were asked
	at      clock.Instant // when
	address string
}

// of returns the address of the server; empty when nobody knows it.
func (m *masterOf) of(client rueidis.Client, c clock.Clock) string {
	servers := topology.Servers(client)
	switch len(servers) {
	case 0:
		return ""
	case 1:
		return servers[0]
	}
	now := c.Now()
	m.mu.Lock()
	address, fresh := m.address, slices.Equal(servers, m.servers) && m.at.Until(now) < topology.FreshFor
	m.mu.Unlock()
	if fresh {
		return address
	}
	ctx, end := context.WithTimeout(context.Background(), masterLimit)
	defer end()
	address = topology.Master(ctx, client)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.servers, m.at, m.address = servers, now, address
	return address
}

// masterLimit is how long [Registry.Stats] waits for the servers to say which of them is the master.
const masterLimit = 300 * time.Millisecond
