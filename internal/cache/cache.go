// Package cache keeps items by name, up to a capacity. To make room it drops the least recently obtained item that is not in use.
//
// Two items of one name must never be in use at once. So an item can be used only while it is in the cache:
//
//   - Its pins count its users. An item with pins is never dropped.
//   - Dropping an item takes its pins from 0 to far below 0 in one atomic step, so no use can begin from then on.
//   - A caller that finds its item dropped calls Readmit. Under the mutex Readmit returns the name's present item, or puts the
//     old one back if there is none.
package cache

import (
	"container/heap"
	"hash/maphash"
	"iter"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// Entry is the cache's data in an item.
type Entry struct {
	turn   atomic.Uint64 // when it was last obtained
	pins   atomic.Int32
	parked atomic.Bool
	usedAt atomic.Int64 // an instant
}

// Pin begins a use. It reports false if the item is not in the cache.
func (e *Entry) Pin() bool {
	if e.pins.Add(1) > 0 {
		return true
	}
	e.pins.Add(-1)
	return false
}

// Unpin ends a use. If it reports true, the caller must call [Cache.Unpark].
func (e *Entry) Unpin() bool { return e.pins.Add(-1) == 0 && e.parked.Load() }

// Park makes Unpin report the end of the last use, for an item that is in no cache.
func (e *Entry) Park() { e.parked.Store(true) }

// Pins returns the number of uses; below 0: the item is not in the cache.
func (e *Entry) Pins() int32 { return e.pins.Load() }

// Use sets when the item was last used, for [Cache.DropUnused].
func (e *Entry) Use(at clock.Instant) { e.usedAt.Store(int64(at)) }

// Cache keeps items, by pointers to them. It begins with no room, see [Cache.Resize].
type Cache[K any] struct {
	Entry func(K) *Entry // of an item
	Name  func(K) Name   // likewise; always the same

	items index[K]      // read without the mutex
	turn  atomic.Uint64 // the most recent turn of an entry

	expiring sync.Mutex // held by the call of DropUnused that runs

	mu       sync.Mutex // guards the following, and every change of items
	capacity int
	size     int
	resizing int      // running calls of Resize, which make room for all
	queue    turns[K] // the items that may be dropped, by the turn that they had when they were put in
	rest     turns[K] // more of these, which DropUnused has yet to look at
}

// portion is how many items a loop handles before it lets others have the mutex, so that they wait 1 or 2 ms at most.
const portion = 100

// dropped is added to pins while the item is not in the cache: so low that callers that have not noticed yet cannot raise pins
// above zero.
const dropped = -1 << 30

// Find returns the item of a name.
func (c *Cache[K]) Find(name Name) (found K, ok bool) { return c.items.find(name) }

// All iterates over the items.
func (c *Cache[K]) All() iter.Seq[K] { return c.items.all() }

// Touch makes an item the most recently obtained one. If it is that already, as when many goroutines use one item, Touch only
// reads.
func (c *Cache[K]) Touch(e *Entry) {
	if e.turn.Load() != c.turn.Load() {
		e.turn.Store(c.turn.Add(1))
	}
}

// Put adds an item, or returns the item of that name that is in the cache. If there is no room, because every item is in use,
// the new item stays outside.
func (c *Cache[K]) Put(k K) K {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.Find(c.Name(k)); ok {
		return found
	}
	if c.makeRoom() {
		c.insert(k)
	} else {
		c.Entry(k).pins.Store(dropped)
	}
	return k
}

// Readmit begins a use of the item in the cache that has the name of k. If there is none, it puts k back.
func (c *Cache[K]) Readmit(k K) (K, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if found, ok := c.Find(c.Name(k)); ok {
		c.Entry(found).pins.Add(1) // it cannot be dropped now, since that takes the mutex
		return found, nil
	}
	if !c.makeRoom() {
		var none K
		return none, fault.Capacity
	}
	c.insert(k)
	c.Entry(k).pins.Add(1 - dropped)
	return k, nil
}

func (c *Cache[K]) insert(k K) {
	c.Entry(k).turn.Store(c.turn.Add(1))
	c.items.add(c.Name(k), k)
	c.queue.add(queued[K]{c.Entry(k).turn.Load(), k})
	c.size++
}

// makeRoom drops items until there is room for one more, and reports whether there is. The caller holds the mutex.
//
// While Resize runs, which may have many items to drop, makeRoom drops one item for each new one, and leaves the rest to Resize.
// So Resize ends, however many items are added meanwhile.
func (c *Cache[K]) makeRoom() bool {
	if c.resizing > 0 {
		size := c.size
		for step := 0; step < portion && c.size == size; step++ {
			if !c.dropFirst() {
				break
			}
		}
		return true
	}
	for c.size >= c.capacity {
		if !c.dropFirst() {
			return false
		}
	}
	return true
}

// dropFirst takes one step towards a smaller cache, and reports false if there is none. The caller holds the mutex.
//
// The queue and the rest are in the order of the turns that items had when they were put in. Items that are in use are taken
// out. An item that was obtained since is put back with its new turn. So the first item whose turn is unchanged is the least
// recently obtained of all.
func (c *Cache[K]) dropFirst() bool {
	from := &c.queue
	if len(c.queue) == 0 || len(c.rest) > 0 && c.rest[0].turn < c.queue[0].turn {
		from = &c.rest
	}
	if len(*from) == 0 {
		return false
	}
	first := heap.Pop(from).(queued[K])
	switch turn := c.Entry(first.kept).turn.Load(); {
	case turn != first.turn:
		c.queue.add(queued[K]{turn, first.kept})
	case !c.drop(first.kept):
		c.park(first.kept)
	}
	return true
}

// park keeps an item out of the queue while it is in use, so that dropFirst does not meet it again and again. The goroutine
// that parks and the one that ends the last use each set their mark first, then look for the other's: so one of them sees it.
// The caller holds the mutex.
func (c *Cache[K]) park(k K) {
	c.Entry(k).parked.Store(true)
	if c.Entry(k).pins.Load() == 0 {
		c.unpark(k)
	}
}

// Unpark puts an item whose last use has ended back into the queue.
func (c *Cache[K]) Unpark(k K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unpark(k)
}

func (c *Cache[K]) unpark(k K) {
	if c.Entry(k).parked.CompareAndSwap(true, false) {
		c.queue.add(queued[K]{c.Entry(k).turn.Load(), k})
	}
}

// drop removes an item that is not in use from items, but not from the queue. The caller holds the mutex.
func (c *Cache[K]) drop(k K) bool {
	if !c.Entry(k).pins.CompareAndSwap(0, dropped) {
		return false
	}
	c.items.remove(c.Name(k))
	c.size--
	return true
}

// Resize sets the capacity, and drops items, in portions, until it is kept. Items in use stay, even beyond the capacity.
func (c *Cache[K]) Resize(capacity int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.capacity = capacity
	c.resizing++
	for step := 1; c.size > c.capacity && c.dropFirst(); step++ {
		if step%portion == 0 {
			c.breathe()
		}
	}
	c.queue.shrink()
	c.resizing--
}

// breathe lets others have the mutex, which the caller holds. The goroutine that Unlock wakes runs next because this one
// yields; otherwise this one would most likely get the mutex again first.
func (c *Cache[K]) breathe() {
	c.mu.Unlock()
	runtime.Gosched()
	c.mu.Lock()
}

// DropUnused drops, in portions, every item that is not in use and was last used before an instant.
//
// It moves the queue to rest, takes one item after another from the end of rest, which therefore stays a heap, and puts those
// that it keeps into the queue. So each item that may be dropped is always in one of the two.
func (c *Cache[K]) DropUnused(before clock.Instant) (count int) {
	c.expiring.Lock()
	defer c.expiring.Unlock()
	n := c.Len()
	kept := make(turns[K], 0, n+n/4) // allocated without the mutex, since a large one takes time

	c.mu.Lock()
	defer c.mu.Unlock()
	c.rest, c.queue = c.queue, kept
	for step := 1; len(c.rest) > 0; step++ {
		last := c.rest.takeLast()
		if clock.Instant(c.Entry(last.kept).usedAt.Load()) > before || !c.drop(last.kept) {
			c.queue.add(last)
		} else {
			count++
		}
		if step%portion == 0 {
			c.breathe()
		}
	}
	c.rest = nil
	c.queue.shrink()
	return count
}

// Len returns the number of items.
func (c *Cache[K]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

// queued is an element of the queue, with the turn that it had when it was put in.
type queued[K any] struct {
	turn uint64
	kept K
}

// turns is a heap by turn, for container/heap.
type turns[K any] []queued[K]

func (q turns[K]) Len() int           { return len(q) }
func (q turns[K]) Less(i, j int) bool { return q[i].turn < q[j].turn }
func (q turns[K]) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *turns[K]) Push(x any)        { *q = append(*q, x.(queued[K])) }
func (q *turns[K]) Pop() any          { return q.takeLast() }

// add adds an item. Unlike heap.Push it does not allocate.
func (q *turns[K]) add(x queued[K]) {
	*q = append(*q, x)
	heap.Fix(q, len(*q)-1)
}

// takeLast removes the last element, which is not the last in order. The remaining elements are a heap.
func (q *turns[K]) takeLast() queued[K] {
	last := len(*q) - 1
	taken := (*q)[last]
	(*q)[last] = queued[K]{}
	*q = (*q)[:last]
	return taken
}

// shrink frees the memory of elements that are gone, when few of many are left.
func (q *turns[K]) shrink() {
	if cap(*q) >= leastShrunk && len(*q) <= cap(*q)/4 {
		*q = append(turns[K](nil), *q...) // slices.Clone of an empty slice keeps its memory
	}
}

// Name is the name of an item. Two items may have one text, if Of tells them apart.
type Name struct {
	Text string
	Of   bool
}

// index finds items by name. It is a map in parts, each with a mutex of its own: so calls for different names rarely meet, and
// none waits for long while a part grows. A sync.Map does without mutexes, but takes 70 bytes more for each item.
type index[K any] struct {
	once  sync.Once
	seed  maphash.Seed
	parts [parts]part[K]
}

// parts is the number of parts of an index. It is small, because a process may have hundreds of registries, most of them empty.
const parts = 32

type part[K any] struct {
	mu    sync.RWMutex
	items map[Name]K
	most  int // how many items there were since the map was made
}

// leastShrunk is how large a map or a queue must have been to be replaced when few items are left: neither shrinks by itself.
const leastShrunk = 128

func (x *index[K]) part(name Name) *part[K] {
	x.once.Do(func() { x.seed = maphash.MakeSeed() })
	return &x.parts[maphash.String(x.seed, name.Text)%parts]
}

func (x *index[K]) find(name Name) (found K, ok bool) {
	p := x.part(name)
	p.mu.RLock()
	defer p.mu.RUnlock()
	found, ok = p.items[name]
	return found, ok
}

func (x *index[K]) add(name Name, k K) {
	p := x.part(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.items == nil {
		p.items = map[Name]K{}
	}
	p.items[name] = k
	p.most = max(p.most, len(p.items))
}

func (x *index[K]) remove(name Name) {
	p := x.part(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.items, name)
	if p.most >= leastShrunk && len(p.items) <= p.most/4 {
		less := make(map[Name]K, len(p.items))
		maps.Copy(less, p.items)
		p.items, p.most = less, len(less)
	}
}

// all iterates over the items, with no mutex held: some that come or go meanwhile may be among them.
func (x *index[K]) all() iter.Seq[K] {
	return func(yield func(K) bool) {
		var some []K
		for i := range x.parts {
			p := &x.parts[i]
			p.mu.RLock()
			some = slices.AppendSeq(some[:0], maps.Values(p.items))
			p.mu.RUnlock()
			for _, k := range some {
				if !yield(k) {
					return
				}
			}
		}
	}
}
