package lockregistry

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// localReadWrite is the local half of a read-write lock. It has two sides, each with a half in Redis, and one queue for
// both, served in the order of arrival: so a reader that comes after a waiting writer waits too, and nobody starves.
//
// Each side goes through the states of a localLock, with the difference that many owners may hold the reading side:
//
//	free ──▶ acquiring ──▶ held ──▶ leaving ──▶ free
//
// At most one side is not free, with one exception: the owner that holds the writing side may acquire the reading one, and
// keep it when it gives the writing one back. So at any time one goroutine at most asks Redis for this path.
type localReadWrite struct {
	sharing func() bool   // whether one more may join those who hold the reading side
	fresh   func() bool   // the same for one that cannot wait
	again   time.Duration // when a reader that was not let in asks that again

	mu    sync.Mutex
	read  side
	write side
	queue waiterQueue
}

type side struct {
	phase  phase
	asking owner           // who acquires it
	stuck  bool            // and waits for others, elsewhere
	owners map[owner]int32 // who holds it, and how often
	crowd  atomic.Int64    // how many these are, for who does not have the mutex
}

type phase uint8

const (
	phaseFree phase = iota
	phaseAcquiring
	phaseHeld
	phaseLeaving
)

// readSide and writeSide are the sides of a localReadWrite.
type (
	readSide  localReadWrite
	writeSide localReadWrite
)

func (s *side) heldBy(o owner) bool { return s.phase == phaseHeld && s.owners[o] > 0 }

func (s *side) add(o owner) {
	if s.owners == nil {
		s.owners = map[owner]int32{}
	}
	s.owners[o]++
	s.crowd.Store(int64(len(s.owners)))
}

func (s *side) exit(o owner) departure {
	if !s.heldBy(o) {
		return notIn
	}
	s.owners[o]--
	if s.owners[o] > 0 {
		return stays
	}
	delete(s.owners, o)
	s.crowd.Store(int64(len(s.owners)))
	if len(s.owners) > 0 {
		return leaves
	}
	s.phase = phaseLeaving
	return last
}

// mayRead lets o into the reading side if nothing but the queue is in its way.
func (l *localReadWrite) mayRead(o owner) entry {
	switch {
	case l.write.phase != phaseFree && !l.write.heldBy(o):
		return refused
	case l.read.phase == phaseFree:
		l.read.phase, l.read.asking, l.read.stuck = phaseAcquiring, o, false
		return entered
	case l.read.phase == phaseHeld && l.sharing():
		l.read.add(o)
		return joined
	default:
		return refused
	}
}

// mayWrite is the same for the writing side.
func (l *localReadWrite) mayWrite(o owner) entry {
	if l.write.phase != phaseFree || l.read.phase != phaseFree {
		return refused
	}
	l.write.phase, l.write.asking = phaseAcquiring, o
	return entered
}

// enter lets o in on one side, or queues it.
func (l *localReadWrite) enter(o owner, lease time.Duration, writes, wait bool) (entry, *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mine, may := &l.read, l.mayRead
	if writes {
		mine, may = &l.write, l.mayWrite
	}
	switch {
	case mine.heldBy(o):
		mine.add(o)
		return reentered, nil
	case writes && l.read.heldBy(o):
		return upgrade, nil
	}
	// Nobody overtakes the queue, but who writes and wants to read as well: the queue waits for it.
	if l.queue.first == nil || l.write.heldBy(o) {
		if how := may(o); how != refused {
			return how, nil
		}
	}
	if !wait {
		// To hold readers back is for those who can be let in later.
		if !writes && l.queue.first == nil && l.read.phase == phaseHeld && l.write.phase == phaseFree && l.fresh != nil && l.fresh() {
			l.read.add(o)
			return joined, nil
		}
		// Who cannot wait for others waits for an answer all the same, when another reader has just asked: nobody else may
		// have the lock, and then both are to have it.
		if !writes && l.answerIsNear() && (l.queue.last == nil || l.queue.last.tries) {
			w := l.queue.push(o, lease)
			w.tries = true
			return refused, w
		}
		return refused, nil
	}
	w := l.queue.push(o, lease)
	w.writes = writes
	return refused, w
}

// answerIsNear tells whether Redis has been asked for the reading side, and is about to say whether it is to be had.
func (l *localReadWrite) answerIsNear() bool {
	return l.read.phase == phaseAcquiring && !l.read.stuck && l.write.phase == phaseFree
}

// deny sends those away who wait for an answer only, when there is none to wait for.
func (l *localReadWrite) deny() {
	if l.answerIsNear() {
		return
	}
	for w := range l.queue.all {
		if w.tries {
			l.queue.admit(w, denied)
		}
	}
}

// waits: who acquires a side waits for others.
func (l *localReadWrite) waits(s *side) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.stuck = true
	l.deny()
}

// admit lets in whom the state allows, from the head of the queue. Whoever came in may have others of the same owner in the
// queue, and when one of these goes out of it, who stood behind may be next. The caller holds the mutex.
func (l *localReadWrite) admit() {
	for more := true; more; {
		for w := range l.queue.all {
			l.admitAgain(w)
		}
		more = false
		for l.admitFirst() {
			more = true
		}
	}
	l.deny() // who would have been let in before those behind them
}

// admitFirst lets in who is at the head of the queue, if the state allows.
func (l *localReadWrite) admitFirst() bool {
	w := l.queue.first
	if w == nil {
		return false
	}
	may := l.mayRead
	if w.writes {
		may = l.mayWrite
	}
	how := may(w.owner)
	if how == refused {
		return false
	}
	l.queue.admit(w, how)
	return true
}

// admitAgain lets in a waiter whose owner is in already, wherever it stands in the queue: it would wait for itself
// otherwise.
func (l *localReadWrite) admitAgain(w *waiter) {
	if !w.writes && l.read.phase == phaseFree && l.write.heldBy(w.owner) {
		l.queue.admit(w, l.mayRead(w.owner)) // its last hold on reading was still being given back when it came
		return
	}
	mine := &l.read
	if w.writes {
		mine = &l.write
	}
	switch {
	case mine.heldBy(w.owner):
		mine.add(w.owner)
		l.queue.admit(w, reentered)
	case w.writes && l.read.heldBy(w.owner):
		l.queue.admit(w, upgrade)
	}
}

// granted: the Redis half of a side is obtained.
func (l *localReadWrite) granted(s *side) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.phase = phaseHeld
	s.add(s.asking)
	l.admit()
}

// free: the Redis half of a side is given back, or could not be obtained.
func (l *localReadWrite) free(s *side) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.phase = phaseFree
	l.admit()
}

// wait waits for the turn of w, like [localLock.wait].
func (l *localReadWrite) wait(ctx context.Context, w *waiter, timeout <-chan time.Time, closed <-chan struct{}) entry {
	var again <-chan time.Time
	if !w.writes { // it may be let in although nothing happens, see sharing
		ticker := time.NewTicker(l.again)
		defer ticker.Stop()
		again = ticker.C
	}
	for {
		how, over := w.await(ctx, timeout, closed, again)
		if how != refused {
			return how
		}
		l.mu.Lock()
		if !over {
			if l.read.phase == phaseHeld { // else something happens when that changes
				l.admit()
			}
			l.mu.Unlock()
			continue
		}
		how = l.queue.leave(w)
		if how == refused {
			l.admit() // who came behind w may have waited for w only
		}
		l.mu.Unlock()
		if how != entered {
			return how
		}
		if w.writes {
			l.free(&l.write)
		} else {
			l.free(&l.read)
		}
		return refused
	}
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
	l.admit()
	return true
}

func (l *localReadWrite) exit(s *side, o owner) departure {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.exit(o)
}

func (l *localReadWrite) heldBy(s *side, o owner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return s.heldBy(o)
}

func (r *readSide) both() *localReadWrite  { return (*localReadWrite)(r) }
func (w *writeSide) both() *localReadWrite { return (*localReadWrite)(w) }

func (r *readSide) enter(o owner, lease time.Duration, wait bool) (entry, *waiter) {
	return r.both().enter(o, lease, false, wait)
}

func (w *writeSide) enter(o owner, lease time.Duration, wait bool) (entry, *waiter) {
	return w.both().enter(o, lease, true, wait)
}

func (r *readSide) wait(ctx context.Context, w *waiter, timeout <-chan time.Time, closed <-chan struct{}) entry {
	return r.both().wait(ctx, w, timeout, closed)
}

func (w *writeSide) wait(ctx context.Context, q *waiter, timeout <-chan time.Time, closed <-chan struct{}) entry {
	return w.both().wait(ctx, q, timeout, closed)
}

func (r *readSide) waits()  { r.both().waits(&r.read) }
func (w *writeSide) waits() { w.both().waits(&w.write) }

func (r *readSide) granted()  { r.both().granted(&r.read) }
func (w *writeSide) granted() { w.both().granted(&w.write) }

func (r *readSide) exit(o owner) departure  { return r.both().exit(&r.read, o) }
func (w *writeSide) exit(o owner) departure { return w.both().exit(&w.write, o) }

func (r *readSide) free()  { r.both().free(&r.read) }
func (w *writeSide) free() { w.both().free(&w.write) }

// pass does nothing: who comes to read joins those who do, and nobody else can take a hold on reading over.
func (r *readSide) pass(time.Duration) bool          { return false }
func (w *writeSide) pass(longest time.Duration) bool { return w.both().pass(longest) }

func (r *readSide) contended() bool  { return r.both().contended() }
func (w *writeSide) contended() bool { return w.both().contended() }

func (r *readSide) heldBy(o owner) bool  { return r.both().heldBy(&r.read, o) }
func (w *writeSide) heldBy(o owner) bool { return w.both().heldBy(&w.write, o) }
