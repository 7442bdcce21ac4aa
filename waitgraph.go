package lockregistry

import (
	"context"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// waiting is the graph of the calls of this process that wait, of all its registries: it finds cycles among them. A call is in it
// for as long as it waits, so a lock that is free costs nothing.
//
// The edges are not kept. They follow from what the locks say: a call waits for whatever is in its way there (an obstacle), and
// an owner in the way goes no further when a call that keeps it waits itself. A call is put into the graph before it looks at
// what is in its way. So of the calls of a cycle the one that was put in last sees all others.
//
// Two looks at each edge, one after the other, show a cycle that stood between them: a call that was in its queue both times was
// in it all the time, and an owner that is kept by it neither unlocked nor locked meanwhile. A cycle of goroutines' own holds
// never ends by itself then: each goroutine waits, and nobody else unlocks for it. What may end it is that a context is
// cancelled, that a lease is over, ForceUnlock, and Close.
var waiting waitGraph

type waitGraph struct {
	shards [1 << shardBits]waitShard

	// closing is held by the call, or the second look, that judges cycles: one that is refused is out of the graph before
	// the next one judges. The mutexes of shards and locks may be taken with it, one at a time.
	closing sync.Mutex
}

// shardBits: with 50 000 calls that wait there are twelve in a shard.
const shardBits = 12

// waitShard finds the calls that an owner may be kept by. It is a list of links, most of which are of that owner: a call that
// waits for microseconds should not pay for a map.
type waitShard struct {
	mu    sync.Mutex
	first atomic.Pointer[waitLink] // written with the mutex held. Where nobody waits it is nil, and who looks need not take that
}

type waitLink struct {
	call       *blockedCall
	key        owner.ID
	prev, next *waitLink
	linked     bool
}

// blockedCall is a call that waits. What is set before it is in the graph stays so.
type blockedCall struct {
	lock      *Lock
	place     *waiter  // in the local queue; nil when the call has the local half and waits for Redis
	goroutine owner.ID // that is blocked
	owner     owner.ID // to be
	carried   *carried
	done      <-chan struct{} // when it is closed the call is about to end
	ends      bool            // by itself: it has a deadline
	since     clock.Instant   // when it began to wait

	self waitLink
	more []*waitLink

	suspects []step // the cycle that a second look is to confirm; waitGraph.closing guards it, as what follows
	look     *time.Timer
	over     bool
	told     bool // it is in a cycle that was reported

	recorded atomic.Bool // the record of the registry tells of it
	known    atomic.Bool // somebody may look at it although it has left the graph
}

// step is an edge of a cycle: a call, and the lock that the one before waits for, if an owner has it that this call keeps.
type step struct {
	call *blockedCall
	held *Lock // nil: the call is a writer in front of the one before
}

// secondLook is how long a cycle must stand that others may end: where a hold is a value, or of a NewOwner.
const secondLook = 500 * time.Millisecond

// obstacle is in the way of a call that waits in a local queue: an owner that has a lock, or a writer in front of a reader.
type obstacle struct {
	owner owner.ID
	held  *Lock
	ahead *waiter
}

func (b *blockedCall) init(ctx context.Context, c *carried, l *Lock, w *waiter, q *request, o owner.ID) {
	_, timed := ctx.Deadline()
	b.lock, b.place, b.owner, b.goroutine, b.carried = l, w, o, o, c
	b.done, b.ends = ctx.Done(), timed || q.wait > 0
	if !o.IsGoroutine() {
		b.goroutine = owner.Calling()
	}
	if q.blocked == 0 {
		q.blocked = l.reg.clock.Now()
	}
	b.since = q.blocked
}

// enter puts a call into the graph. It fails, and the call is out again, when it closes a cycle that nothing ends.
func (g *waitGraph) enter(b *blockedCall) error {
	b.self = waitLink{call: b, key: b.goroutine}
	g.link(&b.self)
	for key := range b.others() {
		link := &waitLink{call: b, key: key}
		b.more = append(b.more, link)
		g.link(link)
	}
	if b.place == nil {
		return nil
	}
	var few [4]obstacle
	for _, o := range b.lock.obstacles(b.place, few[:0]) {
		if g.blocks(b.lock, o) { // seldom
			return g.judge(b)
		}
	}
	return nil
}

// others are the owners, but for its goroutine, that the call may keep.
func (b *blockedCall) others() iter.Seq[owner.ID] {
	return func(yield func(owner.ID) bool) {
		if b.owner != b.goroutine && !yield(b.owner) {
			return
		}
		for c := b.carried; c != nil; c = c.outer {
			if t := c.tenure; t != nil && t.owner != b.goroutine && t.owner != b.owner && t.lasts() && !yield(t.owner) {
				return
			}
		}
	}
}

// leave takes a call out of the graph.
func (g *waitGraph) leave(b *blockedCall) {
	g.unlink(&b.self)
	for _, link := range b.more {
		g.unlink(link)
	}
	if b.recorded.Load() {
		b.lock.reg.recording.rewrite()
	}
	if b.look != nil { // set by enter only
		g.closing.Lock()
		b.over = true
		b.look.Stop()
		g.closing.Unlock()
	}
}

// shard spreads numbers that follow each other, as those of goroutines do, by a multiplication with 2^64 divided by the golden
// ratio.
func (g *waitGraph) shard(o owner.ID) *waitShard {
	return &g.shards[uint64(o)*0x9e3779b97f4a7c15>>(64-shardBits)]
}

// of goes through the links of an owner. The caller holds the mutex.
func (s *waitShard) of(key owner.ID) iter.Seq[*waitLink] {
	return func(yield func(*waitLink) bool) {
		for l := s.first.Load(); l != nil; l = l.next {
			if l.key == key && !yield(l) {
				return
			}
		}
	}
}

func (g *waitGraph) link(l *waitLink) {
	s := g.shard(l.key)
	s.mu.Lock()
	if l.next = s.first.Load(); l.next != nil {
		l.next.prev = l
	}
	l.linked = true
	s.first.Store(l)
	s.mu.Unlock()
}

func (g *waitGraph) unlink(l *waitLink) {
	s := g.shard(l.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !l.linked { // it is out already
		return
	}
	if l.prev == nil {
		s.first.Store(l.next)
	} else {
		l.prev.next = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	}
	l.prev, l.next, l.linked = nil, nil, false
}

// any tells whether there are calls with a key, other than for a lock that their own owner has just been given: those are about
// to leave the graph.
func (g *waitGraph) any(key owner.ID, l *Lock, holder owner.ID) bool {
	s := g.shard(key)
	if s.first.Load() == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for link := range s.of(key) {
		if link.call.lock != l || link.call.owner != holder {
			return true
		}
	}
	return false
}

// with returns the calls with a key.
func (g *waitGraph) with(key owner.ID) (calls []*blockedCall) {
	s := g.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.of(key) {
		l.call.known.Store(true)
		calls = append(calls, l.call)
	}
	return calls
}

// has tells whether a call is in the graph.
func (g *waitGraph) has(b *blockedCall) bool {
	s := g.shard(b.goroutine)
	s.mu.Lock()
	defer s.mu.Unlock()
	return b.self.linked
}

// all are the calls that wait.
func (g *waitGraph) all() iter.Seq[*blockedCall] {
	return func(yield func(*blockedCall) bool) {
		for i := range g.shards {
			s, calls := &g.shards[i], []*blockedCall(nil)
			if s.first.Load() == nil {
				continue
			}
			s.mu.Lock()
			for l := s.first.Load(); l != nil; l = l.next {
				if l == &l.call.self {
					l.call.known.Store(true)
					calls = append(calls, l.call)
				}
			}
			s.mu.Unlock()
			for _, b := range calls {
				if !yield(b) {
					return
				}
			}
		}
	}
}

// blocks tells whether an obstacle of a call for a lock may wait itself: for a lock other than this one.
func (g *waitGraph) blocks(l *Lock, o obstacle) bool {
	if o.ahead != nil {
		var few [4]obstacle
		for _, o := range l.obstacles(o.ahead, few[:0]) {
			if o.ahead == nil && g.blocks(l, o) {
				return true
			}
		}
		return false
	}
	if g.any(o.owner, o.held, o.owner) {
		return true
	}
	if !o.owner.IsHold() {
		return false
	}
	taker := o.held.taker(o.owner)
	return taker != owner.Nobody && g.any(taker, o.held, o.owner)
}

// keepers are the calls that keep an owner from unlocking a lock, and those that surely do.
func (g *waitGraph) keepers(l *Lock, o owner.ID) (calls, sure []*blockedCall) {
	for _, b := range g.with(o) {
		switch {
		case b.goroutine == o && !l.lent(o):
			sure = append(sure, b)
			fallthrough
		case b.goroutine == o, b.owner == o && !o.IsHold(), b.within(l, o):
			calls = append(calls, b)
		}
	}
	if o.IsHold() {
		if taker := l.taker(o); taker != owner.Nobody {
			calls = append(calls, g.with(taker)...)
		}
	}
	return calls, sure
}

// within tells whether the context of the call is that of an owner's hold on a lock.
func (b *blockedCall) within(l *Lock, o owner.ID) bool {
	for c := b.carried; c != nil; c = c.outer {
		if t := c.tenure; t != nil && t.owner == o && t.lock == l && t.lasts() {
			return true
		}
	}
	return false
}

// rigor is which edges count for a cycle.
type rigor uint8

const (
	anyEdge  rigor = iota
	ownHolds       // those of holds that only a waiting goroutine ends
	endless        // of these, those of calls that never end by themselves, and whose owner is no other goroutine's
)

// stops tells whether the call is about to end without the lock: its goroutine may have yet to see that.
func (b *blockedCall) stops() bool {
	select {
	case <-b.done:
		return true
	default:
		return b.lock.reg.isClosed()
	}
}

// next are the calls that keep what a call waits for.
func (g *waitGraph) next(b *blockedCall, r rigor) (steps []step) {
	if b.place == nil || r == endless && (b.ends || b.owner.Shared()) || b.stops() {
		return nil
	}
	for _, o := range b.lock.obstacles(b.place, nil) {
		if o.ahead != nil {
			for _, ahead := range g.with(o.owner) {
				if ahead.place == o.ahead {
					steps = append(steps, step{call: ahead})
				}
			}
			continue
		}
		if h := o.held.hold.Load(); h == nil || !h.stands() {
			continue // it is about to be over
		}
		calls, sure := g.keepers(o.held, o.owner)
		if r >= ownHolds {
			calls = sure
		}
		for _, keeper := range calls {
			steps = append(steps, step{keeper, o.held})
		}
	}
	return steps
}

// cycle finds a cycle that a call is in. It begins with the call itself.
func (g *waitGraph) cycle(start *blockedCall, r rigor) []step {
	seen := map[*blockedCall]bool{}
	var found []step
	var search func(b *blockedCall) bool
	search = func(b *blockedCall) bool {
		for _, s := range g.next(b, r) {
			if seen[s.call] {
				continue
			}
			seen[s.call] = true
			found = append(found, s)
			if s.call == start || search(s.call) {
				return true
			}
			found = found[:len(found)-1]
		}
		return false
	}
	if !search(start) || !g.stands(found, r) {
		return nil
	}
	last := len(found) - 1
	return slices.Concat(found[last:], found[:last])
}

// stands tells whether each edge of a cycle is there still.
func (g *waitGraph) stands(cycle []step, r rigor) bool {
	before := cycle[len(cycle)-1].call
	for _, s := range cycle {
		if !slices.Contains(g.next(before, r), s) {
			return false
		}
		before = s.call
	}
	return true
}

// judge is for a call that may close a cycle.
func (g *waitGraph) judge(b *blockedCall) error {
	g.closing.Lock()
	defer g.closing.Unlock()
	b.known.Store(true)
	// The strictest search is the last one: another call may close a cycle between two of them, and it must not be taken for one
	// that may end.
	suspects := g.cycle(b, anyEdge)
	own := g.cycle(b, ownHolds)
	if found := g.cycle(b, endless); found != nil {
		d := b.lock.reg.report(found)
		if b.lock.reg.tolerant {
			return nil
		}
		g.leave(b)
		return deadlocked{d}
	}
	switch {
	case own != nil:
		b.lock.reg.report(own)
	case suspects != nil:
		b.suspects = suspects
		b.look = time.AfterFunc(secondLook, func() { g.lookAgain(b) })
	}
	return nil
}

// lookAgain reports a cycle that has not ended meanwhile.
func (g *waitGraph) lookAgain(b *blockedCall) {
	g.closing.Lock()
	defer g.closing.Unlock()
	switch {
	case b.over:
	case g.stands(b.suspects, anyEdge):
		b.lock.reg.report(b.suspects)
	default:
		if b.suspects = g.cycle(b, anyEdge); b.suspects != nil {
			b.look.Reset(secondLook)
		}
	}
}

// obstacles are what is in the way of a waiter; nothing when its turn has come.
func (l *Lock) obstacles(w *waiter, into []obstacle) []obstacle {
	if l.pair != nil {
		return l.pair.obstacles(w, into)
	}
	l.local.mu.Lock()
	defer l.local.mu.Unlock()
	// An owner that has yet to get the hold in Redis waits for nobody here.
	if w.queued && l.local.holds > 0 {
		into = append(into, obstacle{owner: l.local.owner, held: l})
	}
	return into
}

// mostReaders is how many of the readers that share a lock are looked at, so that a call does not take long to wait.
const mostReaders = 1000

// obstacles of a writer are all owners, those of a reader are the writer, or the one at the head of the queue, which waits for
// all owners in turn. A waiter never waits for its own owner.
func (rw *ReadWriteLock) obstacles(w *waiter, into []obstacle) []obstacle {
	l := &rw.local
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.queued {
		return into
	}
	for o := range l.write.owners {
		if o != w.owner {
			into = append(into, obstacle{owner: o, held: &rw.writer})
		}
	}
	if !w.writes {
		// Who writes already waits for nobody here, but for the removal of its last hold on reading.
		if first := l.queue.first; first.writes && !l.write.heldBy(w.owner) {
			into = append(into, obstacle{owner: first.owner, ahead: first})
		}
		return into
	}
	for o := range l.read.owners { // in no order
		if len(into) == mostReaders {
			break
		}
		if o != w.owner {
			into = append(into, obstacle{owner: o, held: &rw.reader})
		}
	}
	return into
}
