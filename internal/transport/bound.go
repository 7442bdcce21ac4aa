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

// bound is the context of a command: it ends with its caller's wait. It has no deadline, because rueidis closes a connection
// when the deadline of any command on it passes, although other commands share it. It also notices when the command's server is
// silent, see [belief.Alarm].
//
//	idle ──begin──▶ untimed ──stop──▶ idle
//	  │               └──round──▶ timed ──stop──▶ idle, or spent: not used again
//	  └────────begin──────────────▶┘
//
// Most commands are answered at once, while their bounds are untimed. Such a bound is always reused. Only the caller writes an
// untimed bound. The goroutine that makes it timed reads only what the caller wrote before it made the bound untimed. A timed
// bound is reused only if neither its timer nor the end of its context may be about to use it.
type bound struct {
	judge *judge // of the node to which the caller has given the command
	done  chan struct{}
	phase atomic.Uint32
	began atomic.Int64 // an instant
	ended atomic.Int64 // an instant: when done was closed; 0: not yet
	limits
	flight
	own   *dedicated // the connection that it closes; nil: none
	index int        // its index among the pool's used bounds; the pool's mutex guards it

	mu    sync.Mutex // for a timed bound; also guards due and near
	alarm belief.Alarm
	timer *time.Timer // ends a timed bound, or looks at the alarm
	leave func() bool // ends the wait for the end of ctx; nil: none
	ends  func()      // contextEnded, now: a method value allocates each time
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

// flight is the progress of a command that a driver of a queue sends; see entry.
type flight struct {
	queued    bool                     // it goes that way; then its caller notices the end of its context itself
	plain     bool                     // over the node's own connections, even if that is suspect
	stage     atomic.Uint32            // waits, taken or done
	firstSent atomic.Int64             // an instant: when it was first sent; 0: not yet
	to        atomic.Pointer[judge]    // of the node to which it was sent
	ready     chan rueidis.RedisResult // has room for two: the reply, and the end of the bound
}

const (
	idle uint32 = iota
	untimed
	timed
	spent
)

// begin begins a bound. If own is not nil, the bound closes it when it ends. With rounds, a round may be the first to notice
// that the bound or its context has ended, up to timedAfter + roundEvery late; the grace then counts from when the bound began.
// So every grace is at least that long. Left: the bound is left to the rounds.
func (b *bound) begin(p *Wait, now clock.Instant, own *dedicated, rounds bool) (left bool) {
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
		next = min(next, b.judge.clock.At(deadline))
	}
	b.limits = limits{ctx: p.Ctx, observer: p.Observer, grace: p.Grace, due: due, near: near, failFast: p.FailFast}
	b.own, b.alarm.Holds, b.alarm.Probes = own, p.holds, p.probes
	b.began.Store(int64(now))
	if rounds && now.Until(next) >= timedAfter+roundEvery { // a round surely looks before
		b.phase.Store(untimed)
		return true
	}
	b.phase.Store(timed)
	b.mu.Lock()
	b.setTimer(now)
	b.mu.Unlock()
	b.watchContext()
	return false
}

// stop ends the caller's use of the bound. It reports whether the bound had ended before.
func (b *bound) stop() (over bool) {
	if b.phase.CompareAndSwap(untimed, idle) {
		return false
	}
	b.mu.Lock()
	b.phase.Store(spent)
	quiet := b.timer != nil && b.timer.Stop() // otherwise a round may be about to set the timer, or it has just fired
	if b.noted {
		b.observer.Answered(clock.Instant(b.began.Load()))
	}
	leave, over := b.leave, b.over()
	b.mu.Unlock()
	// Otherwise the context may be about to be watched or has ended, or a driver of the queue may still answer.
	if leave != nil && leave() && quiet && !over { // mutant: reply to another
		b.phase.Store(idle)
	}
	return over
}

// stopped reports whether the caller no longer waits. The caller of this method holds the mutex.
func (b *bound) stopped() bool {
	phase := b.phase.Load()
	return phase == idle || phase == spent
}

// setTimer sets the timer that ends the bound. The caller holds the mutex.
func (b *bound) setTimer(now clock.Instant) {
	if b.timer == nil {
		b.timer = time.AfterFunc(time.Hour, b.end)
	}
	b.alarm.At = b.alarm.Due(&b.judge.belief, b.sent(now))
	b.wait(now)
	if b.observer != nil {
		b.noted = true
		b.observer.Unanswered(clock.Instant(b.began.Load()))
	}
}

// wait resets the timer. In fake time Reset, unlike AfterFunc, lets other goroutines first finish their work at this instant.
func (b *bound) wait(now clock.Instant) {
	next := min(b.due, b.alarm.At)
	if b.failFast {
		next = min(next, now.Add(tooSoon))
	}
	b.timer.Reset(now.Until(next))
}

// sent returns when the command was sent. Until a driver sends it, its silence would begin now.
func (b *bound) sent(now clock.Instant) clock.Instant {
	switch first := clock.Instant(b.firstSent.Load()); {
	case !b.queued:
		return clock.Instant(b.began.Load())
	case first == 0:
		return now
	default:
		return first
	}
}

// silent checks whether the server has been silent for too long. If so, it returns a function that reports the silence, to be
// called without the mutex; otherwise nil. An answered command says nothing about the server, even if its caller has not seen
// the answer yet; nor does a command over the old connections of a suspect node. The caller holds the mutex.
func (b *bound) silent(now clock.Instant) (tell func()) {
	if b.queued && b.stage.Load() == done {
		b.alarm.At = clock.Never
		return nil
	}
	sent, to := b.sent(now), b.judge
	if !b.alarm.Ring(&b.judge.belief, sent, now) || b.plain && b.judge.IsSuspect(now) {
		return nil
	}
	if b.queued {
		to = b.to.Load()
	}
	return func() { to.foundSilent(sent, now) }
}

// excuses reports whether a reply to a command that was sent at some time may have come late because this process stood still.
func (b *bound) excuses(sent, came clock.Instant) bool {
	if sent.Until(came) < belief.Silence {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.alarm.Excuses(&b.judge.belief, sent, came)
}

// watchContext waits for the end of the caller's context.
func (b *bound) watchContext() {
	if b.queued || b.ctx.Done() == nil {
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
		b.ends = func() { b.contextEnded(b.judge.clock.Now()) }
	}
	leave := context.AfterFunc(b.ctx, b.ends)
	b.mu.Lock()
	b.leave = leave
	stopped := b.stopped()
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
	if b.stopped() {
		return
	}
	now := b.judge.clock.Now()
	if b.phase.CompareAndSwap(untimed, timed) { // no round has seen the bound
		b.leave = endsNever
		b.setTimer(now)
	} else if b.alarm.At == 0 { // a round has seen the bound, and is about to set the timer; until then stop does not reuse it
		b.setTimer(now)
	}
	b.near = 0
	switch due := max(now, ended.Add(b.grace)); {
	case due >= b.due:
	case due == now:
		b.finish(now)
	default:
		b.due = due
		b.wait(now)
	}
}

func (b *bound) end() {
	b.mu.Lock()
	if b.phase.Load() != timed { // it was stopped; another command may have it by now, and have set the timer again
		b.mu.Unlock()
		return
	}
	now := b.judge.clock.Now()
	tell := b.silent(now)
	if b.near != 0 { // the round trip may be longer than was known when the bound began
		b.due = max(b.due, b.near.Add(b.judge.Plus(0)))
	}
	switch {
	case b.over():
	case now < b.due && (!b.failFast || !b.judge.belief.SilentSince(clock.Instant(b.began.Load()), now)):
		b.wait(now)
	default:
		b.finish(now)
	}
	b.mu.Unlock()
	if tell != nil {
		tell()
	}
}

// finish ends the bound. The caller holds the mutex.
func (b *bound) finish(now clock.Instant) {
	if b.over() {
		return
	}
	b.ended.Store(int64(now))
	close(b.done)
	if b.queued {
		b.ready <- rueidis.NewErrorResult(fault.NoAnswer)
	}
	if b.own != nil {
		go b.own.Close()
	}
}

// left returns the rest of the time of a bound with its own timer, for its caller.
func (b *bound) left(now clock.Instant) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(0, now.Until(b.due))
}

func (b *bound) over() bool { return b.ended.Load() != 0 }

func (b *bound) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

func (b *bound) Done() <-chan struct{} { return b.done }

func (b *bound) Value(any) any { return nil }

// enter makes an entry with this bound, which must not have begun.
func (b *bound) enter(of task) *entry {
	e, _ := entries.Get().(*entry)
	e.task, e.end = of, b
	if b.ready == nil {
		b.ready = make(chan rueidis.RedisResult, 2)
	}
	b.queued, b.plain = true, of.plain
	b.stage.Store(waits)
	b.firstSent.Store(0)
	b.to.Store(b.judge) // until it is sent, which it may never be
	return e
}

func (b *bound) Err() error {
	if b.over() {
		return fault.NoAnswer
	}
	return nil
}

// boundPool has the bounds of a node's commands, sent by their callers or by the queue's drivers, and ends those that take long.
// A timer for each command would cost more than everything else that a bound does, so one timer serves all untimed bounds of the
// node. It fires at intervals while commands are under way: a round. It is not stopped when they are answered, since stopping
// and setting it for each would wake threads of an idle process.
//
// A command gets a timer of its own if it takes long, has a goroutine, or has a bound that ends before a round looks. Only then
// is its caller's context watched: that takes memory, and the mutex of the context, which many callers may share.
//
// Each node has its own pool. So its commands are ended even when no slot leads to the node any more, see routes.
type boundPool struct {
	judge *judge
	also  func(now clock.Instant) (more bool) // runs in each round; more: another round is needed
	timer *time.Timer

	_       cacheLine
	running atomic.Bool // the timer is set, or has just fired
	_       cacheLine

	mu   sync.Mutex
	used []*bound
	idle []*bound
	_    cacheLine
}

const (
	roundEvery = belief.Tick - timedAfter // with timedAfter no more than the shortest grace
	timedAfter = belief.Tick / 10         // more than most replies take

	mostIdleBounds = 4096 // bounds, of up to 0.7 kB each: a burst of calls must not take memory forever
)

func (p *boundPool) prepare(j *judge, also func(now clock.Instant) bool) {
	p.judge, p.also = j, also
	p.timer = time.AfterFunc(time.Hour, p.round)
	p.timer.Stop()
}

// take returns an idle bound, and how many are in use, this one included. The caller must begin and stop it, and free it.
func (p *boundPool) take() (b *bound, used int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.idle) - 1; last >= 0 {
		b, p.idle = p.idle[last], p.idle[:last]
	} else {
		b = &bound{done: make(chan struct{}), judge: p.judge}
	}
	b.index = len(p.used)
	p.used = append(p.used, b)
	return b, len(p.used)
}

func (p *boundPool) begin(b *bound, w *Wait, now clock.Instant, own *dedicated) {
	if b.begin(w, now, own, true) {
		p.run()
	}
}

// free returns a bound to the pool, or, if another goroutine may still use it, drops it. It is deferred: if the bound has not
// been stopped, code of the user has panicked in the caller, and a driver may still answer. An idle bound keeps no node, since
// no slot may lead to that any more.
func (p *boundPool) free(b *bound) {
	again := b.phase.Load() == idle // mutant: driver loses its node
	if again {
		b.limits, b.own, b.leave, b.alarm, b.queued = limits{}, nil, nil, belief.Alarm{}, false
		b.to.Store(nil) // mutant: node kept by an idle bound
	}
	p.mu.Lock()
	last := len(p.used) - 1
	p.used[b.index], p.used[last].index, p.used[last] = p.used[last], b.index, nil
	p.used = p.used[:last]
	if again && len(p.idle) < mostIdleBounds {
		p.idle = append(p.idle, b)
	}
	p.mu.Unlock()
	if !again && b.phase.Load() != spent {
		b.stop()
	}
}

// run begins the rounds, unless they run.
func (p *boundPool) run() {
	if !p.running.Load() && p.running.CompareAndSwap(false, true) {
		p.timer.Reset(roundEvery)
	}
}

// round sets a timer for each command that takes long. A caller makes its bound untimed before it checks running, so either
// this round sees the bound, or the caller finds running false.
func (p *boundPool) round() {
	p.running.Store(false)
	now := p.judge.clock.Now()
	more := p.also(now)
	var slow []*bound
	p.mu.Lock()
	for _, b := range p.used {
		switch {
		case b.phase.Load() != untimed:
		case clock.Instant(b.began.Load()).Until(now) < timedAfter:
			more = true
		case b.phase.CompareAndSwap(untimed, timed):
			slow = append(slow, b)
		}
	}
	p.mu.Unlock()
	for _, b := range slow {
		b.mu.Lock()
		switch {
		case b.stopped():
		case b.queued:
			b.setTimer(now)
			b.leave = endsNever
		default:
			b.setTimer(now)
			go b.watchContext() // a context may be of any type and block, which must not delay other bounds
		}
		b.mu.Unlock()
	}
	if more {
		p.run()
	}
}
