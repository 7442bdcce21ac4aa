package local

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Waiter is one goroutine in a [Queue]. Taking it out of the queue, under the mutex of the lock, decides what becomes of it:
// either it takes itself out and gives up, or it is admitted and finds in turn how. So never both, and turn never blocks.
type Waiter struct {
	key
	Call deadlock.Call // whose waiter it is

	lease        time.Duration  // what it asks for
	tries        bool           // in a ReadWrite: it waits for no more than a reply that is under way
	turn         chan Admission // has room for one
	queued       bool
	prev, next   *Waiter // in the queue
	older, newer *Waiter // in the ring of those with the same key
}

// key is what waiters have in common that are let in together once their owner is in.
type key struct {
	owner  owner.ID
	writes bool // in a ReadWrite: it asks to write
}

// Await waits until w has its turn, or is cancelled. When ctx is done or timeout fires first, it reports false: w is to leave
// the queue.
func (w *Waiter) Await(ctx context.Context, timeout <-chan time.Time) (how Admission, came bool) {
	select {
	case how = <-w.turn:
		return how, true
	case <-ctx.Done():
	case <-timeout:
	}
	return Refused, false
}

// Owner is who w waits for.
func (w *Waiter) Owner() owner.ID { return w.owner }

// Queued reports whether w is in a queue. The mutex of the lock guards that.
func (w *Waiter) Queued() bool { return w.queued }

// Suits reports whether a waiter may take over a hold with a lease of some length: no shorter than the one that it asks for,
// and not longer by more than a half, since its crash would keep everybody out for as long.
func (w *Waiter) Suits(running time.Duration) bool {
	return w.lease <= running && running-w.lease <= w.lease/2
}

// Queue is a list of waiters in the order in which they came, and an index that finds those of one owner. The mutex
// of the lock that it belongs to guards it. Every method does constant work.
type Queue struct {
	first, last *Waiter
	length      int
	oldest      map[key]*Waiter // of those that can be found by owner: the first with each key
}

// First is the waiter that came first; nil when there is none.
func (q *Queue) First() *Waiter { return q.first }

// Len is how many wait.
func (q *Queue) Len() int { return q.length }

// Push adds a waiter at the end; the pool may be nil. An owner that several goroutines share may come in otherwise than through
// this waiter: SameOwner finds it then.
func (q *Queue) Push(o owner.ID, lease time.Duration, pool *Pool) *Waiter {
	w := q.push(key{owner: o}, lease, pool)
	if o.Shared() {
		q.index(w)
	}
	return w
}

func (q *Queue) push(k key, lease time.Duration, pool *Pool) *Waiter {
	w := pool.get()
	w.key, w.lease, w.prev, w.queued = k, lease, q.last, true
	w.Call.Place = w
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.length++
	return w
}

// Admit takes a waiter out of the queue and lets it in.
func (q *Queue) Admit(w *Waiter, how Admission) {
	q.remove(w)
	w.turn <- how
}

// Leave takes a waiter that gives up out of the queue. When it was let in just before, Leave returns how.
func (q *Queue) Leave(w *Waiter) Admission {
	if w.queued {
		q.remove(w)
		return Refused
	}
	return <-w.turn // sent before w left the queue
}

// Cancel refuses a waiter, if it waits still.
func (q *Queue) Cancel(w *Waiter) {
	if w.queued {
		q.Admit(w, Refused)
	}
}

func (q *Queue) remove(w *Waiter) {
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
	if w.newer != nil {
		q.unindex(w)
	}
}

// SameOwner goes through the waiters that can be found by their owner, in their order, for as long as each is taken out of the
// queue.
func (q *Queue) SameOwner(o owner.ID) iter.Seq[*Waiter] { return q.same(key{owner: o}) }

func (q *Queue) same(k key) iter.Seq[*Waiter] {
	return func(yield func(*Waiter) bool) {
		for w := q.oldest[k]; w != nil && yield(w); w = q.oldest[k] { //nolint:revive // the condition does the work
		}
	}
}

// index adds a waiter at the end of the ring of those with its key.
func (q *Queue) index(w *Waiter) {
	oldest := q.oldest[w.key]
	if oldest == nil {
		if q.oldest == nil {
			q.oldest = map[key]*Waiter{}
		}
		q.oldest[w.key], w.older, w.newer = w, w, w
		return
	}
	w.older, w.newer = oldest.older, oldest
	oldest.older.newer, oldest.older = w, w
}

// unindex takes a waiter out of its ring.
func (q *Queue) unindex(w *Waiter) {
	switch {
	case w.newer == w:
		delete(q.oldest, w.key)
		if len(q.oldest) == 0 {
			q.oldest = nil // a map never shrinks
		}
	case q.oldest[w.key] == w:
		q.oldest[w.key] = w.newer
	}
	w.older.newer, w.newer.older = w.newer, w.older
	w.older, w.newer = nil, nil
}

// Pool keeps waiters that are done for the next ones of plain locks: where goroutines pass a lock to each other, memory
// for those that wait would take a good part of the time. Each registry has its own pool, so that no channel gets out of a
// bubble of testing/synctest. It is not within its registry, which the runtime would keep for as long as a pool.
type Pool struct{ pool sync.Pool }

// get returns a waiter that is in no queue. The pool may be nil.
func (p *Pool) get() *Waiter {
	if p != nil {
		if w, ok := p.pool.Get().(*Waiter); ok {
			return w
		}
	}
	return &Waiter{turn: make(chan Admission, 1)}
}

// Put is for a waiter of a plain lock that is neither in the queue nor in the graph of those that wait, and whose turn, if
// it came, was taken. Nobody else knows it then, unless somebody has found it in the graph.
func (p *Pool) Put(w *Waiter) {
	if w.Call.Known() {
		return
	}
	*w = Waiter{turn: w.turn}
	p.pool.Put(w)
}
