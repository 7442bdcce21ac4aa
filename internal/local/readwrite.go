package local

import (
	"context"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// ReadWrite is the local half of a read-write lock. It has two sides, each with a half in Redis, and one queue for
// both, served in the order of arrival: so a reader that comes after a waiting writer waits too, and nobody starves.
//
// Each side goes through the states of a mutex, with the difference that many owners may hold the reading side:
//
//	free ──▶ acquiring ──▶ held ──▶ leaving ──▶ free
//
// At most one side is not free, with one exception: the owner that holds the writing side may acquire the reading one, and
// keep it when it leaves the writing one. So at any time one goroutine at most asks Redis for this path.
//
// Three things let a waiter in, and each transition sees to those that it makes possible:
//
//   - Its owner is in already, or has just come in: admitOwner. It would wait for itself otherwise.
//   - It is at the head of the queue and the state allows it: admit.
//   - It is a reader at the head that was kept out for a writer elsewhere, which waits no more: see Told.
//
// A transition looks at no waiter but those that it lets in, and at the one behind them. So the work under the mutex is
// constant for each lock, unlock and cancellation.
type ReadWrite struct {
	redis Redis
	every time.Duration // how often to look for a writer elsewhere while readers are kept out

	mu    sync.Mutex
	read  Side
	write Side
	queue Queue

	// Of the readers.
	barred  bool        // a writer waits elsewhere: no reader joins them
	looking bool        // Redis is asked about that
	timer   *time.Timer // when to ask again; nil while nobody is kept out
}

// Redis is what a [ReadWrite] asks about the half in Redis. All of it is called with the mutex of the ReadWrite held.
type Redis interface {
	// Sharable reports whether the hold on reading can be shared.
	Sharable() bool
	// LookDue reports whether it is time to look for a writer that waits elsewhere.
	LookDue() bool
	// Look begins to look for one in the background, and reports whether it does. What it finds comes by Told or Unknown.
	Look() bool
}

// Init makes l, the zero value, ready for use. While readers are kept out for a writer elsewhere, l looks every so often.
func (l *ReadWrite) Init(redis Redis, every time.Duration) {
	l.redis, l.every = redis, every
	l.read.of, l.write.of = l, l
}

// Reader is the side that many owners may hold.
func (l *ReadWrite) Reader() *Side { return &l.read }

// Writer is the side that excludes all others.
func (l *ReadWrite) Writer() *Side { return &l.write }

// side is the one that a waiter asks for.
func (l *ReadWrite) side(writes bool) *Side {
	if writes {
		return &l.write
	}
	return &l.read
}

// may lets o into a side if nothing but the queue is in its way.
func (l *ReadWrite) may(o owner.ID, writes bool) Admission {
	if writes {
		return l.mayWrite(o)
	}
	return l.mayRead(o)
}

func (l *ReadWrite) mayRead(o owner.ID) Admission {
	switch {
	case l.write.phase != phaseFree && !l.write.heldBy(o): // mutant: local reader beside a writer
		return Refused
	case l.read.phase == phaseFree:
		l.read.phase, l.read.asking, l.read.stuck = phaseAcquiring, o, false
		return Entered
	case l.read.phase == phaseHeld && l.redis.Sharable() && !l.barred:
		l.read.add(o)
		l.lookIfDue()
		return Joined
	default:
		return Refused
	}
}

func (l *ReadWrite) mayWrite(o owner.ID) Admission {
	if l.write.phase != phaseFree || l.read.phase != phaseFree { // mutant: local writer beside readers
		return Refused
	}
	l.write.phase, l.write.asking = phaseAcquiring, o
	return Entered
}

// mayAgain lets o into a side if it is in already, on that side or on the other one, or tells why it never will be.
func (l *ReadWrite) mayAgain(o owner.ID, writes bool) Admission {
	mine := l.side(writes)
	switch {
	case mine.heldBy(o):
		mine.add(o)
		return Reentered
	case mine.hasEvicted(o):
		return Evicted
	case writes && (l.read.heldBy(o) || l.read.hasEvicted(o)):
		return Upgrade
	case !writes && l.write.heldBy(o): // the queue waits for it
		return l.mayRead(o)
	default:
		return Refused
	}
}

// enter lets o in on one side, or queues it.
func (l *ReadWrite) enter(o owner.ID, lease time.Duration, writes, wait bool) (Admission, *Waiter) {
	how := l.mayAgain(o, writes)
	if how == Refused && l.queue.first == nil { // nobody overtakes the queue
		how = l.may(o, writes)
	}
	if how != Refused {
		return how, nil
	}
	// Readers are kept out only if they can be let in later.
	if !wait && !writes && l.queue.first == nil && l.read.phase == phaseHeld && l.write.phase == phaseFree && l.redis.Sharable() {
		l.read.add(o)
		return Joined, nil
	}
	// A reader that cannot wait for others waits for a reply all the same, when another reader has just asked: nobody
	// else may have the lock, and then both are to have it.
	tries := !wait && !writes && l.replyIsNear() && (l.queue.last == nil || l.queue.last.tries)
	if !wait && !tries {
		return Refused, nil
	}
	w := l.queue.push(key{o, writes}, lease, nil)
	// A goroutine that is its own owner waits once, and is not in. One case is left: it writes, and waits for the removal of
	// its last hold on reading.
	if o.Shared() || l.write.heldBy(o) {
		l.queue.index(w)
	}
	w.tries = tries
	if !writes && l.barred {
		l.lookIfDue()
	}
	l.holdBack()
	return Refused, w
}

// replyIsNear reports whether Redis has been asked for the reading side, and is about to say whether it is to be had.
func (l *ReadWrite) replyIsNear() bool {
	return l.read.phase == phaseAcquiring && !l.read.stuck && l.write.phase == phaseFree
}

// deny sends away waiters that wait for a reply only, when there is none to wait for. Such a waiter is only put into the
// queue when all in it are such, so they are its first ones.
func (l *ReadWrite) deny() {
	if l.replyIsNear() {
		return
	}
	for w := l.queue.first; w != nil && w.tries; w = l.queue.first {
		l.queue.Admit(w, Denied)
	}
}

// admitOwner lets in the waiters of an owner that has come in, or that may go on to read, wherever they stand in the queue. The
// caller holds the mutex.
func (l *ReadWrite) admitOwner(o owner.ID) {
	for _, k := range []key{{o, true}, {o, false}} {
		for w := range l.queue.same(k) {
			how := l.mayAgain(o, k.writes)
			if how == Refused {
				break
			}
			l.queue.Admit(w, how)
		}
	}
}

// admit lets in the waiters that the state allows, from the head of the queue. The caller holds the mutex.
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
	l.deny() // those that would have been let in before the ones behind them
	l.holdBack()
}

// lookIfDue has Redis asked whether a writer waits elsewhere, when it is time. The caller holds the mutex.
func (l *ReadWrite) lookIfDue() {
	l.looking = l.looking || l.redis.LookDue() && l.redis.Look()
}

// Told takes in whether a writer waits elsewhere. While one does no reader joins the others.
func (l *ReadWrite) Told(waits bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looking = false
	l.bar(waits && l.read.phase == phaseHeld)
}

// Unknown is for when there is no reply: then readers join for some time, and are kept out for as long, in turn.
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

// holdBack starts the timer when a reader is at the head that is kept out for a writer elsewhere, and stops it when none is.
// The caller holds the mutex.
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
		timer = time.AfterFunc(l.every, func() { l.again(&timer) })
		l.timer = timer
	}
}

// again: the time of a timer has come. When there is no reply yet to what was asked last, nobody is kept out for it. The
// caller of AfterFunc has the mutex while it sets timer.
func (l *ReadWrite) again(timer **time.Timer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != *timer { // stopped too late
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

// granted: the Redis half of a side is obtained.
func (l *ReadWrite) granted(s *Side) {
	s.phase = phaseHeld
	s.add(s.asking)
	l.admitOwner(s.asking)
	l.admit()
}

// free: the Redis half of a side is given back, or could not be obtained.
func (l *ReadWrite) free(s *Side) {
	s.phase = phaseFree
	if s == &l.read && l.write.phase == phaseHeld {
		for o := range l.write.owners { // there is one
			l.admitOwner(o) // its last hold on reading was still being given back when its waiters came
		}
	}
	l.admit()
}

func (l *ReadWrite) wait(ctx context.Context, w *Waiter, timeout <-chan time.Time) Admission {
	if how, came := w.Await(ctx, timeout); came {
		return how
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch how := l.queue.Leave(w); how {
	case Refused:
		l.admit() // the next one may have waited for w only
		return Refused
	case Entered:
		l.free(l.side(w.writes))
		return Refused
	default: // the owner holds the lock through w, and giving that up may end the hold
		return how
	}
}

// pass hands the writing side, which is leaving, to the first waiter, if that one writes too and the running lease suits it.
func (l *ReadWrite) pass(running time.Duration) bool {
	w := l.queue.first
	if w == nil || !w.writes || !w.Suits(running) || l.read.phase != phaseFree {
		return false
	}
	l.write.phase = phaseHeld
	l.write.add(w.owner)
	l.queue.Admit(w, HandedOver)
	l.admitOwner(w.owner)
	l.admit()
	return true
}

// Writing reports whether the writing side is not free.
func (l *ReadWrite) Writing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.write.phase != phaseFree
}

// mostReaders is how many of the readers that share a lock are looked at, so that a call does not take long to wait.
const mostReaders = 1000

// Obstacles of a writer are all owners of reader and writer, the locks of the two sides; those of a reader are the writer, or
// the one at the head of the queue, which waits for all owners in turn. A waiter never waits for its own owner.
func (l *ReadWrite) Obstacles(w *Waiter, reader, writer deadlock.Lock) (all deadlock.Obstacles) {
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
			all.Add(deadlock.Obstacle{Owner: first.owner, Ahead: &first.Call})
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
