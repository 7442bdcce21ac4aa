package transport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
)

// boundPool has the bounds of a node's commands, sent by their callers or by the queue's drivers, and ends those that take
// long. A timer for each command would cost more than the rest of this file, so one timer serves all untimed bounds of the
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
)

func (p *boundPool) prepare(j *judge, also func(now clock.Instant) bool) {
	p.judge, p.also = j, also
	p.timer = time.AfterFunc(time.Hour, p.round)
	p.timer.Stop()
}

// take returns an idle bound, and how many are in use, this one included. The caller must begin and stop it, or free it.
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

// stop ends the caller's use of a bound. It reports whether the bound had ended before.
func (p *boundPool) stop(b *bound) (over bool) {
	over, reusable := b.stop()
	p.free(b, reusable)
	return over
}

// stopAfterPanic stops a bound that its caller has not stopped, since code of the user panicked. A driver may still answer it.
func (p *boundPool) stopAfterPanic(b *bound, stopped *bool) {
	if !*stopped {
		defer p.free(b, false) // mutant: panic keeps a place
		b.stop()
	}
}

// free returns a bound to the pool, or, if another goroutine may still use it, drops it.
func (p *boundPool) free(b *bound, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.used) - 1
	p.used[b.index], p.used[last].index, p.used[last] = p.used[last], b.index, nil
	p.used = p.used[:last]
	if again {
		p.idle = append(p.idle, b)
	}
}

// run begins the rounds, unless they run.
func (p *boundPool) run() {
	if !p.running.Load() && p.running.CompareAndSwap(false, true) {
		p.timer.Reset(roundEvery)
	}
}

// round looks for commands that take long. A caller makes its bound untimed before it checks running, so either this round sees
// the bound, or the caller finds running false.
func (p *boundPool) round() {
	p.running.Store(false)
	now := p.judge.clock.Now()
	more := p.also(now)
	if p.look(now) || more {
		p.run()
	}
}

// look sets a timer for each command that takes long, and reports whether there are others.
func (p *boundPool) look(now clock.Instant) (more bool) {
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
	return more
}
