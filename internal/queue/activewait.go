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
	lastFailure
	mail       *mailbox      // for messages about its ticket; nil: it waits in no queue
	leads      bool          // for a leader
	waitsSince clock.Instant // since when it waits for the lock; 0: it waits only for a reply
	queued     atomic.Bool   // it has a ticket
}

// lastFailure is why the last try of the goroutine that asks Redis for a path failed, for other calls of its process that wait
// for the path or try; nil if it did not.
type lastFailure struct{ atomic.Pointer[failure] }

// failure is why Redis cannot be asked. If it is only about a first try or a removal that is not answered yet, since says when
// that was sent.
type failure struct {
	why   error         // nil: only that there is no answer
	since clock.Instant // 0: not only about a missing answer
}

// silence is a path as the observer of its first try: it notes on the path that the try is not answered yet. An active wait
// replaces that note.
type silence Path

func (s *silence) Unanswered(since clock.Instant) {
	noted := &activeWait{}
	noted.Store(&failure{since: since})
	s.active.CompareAndSwap(nil, noted)
}

func (s *silence) Answered(since clock.Instant) {
	if noted := s.active.Load(); noted != nil {
		if f := noted.Load(); f != nil && *f == (failure{since: since}) {
			s.active.CompareAndSwap(noted, nil)
		}
	}
}

// Unavailable notes, until settled is called, that Redis cannot be asked about the lock, and why. Asked is when the command was
// sent whose answer is missing. Its own caller may have given it up early: to others that is no outage before an answer would be
// late.
func (p *Path) Unavailable(why error, asked clock.Instant) (settled func()) {
	noted, f := &activeWait{}, failure{why: why}
	if errors.Is(why, fault.NoAnswer) || errors.Is(why, fault.NotSent) {
		f.since = asked
	}
	noted.Store(&f)
	p.whole().active.CompareAndSwap(nil, noted)
	return func() { p.whole().active.CompareAndSwap(noted, nil) }
}

func (t *lastFailure) note(why error) {
	if why != nil { // nil, which is usual, needs no allocation
		t.Store(&failure{why: why})
	} else if t.Load() != nil {
		t.Store(nil)
	}
}

// failing is why Redis cannot be asked now whether the lock is free, if it cannot: the last try of the goroutine that asks
// failed, or the server is silent, and has been asked since some time.
func (p *Path) failing(asked clock.Instant) error {
	if t := p.whole().active.Load(); t != nil {
		if f := t.Load(); f != nil && f.why != nil && (f.since == 0 || p.Node().IsLate(f.since)) {
			return f.why
		}
	}
	if p.Node().Silent(asked) {
		return fault.AsUnavailable(fault.NoAnswer)
	}
	return nil
}

// WhileReachable returns a child of a context that ends when Redis cannot be asked whether the lock is free. End ends it, and
// says why it had ended, or why Redis cannot be asked now: the goroutine in front, which knows that too, may just have gone.
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

// LastFailure returns why the last try of the goroutine that asks Redis for the lock failed; nil if it did not. A first try or
// a removal that is not answered for a while counts as a failure: the lock's holder is not known then. It is also nil if the
// goroutine holds the writer and asks for the reader. A call that does not wait has lost no time itself: to it an answer is
// missing only once it is late.
func (p *Path) LastFailure(waits bool) error {
	p = p.whole()
	if p.lock.Hold() != nil {
		return nil
	}
	t := p.active.Load()
	if t == nil {
		return nil
	}
	f := t.Load()
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
