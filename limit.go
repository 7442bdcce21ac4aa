package lockregistry

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

// limit is the context of a command: it ends with the patience of its caller. It has no deadline, because rueidis closes
// the connection of a command whose deadline is over, which other commands use too.
//
//	idle ──begin──▶ brisk ──stop──▶ idle
//	  │               └──round──▶ slow ──stop──▶ not used again
//	  └────────begin──────────────▶┘
//
// Most commands are answered at once, while their limits are brisk. Such a limit has a place in its lane, and is used again.
// Until it is slow only the caller writes it, and who makes it slow reads what the caller has written before it became brisk.
type limit struct {
	done   chan struct{}
	over   atomic.Bool // done is closed
	phase  atomic.Uint32
	began  atomic.Int64  // an instant
	due    clock.Instant // when it ends
	near   clock.Instant // when it would if the server were nearby; 0: that makes no difference
	ctx    context.Context
	asks   asking // see patience
	grace  time.Duration
	way    *private // which it closes; nil: none
	holds  time.Duration
	probe  clock.Instant
	watch  *watch
	lane   *lane       // whose silence it notices; nil: none
	of     *sending    // which has a goroutine; nil: none
	group  *limitGroup // where its place is; nil: it has none
	place  int
	parcel parcel

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
	brisk
	slow
)

// limitGroup has places for limits. A lane has several, of which a command takes any, so that cores seldom meet at one.
type limitGroup struct {
	taken  atomic.Uint64 // a bit for each place
	_      cacheLine
	limits [placesOfAGroup]atomic.Pointer[limit] // nil: one has yet to be made
	_      cacheLine
}

// watch ends limits. A timer for each command would cost more than the rest of this file: so one timer serves all that are brisk.
// It fires at intervals, as long as commands are under way, and is not stopped when they are answered: to stop it and set it
// again for each would wake threads of an idle process. Only a command that has taken a while, or need not be answered at
// once, gets a timer of its own, and only then its caller's context is watched, which takes memory, and the mutex of a
// context that many callers may share.
type watch struct {
	transport *transport
	timer     *time.Timer

	_       cacheLine
	running atomic.Bool // the timer, or it has just fired
	_       cacheLine
}

const (
	watchEvery     = 90 * time.Millisecond // with watchAfter no more than unlockGrace
	watchAfter     = 10 * time.Millisecond // more than most answers take
	placesOfAGroup = 64

	timerSlack = 100 * time.Millisecond  // a timer that fires so late tells that this process, or its machine, stood still
	pauseMost  = 2500 * time.Millisecond // after a longer stop a master may be none any more without having been silent
)

func (w *watch) begin(t *transport) {
	w.transport = t
	w.timer = time.AfterFunc(time.Hour, w.round)
	w.timer.Stop()
}

// place returns an idle limit with a place, or nil where there is none left.
func (l *lane) place() *limit {
	first := rand.IntN(len(l.limits)) //nolint:gosec // no secret
	for i := range l.limits {
		n := (first + i) % len(l.limits)
		g := l.limits[n].Load()
		if g == nil {
			l.limits[n].CompareAndSwap(nil, &limitGroup{})
			g = l.limits[n].Load()
		}
		if end := g.take(l); end != nil {
			return end
		}
	}
	return nil
}

func (g *limitGroup) take(of *lane) *limit {
	for {
		taken := g.taken.Load()
		n := bits.TrailingZeros64(^taken)
		if n == placesOfAGroup {
			return nil
		}
		if !g.taken.CompareAndSwap(taken, taken|1<<n) {
			continue
		}
		l := g.limits[n].Load()
		if l == nil {
			l = &limit{done: make(chan struct{}), watch: &of.transport.watch, lane: of, group: g, place: n}
			g.limits[n].Store(l)
		}
		return l
	}
}

// free gives the place back.
func (l *limit) free() { l.group.taken.And(^(uint64(1) << l.place)) }

// alone tells whether a command is the only one under way that its caller has sent itself.
func (l *lane) alone(of *limit) bool {
	if of.group.taken.Load() != 1<<of.place {
		return false
	}
	for i := range l.limits {
		if g := l.limits[i].Load(); g != nil && g != of.group && g.taken.Load() != 0 {
			return false
		}
	}
	return true
}

// limit begins one with a timer of its own, which the caller must stop.
func (w *watch) limit(p *patience, now clock.Instant, way *private) *limit {
	l := &limit{done: make(chan struct{}), watch: w}
	l.begin(p, now, way)
	return l
}

// limit is the same for commands that have a goroutine, and are sent to a server whose silence is to be noticed.
func (l *lane) limit(p *patience, now clock.Instant, of *sending) *limit {
	end := &limit{done: make(chan struct{}), watch: &l.transport.watch, lane: l, of: of}
	end.begin(p, now, nil)
	return end
}

// begin has a limit count, and close a private connection when it ends, if there is one. With a place, where most commands are
// answered at once, it is left to a round to find that a context has ended. A caller without grace waits longer then, by up to
// watchAfter and watchEvery; from the grace of others, which is no shorter, as much may be missing.
func (l *limit) begin(p *patience, now clock.Instant, way *private) {
	since := now
	if p.since > 0 {
		since = p.since
	}
	due := since.Add(p.limit)
	if l.near = 0; p.near > 0 {
		l.near = since.Add(p.near)
	}
	if p.ctx.Err() != nil {
		due, l.near = min(due, since.Add(p.grace)), 0
	}
	next := due
	if deadline, ok := p.ctx.Deadline(); ok {
		next = min(next, l.watch.transport.clock.At(deadline))
	}
	l.ctx, l.grace, l.asks, l.due, l.way, l.holds, l.probe = p.ctx, p.grace, p.asks, due, way, p.holds, p.probe
	l.began.Store(int64(now))
	if l.group != nil && now.Until(next) >= watchAfter+watchEvery { // by then a round is sure to have looked
		l.phase.Store(brisk)
		l.watch.run()
		return
	}
	l.phase.Store(slow)
	l.mu.Lock()
	l.setTimer(now)
	l.mu.Unlock()
	l.watchContext()
}

// stop is for when nobody waits any more. It tells whether the limit has ended before.
func (l *limit) stop() (over bool) {
	if l.phase.CompareAndSwap(brisk, idle) {
		l.ctx, l.asks, l.way = nil, nil, nil
		l.free()
		return false
	}
	l.mu.Lock()
	l.stopped = true
	if l.timer != nil { // else a round is about to set it
		l.timer.Stop()
	}
	if l.noted {
		l.asks.answered(clock.Instant(l.began.Load()))
	}
	leave, over := l.leave, l.over.Load()
	l.mu.Unlock()
	if leave != nil {
		leave()
	}
	if l.group != nil {
		l.group.limits[l.place].Store(nil)
		l.free()
	}
	return over
}

// run sees to it that there is a round.
func (w *watch) run() {
	if !w.running.Load() && w.running.CompareAndSwap(false, true) {
		w.timer.Reset(watchEvery)
	}
}

// round looks for commands that have taken a while. A caller that finds the watch running has made its limit brisk
// before, so either this round meets the limit, or running was false already.
func (w *watch) round() {
	w.running.Store(false)
	now := w.transport.clock.Now()
	more := false
	if w.transport.resolver != nil {
		w.transport.resolver.Refresh(topology.KeptFor)
	}
	for _, l := range w.transport.lanes() {
		if b := l.coalescing.Load(); b != nil && b.hasten(now) {
			more = true
		}
		for k := range l.limits {
			if g := l.limits[k].Load(); g != nil {
				more = g.round(now) || more
			}
		}
	}
	if more {
		w.run()
	}
}

// round has a timer for each command that has taken a while, and tells whether there are any that have not.
func (g *limitGroup) round(now clock.Instant) (more bool) {
	for taken := g.taken.Load(); taken != 0; taken &= taken - 1 {
		l := g.limits[bits.TrailingZeros64(taken)].Load()
		switch {
		case l == nil || l.phase.Load() != brisk:
		case clock.Instant(l.began.Load()).Until(now) < watchAfter:
			more = true
		case l.phase.CompareAndSwap(brisk, slow):
			l.mu.Lock()
			stopped := l.stopped
			if !stopped {
				l.setTimer(now)
			}
			l.mu.Unlock()
			if !stopped {
				go l.watchContext() // a context may be of any type, and block: the limits of other commands do not wait for it
			}
		}
	}
	return more
}

// setTimer ends the limit in time. The caller holds the mutex.
func (l *limit) setTimer(now clock.Instant) {
	l.timer = time.AfterFunc(time.Hour, l.end)
	if l.alarm = clock.Never; l.lane != nil {
		l.alarm = l.silentAt(now)
	}
	l.wait(now)
	if l.asks != nil {
		l.noted = true
		l.asks.unanswered(clock.Instant(l.began.Load()))
	}
}

// wait sets the timer. Unlike AfterFunc, in fake time, Reset lets others finish first what they do at this instant.
func (l *limit) wait(now clock.Instant) { l.timer.Reset(now.Until(min(l.due, l.alarm))) }

// silentAt is when the server has been silent for too long. While nothing has been sent yet that is not before now. A probe
// is sent because an earlier command was given up: the silence began with that. But it must have had time for its own
// answer.
func (l *limit) silentAt(now clock.Instant) clock.Instant {
	trip, sent := l.lane.trip(), clock.Instant(l.began.Load())
	if l.of != nil {
		if sent = clock.Instant(l.of.begun.Load()); sent == 0 {
			sent = now
		}
	}
	if l.probe != 0 {
		return max(l.probe.Add(l.lane.silence(trip)), sent.Add(trip.sure()+tooSoon))
	}
	return sent.Add(l.lane.silence(trip) + l.holds)
}

// ring is for when the server has been silent for too long, whether the caller goes on waiting or not. It tells whether the lane
// is to be suspect. A timer that fires late has learned nothing about the server: this process stood still, or its machine
// did. But when that took very long a failover may have passed unnoticed. The caller holds the mutex.
func (l *limit) ring(now clock.Instant) bool {
	if l.stopped || now < l.alarm {
		return false
	}
	if due := l.silentAt(now); now < due { // it was sent later, or more is known than when the timer was set
		l.alarm = due
		return false
	}
	if l.late(l.alarm.Until(now)) {
		l.excused, l.alarm = true, now.Add(l.lane.silence(l.lane.trip()))
		return false
	}
	l.rang, l.alarm = true, clock.Never
	return l.of == nil || !l.of.plain || !l.lane.isWary(now)
}

// late tells whether a timer that fires so much after its time excuses the server.
func (*limit) late(by time.Duration) bool { return by >= timerSlack && by <= pauseMost }

// excuses tells whether an answer to a command that was sent at some time may have come late because this process stood
// still: the timer of its silence should have fired a while ago, and has not, or has fired late.
func (l *limit) excuses(sent, came clock.Instant) bool {
	if sent.Until(came) < lateAnswer {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rang || l.lane == nil {
		return false
	}
	due := l.alarm
	if l.phase.Load() == brisk { // no timer was set, as a round would have seen to, if there had been any
		due = sent.Add(l.lane.silence(l.lane.trip()) + l.holds)
	}
	return l.excused || l.late(due.Until(came))
}

// watchContext waits for the end of the caller's context.
func (l *limit) watchContext() {
	if l.ctx.Done() == nil {
		return
	}
	if l.ctx.Err() != nil {
		l.hurry(clock.Instant(l.began.Load())) // it may have ended any time since
		return
	}
	leave := context.AfterFunc(l.ctx, func() { l.hurry(0) })
	l.mu.Lock()
	l.leave = leave
	stopped := l.stopped
	l.mu.Unlock()
	if stopped {
		leave()
	}
}

// hurry is for when the caller's context has ended: at that time, or now if it is 0.
func (l *limit) hurry(ended clock.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.watch.transport.clock.Now()
	if ended == 0 {
		ended = now
	}
	l.near = 0
	if due := max(now, ended.Add(l.grace)); !l.stopped && due < l.due {
		l.due = due
		l.wait(now)
	}
}

func (l *limit) end() {
	l.mu.Lock()
	now := l.watch.transport.clock.Now()
	silent := l.ring(now)
	if l.near != 0 && l.lane != nil { // the way may be longer than was known when the limit began
		l.due = max(l.due, l.near.Add(l.lane.plus(0)))
	}
	switch {
	case l.stopped || l.over.Load():
	case now < l.due:
		l.wait(now)
	default:
		l.ended = now
		l.over.Store(true)
		close(l.done)
		if l.parcel.answers != nil {
			l.parcel.answers <- rueidis.NewErrorResult(fault.NoAnswer)
		}
		if l.way != nil {
			go l.way.Close()
		}
	}
	l.mu.Unlock()
	if silent {
		l.suspect(now)
	}
}

// suspect makes the lane suspect to which the command was sent.
func (l *limit) suspect(now clock.Instant) {
	to, sent := l.lane, clock.Instant(l.began.Load())
	if l.of != nil {
		to, sent = l.of.lane, clock.Instant(l.of.begun.Load())
	}
	to.suspect(sent, now)
}

// left is how much of a limit is left, for its caller.
func (l *limit) left(now clock.Instant) time.Duration {
	over := l.phase.Load() == brisk && l.ctx.Err() != nil // which no round has seen yet
	l.mu.Lock()
	defer l.mu.Unlock()
	due := l.due
	if over {
		due = min(due, clock.Instant(l.began.Load()).Add(l.grace))
	}
	return max(0, now.Until(due))
}

// overdue tells whether the limit has ended a while ago. An answer that comes just then is a coincidence.
func (l *limit) overdue() bool {
	return l.over.Load() && l.ended.Until(l.watch.transport.clock.Now()) >= tooSoon
}

func (l *limit) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

func (l *limit) Done() <-chan struct{} { return l.done }

func (l *limit) Value(any) any { return nil }

func (l *limit) Err() error {
	if l.over.Load() {
		return fault.NoAnswer
	}
	return nil
}
