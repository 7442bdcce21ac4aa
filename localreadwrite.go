package lockregistry

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// localReadWrite is the local half of a read-write lock. It has two sides, each with a half in Redis, and one queue for
// both, served in the order of arrival: so a reader that comes after a waiting writer waits too, and nobody starves.
//
// Each side goes through the states of a localLock, with the difference that many owners may hold the reading side:
//
//	free ──▶ acquiring ──▶ held ──▶ leaving ──▶ free
//
// At most one side is not free, with one exception: the owner that holds the writing side may acquire the reading one, and
// keep it when it leaves the writing one. So at any time one goroutine at most asks Redis for this path.
//
// Three things let a waiter in, and each transition sees to those that it makes possible:
//
//   - Its owner is in already, or has just come in: welcome. It would wait for itself otherwise.
//   - It is at the head of the queue and the state allows it: admit.
//   - It is a reader at the head that was kept out for a writer elsewhere, which waits no more: see told.
//
// A transition looks at no waiter but those that it lets in, and at the one behind them. So the work under the mutex is
// constant for each lock, unlock and cancellation.
type localReadWrite struct {
	fresh func() bool          // whether the hold on reading can be shared
	seek  func(must bool) bool // see [ReadWriteLock.seek]
	every time.Duration        // how often to seek while readers are kept out

	mu    sync.Mutex
	read  side
	write side
	queue waiterQueue

	// Of the readers.
	barred  bool        // a writer waits elsewhere: no reader joins them
	seeking bool        // Redis is asked about that
	timer   *time.Timer // when to ask again; nil while nobody is kept out
}

type side struct {
	phase   phase
	asking  owner.ID           // that acquires it
	stuck   bool               // and waits for others, elsewhere
	owners  map[owner.ID]int32 // its holders, and how often each holds it
	crowd   atomic.Int64       // how many these are, to be read without the mutex
	evicted *evictions         // nil until one was
}

type phase uint8

const (
	phaseFree phase = iota
	phaseAcquiring
	phaseHeld
	phaseLeaving
)

func (s *side) heldBy(o owner.ID) bool { return s.phase == phaseHeld && s.owners[o] > 0 }

func (s *side) add(o owner.ID) {
	if s.owners == nil {
		s.owners = map[owner.ID]int32{}
	}
	s.owners[o]++
	s.crowd.Store(int64(len(s.owners)))
}

func (s *side) exit(o owner.ID) (departure, fault.Loss) {
	if !s.heldBy(o) {
		return s.evicted.exit(o)
	}
	s.owners[o]--
	if s.owners[o] > 0 {
		return stays, fault.NotLost
	}
	delete(s.owners, o)
	s.crowd.Store(int64(len(s.owners)))
	if len(s.owners) > 0 { // mutant: first reader ends all
		return leaves, fault.NotLost
	}
	s.phase = phaseLeaving
	return last, fault.NotLost
}

// evict puts out all owners of the side, like [localLock.evict].
func (s *side) evict(lost func() fault.Loss) bool {
	if s.phase != phaseHeld {
		return false
	}
	why := lost()
	if why == fault.NotLost {
		return false
	}
	for o, holds := range s.owners {
		s.evicted = s.evicted.add(o, holds, why)
	}
	s.owners = nil
	s.crowd.Store(0)
	s.phase = phaseLeaving
	return true
}

// side is the one that a waiter asks for.
func (l *localReadWrite) side(writes bool) *side {
	if writes {
		return &l.write
	}
	return &l.read
}

// may lets o into a side if nothing but the queue is in its way.
func (l *localReadWrite) may(o owner.ID, writes bool) entry {
	if writes {
		return l.mayWrite(o)
	}
	return l.mayRead(o)
}

func (l *localReadWrite) mayRead(o owner.ID) entry {
	switch {
	case l.write.phase != phaseFree && !l.write.heldBy(o): // mutant: local reader beside a writer
		return refused
	case l.read.phase == phaseFree:
		l.read.phase, l.read.asking, l.read.stuck = phaseAcquiring, o, false
		return entered
	case l.read.phase == phaseHeld && l.fresh() && !l.barred:
		l.read.add(o)
		l.lookOut(false)
		return joined
	default:
		return refused
	}
}

func (l *localReadWrite) mayWrite(o owner.ID) entry {
	if l.write.phase != phaseFree || l.read.phase != phaseFree { // mutant: local writer beside readers
		return refused
	}
	l.write.phase, l.write.asking = phaseAcquiring, o
	return entered
}

// mayAgain lets o into a side if it is in already, on that side or on the other one, or tells why it never will be.
func (l *localReadWrite) mayAgain(o owner.ID, writes bool) entry {
	mine := l.side(writes)
	switch {
	case mine.heldBy(o):
		mine.add(o)
		return reentered
	case mine.evicted.has(o):
		return outcast
	case writes && (l.read.heldBy(o) || l.read.evicted.has(o)):
		return upgrade
	case !writes && l.write.heldBy(o): // the queue waits for it
		return l.mayRead(o)
	default:
		return refused
	}
}

// enter lets o in on one side, or queues it.
func (l *localReadWrite) enter(o owner.ID, lease time.Duration, writes, wait bool) (entry, *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	how := l.mayAgain(o, writes)
	if how == refused && l.queue.first == nil { // nobody overtakes the queue
		how = l.may(o, writes)
	}
	if how != refused {
		return how, nil
	}
	// Readers are kept out only if they can be let in later.
	if !wait && !writes && l.queue.first == nil && l.read.phase == phaseHeld && l.write.phase == phaseFree && l.fresh() {
		l.read.add(o)
		return joined, nil
	}
	// A reader that cannot wait for others waits for an answer all the same, when another reader has just asked: nobody
	// else may have the lock, and then both are to have it.
	tries := !wait && !writes && l.answerIsNear() && (l.queue.last == nil || l.queue.last.tries)
	if !wait && !tries {
		return refused, nil
	}
	// A goroutine that is its own owner waits once, and is not in. One case is left: it writes, and waits for the removal of
	// its last hold on reading.
	w := l.queue.push(twin{o, writes}, lease, o.Shared() || l.write.heldBy(o), nil)
	w.tries = tries
	if !writes && l.barred {
		l.lookOut(false)
	}
	l.holdBack()
	return refused, w
}

// answerIsNear tells whether Redis has been asked for the reading side, and is about to say whether it is to be had.
func (l *localReadWrite) answerIsNear() bool {
	return l.read.phase == phaseAcquiring && !l.read.stuck && l.write.phase == phaseFree
}

// deny sends away waiters that wait for an answer only, when there is none to wait for. Such a waiter is only put into the
// queue when all in it are such, so they are its first ones.
func (l *localReadWrite) deny() {
	if l.answerIsNear() {
		return
	}
	for w := l.queue.first; w != nil && w.tries; w = l.queue.first {
		l.queue.admit(w, denied)
	}
}

// waits: the goroutine that acquires a side waits for others.
func (l *localReadWrite) waits(s *side) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.stuck = true
	l.deny()
}

// welcome lets in the waiters of an owner that has come in, or that may go on to read, wherever they stand in the queue. The
// caller holds the mutex.
func (l *localReadWrite) welcome(o owner.ID) {
	for _, who := range []twin{{o, true}, {o, false}} {
		for w := range l.queue.twins(who) {
			how := l.mayAgain(o, who.writes)
			if how == refused {
				break
			}
			l.queue.admit(w, how)
		}
	}
}

// admit lets in the waiters that the state allows, from the head of the queue. The caller holds the mutex.
func (l *localReadWrite) admit() {
	for w := l.queue.first; w != nil; w = l.queue.first {
		how := l.may(w.owner, w.writes)
		if how == refused {
			break
		}
		l.queue.admit(w, how)
		if how == joined {
			l.welcome(w.owner)
		}
	}
	l.deny() // those that would have been let in before the ones behind them
	l.holdBack()
}

// lookOut has Redis asked whether a writer waits elsewhere. The caller holds the mutex.
func (l *localReadWrite) lookOut(must bool) {
	l.seeking = l.seeking || l.seek(must)
}

// told takes in the answer: while a writer waits elsewhere no reader joins the others.
func (l *localReadWrite) told(waits bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seeking = false
	l.bar(waits && l.read.phase == phaseHeld)
}

// unknown is for when there is no answer: then readers join for some time, and are kept out for as long, in turn.
func (l *localReadWrite) unknown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seeking = false
	l.bar(!l.barred && l.read.phase == phaseHeld)
}

func (l *localReadWrite) bar(barred bool) {
	l.barred = barred
	if barred {
		l.holdBack()
	} else {
		l.admit()
	}
}

// holdBack starts the timer when a reader is at the head that is kept out for a writer elsewhere, and stops it when none is.
// The caller holds the mutex.
func (l *localReadWrite) holdBack() {
	l.barred = l.barred && l.read.phase == phaseHeld
	w := l.queue.first
	held := l.barred && w != nil && !w.writes && !w.tries && l.write.phase == phaseFree && l.fresh()
	switch {
	case held == (l.timer != nil):
	case !held:
		l.timer.Stop()
		l.timer = nil
	default:
		var timer *time.Timer
		timer = time.AfterFunc(l.every, func() { l.again(&timer) })
		l.timer = timer
	}
}

// again: the time of a timer has come. When there is no answer yet to what was asked last, nobody is kept out for it. The
// caller of AfterFunc has the mutex while it sets timer.
func (l *localReadWrite) again(timer **time.Timer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != *timer { // stopped too late
		return
	}
	l.timer = nil
	if l.seeking {
		l.bar(false)
		return
	}
	l.lookOut(true)
	l.holdBack()
}

// granted: the Redis half of a side is obtained. It tells whether others wait still.
func (l *localReadWrite) granted(s *side) (contended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.phase = phaseHeld
	s.add(s.asking)
	l.welcome(s.asking)
	l.admit()
	return l.queue.first != nil
}

// free: the Redis half of a side is given back, or could not be obtained.
func (l *localReadWrite) free(s *side) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.phase = phaseFree
	if s == &l.read && l.write.phase == phaseHeld {
		for o := range l.write.owners { // there is one
			l.welcome(o) // its last hold on reading was still being given back when its waiters came
		}
	}
	l.admit()
}

// wait waits for the turn of w, like [localLock.wait].
func (l *localReadWrite) wait(ctx context.Context, w *waiter, timeout <-chan time.Time) entry {
	if how, came := w.await(ctx, timeout); came {
		return how
	}
	l.mu.Lock()
	how := l.queue.leave(w)
	if how == refused {
		l.admit() // the next one may have waited for w only
	}
	l.mu.Unlock()
	if how == entered {
		l.free(l.side(w.writes))
		return refused
	}
	return how
}

// turnAway is [localLock.turnAway].
func (l *localReadWrite) turnAway(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.turnAway(w)
	l.admit() // the next one may have waited for w only
}

// mostReaders is how many of the readers that share a lock are looked at, so that a call does not take long to wait.
const mostReaders = 1000

// obstacles of a writer are all owners of reader and writer, the locks of the two sides; those of a reader are the writer, or
// the one at the head of the queue, which waits for all owners in turn. A waiter never waits for its own owner.
func (l *localReadWrite) obstacles(w *waiter, reader, writer deadlock.Lock) (all deadlock.Obstacles) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.queued {
		return all
	}
	for o := range l.write.owners {
		if o != w.owner {
			all.Add(deadlock.Obstacle{Owner: o, Held: writer})
		}
	}
	if !w.writes {
		// Who writes already waits for nobody here, but for the removal of its last hold on reading.
		if first := l.queue.first; first.writes && !l.write.heldBy(w.owner) {
			all.Add(deadlock.Obstacle{Owner: first.owner, Ahead: &first.call})
		}
		return all
	}
	for o := range l.read.owners { // in no order
		if all.Len() == mostReaders {
			break
		}
		if o != w.owner {
			all.Add(deadlock.Obstacle{Owner: o, Held: reader})
		}
	}
	return all
}

// contended tells whether somebody waits.
func (l *localReadWrite) contended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.first != nil
}

// pass hands the writing side, which is leaving, to the first waiter, if that one writes too and the running lease suits it.
func (l *localReadWrite) pass(running time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.queue.first
	if w == nil || !w.writes || !w.suits(running) || l.read.phase != phaseFree {
		return false
	}
	l.write.phase = phaseHeld
	l.write.add(w.owner)
	l.queue.admit(w, handed)
	l.welcome(w.owner)
	l.admit()
	return true
}

func (l *localReadWrite) exit(s *side, o owner.ID) (departure, fault.Loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, why := s.exit(o)
	l.holdBack()
	return d, why
}

func (l *localReadWrite) evict(s *side, lost func() fault.Loss) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := s.evict(lost)
	l.holdBack()
	return done
}

func (l *localReadWrite) heldBy(s *side, o owner.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.heldBy(o)
}

func (l *localReadWrite) owned(s *side) []owner.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Keys(s.owners))
}

// writing tells whether the writing side is not free.
func (l *localReadWrite) writing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.write.phase != phaseFree
}

func (l *localReadWrite) expelled(s *side, o owner.ID) fault.Loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.evicted.why(o)
}
