package transport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// watchdog ends bounds. A timer for each command would cost more than the rest of this file: so one timer serves all that are
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
	roundEvery = 90 * time.Millisecond // with timedAfter no more than the shortest grace
	timedAfter = 10 * time.Millisecond // more than most replies take
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

// round looks for commands that have taken a while. A caller that finds the watchdog running has made its bound untimed before,
// so either this round meets the bound, or running was false already.
func (w *watchdog) round() {
	w.running.Store(false)
	now := w.client.Clock.Now()
	more := false
	if w.client.resolver != nil {
		w.client.resolver.Refresh(topology.KeptFor)
	}
	for _, s := range w.client.shards() {
		if b := s.batches.now.Load(); b != nil && b.hasten(now) {
			more = true
		}
		more = s.bounds.round(now) || more
	}
	if more {
		w.run()
	}
}

// boundPool has the bounds of a shard's commands that their callers send themselves, or others with theirs.
type boundPool struct {
	shard *Shard

	_    cacheLine
	mu   sync.Mutex
	used []*bound
	idle []*bound
	_    cacheLine
}

// take returns an idle bound, which its caller must begin and stop, or free.
func (p *boundPool) take() (b *bound) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := len(p.idle) - 1; last >= 0 {
		b, p.idle = p.idle[last], p.idle[:last]
	} else {
		b = &bound{done: make(chan struct{}), client: p.shard.client, alarm: alarm{shard: p.shard}, pool: p}
	}
	b.place = len(p.used)
	p.used = append(p.used, b)
	b.nth = len(p.used)
	return b
}

// free gives a bound back that nobody else is about to use, or, when somebody may be, takes it out.
func (p *boundPool) free(b *bound, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.used) - 1
	p.used[b.place], p.used[last].place, p.used[last] = p.used[last], b.place, nil
	p.used = p.used[:last]
	if again {
		p.idle = append(p.idle, b)
	}
}

// round has a timer for each command that has taken a while, and tells whether there are any that have not.
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
			go b.watches() // a context may be of any type, and block: the bounds of other commands do not wait for it
		}
		b.mu.Unlock()
	}
	return more
}
