package transport

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// bound is the context of a command: it ends with its caller's wait. It has no deadline, because rueidis closes the connection
// of a command whose deadline is over, which other commands also use.
//
//	idle ──begin──▶ untimed ──stop──▶ idle
//	  │               └──round──▶ timed ──stop──▶ idle, or not used again
//	  └────────begin──────────────▶┘
//
// Most commands are answered at once, while their bounds are untimed. Such a bound is reused. Until it is timed only the caller
// writes it; the goroutine that makes it timed reads what the caller wrote before it became untimed. A timed bound is reused if
// it is certain that neither its timer nor its context's end is about to use it.
type bound struct {
	client *Client
	done   chan struct{}
	phase  atomic.Uint32
	began  atomic.Int64 // an instant
	ended  atomic.Int64 // an instant: when done was closed; 0: not yet
	limits
	alarm alarm
	own   *dedicated // the connection that it closes; nil: none
	entry *entry     // nil: it was never that of a command in a queue
	pool  *boundPool // the pool that it returns to; nil: none
	index int        // its index among the pool's used bounds; the pool's mutex guards it
	nth   int        // how many bounds were used when it was taken, with it

	mu sync.Mutex // for a timed bound; also guards due and near, and the alarm
	vigil
}

// vigil notices the end of a timed bound.
type vigil struct {
	timer   *time.Timer
	leave   func() bool // ends the wait for the end of ctx; nil: none
	callers bool        // the caller notices that end itself, see entry.await
	stopped bool        // the caller no longer waits
	watches func()      // watchContext: a method value allocates each time
	ends    func()      // contextEnded, now
}

type limits struct {
	ctx      context.Context
	observer Observer
	noted    bool // the observer was told
	grace    time.Duration
	due      clock.Instant // when the bound ends
	near     clock.Instant // when it would end if the server were nearby; 0: the same
	failFast bool          // see Wait
}

const (
	idle uint32 = iota
	untimed
	timed
)

// bound begins a bound with its own timer. The caller must stop it.
func (t *Client) bound(p *Wait, now clock.Instant, own *dedicated) *bound {
	b := &bound{done: make(chan struct{}), client: t}
	b.begin(p, now, own)
	return b
}

// bound begins a bound with its own timer, which also notices the silence of the node's server.
func (s *Node) bound(p *Wait, now clock.Instant) *bound {
	b := &bound{done: make(chan struct{}), client: s.client, alarm: alarm{node: s}}
	b.begin(p, now, nil)
	return b
}

// begin begins a bound, which closes own when it ends, if that is not nil. A round notices the end of the
// context, timedAfter and roundEvery later at most; the grace then counts from when the bound began. So a grace is at least as
// long as these two.
func (b *bound) begin(p *Wait, now clock.Instant, own *dedicated) {
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
	b.failFast = p.FailFast && b.alarm.node != nil
	b.own, b.alarm.Holds, b.alarm.Probes = own, p.holds, p.probes
	b.began.Store(int64(now))
	if b.pool != nil && now.Until(next) >= timedAfter+roundEvery { // a round surely looks before
		b.phase.Store(untimed)
		b.pool.run()
		return
	}
	b.phase.Store(timed)
	b.mu.Lock()
	b.setTimer(now)
	b.mu.Unlock()
	b.watchContext()
}

// stop ends the caller's use of the bound. It reports whether the bound had ended before.
func (b *bound) stop() (over bool) {
	if b.phase.CompareAndSwap(untimed, idle) {
		b.ctx, b.observer, b.own, b.callers = nil, nil, nil, false
		b.pool.free(b, true)
		return false
	}
	b.mu.Lock()
	b.stopped = true
	reusable := b.timer != nil && b.timer.Stop() // else a round may be about to set it, or it has just fired
	if b.noted {
		b.observer.Answered(clock.Instant(b.began.Load()))
	}
	leave, over := b.leave, b.over()
	b.mu.Unlock()
	// Else the context may be about to be watched, or has ended, or a driver of the queue may still answer.
	reusable = leave != nil && leave() && reusable && !over // mutant: reply to another
	if b.pool == nil {
		return over
	}
	if reusable {
		b.mu.Lock()
		b.limits, b.own, b.leave, b.callers, b.stopped = limits{}, nil, nil, false, false
		b.alarm.Alarm = belief.Alarm{}
		b.phase.Store(idle)
		b.mu.Unlock()
	}
	b.pool.free(b, reusable)
	return over
}

// setTimer sets the timer that ends the bound. The caller holds the mutex.
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

// wait resets the timer. In fake time Reset, unlike AfterFunc, lets other goroutines first finish their work at this instant.
func (b *bound) wait(now clock.Instant) {
	next := min(b.due, b.alarm.At())
	if b.failFast {
		next = min(next, now.Add(tooSoon))
	}
	b.timer.Reset(now.Until(next))
}

// excuses reports whether a reply may have come late because this process stood still.
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
		b.contextEnded(clock.Instant(b.began.Load())) // it may have ended at any time since then
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

// contextEnded notes when the caller's context ended.
func (b *bound) contextEnded(ended clock.Instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.client.Clock.Now()
	if b.phase.CompareAndSwap(untimed, timed) { // no round has seen the bound
		b.leave = endsNever
		b.setTimer(now)
	} else if b.alarm.At() == 0 { // a round has seen it and will set the timer: without leave it is not reused before
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
	if b.near != 0 && b.alarm.node != nil { // the round trip may be longer than was known when the bound began
		b.due = max(b.due, b.near.Add(b.alarm.node.Plus(0)))
	}
	switch {
	case b.stopped || b.over():
	case now < b.due && (!b.failFast || !b.alarm.node.belief.SilentSince(began, now)):
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
	if b.entry != nil {
		b.entry.ready <- rueidis.NewErrorResult(fault.NoAnswer)
	}
	if b.own != nil {
		go b.own.Close()
	}
}

// left returns the rest of a bound's time, for its caller.
func (b *bound) left(now clock.Instant) time.Duration {
	over := b.phase.Load() == untimed && b.ctx.Err() != nil // no round has noticed it yet
	b.mu.Lock()
	defer b.mu.Unlock()
	due := b.due
	if over {
		due = min(due, clock.Instant(b.began.Load()).Add(b.grace))
	}
	return max(0, now.Until(due))
}

func (b *bound) over() bool { return b.ended.Load() != 0 }

// overdue reports whether the bound ended more than a moment ago. A reply that comes just then is a coincidence.
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
