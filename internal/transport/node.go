package transport

import (
	"context"
	"reflect"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// Node is the way to one master; see routes.
type Node struct {
	judge
	client    *Client
	Address   string // of the node of a cluster; empty for a single server, and while not known
	probes    *prober
	keepAlive *keepAlive
	dials     *dialer
	own       *ownConns
	fresh     *freshConns
	bounds    boundPool
	plain     bool // the client wants to see no command by itself, see isPlain
	queue     *queue
}

// cacheLine separates what every command writes from what every command reads.
type cacheLine [64]byte

const (
	mostDirect = 640         // commands under way up to which callers send; a connection has room for 1 024
	tooSoon    = belief.Tick // a shorter wait says nothing about the server

	mostDrivers  = 6   // drivers that take turns: few, so that each finds many commands
	apartDrivers = 128 // the same, where a pipeline has one command
)

func newNode(t *Client, address string) *Node {
	s := &Node{client: t, Address: address, plain: isPlain(t.redis)}
	s.clock, s.act, s.present, s.roles = t.Clock, s.do, t.present, t.mode == rueidis.ClientModeStandalone
	from := queueFrom
	if t.resolver != nil {
		from = spreadFrom
		s.belief.Led()
	}
	s.probes = &prober{ask: s.probe}
	s.keepAlive = &keepAlive{judge: &s.judge, inquire: s.stayAlive}
	if s.hasNoServer() {
		s.probes.ask, s.keepAlive.inquire = nil, nil
	}
	dials := func() *dialer { return &dialer{node: s.server, judge: &s.judge, pool: t.pool, database: t.database} }
	s.dials = dials()
	s.own = &ownConns{
		possible: s.plain && s.roles, judge: &s.judge,
		describe: func() (string, error) { return t.describe(askLimit) },
		dial: func() *dedicated {
			if number, _ := t.database(askLimit); number == "" { // a connection of the pool may use another one
				return nil
			}
			return s.dials.dial(wanted{})
		},
	}
	s.fresh = &freshConns{
		// A dialer of its own: attempts of others may hang on a healthy node, and must not make this one fall back on old connections.
		dials: dials(), judge: &s.judge, watched: t.watched, vouch: s.vouch,
	}
	s.queue = newQueue(from, given{
		now: t.Clock.Now, drivers: s.drivers, choose: s.choose, send: s.carry,
		stands: s.stands, barred: s.belief.Barred, watch: s.bounds.run,
	})
	s.bounds.prepare(&s.judge, func(now clock.Instant) bool {
		if t.resolver != nil {
			t.resolver.Refresh(topology.KeptFor)
		}
		if s.plain {
			t.learnDatabase() // mutant: database not asked for
		}
		return s.queue.relieve(now)
	})
	return s
}

// enter returns a bound for a command, and how many bounds are in use, this one included. The caller must begin, stop and free
// the bound. Direct: the caller may send the command. Otherwise it might hang, so the command goes through the queue: the node is
// not healthy, a connection may have no room, or the client ignores contexts.
func (s *Node) enter(now clock.Instant) (end *bound, used int, direct bool) {
	healthy := s.IsHealthy(now)
	if !healthy {
		s.noticeStandstill()
	}
	end, used = s.bounds.take()
	return end, used, healthy && used <= mostDirect && !s.client.ignoresCtx.Load()
}

// do does what follows from an event; sent is when its command was sent.
func (s *Node) do(acts belief.Acts, sent clock.Instant) {
	if acts.Has(belief.Undedicate) {
		s.own.drop()
	}
	if acts.Has(belief.Reroute) {
		s.queue.renew()
	}
	if acts.Has(belief.Redial) {
		s.fresh.silent(sent)
	}
	if acts.Has(belief.AskOthers) {
		s.fresh.forgetLast()
	}
	if acts.Has(belief.Measure) {
		s.probes.learn(s.belief.Lessons())
	}
	if acts.Has(belief.Probe) {
		s.probes.gaveUp(sent)
	}
	if acts.Has(belief.Inspect) && !s.client.demotion.closing.Load() {
		go s.closeOld()
	}
}

// gather reports whether a command goes through the queue because many are under way. Sent directly, each would pass rueidis's
// queue by itself, and be written with few others. With many commands that is most of their cost, also at the server.
func (s *Node) gather(used int) bool {
	if s.queue.on.Load() {
		return true
	}
	if used < s.queue.from || !s.plain {
		return false
	}
	s.queue.on.Store(true)
	return true
}

// isPlain reports whether a client is one of rueidis itself: no wrapper that may want to see each command.
func isPlain(client rueidis.Client) bool {
	of := reflect.TypeOf(client).String()
	return of == "*rueidis.singleClient" || of == "*rueidis.sentinelClient" || of == "*rueidis.clusterClient"
}

// inPipeline returns how many commands go in a pipeline of the queue.
func (s *Node) inPipeline() int {
	if !s.plain {
		return 1
	}
	return mostAtOnce
}

// drivers returns how many drivers take turns.
func (s *Node) drivers() int {
	if s.inPipeline() == 1 || s.client.resolver != nil && s.IsSuspect(s.client.Clock.Now()) {
		return apartDrivers
	}
	return mostDrivers
}

// hasNoServer reports whether the node leads to no particular server: the first node of a cluster.
func (s *Node) hasNoServer() bool { return s.client.resolver != nil && s.Address == "" }

// close closes the node's connections. Later removals go over the client's own ones. If the node is suspect, what waits is not
// sent, and nothing is obtained any more.
func (s *Node) close() {
	s.queue.end(func() { s.belief.Close(s.client.Clock.Now()) })
	s.own.drop()
	s.fresh.silent(clock.Never)
}

// server returns the client of the node's server; nil if rueidis does not know that node of a cluster.
func (s *Node) server() rueidis.Client { return s.client.serverAt(s.Address) }

// serverAt returns the client of the server at an address; empty: of whatever the client leads to.
func (t *Client) serverAt(address string) rueidis.Client {
	if address == "" {
		return t.redis
	}
	return t.redis.Nodes()[address]
}

// Within waits for the outcome of another command for as long as p says. If no time is left it does not wait: the outcome
// would depend on which connection the command got.
func (s *Node) Within(p Wait, outcome <-chan bool) (good bool) {
	now := s.clock.Now()
	p.holds = belief.Never
	end := s.bound(&p, now)
	defer end.stop()
	if end.left(now) == 0 {
		return false
	}
	select {
	case good = <-outcome:
	case <-end.Done():
	}
	return good
}

// Ask asks the server of the node. Cut: there is no reply because the caller's context ended.
func (s *Node) Ask(p *Wait, question Question) (reply rueidis.RedisResult, cut bool) {
	o := s.await(p, task{send: func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
		return []rueidis.RedisResult{question(ctx, way)}
	}})
	reply = o.result(0)
	return reply, p.cut(reply.Error())
}
