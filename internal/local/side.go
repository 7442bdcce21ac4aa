package local

import (
	"context"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Half is what a lock needs of its local half. A plain lock's is in the root; a reader and a writer have a
// [Side].
type Half interface { //nolint:interfacebloat // each transition of the state machine, and what is asked of it
	Enter(o owner.ID, lease time.Duration, wait bool, pool *Pool) (Admission, *Waiter)
	Wait(ctx context.Context, w *Waiter, timeout <-chan time.Time) Admission
	Cancel(w *Waiter)
	Taken()
	Granted() (contended bool)
	Exit(o owner.ID) (Departure, fault.Loss)
	ExitLost(o owner.ID) fault.Loss
	Evict(lost func() fault.Loss) bool
	Free()
	HandOff(running time.Duration) bool
	Queued() (n int, since clock.Instant)
	HeldBy(o owner.ID) bool
	Owners() []owner.ID
	Nest(o owner.ID) bool
	Lost(o owner.ID) fault.Loss
}

// Side is the reading or the writing side of a [ReadWrite], whose mutex guards it.
type Side struct {
	of        *ReadWrite
	owners    owners
	evictions Evictions
	phase     phase
}

type phase uint8

const (
	phaseFree phase = iota
	phaseAcquiring
	phaseStuck // acquiring, but the call waits for other processes
	phaseHeld
	phaseLeaving
)

func (s *Side) writes() bool { return s == &s.of.write }

func (s *Side) heldBy(o owner.ID) bool { return s.phase == phaseHeld && s.owners.of(o) > 0 }

func (s *Side) hasEvicted(o owner.ID) bool { return s.evictions.Why(o) != fault.NotLost }

// Enter admits o if that needs no waiting. Otherwise, if wait is set, it queues o and returns a waiter; the caller must call
// Wait with it. A reader may be queued although wait is not set: it then waits only for the reply to another reader.
func (s *Side) Enter(o owner.ID, lease time.Duration, wait bool, _ *Pool) (Admission, *Waiter) {
	l, writes := s.of, s.writes()
	l.mu.Lock()
	defer l.mu.Unlock()
	how := l.mayAgain(o, writes)
	if how == Refused && l.queue.first == nil { // no call overtakes the queue
		how = l.may(o, writes)
	}
	if how != Refused {
		return how, nil
	}
	// A reader that does not wait joins the readers, even while others are kept out for a writer elsewhere; but not once one of
	// these waits, or readers that try could keep the writer out forever.
	tries := !wait && !writes && l.queue.writers == 0
	if tries && l.queue.first == nil && l.read.phase == phaseHeld && l.write.phase == phaseFree && l.redis.Sharable() {
		l.read.owners.add(o)
		return Joined, nil
	}
	// It waits for no other owner, but for the reply to another reader that has just asked: if the lock is free, both get it. There
	// it overtakes readers that wait.
	if tries = tries && l.replyIsNear(); !wait && !tries {
		return Refused, nil
	}
	var next *Waiter // in front of which it is queued; nil: at the end
	if tries {
		next = l.behindTries()
	}
	w := l.queue.push(key{o, writes}, lease, next, nil)
	// A goroutine that is its own owner waits in one place only, and holds nothing. The one exception holds the writer, and waits
	// for the removal of its last reader's hold.
	if o.Shared() || l.write.heldBy(o) {
		l.queue.index(w)
	}
	if w.tries = tries; tries {
		l.lastTry = w
	}
	if !writes && l.barred {
		l.lookIfDue()
	}
	l.holdBack()
	return Refused, w
}

// Wait waits for the turn of w. When ctx is done, timeout fires or w is cancelled first, it returns Refused and leaves nothing
// behind: a turn that came at the same moment is passed on.
func (s *Side) Wait(ctx context.Context, w *Waiter, timeout <-chan time.Time) Admission {
	if how, came := w.Await(ctx, timeout); came {
		return how
	}
	l := s.of
	l.mu.Lock()
	defer l.mu.Unlock()
	switch how := l.queue.Leave(w); how {
	case Refused:
		l.admit() // the next one may have waited for w only
		return Refused
	case Entered:
		l.free(s)
		return Refused
	default: // the owner holds the lock through w; giving it up could end the hold
		return how
	}
}

// Cancel ends the wait of w, if it still waits.
func (s *Side) Cancel(w *Waiter) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.queue.Cancel(w)
	s.of.admit() // the next waiter may have waited only for w
}

// Taken notes that the acquiring goroutine waits for the half in Redis, which another process has.
func (s *Side) Taken() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if s.phase == phaseAcquiring {
		s.phase = phaseStuck
	}
	s.of.deny()
}

// Granted turns acquiring into held: the hold is obtained. It reports whether others still wait.
func (s *Side) Granted() (contended bool) {
	l := s.of
	l.mu.Lock()
	defer l.mu.Unlock()
	s.phase = phaseHeld
	s.owners.add(l.asking)
	l.admitOwner(l.asking)
	l.admit()
	return l.queue.first != nil
}

// Exit undoes one lock of o. After the last one the state is leaving, and the caller must call Free once the outcome of the
// removal from Redis is known.
func (s *Side) Exit(o owner.ID) (Departure, fault.Loss) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	defer s.of.holdBack()
	switch {
	case !s.heldBy(o):
		return s.evictions.Exit(o)
	case s.owners.undo(o) > 0:
		return Stays, fault.NotLost
	case s.Count() > 0: // mutant: first reader ends all
		return Leaves, fault.NotLost
	default:
		s.phase = phaseLeaving
		return Last, fault.NotLost
	}
}

// ExitLost undoes one lock of o if o was evicted, and returns why; otherwise it does nothing.
func (s *Side) ExitLost(o owner.ID) fault.Loss {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	_, why := s.evictions.Exit(o)
	return why
}

// Evict turns held into leaving without an exit of the owners, which may never unlock, if lost says that the hold is lost. If
// Evict reports true, the caller must do what it does after the last Exit.
func (s *Side) Evict(lost func() fault.Loss) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	defer s.of.holdBack()
	if s.phase != phaseHeld {
		return false
	}
	why := lost()
	if why == fault.NotLost {
		return false
	}
	s.evictions.Add(why, s.owners.all())
	s.owners.clear()
	s.phase = phaseLeaving
	return true
}

// Free is called when the hold was released, or could not be obtained.
func (s *Side) Free() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.free(s)
}

// HandOff hands a hold of the writer, which is leaving, to the first waiter, if that can take it over. A reader's hold is never
// handed over: new readers join it.
func (s *Side) HandOff(running time.Duration) bool {
	l := s.of
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.queue.first
	if !s.writes() || w == nil || !w.writes || !w.Suits(running) || l.read.phase != phaseFree {
		return false
	}
	s.phase = phaseHeld
	s.owners.add(w.owner)
	l.queue.Admit(w, HandedOff)
	l.admitOwner(w.owner)
	l.admit()
	return true
}

// Nest counts one more lock of o. It reports false when o does not hold the side.
func (s *Side) Nest(o owner.ID) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if !s.heldBy(o) {
		return false
	}
	s.owners.add(o)
	return true
}

// Queued returns the number of waiters, for either side, and when the first one began to wait, see [Line.Since]. Those that only
// wait for a reply are at the head, and count as first only if there are no others.
func (s *Side) Queued() (n int, since clock.Instant) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	since = s.of.queue.Since()
	if behind := s.of.behindTries(); behind != nil {
		since = clock.Instant(behind.since.Load())
	}
	return s.of.queue.Len(), since
}

// HeldBy reports whether o holds the side.
func (s *Side) HeldBy(o owner.ID) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.heldBy(o)
}

// Owners returns the owners that hold the side.
func (s *Side) Owners() []owner.ID {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	all := make([]owner.ID, 0, s.Count())
	for o := range s.owners.all() {
		all = append(all, o)
	}
	return all
}

// Count returns how many owners hold the side. It takes no mutex.
func (s *Side) Count() int64 { return int64(s.owners.count.Load()) }

// Lost returns why o was evicted, until o has unlocked.
func (s *Side) Lost(o owner.ID) fault.Loss {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.evictions.Why(o)
}
