package lockregistry

import (
	"context"
	"sync"
	"time"
)

// localLock is the local half of a lock: a reentrant mutex that serves the goroutines of this process in the order in
// which they came. It is a state machine of four states:
//
//	free       owner == nobody
//	acquiring  owner == o, holds == 0   o has the local half and asks Redis for the other one
//	held       owner == o, holds >= 1   o has both
//	leaving    owner == leaving         the last owner gives the Redis half back; nobody has the local one
//
//	free ──enter──▶ acquiring ──granted──▶ held ──exit──▶ leaving ──free──▶ free
//	                    └───────────────free──────────────────────────────▶ free
//	                                        ▲─────pass────────┘
//
// Where a transition ends in free and somebody waits, the first waiter is made acquiring instead: so nobody waits while
// the lock is free, and who comes later cannot overtake. With pass the first waiter gets both halves at once. The mutex
// is never held while this process talks to Redis or sleeps.
type localLock struct {
	mu    sync.Mutex
	owner owner
	holds int32 // how often owner locked, less how often it unlocked
	first *waiter
	last  *waiter
}

// entry says how a goroutine came into the local half.
type entry uint8

const (
	refused   entry = iota // it did not: somebody else is in
	entered                // it is alone in, and the Redis half has yet to be obtained
	reentered              // its owner held the lock already and holds it once more now
	handed                 // it is in, and the hold of who left is its own now
)

// waiter is one goroutine in the queue. Who takes it out of the queue, under mu, decides what becomes of it: either it
// leaves by itself, or it is admitted and finds in turn how. So a waiter is never both, and turn never blocks.
type waiter struct {
	owner      owner
	lease      time.Duration // what it asks for
	turn       chan entry    // has room for one
	queued     bool
	prev, next *waiter
}

// enter lets o in when that needs no waiting. Otherwise, when wait is set, it queues o and returns its waiter, with which
// the caller must call wait. Lease is what it asks for.
func (l *localLock) enter(o owner, lease time.Duration, wait bool) (entry, *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.owner == nobody:
		l.owner = o
		return entered, nil
	case l.owner == o && l.holds > 0:
		l.holds++
		return reentered, nil
	case !wait:
		return refused, nil
	}
	// Also here: a second goroutine of the same shared owner, while the first one still asks Redis. It must not believe
	// that it holds the lock before the answer is there; granted admits it.
	w := &waiter{owner: o, lease: lease, turn: make(chan entry, 1)}
	l.push(w)
	return refused, w
}

// wait waits for the turn of w. When ctx is done, timeout fires or closed is closed first, it returns refused and leaves
// nothing behind: if the turn came at the same moment, it is passed on as if it had never come.
func (l *localLock) wait(ctx context.Context, w *waiter, timeout <-chan time.Time, closed <-chan struct{}) entry {
	select {
	case how := <-w.turn:
		return how
	case <-ctx.Done():
	case <-timeout:
	case <-closed:
	}

	l.mu.Lock()
	if w.queued {
		l.remove(w)
		l.mu.Unlock()
		return refused
	}
	l.mu.Unlock()
	how := <-w.turn // sent before w left the queue
	if how == entered {
		l.free()
		return refused
	}
	// The owner holds the lock through w. Giving that up may end the hold, which is more than the local half can do: the
	// caller got the lock at the very moment at which its time was over.
	return how
}

// granted turns acquiring into held: the Redis half is obtained. Other goroutines of the same owner that queued
// meanwhile hold it too now; they would wait for themselves otherwise.
func (l *localLock) granted() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold()
}

// pass turns leaving into held by the first waiter, if there is one and it asks for no longer a lease than longest. It
// reports whether it did.
func (l *localLock) pass(longest time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.first
	if w == nil || w.lease > longest {
		return false
	}
	l.owner = w.owner
	l.admit(w, handed)
	l.hold()
	return true
}

// hold makes the owner hold the lock, and with it every waiter of the same owner. The caller holds the mutex.
func (l *localLock) hold() {
	l.holds = 1
	if !l.owner.shared() {
		return // a goroutine cannot wait twice
	}
	for w := l.first; w != nil; {
		next := w.next
		if w.owner == l.owner {
			l.holds++
			l.admit(w, reentered)
		}
		w = next
	}
}

// exit takes one hold of o back. When it was the last one, the state is leaving, and the caller must call free once the
// outcome of the removal from Redis is known. It reports false for ok when o does not hold the lock.
func (l *localLock) exit(o owner) (last, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owner != o || l.holds == 0 {
		return false, false
	}
	l.holds--
	if l.holds > 0 {
		return false, true
	}
	l.owner = leaving
	return true, true
}

// free gives the local half to the first waiter, who is then acquiring, or to nobody.
func (l *localLock) free() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds = 0
	if w := l.first; w != nil {
		l.owner = w.owner
		l.admit(w, entered)
		return
	}
	l.owner = nobody
}

// contended tells whether somebody waits.
func (l *localLock) contended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first != nil
}

// heldBy tells whether o holds the lock.
func (l *localLock) heldBy(o owner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owner == o && l.holds > 0
}

func (l *localLock) admit(w *waiter, how entry) {
	l.remove(w)
	w.turn <- how
}

func (l *localLock) push(w *waiter) {
	w.prev, w.queued = l.last, true
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
}

func (l *localLock) remove(w *waiter) {
	if w.prev == nil {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
}
