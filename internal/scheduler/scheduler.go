// Package scheduler calls sources that have something due, and has workers that send. It knows neither what is due nor where it
// is sent.
//
// What comes in: a [Source], and by [Scheduler.Soon] when it has something due; jobs for [Senders]. What goes out: calls of
// the sources at that time, and batches of jobs to the function that sends them.
package scheduler

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Source does what is due now, without blocking. It returns when to call it next; [clock.Never]: only after [Scheduler.Soon].
type Source func(now clock.Instant) (next clock.Instant)

// Scheduler is a goroutine that sleeps until something of its sources is due. It starts when the first thing is.
//
// Soon may be called with a source's mutex held: the scheduler calls sources without its own mutex.
type Scheduler struct {
	clock   clock.Clock
	sources []Source
	wake    chan struct{} // has room for one
	quit    chan struct{}
	done    sync.WaitGroup
	armed   atomic.Int64 // an instant: when the goroutine wakes by itself; during a turn, what Soon asked for since it began

	mu      sync.Mutex // guards the rest, and writing armed
	running bool       // the goroutine was started
	turning bool       // it calls the sources
	closed  bool
}

// New makes a scheduler, without a goroutine yet. Each turn calls the sources one after another, in this order.
func New(c clock.Clock, sources ...Source) *Scheduler {
	s := &Scheduler{clock: c, sources: sources, wake: make(chan struct{}, 1), quit: make(chan struct{})}
	s.armed.Store(int64(clock.Never))
	return s
}

// Soon has the sources called at due at the latest. The caller must have put what is due into the source before. If that is
// removed, the goroutine still wakes, once, and finds nothing to do: cheaper than waking it for every change.
//
// A caller that reads armed without the mutex, and does nothing, relies on a turn that will come, or on one that checks armed
// again at its end. A turn that begins after the read calls the source later, and finds what is due there.
func (s *Scheduler) Soon(due clock.Instant) {
	if due >= clock.Instant(s.armed.Load()) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || due >= clock.Instant(s.armed.Load()) {
		return
	}
	s.armed.Store(int64(due))
	switch {
	case !s.running:
		s.running = true
		s.done.Go(s.sleep)
	case !s.turning:
		s.Wake()
	}
}

// Wake wakes the goroutine to call the sources now, if it was started.
func (s *Scheduler) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// sleep is the goroutine.
func (s *Scheduler) sleep() {
	timer := time.NewTimer(math.MaxInt64)
	defer timer.Stop()
	for {
		select {
		case <-s.quit:
			return
		default:
		}
		left := s.clock.Now().Until(s.turn())
		if left <= 0 {
			continue
		}
		timer.Reset(left)
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.quit:
			return
		}
	}
}

// turn calls all sources, and returns when to do so next.
func (s *Scheduler) turn() (next clock.Instant) {
	s.mu.Lock()
	s.turning = true
	s.armed.Store(int64(clock.Never))
	s.mu.Unlock()
	now := s.clock.Now()
	next = clock.Never
	for _, source := range s.sources {
		next = min(next, source(now))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turning = false
	next = min(next, clock.Instant(s.armed.Load()))
	s.armed.Store(int64(next))
	return next
}

// Close ends the goroutine. The sources are not called any more.
func (s *Scheduler) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		close(s.quit)
	}
}

// Wait returns, after Close, when the turn that was under way is over.
func (s *Scheduler) Wait() { s.done.Wait() }
