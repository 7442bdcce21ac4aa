package transport

import (
	"context"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// bound is the context of a command: it ends with the wait of its caller. It has no deadline, because rueidis closes
// the connection of a command whose deadline is over, which other commands use too.
//
//	idle ──begin──▶ untimed ──stop──▶ idle
//	  │               └──round──▶ slow ──stop──▶ not used again
//	  └────────begin──────────────▶┘
//
// Most commands are answered at once, while their limits are untimed. Such a limit has a place in its shard, and is used again.
// Until it is slow only the caller writes it, and who makes it slow reads what the caller has written before it became untimed.
type bound struct {
	done     chan struct{}
	over     atomic.Bool // done is closed
	phase    atomic.Uint32
	began    atomic.Int64  // an instant
	due      clock.Instant // when it ends
	near     clock.Instant // when it would if the server were nearby; 0: that makes no difference
	ctx      context.Context
	observer Observer // see wait
	grace    time.Duration
	own      *ownConn // which it closes; nil: none
	holds    time.Duration
	probe    clock.Instant
	watchdog *watchdog
	shard    *Shard      // whose silence it notices; nil: none
	call     *asyncCall  // which has a goroutine; nil: none
	group    *boundGroup // where its place is; nil: it has none
	place    int
	item     item

	mu      sync.Mutex
	noted   bool // asks was told
	timer   *time.Timer
	leave   func() bool   // ends the wait for the end of ctx; nil: there is none
	ended   clock.Instant // when it did
	alarm   clock.Instant // when the server has been silent for too long, see ring
	rang    bool          // it has been
	excused bool          // the timer was late
	stopped bool          // nobody waits any more
}

// The phases.
const (
	idle uint32 = iota
	untimed
	timed
)

// boundGroup has places for limits. A shard has several, of which a command takes any, so that cores seldom meet at one.
type boundGroup struct {
	taken  atomic.Uint64 // a bit for each place
	_      cacheLine
	bounds [placesOfAGroup]atomic.Pointer[bound] // nil: one has yet to be made
	_      cacheLine
}

// watchdog ends limits. A timer for each command would cost more than the rest of this file: so one timer serves all that are
// untimed. It fires at intervals, as long as commands are under way, and is not stopped when they are answered: to stop it and
// set it again for each would wake threads of an idle process. Only a command that has taken a while, or need not be answered
// at once, gets a timer of its own, and only then its caller's context is watched, which takes memory, and the mutex of a
// context that many callers may share.
type watchdog struct {
	client *Client
	timer  *time.Timer

	_       cacheLine
	running atomic.Bool // the timer, or it has just fired
	_       cacheLine
}

const (
	roundEvery     = 90 * time.Millisecond // with watchAfter no more than unlockGrace
	timedAfter     = 10 * time.Millisecond // more than most answers take
	placesOfAGroup = 64

	timerSlack = 100 * time.Millisecond  // a timer that fires so late tells that this process, or its machine, stood still
	pauseMost  = 2500 * time.Millisecond // after a longer stop a master may be none any more without having been silent
)

func (w *watchdog) begin(t *Client) {
	w.client = t
	w.timer = time.AfterFunc(time.Hour, w.round)
	w.timer.Stop()
}

// place returns an idle limit with a place, or nil where there is none left.
func (s *Shard) place() *bound {
	first := rand.IntN(len(s.bounds)) //nolint:gosec // no secret
	for i := range s.bounds {
		n := (first + i) % len(s.bounds)
		g := s.bounds[n].Load()
		if g == nil {
			s.bounds[n].CompareAndSwap(nil, &boundGroup{})
			g = s.bounds[n].Load()
		}
		if end := g.take(s); end != nil {
			return end
		}
	}
	return nil
}

func (g *boundGroup) take(of *Shard) *bound {
	for {
		taken := g.taken.Load()
		n := bits.TrailingZeros64(^taken)
		if n == placesOfAGroup {
			return nil
		}
		if !g.taken.CompareAndSwap(taken, taken|1<<n) {
			continue
		}
		b := g.bounds[n].Load()
		if b == nil {
			b = &bound{done: make(chan struct{}), watchdog: &of.client.watchdog, shard: of, group: g, place: n}
			g.bounds[n].Store(b)
		}
		return b
	}
}

// free gives the place back.
func (b *bound) free() { b.group.taken.And(^(uint64(1) << b.place)) }

// alone tells whether a command is the only one under way that its caller has sent itself.
func (s *Shard) alone(of *bound) bool {
	if of.group.taken.Load() != 1<<of.place {
		return false
	}
	for i := range s.bounds {
		if g := s.bounds[i].Load(); g != nil && g != of.group && g.taken.Load() != 0 {
			return false
		}
	}
	return true
}

// bound begins one with a timer of its own, which the caller must stop.
func (w *watchdog) bound(p *Wait, now clock.Instant, way *ownConn) *bound {
	b := &bound{done: make(chan struct{}), watchdog: w}
	b.begin(p, now, way)
	return b
}

// bound is the same for commands that have a goroutine, and are sent to a server whose silence is to be noticed.
func (s *Shard) bound(p *Wait, now clock.Instant, of *asyncCall) *bound {
	end := &bound{done: make(chan struct{}), watchdog: &s.client.watchdog, shard: s, call: of}
	end.begin(p, now, nil)
	return end
}

// begin has a limit count, and close an own connection when it ends, if there is one. With a place, where most commands are
// answered at once, it is left to a round to find that a context has ended. A caller without grace waits longer then, by up to
// watchAfter and watchEvery; from the grace of others, which is no shorter, as much may be missing.
func (b *bound) begin(p *Wait, now clock.Instant, way *ownConn) {
	since := now
	if p.Since > 0 {
		since = p.Since
	}
	due := since.Add(p.Limit)
	if b.near = 0; p.Near > 0 {
		b.near = since.Add(p.Near)
	}
	if p.Ctx.Err() != nil {
		due, b.near = min(due, since.Add(p.Grace)), 0
	}
	next := due
	if deadline, ok := p.Ctx.Deadline(); ok {
		next = min(next, b.watchdog.client.Clock.At(deadline))
	}
	b.ctx, b.grace, b.observer, b.due, b.own, b.holds, b.probe = p.Ctx, p.Grace, p.Observer, due, way, p.holds, p.probes
	b.began.Store(int64(now))
	if b.group != nil && now.Until(next) >= timedAfter+roundEvery { // by then a round is sure to have looked
		b.phase.Store(untimed)
		b.watchdog.run()
		return
	}
	b.phase.Store(timed)
	b.mu.Lock()
	b.setTimer(now)
	b.mu.Unlock()
	b.watchContext()
}

// stop is for when nobody waits any more. It tells whether the limit has ended before.
func (b *bound) stop() (over bool) {
	if b.phase.CompareAndSwap(untimed, idle) {
		b.ctx, b.observer, b.own = nil, nil, nil
		b.free()
		return false
	}
	b.mu.Lock()
	b.stopped = true
	if b.timer != nil { // else a round is about to set it
		b.timer.Stop()
	}
	if b.noted {
		b.observer.Answered(clock.Instant(b.began.Load()))
	}
	leave, over := b.leave, b.over.Load()
	b.mu.Unlock()
	if leave != nil {
		leave()
	}
	if b.group != nil {
		b.group.bounds[b.place].Store(nil)
		b.free()
	}
	return over
}

// run sees to it that there is a round.
func (w *watchdog) run() {
	if !w.running.Load() && w.running.CompareAndSwap(false, true) {
		w.timer.Reset(roundEvery)
	}
}

// round looks for commands that have taken a while. A caller that finds the watch running has made its limit untimed
// before, so either this round meets the limit, or running was false already.
func (w *watchdog) round() {
	w.running.Store(false)
	now := w.client.Clock.Now()
	more := false
	if w.client.resolver != nil {
		w.client.resolver.Refresh(topology.KeptFor)
	}
	for _, s := range w.client.Shards() {
		if b := s.batching.Load(); b != nil && b.hasten(now) {
			more = true
		}
		for k := range s.bounds {
			if g := s.bounds[k].Load(); g != nil {
				more = g.round(now) || more
			}
		}
	}
	if more {
		w.run()
	}
}

// round has a timer for each command that has taken a while, and tells whether there are any that have not.
func (g *boundGroup) round(now clock.Instant) (more bool) {
	for taken := g.taken.Load(); taken != 0; taken &= taken - 1 {
		b := g.bounds[bits.TrailingZeros64(taken)].Load()
		switch {
		case b == nil || b.phase.Load() != untimed:
		case clock.Instant(b.began.Load()).Until(now) < timedAfter:
			more = true
		case b.phase.CompareAndSwap(untimed, timed):
			b.mu.Lock()
			stopped := b.stopped
			if !stopped {
				b.setTimer(now)
			}
			b.mu.Unlock()
			if !stopped {
				go b.watchContext() // a context may be of any type, and block: the limits of other commands do not wait for it
			}
		}
	}
	return more
}

// setTimer ends the limit in time. The caller holds the mutex.
func (b *bound) setTimer(now clock.Instant) {
	b.timer = time.AfterFunc(time.Hour, b.end)
	if b.alarm = clock.Never; b.shard != nil {
		b.alarm = b.silentAt(now)
	}
	b.wait(now)
	if b.observer != nil {
		b.noted = true
		b.observer.Unanswered(clock.Instant(b.began.Load()))
	}
}

// wait sets the timer. Unlike AfterFunc, in fake time, Reset lets others finish first what they do at this instant.
func (b *bound) wait(now clock.Instant) { b.timer.Reset(now.Until(min(b.due, b.alarm))) }

// silentAt is when the server has been silent for too long. While nothing has been sent yet that is not before now. A probe
// is sent because an earlier command was given up: the silence began with that. But it must have had time for its own
// answer.
func (b *bound) silentAt(now clock.Instant) clock.Instant {
	trip, sent := b.shard.RoundTrip(), clock.Instant(b.began.Load())
	if b.call != nil {
		if sent = clock.Instant(b.call.begun.Load()); sent == 0 {
			sent = now
		}
	}
	if b.probe != 0 {
		return max(b.probe.Add(b.shard.silence(trip)), sent.Add(trip.sure()+tooSoon))
	}
	return sent.Add(b.shard.silence(trip) + b.holds)
}

// ring is for when the server has been silent for too long, whether the caller goes on waiting or not. It tells whether the
// shard is to be suspect. A timer that fires late has learned nothing about the server: this process stood still, or its
// machine did. But when that took very long a failover may have passed unnoticed. The caller holds the mutex.
func (b *bound) ring(now clock.Instant) bool {
	if b.stopped || now < b.alarm {
		return false
	}
	if due := b.silentAt(now); now < due { // it was sent later, or more is known than when the timer was set
		b.alarm = due
		return false
	}
	if b.late(b.alarm.Until(now)) {
		b.excused, b.alarm = true, now.Add(b.shard.silence(b.shard.RoundTrip()))
		return false
	}
	b.rang, b.alarm = true, clock.Never
	return b.call == nil || !b.call.shared || !b.shard.IsSuspect(now)
}

// late tells whether a timer that fires so much after its time excuses the server.
func (*bound) late(by time.Duration) bool { return by >= timerSlack && by <= pauseMost }

// excuses tells whether a reply to a command that was sent at some time may have come late because this process stood
// still: the timer of its silence should have fired a while ago, and has not, or has fired late.
func (b *bound) excuses(sent, came clock.Instant) bool {
	if sent.Until(came) < lateReply {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rang || b.shard == nil {
		return false
	}
	due := b.alarm
	if b.phase.Load() == untimed { // no timer was set, as a round would have seen to, if there had been any
		due = sent.Add(b.shard.silence(b.shard.RoundTrip()) + b.holds)
	}
	return b.excused || b.late(due.Until(came))
}

// watchContext waits for the end of the caller's context.
func (b *bound) watchContext() {
	if b.ctx.Done() == nil {
		return
	}
	if b.ctx.Err() != nil {
		b.contextEnded(clock.Instant(b.began.Load())) // it may have ended any time since
		return
	}
	leave := context.AfterFunc(b.ctx, func() { b.contextEnded(0) })
	b.mu.Lock()
	b.leave = leave
	stopped := b.stopped
	b.mu.Unlock()
	if stopped {
		leave()
	}
}

// contextEnded is for when the caller's context has ended: at that time, or now if it is 0.
func (b *bound) contextEnded(ended clock.Instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.watchdog.client.Clock.Now()
	if ended == 0 {
		ended = now
	}
	b.near = 0
	if due := max(now, ended.Add(b.grace)); !b.stopped && due < b.due {
		b.due = due
		b.wait(now)
	}
}

func (b *bound) end() {
	b.mu.Lock()
	now := b.watchdog.client.Clock.Now()
	silent := b.ring(now)
	if b.near != 0 && b.shard != nil { // the way may be longer than was known when the limit began
		b.due = max(b.due, b.near.Add(b.shard.Plus(0)))
	}
	switch {
	case b.stopped || b.over.Load():
	case now < b.due:
		b.wait(now)
	default:
		b.ended = now
		b.over.Store(true)
		close(b.done)
		if b.item.replies != nil {
			b.item.replies <- rueidis.NewErrorResult(fault.NoAnswer)
		}
		if b.own != nil {
			go b.own.Close()
		}
	}
	b.mu.Unlock()
	if silent {
		b.suspect(now)
	}
}

// suspect makes the shard suspect to which the command was sent.
func (b *bound) suspect(now clock.Instant) {
	to, sent := b.shard, clock.Instant(b.began.Load())
	if b.call != nil {
		to, sent = b.call.shard, clock.Instant(b.call.begun.Load())
	}
	to.foundSilent(sent, now)
}

// left is how much of a limit is left, for its caller.
func (b *bound) left(now clock.Instant) time.Duration {
	over := b.phase.Load() == untimed && b.ctx.Err() != nil // which no round has seen yet
	b.mu.Lock()
	defer b.mu.Unlock()
	due := b.due
	if over {
		due = min(due, clock.Instant(b.began.Load()).Add(b.grace))
	}
	return max(0, now.Until(due))
}

// overdue tells whether the limit has ended a while ago. An answer that comes just then is a coincidence.
func (b *bound) overdue() bool {
	return b.over.Load() && b.ended.Until(b.watchdog.client.Clock.Now()) >= tooSoon
}

func (b *bound) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

func (b *bound) Done() <-chan struct{} { return b.done }

func (b *bound) Value(any) any { return nil }

func (b *bound) Err() error {
	if b.over.Load() {
		return fault.NoAnswer
	}
	return nil
}
