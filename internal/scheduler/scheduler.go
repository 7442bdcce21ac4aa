// Package scheduler calls what has something due, and has workers that send. It knows neither what is due nor whom it is sent to.
package scheduler

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Source is what has things that are due.
type Source interface {
	// Turn does what is due now, without waiting for anything. It returns when it is to be called next; [clock.Never]: when
	// [Scheduler.Soon] says so.
	Turn(now clock.Instant) (next clock.Instant)
}

// Scheduler is one goroutine that sleeps until the first thing of its sources is due. It starts when the first thing is.
//
// The mutex of a source may be held while Soon is called: the scheduler calls a source without its own.
type Scheduler struct {
	clock   clock.Clock
	sources []Source
	wake    chan struct{} // has room for one
	quit    chan struct{}
	done    sync.WaitGroup
	armed   atomic.Int64 // an instant: when the goroutine wakes by itself; during a turn: what it was asked for since that began

	mu      sync.Mutex // guards the rest, and writing armed
	running bool       // the goroutine was started
	turning bool       // it calls the sources
	closed  bool
}

// New is a scheduler without a goroutine. In each turn the sources are called one after another, in this order.
func New(c clock.Clock, sources ...Source) *Scheduler {
	s := &Scheduler{clock: c, sources: sources, wake: make(chan struct{}, 1), quit: make(chan struct{})}
	s.armed.Store(int64(clock.Never))
	return s
}

// Soon sees to it that the sources are called by due. What is due is in its source before. When it goes away the goroutine still
// wakes for it, once, and finds nothing to do: cheaper than waking it for every change.
//
// A caller that reads armed without the mutex, and does nothing, relies on a turn that is to come, or on one that looks at armed
// once more at its end. When a turn begins after it has read, that calls the source later, and finds what is due there.
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
		s.Nudge()
	}
}

// Nudge has the sources called now, if the goroutine was started.
func (s *Scheduler) Nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// sleep is the goroutine.
func (s *Scheduler) sleep() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.quit:
			return
		}
		timer.Reset(s.clock.Now().Until(s.turn()))
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
		next = min(next, source.Turn(now))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turning = false
	next = min(next, clock.Instant(s.armed.Load()))
	s.armed.Store(int64(next))
	return next
}

// Close ends the goroutine. From now on nothing is due.
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
