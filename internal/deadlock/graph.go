// Package deadlock has the graph of the calls of a process that wait for locks, and finds the cycles in it.
package deadlock

import (
	"fmt"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Graph is the graph of the calls of a process that wait, of all its registries: it finds cycles among them. A call is in it
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
type Graph struct {
	shards [1 << shardBits]shard

	// closing is held by the call, or the second look, that judges cycles: one that is refused is out of the graph before
	// the next one judges. The mutexes of shards and locks may be taken with it, one at a time.
	closing sync.Mutex
}

// shardBits: with 50 000 calls that wait there are twelve in a shard.
const shardBits = 12

// shard finds the calls that an owner may be kept by. It is a list of links, most of which are of that owner: a call that
// waits for microseconds should not pay for a map.
type shard struct {
	mu    sync.Mutex
	first atomic.Pointer[waitLink] // written with the mutex held. Where nobody waits it is nil, and who looks need not take that
}

type waitLink struct {
	call       *Call
	key        owner.ID
	prev, next *waitLink
	linked     bool
}

// Lock is what the graph asks of a lock. None of it is asked with the mutex of a shard held.
type Lock interface {
	// Obstacles are what is in the way of a call that waits in the lock's local queue; none when its turn has come.
	Obstacles(c *Call) Obstacles
	// Stands tells whether somebody has the lock, with a lease that is not over.
	Stands() bool
	// Taker is the goroutine that took the lock for an owner which is a hold; nobody when that is not known.
	Taker(o owner.ID) owner.ID
	// Delegated tells whether another goroutine may unlock for an owner.
	Delegated(o owner.ID) bool
	// Ends tells whether a call for the lock is about to end, because its registry is closed, or shuts down.
	Ends(c *Call) bool
	// Tolerant tells whether a call for the lock waits although it closes a cycle that nothing ends.
	Tolerant() bool
	// Report is told of a cycle that was found for a call for the lock, which is the first one in it, and makes an error of it.
	// First is false when all calls in the cycle were in one that has been reported. Calls that are put into the graph at the
	// same time may all find the cycle. The mutex of the graph is held.
	Report(cycle []Step, first bool) error
}

// Holds are the holds that the context of a call was made in.
type Holds interface {
	// Owners are those of the holds that last.
	Owners() []owner.ID
	// Within tells whether one of them is an owner's hold on a lock, and lasts.
	Within(l Lock, o owner.ID) bool
}

// Call is a call that waits. What is exported is set before it is in the graph, and stays so.
type Call struct {
	Lock      Lock
	Place     any             // in the local queue of the lock; nil when the call has the local half and waits for Redis
	Goroutine owner.ID        // that is blocked
	Owner     owner.ID        // to be
	Holds     Holds           // nil when there are none
	Done      <-chan struct{} // when it is closed the call is about to end
	Ends      bool            // by itself: it has a deadline
	Since     clock.Instant   // when it began to wait

	self waitLink
	more []waitLink // those of other owners that it may keep

	look *look // nil until a cycle was found that others may end; Graph.closing guards what it points to
	told bool  // it is in a cycle that was reported; Graph.closing guards it

	recorded atomic.Bool // others are told of it, see Graph.Record
	known    atomic.Bool // somebody may look at it although it has left the graph
}

// look is a second look at a cycle that others may end.
type look struct {
	suspects []Step
	timer    *time.Timer
	over     bool // the call has left the graph
}

// Step is an edge of a cycle: a call, and the lock that the one before waits for, if an owner has it that this call keeps.
type Step struct {
	Call *Call
	Held Lock // nil: the call is a writer in front of the one before
}

// SecondLook is how long a cycle must stand that others may end: where a hold is a value, or of a NewOwner.
const SecondLook = 500 * time.Millisecond

// Known tells whether somebody may look at a call although it has left the graph.
func (c *Call) Known() bool { return c.known.Load() }

// Caller names who waits, for people.
func (c *Call) Caller() string {
	who := fmt.Sprintf("goroutine %d", uint64(c.Goroutine))
	if c.Owner.Shared() {
		who += fmt.Sprintf(" as owner %d", c.Owner.Number())
	}
	return who
}

// Enter puts a call into the graph. It fails, and the call is out again, when it closes a cycle that nothing ends.
func (g *Graph) Enter(c *Call) error {
	c.self = waitLink{call: c, key: c.Goroutine}
	g.link(&c.self)
	c.more = c.others()
	for i := range c.more { // a link must not move from here on
		g.link(&c.more[i])
	}
	if c.Place == nil {
		return nil
	}
	obstacles := c.Lock.Obstacles(c)
	for o := range obstacles.all() {
		if g.blocks(c.Lock, o) { // seldom
			return g.judge(c)
		}
	}
	return nil
}

// others are links of the owners, but for its goroutine, that the call may keep.
func (c *Call) others() (links []waitLink) {
	var holds []owner.ID
	if c.Holds != nil {
		holds = c.Holds.Owners()
	}
	if c.Owner != c.Goroutine {
		links = make([]waitLink, 0, 1+len(holds))
		links = append(links, waitLink{call: c, key: c.Owner})
	}
	for _, o := range holds {
		if o != c.Goroutine && o != c.Owner {
			links = append(links, waitLink{call: c, key: o})
		}
	}
	return links
}

// Leave takes a call out of the graph. It tells whether others must be told so.
func (g *Graph) Leave(c *Call) (recorded bool) {
	g.unlink(&c.self)
	for i := range c.more {
		g.unlink(&c.more[i])
	}
	if c.look != nil { // set by Enter only
		g.closing.Lock()
		c.look.over = true
		c.look.timer.Stop()
		g.closing.Unlock()
	}
	return c.recorded.Load()
}

// Record is for who tells others of a call, and is to be told when it leaves. It is false when the call has left, perhaps without
// having seen that.
func (g *Graph) Record(c *Call) (waits bool) {
	c.recorded.Store(true)
	return g.has(c)
}

// shardOf spreads numbers that follow each other, as those of goroutines do, by a multiplication with 2^64 divided by the golden
// ratio.
func (g *Graph) shardOf(o owner.ID) *shard {
	return &g.shards[uint64(o)*0x9e3779b97f4a7c15>>(64-shardBits)]
}

// of goes through the links of an owner. The caller holds the mutex.
func (s *shard) of(key owner.ID) iter.Seq[*waitLink] {
	return func(yield func(*waitLink) bool) {
		for l := s.first.Load(); l != nil; l = l.next {
			if l.key == key && !yield(l) {
				return
			}
		}
	}
}

func (g *Graph) link(l *waitLink) {
	s := g.shardOf(l.key)
	s.mu.Lock()
	if l.next = s.first.Load(); l.next != nil {
		l.next.prev = l
	}
	l.linked = true
	s.first.Store(l)
	s.mu.Unlock()
}

func (g *Graph) unlink(l *waitLink) {
	s := g.shardOf(l.key)
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
func (g *Graph) any(key owner.ID, l Lock, holder owner.ID) bool {
	s := g.shardOf(key)
	if s.first.Load() == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for link := range s.of(key) {
		if link.call.Lock != l || link.call.Owner != holder {
			return true
		}
	}
	return false
}

// with returns the calls with a key.
func (g *Graph) with(key owner.ID) (calls []*Call) {
	s := g.shardOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.of(key) {
		l.call.known.Store(true)
		calls = append(calls, l.call)
	}
	return calls
}

// has tells whether a call is in the graph.
func (g *Graph) has(c *Call) bool {
	s := g.shardOf(c.Goroutine)
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.self.linked
}

// All are the calls that wait.
func (g *Graph) All() iter.Seq[*Call] {
	return func(yield func(*Call) bool) {
		for i := range g.shards {
			s, calls := &g.shards[i], []*Call(nil)
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
			for _, c := range calls {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// blocks tells whether an obstacle of a call for a lock may wait itself: for a lock other than this one.
func (g *Graph) blocks(l Lock, o Obstacle) bool {
	if o.Ahead != nil {
		obstacles := l.Obstacles(o.Ahead)
		for o := range obstacles.all() {
			if o.Ahead == nil && g.blocks(l, o) {
				return true
			}
		}
		return false
	}
	if g.any(o.Owner, o.Held, o.Owner) {
		return true
	}
	if !o.Owner.IsHold() {
		return false
	}
	taker := o.Held.Taker(o.Owner)
	return taker != owner.Nobody && g.any(taker, o.Held, o.Owner)
}

// Blockers are the calls that keep an owner from unlocking a lock, and those that surely do.
func (g *Graph) Blockers(l Lock, o owner.ID) (calls, sure []*Call) {
	for _, c := range g.with(o) {
		switch {
		case c.Goroutine == o && !l.Delegated(o):
			sure = append(sure, c)
			fallthrough
		case c.Goroutine == o, c.Owner == o && !o.IsHold(), c.Holds != nil && c.Holds.Within(l, o):
			calls = append(calls, c)
		}
	}
	if o.IsHold() {
		if taker := l.Taker(o); taker != owner.Nobody {
			calls = append(calls, g.with(taker)...)
		}
	}
	return calls, sure
}

// filter is which edges count for a cycle.
type filter uint8

const (
	anyEdge  filter = iota
	ownHolds        // those of holds that only a waiting goroutine ends
	endless         // of these, those of calls that never end by themselves, and whose owner is no other goroutine's
)

// stops tells whether the call is about to end without the lock: its goroutine may have yet to see that.
func (c *Call) stops() bool {
	select {
	case <-c.Done:
		return true
	default:
		return c.Lock.Ends(c)
	}
}

// next are the calls that keep what a call waits for.
func (g *Graph) next(c *Call, f filter) (steps []Step) {
	if c.Place == nil || f == endless && (c.Ends || c.Owner.Shared()) || c.stops() {
		return nil
	}
	obstacles := c.Lock.Obstacles(c)
	for o := range obstacles.all() {
		if o.Ahead != nil {
			if slices.Contains(g.with(o.Owner), o.Ahead) {
				steps = append(steps, Step{Call: o.Ahead})
			}
			continue
		}
		if !o.Held.Stands() {
			continue // it is about to be over
		}
		calls, sure := g.Blockers(o.Held, o.Owner)
		if f >= ownHolds {
			calls = sure
		}
		for _, blocker := range calls {
			steps = append(steps, Step{blocker, o.Held})
		}
	}
	return steps
}

// cycle finds a cycle that a call is in. It begins with the call itself.
func (g *Graph) cycle(start *Call, f filter) []Step {
	seen := map[*Call]bool{}
	var found []Step
	var search func(c *Call) bool
	search = func(c *Call) bool {
		for _, s := range g.next(c, f) {
			if seen[s.Call] {
				continue
			}
			seen[s.Call] = true
			found = append(found, s)
			if s.Call == start || search(s.Call) {
				return true
			}
			found = found[:len(found)-1]
		}
		return false
	}
	if !search(start) || !g.stands(found, f) {
		return nil
	}
	last := len(found) - 1
	return slices.Concat(found[last:], found[:last])
}

// stands tells whether each edge of a cycle is there still.
func (g *Graph) stands(cycle []Step, f filter) bool {
	before := cycle[len(cycle)-1].Call
	for _, s := range cycle {
		if !slices.Contains(g.next(before, f), s) {
			return false
		}
		before = s.Call
	}
	return true
}

// judge is for a call that may close a cycle.
func (g *Graph) judge(c *Call) error {
	g.closing.Lock()
	defer g.closing.Unlock()
	c.known.Store(true)
	// The strictest search is the last one: another call may close a cycle between two of them, and it must not be taken for one
	// that may end.
	suspects := g.cycle(c, anyEdge)
	own := g.cycle(c, ownHolds)
	if found := g.cycle(c, endless); found != nil {
		err := report(found)
		if c.Lock.Tolerant() {
			return nil
		}
		g.Leave(c) // it has no second look yet, whose end would need the mutex
		return err
	}
	switch {
	case own != nil:
		_ = report(own)
	case suspects != nil:
		c.look = &look{suspects: suspects}
		c.look.timer = time.AfterFunc(SecondLook, func() { g.lookAgain(c) })
	}
	return nil
}

// lookAgain reports a cycle that has not ended meanwhile.
func (g *Graph) lookAgain(c *Call) {
	g.closing.Lock()
	defer g.closing.Unlock()
	l := c.look
	switch {
	case l.over:
	case g.stands(l.suspects, anyEdge):
		_ = report(l.suspects)
	default:
		if l.suspects = g.cycle(c, anyEdge); l.suspects != nil {
			l.timer.Reset(SecondLook)
		}
	}
}

// report tells the lock of the first call in a cycle. The caller holds Graph.closing.
func report(cycle []Step) error {
	first := false
	for _, s := range cycle {
		first = s.Call.tell() || first
	}
	return cycle[0].Call.Lock.Report(cycle, first)
}

// tell notes that a call is in a cycle that is reported. It is false when it was before. The caller holds Graph.closing.
func (c *Call) tell() (first bool) {
	first, c.told = !c.told, true
	return first
}

// Untold tells whether one of some calls is in no cycle that was reported.
func (g *Graph) Untold(calls []*Call) bool {
	g.closing.Lock()
	defer g.closing.Unlock()
	return slices.ContainsFunc(calls, func(c *Call) bool { return !c.told })
}

// Tell notes that a cycle is reported that some calls are in. It is false when each of them was in one before.
func (g *Graph) Tell(calls []*Call) (first bool) {
	g.closing.Lock()
	defer g.closing.Unlock()
	for _, c := range calls {
		first = c.tell() || first
	}
	return first
}
