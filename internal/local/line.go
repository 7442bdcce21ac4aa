package local

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Waiter is one goroutine in a [Line]. Whichever goroutine takes it out of the queue, under the lock's mutex, decides: the
// waiter's own goroutine, which gives up, or another one, which sends to turn how the waiter is admitted. Only one of them finds
// the waiter in the queue, so a send to turn never blocks.
type Waiter struct {
	key
	Call deadlock.Call // the waiting call

	since        atomic.Int64   // an instant, see Began; it is read by others while its goroutine sets it
	lease        time.Duration  // the lease that it asks for
	turn         chan Admission // has room for one
	tries        bool           // in a ReadWrite: it only waits for a reply that is under way
	queued       bool
	prev, next   *Waiter // in the queue; the first one's prev is the last one
	older, newer *Waiter // in the ring of waiters with the same key
}

// key is shared by waiters that are admitted together once their owner is.
type key struct {
	owner  owner.ID
	writes bool // in a ReadWrite: it asks to write
}

// Await waits until w has its turn, or is cancelled. When ctx is done or timeout fires first, it reports false: the caller must
// take w out of the queue.
func (w *Waiter) Await(ctx context.Context, timeout <-chan time.Time) (how Admission, came bool) {
	select {
	case how = <-w.turn:
		return how, true
	case <-ctx.Done():
	case <-timeout:
	}
	return Refused, false
}

// Began sets when the call began to wait.
func (w *Waiter) Began(at clock.Instant) { w.since.Store(int64(at)) }

// Owner returns the owner for which w waits.
func (w *Waiter) Owner() owner.ID { return w.owner }

// Queued reports whether w is in a queue. The lock's mutex guards that.
func (w *Waiter) Queued() bool { return w.queued }

// Suits reports whether a waiter may take over a hold whose lease is running. That lease must be at least the one that the waiter
// asks for, and at most 1.5 times that, because it keeps others out if the waiter crashes.
func (w *Waiter) Suits(running time.Duration) bool {
	return w.lease <= running && running-w.lease <= w.lease/2
}

// Line is a list of waiters in the order in which they are served, with an index of the waiters of each owner. The lock's mutex
// guards it. Every method takes constant time.
type Line struct {
	first   *Waiter
	oldest  map[key]*Waiter // the first indexed waiter with each key
	length  int32
	writers int32 // how many of the waiters ask to write
}

// First returns the first waiter; nil if there is none.
func (q *Line) First() *Waiter { return q.first }

// Len returns the number of waiters.
func (q *Line) Len() int { return int(q.length) }

// Since returns when the first waiter began to wait; 0: there is none, or it has only just come.
func (q *Line) Since() clock.Instant {
	if q.first == nil {
		return 0
	}
	return clock.Instant(q.first.since.Load())
}

// Push adds a waiter at the end; the pool may be nil. A waiter of a shared owner is indexed: the owner may get the lock through
// another goroutine, and SameOwner then finds this waiter.
func (q *Line) Push(o owner.ID, lease time.Duration, pool *Pool) *Waiter {
	w := q.push(key{owner: o}, lease, nil, pool)
	if o.Shared() {
		q.index(w)
	}
	return w
}

// push adds a waiter in front of next; at the end if next is nil.
func (q *Line) push(k key, lease time.Duration, next *Waiter, pool *Pool) *Waiter {
	w := pool.get()
	w.key, w.lease, w.queued = k, lease, true
	w.Call.Place = w
	switch {
	case q.first == nil:
		q.first, w.prev = w, w
	case next == nil:
		w.prev = q.first.prev
		w.prev.next, q.first.prev = w, w
	default:
		w.prev, w.next, next.prev = next.prev, next, w
		if next == q.first {
			q.first = w
		} else {
			w.prev.next = w
		}
	}
	q.length++
	if k.writes {
		q.writers++
	}
	return w
}

// Admit takes a waiter out of the queue and admits it.
func (q *Line) Admit(w *Waiter, how Admission) {
	q.remove(w)
	w.turn <- how
}

// Leave takes a waiter that gives up out of the queue. If it was admitted just before, Leave returns how.
func (q *Line) Leave(w *Waiter) Admission {
	if w.queued {
		q.remove(w)
		return Refused
	}
	return <-w.turn // sent before w left the queue
}

// Cancel refuses a waiter, if it still waits.
func (q *Line) Cancel(w *Waiter) {
	if w.queued {
		q.Admit(w, Refused)
	}
}

func (q *Line) remove(w *Waiter) {
	if w == q.first {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	switch {
	case w.next != nil:
		w.next.prev = w.prev
	case q.first != nil: // w was the last one
		q.first.prev = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
	q.length--
	if w.writes {
		q.writers--
	}
	if w.newer != nil {
		q.unindex(w)
	}
}

// SameOwner iterates over the indexed waiters of an owner, in their order: in a ReadWrite, over those that ask to write, or over
// the others. The caller must take each out of the queue.
func (q *Line) SameOwner(o owner.ID, writes bool) iter.Seq[*Waiter] {
	k := key{o, writes}
	return func(yield func(*Waiter) bool) {
		for w := q.oldest[k]; w != nil && yield(w); w = q.oldest[k] { //nolint:revive // the condition does the work
		}
	}
}

// index adds a waiter at the end of the ring of its key.
func (q *Line) index(w *Waiter) {
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
func (q *Line) unindex(w *Waiter) {
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

// Pool reuses the waiters of plain locks: when goroutines pass a lock to each other, allocating waiters would take much of the
// time. Each registry has its own pool, so that no channel leaves a bubble of testing/synctest. The pool is not a part of the
// registry's memory: the runtime keeps pools, and would keep the registry with its pool.
type Pool struct{ pool sync.Pool }

// get returns a waiter that is not in a queue. The pool may be nil.
func (p *Pool) get() *Waiter {
	if p != nil {
		if w, ok := p.pool.Get().(*Waiter); ok {
			return w
		}
	}
	return &Waiter{turn: make(chan Admission, 1)}
}

// Put returns a waiter of a plain lock to the pool. It must have left the queue and the graph of waiting calls, and its turn,
// if it came, must be received. A waiter that another goroutine has found in the graph is not reused.
func (p *Pool) Put(w *Waiter) {
	if w.Call.Known() {
		return
	}
	*w = Waiter{turn: w.turn}
	p.pool.Put(w)
}
