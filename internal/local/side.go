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

func (s *Side) exit(o owner.ID) (Departure, fault.Loss) {
	if !s.heldBy(o) {
		return s.evictions.Exit(o)
	}
	if s.owners.undo(o) > 0 {
		return Stays, fault.NotLost
	}
	if s.Count() > 0 { // mutant: first reader ends all
		return Leaves, fault.NotLost
	}
	s.phase = phaseLeaving
	return Last, fault.NotLost
}

func (s *Side) evict(lost func() fault.Loss) bool {
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

// Enter admits o if that needs no waiting. Otherwise, if wait is set, it queues o and returns a waiter; the caller must call
// Wait with it. A reader may be queued although wait is not set: it then waits only for the reply to another reader.
func (s *Side) Enter(o owner.ID, lease time.Duration, wait bool, _ *Pool) (Admission, *Waiter) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.of.enter(o, lease, s.writes(), wait)
}

// Wait waits for the turn of w. When ctx is done, timeout fires or w is cancelled first, it returns Refused and leaves nothing
// behind: a turn that came at the same moment is passed on.
func (s *Side) Wait(ctx context.Context, w *Waiter, timeout <-chan time.Time) Admission {
	return s.of.wait(ctx, w, timeout)
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
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.granted(s)
	return s.of.queue.first != nil
}

// Exit undoes one lock of o. After the last one the state is leaving, and the caller must call Free once the outcome of the
// removal from Redis is known.
func (s *Side) Exit(o owner.ID) (Departure, fault.Loss) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	how, why := s.exit(o)
	s.of.holdBack()
	return how, why
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
	done := s.evict(lost)
	s.of.holdBack()
	return done
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
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.writes() && s.of.handOff(running)
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
