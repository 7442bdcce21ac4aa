package local

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Half is what a lock needs of its local half. A plain lock's is in the root, that of a reader or a writer is its
// [Side].
type Half interface { //nolint:interfacebloat // each transition of the state machine, and what is asked of it
	Enter(o owner.ID, lease time.Duration, wait bool, pool *Pool) (Admission, *Waiter)
	Wait(ctx context.Context, w *Waiter, timeout <-chan time.Time) Admission
	Cancel(w *Waiter)
	Taken()
	Granted() (contended bool)
	Exit(o owner.ID) (Departure, fault.Loss)
	Evict(lost func() fault.Loss) bool
	Free()
	Pass(running time.Duration) bool
	Contended() bool
	Queued() int
	HeldBy(o owner.ID) bool
	Owners() []owner.ID
	Nest(o owner.ID) bool
	Lost(o owner.ID) fault.Loss
}

// Side is the reading or the writing side of a [ReadWrite], whose mutex guards it.
type Side struct {
	of        *ReadWrite
	phase     phase
	asking    owner.ID           // that acquires it
	stuck     bool               // and waits for others, elsewhere
	owners    map[owner.ID]int32 // its holders, and how often each holds it
	count     atomic.Int64       // how many these are, to be read without the mutex
	evictions Evictions
}

type phase uint8

const (
	phaseFree phase = iota
	phaseAcquiring
	phaseHeld
	phaseLeaving
)

func (s *Side) writes() bool { return s == &s.of.write }

func (s *Side) heldBy(o owner.ID) bool { return s.phase == phaseHeld && s.owners[o] > 0 }

func (s *Side) hasEvicted(o owner.ID) bool { return s.evictions.Why(o) != fault.NotLost }

func (s *Side) add(o owner.ID) {
	if s.owners == nil {
		s.owners = map[owner.ID]int32{}
	}
	s.owners[o]++
	s.count.Store(int64(len(s.owners)))
}

func (s *Side) exit(o owner.ID) (Departure, fault.Loss) {
	if !s.heldBy(o) {
		return s.evictions.Exit(o)
	}
	s.owners[o]--
	if s.owners[o] > 0 {
		return Stays, fault.NotLost
	}
	delete(s.owners, o)
	s.count.Store(int64(len(s.owners)))
	if len(s.owners) > 0 { // mutant: first reader ends all
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
	for o, times := range s.owners {
		s.evictions.Add(o, times, why)
	}
	s.owners = nil
	s.count.Store(0)
	s.phase = phaseLeaving
	return true
}

// Enter lets o in when that needs no waiting. Otherwise, when wait is set, it queues o and returns its waiter, with which
// the caller must call Wait. A reader may be queued although wait is not set: then it waits for no more than the reply to
// another reader.
func (s *Side) Enter(o owner.ID, lease time.Duration, wait bool, _ *Pool) (Admission, *Waiter) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.of.enter(o, lease, s.writes(), wait)
}

// Wait waits for the turn of w. When ctx is done, timeout fires or w is cancelled first, it returns Refused and leaves
// nothing behind: if the turn came at the same moment, it is passed on as if it had never come.
func (s *Side) Wait(ctx context.Context, w *Waiter, timeout <-chan time.Time) Admission {
	return s.of.wait(ctx, w, timeout)
}

// Cancel ends the waiting of w, if it waits still.
func (s *Side) Cancel(w *Waiter) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.queue.Cancel(w)
	s.of.admit() // the next one may have waited for w only
}

// Taken is for the goroutine that acquires: it waits for others, which have the Redis half.
func (s *Side) Taken() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.stuck = true
	s.of.deny()
}

// Granted turns acquiring into held: the Redis half is obtained. It reports whether others wait still.
func (s *Side) Granted() (contended bool) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.granted(s)
	return s.of.queue.first != nil
}

// Exit undoes one lock of o. When it was the last one, the state is leaving, and the caller must call Free once the
// outcome of the removal from Redis is known.
func (s *Side) Exit(o owner.ID) (Departure, fault.Loss) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	how, why := s.exit(o)
	s.of.holdBack()
	return how, why
}

// Evict turns held into leaving although owners have not unlocked, if lost says why the hold is lost: they may
// never unlock. When Evict reports true, the caller must do what it would do after the last Exit.
func (s *Side) Evict(lost func() fault.Loss) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	done := s.evict(lost)
	s.of.holdBack()
	return done
}

// Free is for when the Redis half is given back, or could not be obtained.
func (s *Side) Free() {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.free(s)
}

// Pass hands the hold, which is leaving, to the first waiter, if that one can take it over. No owner can take over a hold on
// reading: a new reader joins the others.
func (s *Side) Pass(running time.Duration) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.writes() && s.of.pass(running)
}

// Nest counts one more lock of an owner that holds the side, and reports false when it does not.
func (s *Side) Nest(o owner.ID) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	if !s.heldBy(o) {
		return false
	}
	s.add(o)
	return true
}

// Contended reports whether somebody waits, for either side.
func (s *Side) Contended() bool { return s.Queued() > 0 }

// Queued is how many wait, for either side.
func (s *Side) Queued() int {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.of.queue.length
}

// HeldBy reports whether o holds the side.
func (s *Side) HeldBy(o owner.ID) bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.heldBy(o)
}

// Owners are those that hold the side.
func (s *Side) Owners() []owner.ID {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return slices.Collect(maps.Keys(s.owners))
}

// Count is how many owners hold the side. It needs no mutex.
func (s *Side) Count() int64 { return s.count.Load() }

// Lost says why o was evicted, if it was and has yet to unlock.
func (s *Side) Lost(o owner.ID) fault.Loss {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.evictions.Why(o)
}
