package lockregistry

import (
	"container/heap"
	"iter"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// cache keeps the locks of a registry by path, at most as many as its capacity, and drops the least recently obtained
// one that is not in use to make room.
//
// There must never be two locks of one path in use at once: they would share the registry's identity in Redis but not
// the local half. What ensures it is that a lock can only be used while it is in the cache:
//
//   - Lock.pins counts the users of a lock: calls that are under way, and a hold. A lock with pins is never dropped.
//   - Dropping a lock takes pins from 0 to far below 0 in one atomic step, so nobody can begin to use it from then on.
//   - A call that finds its lock dropped goes through readmit, which, under the mutex, finds the path's lock of today, or puts
//     the old one back when there is none.
type cache struct {
	locks sync.Map      // name → *Lock, the anchor; read without the mutex
	turn  atomic.Uint64 // the most recent Lock.turn

	expiring sync.Mutex // held by the call of dropUnused that runs

	mu       sync.Mutex // guards what follows, and every change of locks
	capacity int
	size     int
	resizing int      // calls of resize that run: they make room for all
	queue    lockHeap // the locks that may be dropped, by the turn they had when they were put in
	rest     lockHeap // more of them: those that dropUnused has yet to look at
}

// portion is how many locks are looked at, where it may be all, before others get the mutex: so few that nobody waits for
// longer than a millisecond or two.
const portion = 100

// dropped is what pins is shifted by while the lock is not in the cache: so far below zero that no number of callers that
// have yet to notice can lift it above.
const dropped = -1 << 30

// readWritePath is the name of a read-write lock in the cache: plain locks and read-write locks of one path are different
// things, although they meet in Redis.
type readWritePath string

// anchor is the lock that stands for l in the cache: l itself, or, since a reader and its writer come and go together,
// the writer.
func (l *Lock) anchor() *Lock {
	if l.pair != nil {
		return &l.pair.writer
	}
	return l
}

// side is the lock that does for an anchor what l does for its own: the reader of that pair, if l is a reader.
func (l *Lock) side(anchor *Lock) *Lock {
	if l != l.anchor() {
		return &anchor.pair.reader
	}
	return anchor
}

// pin begins a use of l, and returns the lock to use: l itself, or the one that has taken its place.
func (c *cache) pin(l *Lock) (*Lock, error) {
	a := l.anchor()
	if a.pins.Add(1) > 0 {
		return l, nil
	}
	a.pins.Add(-1)
	a, err := c.readmit(a)
	if err != nil {
		return nil, err
	}
	return l.side(a), nil
}

// unpin ends a use of l.
func (l *Lock) unpin() {
	a := l.anchor()
	if a.pins.Add(-1) == 0 && a.parked.Load() {
		c := &a.reg.cache
		c.mu.Lock()
		c.unpark(a)
		c.mu.Unlock()
	}
}

// current is the lock in use, or that would be used, in the place of l; l itself when there is none.
func (c *cache) current(l *Lock) *Lock {
	a := l.anchor()
	if a.pins.Load() >= 0 {
		return l
	}
	if now, ok := c.same(a); ok {
		return l.side(now)
	}
	return l
}

// find returns the plain lock of a path.
func (c *cache) find(path string) (*Lock, bool) {
	found, ok := c.locks.Load(path)
	if !ok {
		return nil, false
	}
	return found.(*Lock), true
}

// findReadWrite returns the read-write lock of a path.
func (c *cache) findReadWrite(path string) (*Lock, bool) {
	found, ok := c.locks.Load(readWritePath(path))
	if !ok {
		return nil, false
	}
	return found.(*Lock), true
}

// of goes through the locks of a path: the plain one first, which most are.
func (c *cache) of(path string) iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		if plain, ok := c.find(path); ok && !yield(plain) {
			return
		}
		if writer, ok := c.findReadWrite(path); ok && yield(&writer.pair.reader) {
			yield(writer)
		}
	}
}

// all goes through the locks that are kept, those of each pair by themselves.
func (c *cache) all() iter.Seq[*Lock] {
	return func(yield func(*Lock) bool) {
		c.locks.Range(func(_, found any) bool {
			l := found.(*Lock)
			return yield(l) && (l.pair == nil || yield(&l.pair.reader))
		})
	}
}

// same returns the lock that has the name of an anchor.
func (c *cache) same(a *Lock) (*Lock, bool) {
	if a.pair != nil {
		return c.findReadWrite(a.path())
	}
	return c.find(a.path())
}

func (l *Lock) name() any {
	if l.pair != nil {
		return readWritePath(l.path())
	}
	return l.path()
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
	if found, ok := c.same(l); ok {
		return found
	}
	if c.makeRoom() {
		c.insert(l)
	} else {
		l.pins.Store(dropped)
	}
	return l
}

func (c *cache) readmit(l *Lock) (*Lock, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.same(l); ok {
		found.pins.Add(1) // it cannot be dropped meanwhile: that takes the mutex
		return found, nil
	}
	if !c.makeRoom() {
		return nil, ErrCapacity
	}
	c.insert(l)
	l.pins.Add(1 - dropped)
	return l, nil
}

func (c *cache) insert(l *Lock) {
	l.turn.Store(c.turn.Add(1))
	c.locks.Store(l.name(), l)
	c.queue.add(queued{l.turn.Load(), l})
	c.size++
}

// makeRoom drops locks until there is room for one more, and tells whether there is. While resize runs it leaves that to
// it, which may have many to drop, and goes on until there are no more than the capacity. The caller holds the mutex.
func (c *cache) makeRoom() bool {
	if c.resizing > 0 {
		return true
	}
	for c.size >= c.capacity {
		if !c.dropFirst() {
			return false
		}
	}
	return true
}

// dropFirst takes one step towards a smaller cache, and reports false when there is none. The caller holds the mutex.
//
// The queue and its rest are in the order of the turns that locks had when they were put into it. Locks found in use are
// taken out. A lock that was obtained since is put back with its new turn, so the first one whose turn is still the same is
// the least recently obtained of all.
func (c *cache) dropFirst() bool {
	from := &c.queue
	if len(c.queue) == 0 || len(c.rest) > 0 && c.rest[0].turn < c.queue[0].turn {
		from = &c.rest
	}
	if len(*from) == 0 {
		return false
	}
	first := heap.Pop(from).(queued)
	switch turn := first.lock.turn.Load(); {
	case turn != first.turn:
		c.queue.add(queued{turn, first.lock})
	case !c.drop(first.lock):
		c.park(first.lock)
	}
	return true
}

// park keeps a lock that is in use out of the queue until it no longer is, so that nobody comes past it again and again.
// The one that parks and the one that ends the last use both look for the other's mark after they have left their own, so one
// of them sees it.
// The caller holds the mutex.
func (c *cache) park(l *Lock) {
	l.parked.Store(true)
	if l.pins.Load() == 0 {
		c.unpark(l)
	}
}

func (c *cache) unpark(l *Lock) {
	if l.parked.CompareAndSwap(true, false) {
		c.queue.add(queued{l.turn.Load(), l})
	}
}

// drop takes a lock that is not in use out of locks, but not out of the queue. The caller holds the mutex.
func (c *cache) drop(l *Lock) bool {
	if !l.pins.CompareAndSwap(0, dropped) {
		return false
	}
	c.locks.Delete(l.name())
	c.size--
	return true
}

// resize sets the capacity, and drops locks, in portions, until there are no more than that. Locks in use stay, even if
// they are more.
func (c *cache) resize(capacity int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.capacity = capacity
	c.resizing++
	for step := 1; c.size > c.capacity && c.dropFirst(); step++ {
		if step%portion == 0 {
			c.breathe()
		}
	}
	c.resizing--
}

// breathe lets others have the mutex, which the caller holds. The one that Unlock wakes runs next if this goroutine yields;
// otherwise this one would most likely be the first to get it again.
func (c *cache) breathe() {
	c.mu.Unlock()
	runtime.Gosched()
	c.mu.Lock()
}

// dropUnused drops every lock that is not in use and was last locked before an instant, in portions. It takes the locks from
// the end of the rest, which stays a heap without them, and puts those that stay into the queue: so at any time each lock
// that may be dropped is in one of the two.
func (c *cache) dropUnused(before clock.Instant) (count int) {
	c.expiring.Lock()
	defer c.expiring.Unlock()
	n := c.len()
	kept := make(lockHeap, 0, n+n/4) // a large one takes time to make, and to copy when it grows: not with the mutex

	c.mu.Lock()
	defer c.mu.Unlock()
	c.rest, c.queue = c.queue, kept
	for step := 1; len(c.rest) > 0; step++ {
		last := c.rest.takeLast()
		if clock.Instant(last.lock.lockedAt.Load()) > before || !c.drop(last.lock) {
			c.queue.add(last)
		} else {
			count++
		}
		if step%portion == 0 {
			c.breathe()
		}
	}
	c.rest = nil
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
func (q *lockHeap) Pop() any          { return q.takeLast() }

// add puts a lock in. Unlike heap.Push it needs no memory to carry it there.
func (q *lockHeap) add(x queued) {
	*q = append(*q, x)
	heap.Fix(q, len(*q)-1)
}

// takeLast takes the last element out, which is not the last in the order. What is left is a heap.
func (q *lockHeap) takeLast() queued {
	last := len(*q) - 1
	taken := (*q)[last]
	(*q)[last] = queued{}
	*q = (*q)[:last]
	return taken
}
