package transport

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
)

// demotion is what is known of masters that became replicas behind the one address of a client: a Kubernetes Service, a proxy,
// a name. The address leads new connections to the new master, but old ones stay with the replica, which refuses every write
// (READONLY), for as long as nobody closes them. Rueidis does not.
//
//	an old connection leads to a replica ──▶ suspect: commands go over a fresh connection ──the fresh one leads to a master──┐
//	            ▲                                                                                                            │
//	            └──────────────── suspect no more ◀──all lead to a master── QUIT closes one at a time ◀──────────────────────┘
//
// A refused command did nothing, so Do sends it again, over the fresh connection. Not only writes must avoid the old ones: a
// script that finds another owner writes nothing, so a replica that lags behind answers it, wrongly. Therefore the node is
// suspect until the client's connections were looked at.
//
// Rueidis chooses among its connections at random, and so does QUIT, which may close a good one. While the address itself leads
// to a replica, fresh connections are refused, too: they are made with a backoff, and none is closed.
//
// The nodes of a cluster, and Sentinels, say by themselves who is master.
type demotion struct {
	closing atomic.Bool // closeOld runs

	mu   sync.Mutex
	ever bool          // a master was demoted
	next chan struct{} // closed at the next tell
}

// refusedPause is the longest pause before another fresh connection while the address leads to a replica: the new master must be
// found within half a second.
const refusedPause = 3 * belief.Tick

// Demoted returns whether a master was demoted so far, and a channel that is closed when the address leads to a master again
// after the next demotion. Connections that were made before may lead to a replica.
func (t *Client) Demoted() (ever bool, next <-chan struct{}) {
	d := &t.demotion
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next == nil {
		d.next = make(chan struct{})
	}
	return d.ever, d.next
}

// tell notifies the listeners, see Demoted.
func (d *demotion) tell() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ever = true
	if d.next != nil {
		close(d.next)
		d.next = nil
	}
}

// mostRefused is how often a command is sent at most. An old connection refuses it, and then a fresh one that was made before the
// address moved; the next one is made for this command.
const mostRefused = 3

// mend begins closeOld, unless it runs.
func (s *Node) mend() {
	if d := &s.client.demotion; d.closing.CompareAndSwap(false, true) {
		go func() {
			defer d.closing.Store(false)
			s.closeOld()
		}()
	}
}

// closeOld closes the client's own connections that lead to a replica, and then has commands use the others again.
func (s *Node) closeOld() {
	looks := s.belief.Inspecting()
	if role, _ := s.askRole(false); role == belief.Replica { // of the fresh connection
		s.belief.Owe()
		return
	}
	// Only now: until the address leads to a master, a connection for messages is as good as any that could be made.
	s.client.demotion.tell()
	for !looks.Enough() && !s.belief.Closed() {
		quits, over := looks.Met(s.askRole(true))
		if over {
			break
		}
		if quits > 0 {
			s.quit()
			<-time.After(clock.Pause(quits, refusedPause/3)) // the client notices that it is closed
		}
	}
	s.belief.Inspected(looks)
}

// askRole asks for the role of a server, and the number of the connection: one of the client's own, or the fresh one.
func (s *Node) askRole(shared bool) (role belief.Role, connection int64) {
	p := Wait{Ctx: context.Background(), Limit: s.RoundTrip().Plus(belief.Silence)}
	e := s.await(&p, task{plain: shared, send: withHello(ping)})
	if len(e.results) < 2 {
		return belief.Untold, 0
	}
	return roleIn(e.results[1])
}

// withHello sends HELLO behind a command with a key, see ping.
func withHello(first func(rueidis.Builder) rueidis.Completed) sending {
	return func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
		return way.DoMulti(ctx, first(way.B()), way.B().Arbitrary("HELLO").Build())
	}
}

func roleIn(hello rueidis.RedisResult) (role belief.Role, connection int64) {
	all, _ := hello.AsMap() // without it nothing is known
	said, id := all["role"], all["id"]
	switch name, _ := said.ToString(); name {
	case "":
	case "master":
		role = belief.Master
	default:
		role = belief.Replica
	}
	connection, _ = id.AsInt64()
	return role, connection
}

// quit closes one of the client's own connections.
func (s *Node) quit() {
	p := Wait{Ctx: context.Background(), Limit: s.RoundTrip().Plus(belief.Silence)}
	s.await(&p, task{plain: true, send: single(func(b rueidis.Builder) rueidis.Completed {
		return b.Arbitrary("QUIT").Keys("there").Build() // see ping
	})})
}

// LedToMaster notes that a connection has led to a master: if one leads to a replica later, the master was demoted.
func (t *Client) LedToMaster() { t.First.belief.LedToMaster() }

// mostYoung is how many connections to a replica may be a second old at most: their ages, in whole seconds, do not tell them from
// fresh ones.
const mostYoung = 3

// young returns how many connections to a replica may come from the client's pool, instead of from the address.
func (f *freshConns) young() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.belief.Owed() || f.replicas.newest != 0 && f.replicas.newest.Until(f.now()) < time.Second {
		return 0
	}
	return mostYoung
}

// refused notes that a fresh connection leads to a replica.
func (f *freshConns) refused(conn *freshConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if conn.broken.Swap(true) {
		return
	}
	now := f.now()
	if f.replicas.newest.Until(now) >= time.Second {
		f.replicas.inARow = 0
	}
	f.replicas = refusals{f.replicas.inARow + 1, now}
	f.again = now.Add(clock.Pause(f.replicas.inARow, refusedPause))
}
