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

// demotion is about masters that become replicas behind a client's only address: a Kubernetes Service, a proxy, or a name. The
// address leads new connections to the new master. Old connections stay with the replica, which refuses every write (READONLY),
// until they are closed. Rueidis does not close them.
//
//	an old connection leads to a replica ──▶ suspect: commands go over a fresh connection ──the fresh one leads to a master──┐
//	            ▲                                                                                                            │
//	            └──────────────── suspect no more ◀──all lead to a master── QUIT closes one at a time ◀──────────────────────┘
//
// A refused command did nothing, so Do sends it again, over the fresh connection. Reads must avoid the old connections, too: a
// script that finds another owner writes nothing, so a replica answers it, wrongly if the replica lags behind. Therefore the
// node is suspect until the client's connections have been looked at.
//
// Rueidis chooses a connection for each command at random, also for QUIT, which may therefore close a good one. While the
// address itself leads to a replica, writes on fresh connections are refused, too. Then fresh connections are made with a
// backoff, and none of the old ones is closed.
//
// The nodes of a cluster, and Sentinels, name the master themselves, so that none of this is needed there.
type demotion struct {
	closing atomic.Bool // closeOld runs

	mu   sync.Mutex
	ever bool          // a master was demoted
	next chan struct{} // closed at the next tell
}

// refusedPause is the longest pause before another fresh connection while the address leads to a replica: the new master must be
// found within half a second.
const refusedPause = 3 * belief.Tick

// Demoted reports whether a master has been demoted so far. The channel is closed after the next demotion, once the address
// leads to a master again. Connections that were made before then may lead to a replica.
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

// mostRefused is how many times a command is sent at most: over an old connection, then over a fresh one that was made before
// the address moved, then over one that is made for this command.
const mostRefused = 3

// closeOld closes the client's own connections that lead to a replica, and then has commands use the others again. It does
// nothing if it runs already.
func (s *Node) closeOld() {
	if !s.client.demotion.closing.CompareAndSwap(false, true) {
		return
	}
	defer s.client.demotion.closing.Store(false)
	looks := s.belief.Inspecting()
	if role, _ := s.askRole(false); role == belief.Replica { // of the fresh connection
		s.belief.Owe()
		return
	}
	// Not earlier: until the address leads to a master, a new connection for messages would be no better than an old one.
	s.client.demotion.tell()
	for !looks.Enough() && !s.belief.Closed() {
		quits, over := looks.Met(s.askRole(true))
		if over {
			break
		}
		if quits > 0 {
			s.quit()
			<-time.After(clock.Pause(quits, refusedPause/3)) // in this time the client notices that its connection is closed
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

// withHello sends HELLO after a command with a key, see ping.
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
		return b.Arbitrary("QUIT").Keys("there").Build().ToPipe() // see ping
	})})
}

// LedToMaster notes that a connection has led to a master: if one leads to a replica later, the master was demoted.
func (t *Client) LedToMaster() { t.First.belief.LedToMaster() }
