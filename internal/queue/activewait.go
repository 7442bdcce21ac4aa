package queue

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// activeWait is the part of an acquisition that other goroutines see.
type activeWait struct {
	lastFailure atomic.Pointer[failure] // why the last try has failed, for calls that wait for the path or try once; nil: it has not
	mail        *mailbox                // for messages about its ticket; nil: it waits in no queue
	leads       bool                    // for a leader
	waitsSince  clock.Instant           // when it began to wait for the lock; 0: it waits only for a reply
	queued      atomic.Bool             // it has a ticket
}

// failure says why Redis cannot be asked. Since is set while a first try or a removal is only unanswered, and not yet failed:
// it is when that command was sent.
type failure struct {
	why   error         // nil: only that there is no answer
	since clock.Instant // 0: not only about a missing answer
}

// silence is a path that observes its own first try. While the try is not answered, the path has a note of that; an active wait
// replaces the note.
type silence Path

func (s *silence) Unanswered(since clock.Instant) {
	noted := &activeWait{}
	noted.lastFailure.Store(&failure{since: since})
	s.active.CompareAndSwap(nil, noted)
}

func (s *silence) Answered(since clock.Instant) {
	if noted := s.active.Load(); noted != nil {
		if f := noted.lastFailure.Load(); f != nil && *f == (failure{since: since}) {
			s.active.CompareAndSwap(noted, nil)
		}
	}
}

// Unavailable notes why Redis cannot be asked about the lock, until settled is called. The command that has no answer was sent
// at asked. Its caller may have given up early: to other calls Redis is unavailable only once the answer is late.
func (p *Path) Unavailable(why error, asked clock.Instant) (settled func()) {
	noted, f := &activeWait{}, failure{why: why}
	if errors.Is(why, fault.NoAnswer) || errors.Is(why, fault.NotSent) {
		f.since = asked
	}
	noted.lastFailure.Store(&f)
	p.whole().active.CompareAndSwap(nil, noted)
	return func() { p.whole().active.CompareAndSwap(noted, nil) }
}

// failing returns why Redis cannot be asked now whether the lock is free: the last try of the goroutine that asks has failed, or
// the server, which was asked at asked, is silent. It returns nil if Redis can be asked.
func (p *Path) failing(asked clock.Instant) error {
	if w := p.whole().active.Load(); w != nil {
		if f := w.lastFailure.Load(); f != nil && f.why != nil && (f.since == 0 || p.Node().IsLate(f.since)) {
			return f.why
		}
	}
	if p.Node().Silent(asked) {
		return fault.AsUnavailable(fault.NoAnswer)
	}
	return nil
}

// WhileReachable returns a child of parent that ends when Redis cannot be asked whether the lock is free. End ends the child. It
// returns why the child had ended before, or else why Redis cannot be asked now: the goroutine in front would report that too,
// but may just have gone. It returns nil if Redis can be asked, or if parent has ended.
func (p *Path) WhileReachable(parent context.Context) (ctx context.Context, end func() error) {
	node, asked := p.Node(), p.Clock.Now()
	ctx, fail := context.WithCancelCause(parent)
	node.KeepAlive()
	go func() {
		look := time.NewTicker(failEvery)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
				if why := p.failing(asked); why != nil {
					fail(why)
				}
			}
		}
	}()
	return ctx, func() (why error) {
		node.EndKeepAlive()
		defer fail(nil) // also when a method of the parent panics
		if parent.Err() == nil {
			if why = context.Cause(ctx); why == nil {
				why = p.failing(asked)
			}
		}
		return why
	}
}

// LastFailure returns why the last try of the goroutine that asks Redis for the lock has failed. It returns nil if that try has
// not failed, or if the goroutine holds the writer and asks for the reader.
//
// A first try or a removal without an answer counts as a failure after a while, because the lock's holder is not known then: for
// a call that waits, when the answer is overdue; for a call that does not wait, and so has lost no time itself, when it is late.
func (p *Path) LastFailure(waits bool) error {
	p = p.whole()
	if p.lock.Hold() != nil {
		return nil
	}
	w := p.active.Load()
	if w == nil {
		return nil
	}
	f := w.lastFailure.Load()
	overdue := p.Node().Overdue
	if !waits {
		overdue = p.Node().IsLate
	}
	switch {
	case f == nil, f.since != 0 && !overdue(f.since):
		return nil
	case f.why == nil:
		return fault.AsUnavailable(fault.NoAnswer)
	default:
		return f.why
	}
}
