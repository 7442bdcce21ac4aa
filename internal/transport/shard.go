package transport

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// Shard is the way to one master; see routes.
type Shard struct {
	client  *Client
	Address string // of the node of a cluster; empty for a single server, and while not known
	health
	estimate  belief.Trips
	probes    prober
	keepAlive keepAlive
	own       ownConns
	fresh     freshConns
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
	s.heard.Store(int64(notHeard))
	s.probes.shard, s.keepAlive.shard, s.own.shard, s.fresh.shard, s.bounds.shard, s.batches.shard = s, s, s, s, s, s
	s.own.possible = isSingle(t.redis)
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

// judge notes a reply, or that none came while the caller waited, and reports whether the reply is late. A caller that gave up
// says nothing about the server: see prober. Excused: the reply may be late because this process stood still. It is late all
// the same, and must be asked for again.
func (s *Shard) judge(p *Wait, err error, x exchange) bool {
	came, took := x.came, x.sent.Until(x.came) // mutant: no answer is late
	switch {
	case errors.Is(err, fault.NotSent):
		return false
	case errors.Is(err, fault.NoAnswer):
		if p.probes == 0 {
			s.probes.gaveUp(x.sent)
		}
		return false
	case took >= s.silence(x.trip)+p.holds && !x.excused: // the timer is about to notice it
		s.foundSilent(x.sent, came)
		return true
	case x.left && fault.Answered(err):
		return true
	case took >= x.trip.Late(p.Lease)+p.holds, p.Obtains && !x.trip.Known && took >= lateReply:
		return true
	case x.sent < clock.Instant(s.silentAt.Load()):
		// The master was silent for long enough for a failover, however fast this reply came.
		return true
	}
	if fault.Answered(err) {
		s.answered(came, x.trusted)
		return false
	}
	s.broken()
	s.own.drop()
	if s.client.resolver != nil || s.client.watched() {
		s.divert(came)
	}
	return false
}

// takeIn completes a reply that has just come to a command without a goroutine.
func (s *Shard) takeIn(p *Wait, excused bool, a *Reply) {
	x := exchange{sent: a.Sent, came: a.Came, trip: s.RoundTrip(), excused: excused}
	if !excused && fault.Answered(a.Error()) {
		s.estimate.Sample(a.Sent, a.Came)
	}
	s.assess(p, x, a)
}

func (s *Shard) assess(p *Wait, x exchange, a *Reply) {
	err := a.Error()
	x.left = x.left || p.Obtains && fault.Answered(err) && s.changed()
	a.Late = s.judge(p, err, x)
	s.notice(x, a)
	a.Doubtful, a.Cut = a.Late && s.IsSuspect(a.Came), p.cut(err)
}

// silence returns for how long a command may have no reply before the shard is suspect. Until all connections have surely been
// made, a command may wait for its connection: that is no silence, but its reply is late as any other.
func (s *Shard) silence(t RoundTrip) time.Duration {
	if s.warm() {
		return t.Silence()
	}
	return t.Silence() + 4*t.Sure()
}

// Plus adds two round trips to a limit that was chosen for a server nearby, or more if a connection may have to be made.
func (s *Shard) Plus(d time.Duration) time.Duration {
	t := s.RoundTrip()
	if s.warm() {
		return t.Plus(d)
	}
	return t.Plus(d) + 4*t.Base
}

// RoundTrip returns the round trip to the master.
func (s *Shard) RoundTrip() RoundTrip { return s.estimate.RoundTrip() }

// Overdue reports whether a command would be answered by now if the server were available; sent is when that was sent.
func (s *Shard) Overdue(sent clock.Instant) bool {
	return sent.Until(s.client.Clock.Now()) >= s.RoundTrip().Plus(tooSoon)
}

// IsLate reports whether a reply to a command that was sent at some time would be late by now. The way may just have become
// longer, or is not known yet: sooner than that nothing is amiss.
func (s *Shard) IsLate(sent clock.Instant) bool {
	return sent.Until(s.client.Clock.Now()) >= s.RoundTrip().Silence()
}

// Silent reports whether the server is silent: it was found silent, and has not replied since. If nothing was sent since, it
// may answer again by now: so KeepAlive asks it, and it has the time of a reply, counted from asked.
func (s *Shard) Silent(asked clock.Instant) bool {
	if s.LastReply() >= clock.Instant(s.silentAt.Load()) {
		return false
	}
	now := s.client.Clock.Now()
	return s.IsSuspect(now) && asked.Until(now) >= s.Plus(tooSoon)
}

// silentSince reports whether the server was found silent after a command began, and has not replied since.
func (s *Shard) silentSince(began, now clock.Instant) bool {
	found := clock.Instant(s.silentAt.Load())
	return found > began && s.LastReply() < found && s.IsSuspect(now)
}

// Patience returns for how long the server may leave a command without a reply before it is silent.
func (s *Shard) Patience() time.Duration { return s.silence(s.RoundTrip()) }

// nobodys reports whether the shard leads to no particular server: the first shard of a cluster.
func (s *Shard) nobodys() bool { return s.client.resolver != nil && s.Address == "" }

func (s *Shard) divert(now clock.Instant) {
	s.beSuspect(now)
	s.own.drop()
	s.batches.stop()
	s.fresh.forgetLast()
}

// foundSilent notes that a command had no reply for too long; sent is when that was sent. All replies to commands sent before
// now are late, even fast ones: a master that was frozen answers everything at once when it goes on. If the shard was suspect
// already, the fresh connection is silent, too.
func (s *Shard) foundSilent(sent, now clock.Instant) {
	if !s.silent(sent, now) {
		return
	}
	s.own.drop()
	s.batches.stop()
	s.fresh.silent(sent)
	s.probes.learn()
}

// close closes the shard's connections. Later removals go over the client's own ones.
func (s *Shard) close() {
	s.health.close()
	s.own.drop()
	s.fresh.silent(clock.Never)
}

// node returns the client of the shard's server; nil if rueidis does not know that node of a cluster.
func (s *Shard) node() rueidis.Client {
	if s.Address == "" {
		return s.client.redis
	}
	return s.client.redis.Nodes()[s.Address]
}
