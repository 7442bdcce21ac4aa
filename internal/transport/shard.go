package transport

import (
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
)

// Shard is the way to one master; see routes.
type Shard struct {
	client    *Client
	Address   string // of the node of a cluster; empty for a single server, and while not known
	belief    belief.State
	news      news
	probes    *prober
	keepAlive *keepAlive
	dials     *dialer
	own       *ownConns
	fresh     *freshConns
	bounds    boundPool // for commands without a goroutine
	batches   batches

	_       cacheLine
	running atomic.Int32  // commands that have a goroutine, or wait for a place
	places  chan struct{} // limits the commands that have a goroutine
}

// cacheLine separates what every command writes from what every command reads.
type cacheLine [64]byte

const (
	mostDirect  = 640            // commands under way up to which callers send; a connection has room for 1 024
	mostAsync   = 256            // commands that have a goroutine
	mostRunning = 8              // on an idle shard further commands wait for news of these
	lateReply   = belief.Silence // plus two round trips: a later reply is late; see RoundTrip
	tooSoon     = belief.Tick    // a shorter wait says nothing about the server
)

func newShard(t *Client, address string) *Shard {
	s := &Shard{client: t, Address: address, places: make(chan struct{}, mostAsync)}
	if t.resolver != nil {
		s.belief.Led()
	}
	s.probes = &prober{ask: s.probe}
	s.keepAlive = &keepAlive{
		belief: &s.belief, now: t.Clock.Now, inquire: s.stayAlive, roles: t.demotion.possible, said: s.said,
	}
	if s.nobodys() {
		s.probes.ask, s.keepAlive.inquire = nil, nil
	}
	s.bounds.shard, s.batches.shard = s, s
	s.dials = &dialer{node: s.node, now: t.Clock.Now, belief: &s.belief, pool: t.pool}
	s.own = &ownConns{
		possible: isSingle(t.redis), belief: &s.belief, now: t.Clock.Now, describe: t.describe,
		dial: func() *dedicated {
			if t.database() == "" { // a connection of the pool may use another one
				return nil
			}
			return s.dials.dial(wanted{})
		},
	}
	s.fresh = &freshConns{
		dials: s.dials, belief: &s.belief, now: t.Clock.Now, act: s.act,
		present: s.present, watched: t.watched, vouch: s.vouch, succeeded: t.resolver != nil,
	}
	return s
}

// enter returns a bound for a command, which the caller must begin and stop, and the batcher that must send it; without a
// batcher the caller may send it. A batcher sends commands that come while the shard is idle, since they may hang, and commands
// for which the connections' queues have no room. Without a bound the command needs a goroutine.
func (s *Shard) enter(now clock.Instant) (end *bound, with *batcher) {
	healthy := s.IsHealthy(now)
	if !healthy {
		s.client.noticeStandstill(now)
	}
	if !healthy && !s.batches.mayCarry(now) || s.client.ignoresContexts.Load() {
		return nil, nil
	}
	if end = s.bounds.take(); healthy && end.nth <= mostDirect {
		return end, nil
	}
	if with = s.batches.get(); with == nil {
		s.bounds.free(end, true)
		return nil, nil
	}
	return end, with
}

// nobodys reports whether the shard leads to no particular server: the first shard of a cluster.
func (s *Shard) nobodys() bool { return s.client.resolver != nil && s.Address == "" }

// close closes the shard's connections. Later removals go over the client's own ones.
func (s *Shard) close() {
	s.belief.Close()
	s.own.drop()
	s.fresh.silent(clock.Never)
}

// node returns the client of the shard's server; nil if rueidis does not know that node of a cluster.
func (s *Shard) node() rueidis.Client { return s.client.node(s.Address) }

// node returns the client of the node at an address; empty: of whatever the client leads to.
func (t *Client) node(address string) rueidis.Client {
	if address == "" {
		return t.redis
	}
	return t.redis.Nodes()[address]
}
