package lockregistry

import (
	"container/heap"
	"sync"
	"sync/atomic"
)

// cache keeps the locks of a registry by path, at most as many as its capacity, and drops the least recently obtained
// one that is not in use to make room.
//
// There must never be two locks of one path in use at once: they would share the registry's identity in Redis but not
// the local half. What ensures it is that a lock can only be used while it is in the cache:
//
//   - Lock.pins counts who uses a lock: calls that are under way, and a hold. A lock with pins is never dropped.
//   - Dropping a lock takes pins from 0 to far below 0 in one atomic step, so nobody can begin to use it from then on.
//   - Who finds its lock dropped goes through readmit, which, under the mutex, finds the path's lock of today, or puts
//     the old one back when there is none.
type cache struct {
	locks sync.Map      // path → *Lock; read without the mutex
	turn  atomic.Uint64 // the most recent Lock.turn

	mu       sync.Mutex // guards what follows, and every change of locks
	capacity int
	size     int
	queue    lockHeap // every lock in locks, by the turn it had when it was put or moved
}

// dropped is what pins is shifted by while the lock is not in the cache: so far below zero that no number of callers who
// have yet to notice can lift it above.
const dropped = -1 << 30

// pin begins a use of l, and returns the lock to use: l itself, or the one that has taken its place.
func (c *cache) pin(l *Lock) (*Lock, error) {
	if l.pins.Add(1) > 0 {
		return l, nil
	}
	l.pins.Add(-1)
	return c.readmit(l)
}

func (l *Lock) unpin() { l.pins.Add(-1) }

// current is the lock in use, or that would be used, in the place of l; l itself when there is none.
func (c *cache) current(l *Lock) *Lock {
	if l.pins.Load() >= 0 {
		return l
	}
	if now, ok := c.find(l.path()); ok {
		return now
	}
	return l
}

func (c *cache) find(path string) (*Lock, bool) {
	found, ok := c.locks.Load(path)
	if !ok {
		return nil, false
	}
	return found.(*Lock), true
}

// touch notes that l is the most recently obtained lock. When it is so already, as when many goroutines use one lock, it
// only reads.
func (c *cache) touch(l *Lock) {
	if l.turn.Load() != c.turn.Load() {
		l.turn.Store(c.turn.Add(1))
	}
}

// put adds a lock whose path is not in the cache yet, or returns the one that is. When there is no room, because every
// lock is in use, the new one stays outside.
func (c *cache) put(l *Lock) *Lock {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.find(l.path()); ok {
		return found
	}
	if c.makeRoom(c.capacity - 1) {
		c.insert(l)
	} else {
		l.pins.Store(dropped)
	}
	return l
}

func (c *cache) readmit(l *Lock) (*Lock, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.find(l.path()); ok {
		found.pins.Add(1) // it cannot be dropped meanwhile: that takes the mutex
		return found, nil
	}
	if !c.makeRoom(c.capacity - 1) {
		return nil, ErrCapacity
	}
	c.insert(l)
	l.pins.Add(1 - dropped)
	return l, nil
}

func (c *cache) insert(l *Lock) {
	l.turn.Store(c.turn.Add(1))
	c.locks.Store(l.path(), l)
	heap.Push(&c.queue, queued{l.turn.Load(), l})
	c.size++
}

// makeRoom drops locks until no more than room are left, and tells whether it got that far. The caller holds the mutex.
//
// The queue is in the order of the turns that locks had when they were put into it. A lock that was obtained since is put
// back with its new turn, so the first one whose turn is still the same is the least recently obtained of all.
func (c *cache) makeRoom(room int) bool {
	var busy []queued
	for c.size > room && len(c.queue) > 0 {
		first := heap.Pop(&c.queue).(queued)
		switch turn := first.lock.turn.Load(); {
		case turn != first.turn:
			heap.Push(&c.queue, queued{turn, first.lock})
		case !c.drop(first.lock):
			busy = append(busy, first)
		}
	}
	for _, b := range busy {
		heap.Push(&c.queue, b)
	}
	return c.size <= room
}

// drop takes a lock that is not in use out of locks, but not out of the queue. The caller holds the mutex.
func (c *cache) drop(l *Lock) bool {
	if !l.pins.CompareAndSwap(0, dropped) {
		return false
	}
	c.locks.Delete(l.path())
	c.size--
	return true
}

// resize sets the capacity. Locks in use stay, even if they are more than that.
func (c *cache) resize(capacity int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.capacity = capacity
	c.makeRoom(capacity)
}

// dropUnused drops every lock that is not in use and was last locked before an instant.
func (c *cache) dropUnused(before instant) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := c.queue[:0]
	for _, q := range c.queue {
		if instant(q.lock.lockedAt.Load()) > before || !c.drop(q.lock) {
			kept = append(kept, q)
		}
	}
	count := len(c.queue) - len(kept)
	clear(c.queue[len(kept):])
	c.queue = kept
	heap.Init(&c.queue)
	return count
}

func (c *cache) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

// queued is a lock in the queue with the turn it had then.
type queued struct {
	turn uint64
	lock *Lock
}

// lockHeap is a heap of locks by turn, for container/heap.
type lockHeap []queued

func (q lockHeap) Len() int           { return len(q) }
func (q lockHeap) Less(i, j int) bool { return q[i].turn < q[j].turn }
func (q lockHeap) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *lockHeap) Push(x any)        { *q = append(*q, x.(queued)) }

func (q *lockHeap) Pop() any {
	last := len(*q) - 1
	popped := (*q)[last]
	(*q)[last] = queued{}
	*q = (*q)[:last]
	return popped
}
