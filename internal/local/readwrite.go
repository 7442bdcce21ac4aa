package local

import (
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// ReadWrite is the local half of a read-write lock. It has two sides, each with a half in Redis, and one queue for both, served
// in order of arrival: a reader that comes after a waiting writer also waits, so no call starves. Only a reader that does not
// wait overtakes readers that do, while they wait for a reply: it shares that reply.
//
// Each side goes through the states of a mutex, with the difference that many owners may hold the reading side:
//
//	free ──▶ acquiring ──▶ held ──▶ leaving ──▶ free
//
// An acquiring side is stuck once its call waits for other processes.
//
// At most one side is not free, with one exception: the owner of the writing side may acquire the reading side, and keep it
// when it leaves the writing side. So at any time at most one goroutine asks Redis for this path.
//
// A waiter is admitted for one of three reasons, and each transition admits the waiters that it makes possible:
//
//   - Its owner has the lock already, or has just got it: admitOwner. Otherwise it would wait for itself.
//   - It is at the head of the queue and the state allows it: admit.
//   - It is a reader at the head that was kept out for a writer elsewhere, which no longer waits: see Answer.
//
// A transition looks only at the waiters that it admits, and at the one behind them. So the work under the mutex is constant
// for each lock, unlock and cancellation.
type ReadWrite struct {
	redis Redis

	mu     sync.Mutex
	read   Side
	write  Side
	asking owner.ID // the owner that acquires a side
	queue  Line

	// About readers.
	lastTry *Waiter     // the last one of those that only wait for a reply; nil, or no longer queued, if there is none
	barred  bool        // a writer waits elsewhere: no more readers join
	looking bool        // Redis is being asked about that
	timer   *time.Timer // when to ask again; nil while no reader is kept out
}

// Redis is the half in Redis, as seen by a [ReadWrite]. All methods are called with the mutex of the ReadWrite held.
type Redis interface {
	// Sharable reports whether the reader's hold can be shared.
	Sharable() bool
	// LookDue reports whether it is time to look for a writer that waits elsewhere.
	LookDue() bool
	// Look starts to look for one in the background, and reports whether it does. It then calls Answer or Unknown with the result.
	Look() bool
	// LookAgain returns how long after that to look once more while readers are kept out.
	LookAgain() time.Duration
}

// Init makes the zero value ready for use.
func (l *ReadWrite) Init(redis Redis) {
	l.redis = redis
	l.read.of, l.write.of = l, l
}

// Reader returns the side that many owners may hold.
func (l *ReadWrite) Reader() *Side { return &l.read }

// Writer returns the side that excludes all others.
func (l *ReadWrite) Writer() *Side { return &l.write }

// side returns the side that a waiter asks for.
func (l *ReadWrite) side(writes bool) *Side {
	if writes {
		return &l.write
	}
	return &l.read
}

// may admits o to a side if the state allows it, regardless of the queue.
func (l *ReadWrite) may(o owner.ID, writes bool) Admission {
	switch {
	case !writes:
		return l.mayRead(o)
	case l.write.phase != phaseFree || l.read.phase != phaseFree: // mutant: local writer beside readers
		return Refused
	default:
		l.write.phase, l.asking = phaseAcquiring, o
		return Entered
	}
}

func (l *ReadWrite) mayRead(o owner.ID) Admission {
	switch {
	case l.write.phase != phaseFree && !l.write.heldBy(o): // mutant: local reader beside a writer
		return Refused
	case l.read.phase == phaseFree:
		l.read.phase, l.asking = phaseAcquiring, o
		return Entered
	case l.read.phase == phaseHeld && l.redis.Sharable() && !l.barred:
		l.read.owners.add(o)
		l.lookIfDue()
		return Joined
	default:
		return Refused
	}
}

// mayAgain admits o to a side if o already holds that side, or the other one, or returns why it never can be admitted.
func (l *ReadWrite) mayAgain(o owner.ID, writes bool) Admission {
	mine := l.side(writes)
	switch {
	case mine.heldBy(o):
		mine.owners.add(o)
		return Reentered
	case mine.hasEvicted(o):
		return Evicted
	case writes && (l.read.heldBy(o) || l.read.hasEvicted(o)):
		return Upgrade
	case !writes && l.write.heldBy(o): // the queue waits for o
		return l.mayRead(o)
	default:
		return Refused
	}
}

// replyIsNear reports whether Redis was asked for the reading side, and its reply is expected.
func (l *ReadWrite) replyIsNear() bool {
	return l.read.phase == phaseAcquiring && l.write.phase == phaseFree
}

// behindTries returns the waiter that the next one that only waits for a reply is queued in front of: the first one of another
// kind.
func (l *ReadWrite) behindTries() *Waiter {
	if l.lastTry != nil && l.lastTry.queued {
		return l.lastTry.next
	}
	behind := l.queue.first
	for behind != nil && behind.tries { // the last one of them has given up
		behind = behind.next
	}
	return behind
}

// deny refuses the waiters that only wait for a reply, when none is expected. They are at the head of the queue, see behindTries.
func (l *ReadWrite) deny() {
	if l.replyIsNear() {
		return
	}
	for w := l.queue.first; w != nil && w.tries; w = l.queue.first {
		l.queue.Admit(w, Denied)
	}
	l.lastTry = nil
}

// admitOwner admits the waiters of an owner that was admitted, or that may now read, wherever they are in the queue. The caller
// holds the mutex.
func (l *ReadWrite) admitOwner(o owner.ID) {
	for _, writes := range []bool{true, false} {
		for w := range l.queue.SameOwner(o, writes) {
			how := l.mayAgain(o, writes)
			if how == Refused {
				break
			}
			l.queue.Admit(w, how)
		}
	}
}

// admit admits the waiters that the state allows, from the head of the queue. The caller holds the mutex.
func (l *ReadWrite) admit() {
	for w := l.queue.first; w != nil; w = l.queue.first {
		how := l.may(w.owner, w.writes)
		if how == Refused {
			break
		}
		l.queue.Admit(w, how)
		if how == Joined {
			l.admitOwner(w.owner)
		}
	}
	l.deny() // the waiters that the loop has not admitted
	l.holdBack()
}

// lookIfDue asks Redis whether a writer waits elsewhere, if it is time. The caller holds the mutex.
func (l *ReadWrite) lookIfDue() {
	l.looking = l.looking || l.redis.LookDue() && l.redis.Look()
}

// Answer notes the answer to Look: whether a writer waits elsewhere. While one does, no more readers join.
func (l *ReadWrite) Answer(waits bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looking = false
	l.bar(waits && l.read.phase == phaseHeld)
}

// Unknown is called when there is no reply. It lets readers in if they are kept out, and otherwise keeps them out: so while
// Redis does not answer, readers join and wait in turn.
func (l *ReadWrite) Unknown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looking = false
	l.bar(!l.barred && l.read.phase == phaseHeld)
}

func (l *ReadWrite) bar(barred bool) {
	l.barred = barred
	if barred {
		l.holdBack()
	} else {
		l.admit()
	}
}

// holdBack starts the timer if a reader at the head is kept out for a writer elsewhere, otherwise it stops the timer. The caller
// holds the mutex.
func (l *ReadWrite) holdBack() {
	l.barred = l.barred && l.read.phase == phaseHeld
	w := l.queue.first
	held := l.barred && w != nil && !w.writes && !w.tries && l.write.phase == phaseFree && l.redis.Sharable()
	switch {
	case held == (l.timer != nil):
	case !held:
		l.timer.Stop()
		l.timer = nil
	default:
		var timer *time.Timer
		timer = time.AfterFunc(l.redis.LookAgain(), func() { l.again(&timer) })
		l.timer = timer
	}
}

// again is called by a timer: it asks Redis once more. If the last question is not answered yet, it lets readers in instead. The
// caller of AfterFunc holds the mutex while it sets timer.
func (l *ReadWrite) again(timer **time.Timer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != *timer { // it was stopped too late
		return
	}
	l.timer = nil
	if l.looking {
		l.bar(false)
		return
	}
	l.looking = l.redis.Look()
	l.holdBack()
}

// free notes that the hold of a side was released, or could not be obtained.
func (l *ReadWrite) free(s *Side) {
	s.phase = phaseFree
	if s == &l.read && l.write.phase == phaseHeld {
		for o := range l.write.owners.all() { // exactly one
			l.admitOwner(o) // its waiters came while its last reader's hold was being released
		}
	}
	l.admit()
}

// Writing reports whether the writing side is not free.
func (l *ReadWrite) Writing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.write.phase != phaseFree
}

// mostReaders limits how many readers that share a lock Obstacles returns, so that a call begins to wait quickly.
const mostReaders = 1000

// Obstacles returns what w waits for. For a writer these are all owners of reader and writer, the locks of the two sides; for a
// reader it is the writer, or the waiter at the head of the queue, which in turn waits for all owners. A waiter never waits for
// its own owner.
func (l *ReadWrite) Obstacles(w *Waiter, reader, writer deadlock.Lock) (all deadlock.Obstacles) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.queued {
		return all
	}
	for o := range l.write.owners.all() {
		if o != w.owner {
			all.Add(deadlock.Obstacle{Owner: o, Held: writer})
		}
	}
	if !w.writes {
		// An owner of the writer waits only for the removal of its last reader's hold.
		if first := l.queue.first; first.writes && !l.write.heldBy(w.owner) {
			all.Add(deadlock.Obstacle{Owner: first.owner, Ahead: &first.Call})
		}
		return all
	}
	for o := range l.read.owners.all() { // in no order
		if all.Len() == mostReaders {
			break
		}
		if o != w.owner {
			all.Add(deadlock.Obstacle{Owner: o, Held: reader})
		}
	}
	return all
}
