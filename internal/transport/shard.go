package transport

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// Shard is the way to a master; see routes.
type Shard struct {
	client  *Client
	Address string // of the node of a cluster; empty for a single server, and while that is not known
	health
	estimate  estimate
	probes    prober
	keepAlive keepAlive
	own       ownConns
	fresh     freshConns
	bounds    boundPool // of the commands that their callers send themselves
	batches   batches

	_       cacheLine
	running atomic.Int32  // commands that have a goroutine, or wait for a place
	places  chan struct{} // one is taken by each command that has a goroutine
}

// cacheLine keeps what every command writes away from what every command reads.
type cacheLine [64]byte

const (
	mostDirect  = 640                    // under way, for another to be sent by its caller: a queue has room for 1 024 by default
	mostAsync   = 256                    // commands that have a goroutine
	mostRunning = 8                      // with so many under way on an idle shard, others wait for news of them
	lateReply   = 500 * time.Millisecond // from then and two round trips on a reply is late; see RoundTrip
	tooSoon     = 100 * time.Millisecond // who waits no longer than this learns nothing from it
)

func newShard(t *Client, address string) *Shard {
	s := &Shard{client: t, Address: address, places: make(chan struct{}, mostAsync)}
	s.heard.Store(int64(notHeard))
	s.probes.shard, s.keepAlive.shard, s.own.shard, s.fresh.shard, s.bounds.shard, s.batches.shard = s, s, s, s, s, s
	s.own.possible = isSingle(t.redis)
	return s
}

// enter returns the bound for a command, whose caller must begin it and stop it, and with what others the command goes; nil is
// that its caller may send it. So those go that come while the shard is idle, since they may hang, and those for which there is
// no room in the queues of connections. Without a bound the command needs a goroutine.
func (s *Shard) enter(now clock.Instant) (end *bound, with *batcher) {
	healthy := s.IsHealthy(now)
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

// judge takes in a reply, or that there was none while its caller waited, and tells whether it is late. That a caller has gone
// says nothing about the server: see prober. Excused tells that it may have taken so long because this process stood still.
// Then it is late all the same, and asked for again.
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
	case took >= s.silence(x.trip)+p.holds && !x.excused: // the timer that tells so is about to
		s.foundSilent(x.sent, came)
		return true
	case took >= x.trip.Late(p.Lease)+p.holds, p.Obtains && !x.trip.Known && took >= lateReply:
		return true
	case x.sent < clock.Instant(s.silentAt.Load()):
		// Its master was silent for long enough for a failover, whatever this answer took.
		return true
	}
	if fault.Answered(err) {
		s.answered(came, x.trusted)
		return false
	}
	s.broken()
	s.own.drop()
	if s.client.resolver != nil {
		s.divert(came)
	}
	return false
}

// alone tells whether a command had the way for itself, of which so many, with it, were under way when it was sent, and whose
// reply has just come. Where nobody wants to know it does not look.
func (s *Shard) alone(then int) bool {
	if then != 1 || !s.client.compares.Load() {
		return false
	}
	s.bounds.mu.Lock()
	defer s.bounds.mu.Unlock()
	return len(s.bounds.used)+int(s.running.Load()) == 1
}

// takeIn completes the reply to a command that its caller has sent, which has just come, alone or not.
func (s *Shard) takeIn(p *Wait, excused, alone bool, a *Reply) {
	x := exchange{sent: a.Sent, came: a.Came, trip: s.RoundTrip(), excused: excused}
	if !excused && fault.Answered(a.Error()) {
		s.learn(a.Sent, a.Came, alone)
	}
	s.assess(p, x, a)
}

// learn takes in a round trip.
func (s *Shard) learn(sent, came clock.Instant, alone bool) {
	s.estimate.sample(sent, came)
	if s.client.compares.Load() {
		s.estimate.compare(sent.Until(came), came, alone)
	}
}

func (s *Shard) assess(p *Wait, x exchange, a *Reply) {
	err := a.Error()
	a.Late = s.judge(p, err, x)
	a.Doubtful, a.Cut = a.Late && s.IsSuspect(a.Came), p.cut(err)
}

// silence is for how long a command may have no reply until the shard is suspect. Until all connections have surely been made
// it may have to wait for its own: that is no silence, but its reply is late as any other that takes so long.
func (s *Shard) silence(t RoundTrip) time.Duration {
	if s.warm() {
		return t.Silence()
	}
	return t.Silence() + 4*t.sure()
}

// Plus is a time for a reply that was chosen for a server nearby, with a connection that may have to be made.
func (s *Shard) Plus(d time.Duration) time.Duration {
	t := s.RoundTrip()
	if s.warm() {
		return t.Plus(d)
	}
	return t.Plus(d) + 4*t.Base
}

// RoundTrip is what is known of the way to the master.
func (s *Shard) RoundTrip() RoundTrip { return s.estimate.roundTrip() }

// Least is the shortest round trip that was ever measured, since Compare; 0 as long as too few commands had the way for
// themselves. A busy moment does not make the way long.
func (s *Shard) Least() time.Duration {
	if s.estimate.alone.Load() < sureAlone {
		return 0
	}
	return time.Duration(s.estimate.least.Load())
}

// IsFar tells, since Compare, whether a round trip takes 200 µs or longer by the shortest one. That is for ever, and is not
// known where several commands are always under way. So it is far, too, as long as replies take ten times as long, all of
// them: a busy machine lets one through now and then. That follows the way to another master.
func (s *Shard) IsFar(now clock.Instant) bool {
	if s.Least() >= nearby {
		return true
	}
	trip, quick := s.RoundTrip(), clock.Instant(s.estimate.quick.Load())
	return trip.Known && trip.Base >= remote && (quick == 0 || quick.Until(now) >= sureRemote)
}

// Overdue tells whether a command that was sent at some time would be answered by now, if the server were there.
func (s *Shard) Overdue(sent clock.Instant) bool {
	return sent.Until(s.client.Clock.Now()) >= s.RoundTrip().Plus(tooSoon)
}

// IsLate tells whether a reply to a command that was sent at some time would be late by now. The way may just have become longer:
// sooner than that nothing is amiss.
func (s *Shard) IsLate(sent clock.Instant) bool {
	return sent.Until(s.client.Clock.Now()) >= s.RoundTrip().Plus(lateReply)
}

// Silent tells whether the server is silent, as far as is known: it was found so, and has not replied since. Where nobody has
// sent it anything since, that may be over: so it is asked by KeepAlive, and has the time for a reply from then on.
func (s *Shard) Silent(asked clock.Instant) bool {
	if s.LastReply() >= clock.Instant(s.silentAt.Load()) {
		return false
	}
	now := s.client.Clock.Now()
	return s.IsSuspect(now) && asked.Until(now) >= s.Plus(tooSoon)
}

// Patience is for how long the server may leave a command without a reply until it is silent.
func (s *Shard) Patience() time.Duration { return s.silence(s.RoundTrip()) }

// nobodys tells whether the shard leads to no server in particular: the first one of a cluster.
func (s *Shard) nobodys() bool { return s.client.resolver != nil && s.Address == "" }

func (s *Shard) divert(now clock.Instant) {
	s.beSuspect(now)
	s.own.drop()
	s.batches.stop()
}

// foundSilent is for when a command that was sent at some time has had no reply for too long. What was sent before now is
// late, if it is answered at all, even if it has not taken long: a master that was frozen answers all that was sent to it in
// between as soon as it goes on. When the shard was suspect already, it is the fresh connection that is silent as well.
func (s *Shard) foundSilent(sent, now clock.Instant) {
	if !s.silent(sent, now) {
		return
	}
	s.own.drop()
	s.batches.stop()
	s.fresh.silent(sent)
	s.probes.learn()
}

// close gives up the connections. What is sent afterwards, removals, goes over the client's own ones.
func (s *Shard) close() {
	s.health.close()
	s.own.drop()
	s.fresh.silent(clock.Never)
}

// node is the client of the server that the shard leads to; nil when rueidis does not know that node of a cluster.
func (s *Shard) node() rueidis.Client {
	if s.Address == "" {
		return s.client.redis
	}
	return s.client.redis.Nodes()[s.Address]
}
