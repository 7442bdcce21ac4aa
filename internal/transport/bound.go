package transport

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// bound is the context of a command: it ends with the wait of its caller. It has no deadline, because rueidis closes the
// connection of a command whose deadline is over, which other commands use too.
//
//	idle ──begin──▶ untimed ──stop──▶ idle
//	  │               └──round──▶ timed ──stop──▶ idle, or not used again
//	  └────────begin──────────────▶┘
//
// Most commands are answered at once, while their bounds are untimed. Such a bound is used again. Until it is timed only the
// caller writes it, and who makes it timed reads what the caller has written before it became untimed. A timed one is used again
// when it is certain that neither its timer nor its context's end is about to use it.
type bound struct {
	client *Client
	done   chan struct{}
	phase  atomic.Uint32
	began  atomic.Int64 // an instant
	ended  atomic.Int64 // an instant: when done was closed; 0: it was not
	limits
	alarm alarm
	own   *ownConn // which it closes; nil: none
	item  item
	pool  *boundPool // which it is given back to; nil: to none
	place int        // among those of the pool that are used; its mutex guards it
	nth   int        // how many were used when it was taken, with it

	mu sync.Mutex // of a timed one; also over due and near, and over the alarm
	vigil
}

// vigil is how the end of a timed bound is noticed.
type vigil struct {
	timer   *time.Timer
	leave   func() bool // ends the wait for the end of ctx; nil: there is none
	callers bool        // the caller notices that end itself, see batcher.do
	stopped bool        // nobody waits any more
	watches func()      // watchContext: to name it each time would take memory
	ends    func()      // contextEnded, now
}

type limits struct {
	ctx      context.Context
	observer Observer
	noted    bool // it was told
	grace    time.Duration
	due      clock.Instant // when the bound ends
	near     clock.Instant // when it would if the server were nearby; 0: that makes no difference
}

const (
	idle uint32 = iota
	untimed
	timed
)

// bound begins one with a timer of its own, which the caller must stop.
func (t *Client) bound(p *Wait, now clock.Instant, own *ownConn) *bound {
	b := &bound{done: make(chan struct{}), client: t}
	b.begin(p, now, own)
	return b
}

// bound is the same for commands that have a goroutine, and are sent to a server whose silence is to be noticed.
func (s *Shard) bound(p *Wait, now clock.Instant, call *asyncCall) *bound {
	b := &bound{done: make(chan struct{}), client: s.client, alarm: alarm{shard: s, call: call}}
	b.begin(p, now, nil)
	return b
}

// begin has a bound count, and close an own connection when it ends, if there is one. That a context has ended a round finds, up
// to timedAfter and roundEvery later; the grace counts from when the bound began then. Where a reply is worth a grace, it is no
// shorter than the two.
func (b *bound) begin(p *Wait, now clock.Instant, own *ownConn) {
	since := now
	if p.Since > 0 {
		since = p.Since
	}
	due, near := since.Add(p.Limit), clock.Instant(0)
	if p.Near > 0 {
		near = since.Add(p.Near)
	}
	if p.Ctx.Err() != nil {
		due, near = min(due, since.Add(p.Grace)), 0
	}
	next := due
	if deadline, ok := p.Ctx.Deadline(); ok {
		next = min(next, b.client.Clock.At(deadline))
	}
	b.limits = limits{ctx: p.Ctx, observer: p.Observer, grace: p.Grace, due: due, near: near}
	b.own, b.alarm.holds, b.alarm.probes = own, p.holds, p.probes
	b.began.Store(int64(now))
	if b.pool != nil && now.Until(next) >= timedAfter+roundEvery { // by then a round is sure to have looked
		b.phase.Store(untimed)
		b.client.watchdog.run()
		return
	}
	b.phase.Store(timed)
	b.mu.Lock()
	b.setTimer(now)
	b.mu.Unlock()
	b.watchContext()
}

// stop is for when nobody waits any more. It tells whether the bound has ended before.
func (b *bound) stop() (over bool) {
	if b.phase.CompareAndSwap(untimed, idle) {
		b.ctx, b.observer, b.own, b.callers = nil, nil, nil, false
		b.pool.free(b, true)
		return false
	}
	b.mu.Lock()
	b.stopped = true
	quiet := b.timer != nil && b.timer.Stop() // else a round is about to set it, or it has just fired
	if b.noted {
		b.observer.Answered(clock.Instant(b.began.Load()))
	}
	leave, over := b.leave, b.over()
	b.mu.Unlock()
	quiet = leave != nil && leave() && quiet && !over // else the context is about to be watched, or has ended
	if b.pool == nil {
		return over
	}
	if quiet {
		b.mu.Lock()
		b.limits, b.own, b.leave, b.callers, b.stopped = limits{}, nil, nil, false, false
		b.alarm.at, b.alarm.rang, b.alarm.excused = 0, false, false
		b.phase.Store(idle)
		b.mu.Unlock()
	}
	b.pool.free(b, quiet)
	return over
}

// setTimer ends the bound in time. The caller holds the mutex.
func (b *bound) setTimer(now clock.Instant) {
	if b.timer == nil {
		b.timer = time.AfterFunc(time.Hour, b.end)
	}
	b.alarm.set(clock.Instant(b.began.Load()), now)
	b.wait(now)
	if b.observer != nil {
		b.noted = true
		b.observer.Unanswered(clock.Instant(b.began.Load()))
	}
}

// wait sets the timer. Unlike AfterFunc, in fake time, Reset lets others finish first what they do at this instant.
func (b *bound) wait(now clock.Instant) { b.timer.Reset(now.Until(min(b.due, b.alarm.at))) }

// excuses tells whether a reply to a command that was sent at some time may have come late because this process stood still.
func (b *bound) excuses(sent, came clock.Instant) bool {
	if sent.Until(came) < lateReply {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.alarm.excuses(sent, came)
}

// watchContext waits for the end of the caller's context.
func (b *bound) watchContext() {
	if b.callers || b.ctx.Done() == nil {
		b.mu.Lock()
		b.leave = endsNever
		b.mu.Unlock()
		return
	}
	if b.ctx.Err() != nil {
		b.contextEnded(clock.Instant(b.began.Load())) // it may have ended any time since
		return
	}
	if b.ends == nil {
		b.ends = func() { b.contextEnded(b.client.Clock.Now()) }
	}
	leave := context.AfterFunc(b.ctx, b.ends)
	b.mu.Lock()
	b.leave = leave
	stopped := b.stopped
	b.mu.Unlock()
	if stopped {
		leave()
	}
}

func endsNever() bool { return true }

// contextEnded is for when the caller's context has ended, at that time.
func (b *bound) contextEnded(ended clock.Instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.client.Clock.Now()
	if b.phase.CompareAndSwap(untimed, timed) { // no round has seen it
		b.leave = endsNever
		b.setTimer(now)
	} else if b.alarm.at == 0 { // a round has, and comes to it yet: without leave it is not used again before
		b.setTimer(now)
	}
	b.near = 0
	switch due := max(now, ended.Add(b.grace)); {
	case b.stopped || due >= b.due:
	case due == now:
		b.finish(now)
	default:
		b.due = due
		b.wait(now)
	}
}

func (b *bound) end() {
	b.mu.Lock()
	now, began := b.client.Clock.Now(), clock.Instant(b.began.Load())
	silent := !b.stopped && b.alarm.ring(began, now)
	if b.near != 0 && b.alarm.shard != nil { // the way may be longer than was known when the bound began
		b.due = max(b.due, b.near.Add(b.alarm.shard.Plus(0)))
	}
	switch {
	case b.stopped || b.over():
	case now < b.due:
		b.wait(now)
	default:
		b.finish(now)
	}
	b.mu.Unlock()
	if silent {
		b.alarm.suspect(began, now)
	}
}

// finish ends the bound. The caller holds the mutex.
func (b *bound) finish(now clock.Instant) {
	if b.over() {
		return
	}
	b.ended.Store(int64(now))
	close(b.done)
	if b.item.replies != nil {
		b.item.replies <- rueidis.NewErrorResult(fault.NoAnswer)
	}
	if b.own != nil {
		go b.own.Close()
	}
}

// left is how much of a bound is left, for its caller.
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

func (b *bound) over() bool { return b.ended.Load() != 0 }

// overdue tells whether the bound has ended a while ago. A reply that comes just then is a coincidence.
func (b *bound) overdue() bool {
	return b.over() && clock.Instant(b.ended.Load()).Until(b.client.Clock.Now()) >= tooSoon
}

func (b *bound) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

func (b *bound) Done() <-chan struct{} { return b.done }

func (b *bound) Value(any) any { return nil }

func (b *bound) Err() error {
	if b.over() {
		return fault.NoAnswer
	}
	return nil
}
