package lockregistry

import (
	"iter"
	"sync"
	"time"
)

// waiterQueue is a list of waiters in the order in which they came, and an index that finds those of one owner. The mutex
// of the lock that it belongs to guards it. Every method does constant work.
type waiterQueue struct {
	first, last *waiter
	length      int
	rings       map[twin]*waiter // of those that can be found by owner: the first; its twins form a ring with it
}

// waiterPool keeps waiters that are done for the next ones of plain locks: where goroutines pass a lock to each other, memory
// for those that wait would take a good part of the time. Each registry has its own pool, so that no channel gets out of a
// bubble of testing/synctest. It is not within its registry, which the runtime would keep for as long as a pool.
type waiterPool struct{ pool sync.Pool }

// get returns a waiter that is in no queue. The pool may be nil.
func (p *waiterPool) get() *waiter {
	if p != nil {
		if w, ok := p.pool.Get().(*waiter); ok {
			return w
		}
	}
	return &waiter{turn: make(chan entry, 1)}
}

// put is for a waiter of a plain lock that is neither in the queue nor in the graph of those that wait, and whose turn, if
// it came, was taken. Nobody else knows it then, unless somebody has found it in the graph.
func (p *waiterPool) put(w *waiter) {
	if w.call.Known() {
		return
	}
	*w = waiter{turn: w.turn}
	p.pool.Put(w)
}

// push adds a waiter at the end. Findable is for one whose owner may come in otherwise than through it: twins finds it then.
func (q *waiterQueue) push(who twin, lease time.Duration, findable bool, pool *waiterPool) *waiter {
	w := pool.get()
	w.twin, w.lease, w.prev, w.queued = who, lease, q.last, true
	w.call.Place = w
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.length++
	if findable {
		q.join(w)
	}
	return w
}

// admit takes a waiter out of the queue and lets it in.
func (q *waiterQueue) admit(w *waiter, how entry) {
	q.remove(w)
	w.turn <- how
}

// leave takes a waiter that gives up out of the queue. When it was let in just before, it returns how.
func (q *waiterQueue) leave(w *waiter) entry {
	if w.queued {
		q.remove(w)
		return refused
	}
	return <-w.turn // sent before w left the queue
}

// turnAway takes a waiter that waits still out of the queue for good.
func (q *waiterQueue) turnAway(w *waiter) {
	if w.queued {
		q.admit(w, refused)
	}
}

func (q *waiterQueue) remove(w *waiter) {
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
	q.length--
	if w.right != nil {
		q.part(w)
	}
}

// twins goes through the findable waiters of one owner, in their order, for as long as each is taken out of the queue.
func (q *waiterQueue) twins(who twin) iter.Seq[*waiter] {
	return func(yield func(*waiter) bool) {
		for w := q.rings[who]; w != nil && yield(w); w = q.rings[who] { //nolint:revive // the condition does the work
		}
	}
}

// join adds a waiter at the end of its ring.
func (q *waiterQueue) join(w *waiter) {
	head := q.rings[w.twin]
	if head == nil {
		if q.rings == nil {
			q.rings = map[twin]*waiter{}
		}
		q.rings[w.twin], w.left, w.right = w, w, w
		return
	}
	w.left, w.right = head.left, head
	head.left.right, head.left = w, w
}

// part takes a waiter out of its ring.
func (q *waiterQueue) part(w *waiter) {
	switch {
	case w.right == w:
		delete(q.rings, w.twin)
		if len(q.rings) == 0 {
			q.rings = nil // a map never shrinks
		}
	case q.rings[w.twin] == w:
		q.rings[w.twin] = w.right
	}
	w.left.right, w.right.left = w.right, w.left
	w.left, w.right = nil, nil
}
