package transport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// watchdog ends bounds. A timer for each command would cost more than the rest of this file, so one timer serves all untimed
// bounds. It fires at intervals while commands are under way, and is not stopped when they are answered: stopping and setting
// it for each would wake threads of an idle process. Only a command that takes long, that has a goroutine, or whose bound
// ends before a round looks, gets its own timer. Only then its caller's context is watched, which takes memory, and the mutex
// of a context that many callers may share.
type watchdog struct {
	client *Client
	timer  *time.Timer

	_       cacheLine
	running atomic.Bool // the timer is set, or has just fired
	_       cacheLine
}

const (
	roundEvery = belief.Tick - timedAfter // with timedAfter no more than the shortest grace
	timedAfter = belief.Tick / 10         // more than most replies take
)

func (w *watchdog) begin(t *Client) {
	w.client = t
	w.timer = time.AfterFunc(time.Hour, w.round)
	w.timer.Stop()
}

func (w *watchdog) run() {
	if !w.running.Load() && w.running.CompareAndSwap(false, true) {
		w.timer.Reset(roundEvery)
	}
}

// round looks for commands that take long. A caller makes its bound untimed before it checks running, so either this round sees
// the bound, or the caller finds running false.
func (w *watchdog) round() {
	w.running.Store(false)
	now := w.client.Clock.Now()
	more := false
	if w.client.resolver != nil {
		w.client.resolver.Refresh(topology.KeptFor)
	}
	for _, s := range w.client.nodes() {
		more = s.queue.hasten(now) || more
		more = s.bounds.round(now) || more
	}
	if more {
		w.run()
	}
}

// boundPool has the bounds of a node's commands: sent by their callers, or by the queue's drivers.
type boundPool struct {
	node *Node

	_    cacheLine
	mu   sync.Mutex
	used []*bound
	idle []*bound
	_    cacheLine
}

// take returns an idle bound. The caller must begin and stop it, or free it.
func (p *boundPool) take() (b *bound) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.idle) - 1; last >= 0 {
		b, p.idle = p.idle[last], p.idle[:last]
	} else {
		b = &bound{done: make(chan struct{}), client: p.node.client, alarm: alarm{node: p.node}, pool: p}
	}
	b.alarm.of = nil
	b.index = len(p.used)
	p.used = append(p.used, b)
	b.nth = len(p.used)
	return b
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

// round sets a timer for each command that takes long, and reports whether there are others.
func (p *boundPool) round(now clock.Instant) (more bool) {
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
		if !b.stopped {
			b.setTimer(now)
		}
		if b.watches == nil {
			b.watches = b.watchContext
		}
		if b.callers {
			b.leave = endsNever
		} else if !b.stopped {
			go b.watches() // a context may be of any type and block, which must not delay other bounds
		}
		b.mu.Unlock()
	}
	return more
}
