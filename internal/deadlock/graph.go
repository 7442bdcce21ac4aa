// Package deadlock has the graph of the calls of a process that wait for locks, and finds its cycles. It knows locks as a [Lock],
// and contexts as [Holds].
//
// What comes in: a [Call], when it begins to wait and when it stops. What goes out: the error of a call that closes an endless
// cycle, and for package detector the calls that keep an owner from unlocking.
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

// Graph has the waiting calls of all registries of a process, and finds cycles among them. A call is in it only while it waits,
// so a free lock costs nothing.
//
// The edges are not stored. They follow from the locks. A call waits for its obstacles in the lock's queue. An obstacle is an
// owner, which cannot unlock while one of its own calls waits. A call enters the graph before it looks at its obstacles. So the
// last call of a cycle that enters sees all others.
//
// Two looks at each edge, one after the other, prove that a cycle existed in between: a call that was in its queue both times was
// there all the time, and the owner that it blocks neither locked nor unlocked meanwhile. If all holds in the cycle belong to
// goroutines, the cycle never ends by itself: each goroutine waits, and no other unlocks for it. Only a cancelled context, the
// end of a lease, ForceUnlock, and Close may end it.
type Graph struct {
	shards shards

	// closing is held by a call, or a second look, while it judges cycles: a refused call has left the graph before the next one
	// judges. The mutexes of shards and locks may be taken while it is held, one at a time.
	closing sync.Mutex
}

// Lock is a lock as seen by the graph. Its methods are called without the mutex of a shard.
type Lock interface {
	// Obstacles returns what a call in the lock's local queue waits for; nothing when its turn has come.
	Obstacles(c *Call) Obstacles
	// Stands reports whether the lock is held, with a lease that is not over.
	Stands() bool
	// Taker returns the goroutine that took the lock for an owner that is a Hold; [owner.Nobody] when it is not known.
	Taker(o owner.ID) owner.ID
	// Delegated reports whether another goroutine may unlock for an owner.
	Delegated(o owner.ID) bool
	// Ends reports whether a call for the lock is about to end, because its registry is closed, or shuts down.
	Ends(c *Call) bool
	// Report returns the error for a cycle whose first call is for the lock, and reports the cycle if first. First is false when
	// all its calls were in cycles that have been reported: calls that enter the graph at the same time may all find the cycle.
	// The mutex of the graph is held.
	Report(cycle []Step, first bool) error
}

// Obstacle is what a call in a local queue waits for: an owner that has a lock, or a writer in front of a reader.
type Obstacle struct {
	Owner owner.ID
	Held  Lock  // the lock that the owner has
	Ahead *Call // the writer's call; it may not be in the graph yet, so only its Place may be read
}

// Obstacles are a few obstacles. It is a value, so that the usual ones need no allocation: each call asks for them when it
// begins to wait.
type Obstacles struct {
	few  [4]Obstacle
	more []Obstacle // from the fifth on
	size int
}

// Add adds an obstacle.
func (o *Obstacles) Add(one Obstacle) {
	if o.size < len(o.few) {
		o.few[o.size] = one
	} else {
		o.more = append(o.more, one)
	}
	o.size++
}

// Len returns the number of obstacles.
func (o *Obstacles) Len() int { return o.size }

// all iterates over the obstacles.
func (o *Obstacles) all() iter.Seq[Obstacle] {
	return func(yield func(Obstacle) bool) {
		for _, one := range o.few[:min(o.size, len(o.few))] {
			if !yield(one) {
				return
			}
		}
		for _, one := range o.more {
			if !yield(one) {
				return
			}
		}
	}
}

// Holds are the holds that the context of a call carries.
type Holds interface {
	// Owners returns the owners of the holds that last.
	Owners() []owner.ID
	// Within reports whether one of them is an owner's hold on a lock, and lasts.
	Within(l Lock, o owner.ID) bool
}

// Call is a waiting call. The exported fields are set before it enters the graph, and do not change.
type Call struct {
	Lock      Lock
	Place     any             // in the local queue of the lock; nil when the call has the local half and waits for Redis
	Goroutine owner.ID        // the blocked goroutine
	Owner     owner.ID        // the owner that the call locks for
	Holds     Holds           // nil when there are none
	Done      <-chan struct{} // closed when the call is about to end
	Ends      bool            // the call ends by itself: it has a deadline
	Since     clock.Instant   // when the call began to wait

	self waitLink
	more []waitLink // links of other owners that it may block

	look     *look // nil until a cycle is found that others may end; Graph.closing guards its content
	reported bool  // it is in a cycle that was reported; Graph.closing guards it

	recorded atomic.Bool // published, see Graph.Record
	known    atomic.Bool // another goroutine may look at it although it has left the graph
}

// look is a second look at a cycle that others may end.
type look struct {
	suspects []Step
	timer    *time.Timer
	over     bool // the call has left the graph
}

// Step is an edge of a cycle: a call, and the lock that the previous call waits for, if its owner is blocked by this call.
type Step struct {
	Call *Call
	Held Lock // nil: the call is a writer in front of the previous one
}

// SecondLook is how long a cycle must last before it is reported if other goroutines may end it: when a hold in it is a Hold,
// or belongs to a ContextWithOwner.
const SecondLook = 500 * time.Millisecond

// Known reports whether another goroutine may look at a call although it has left the graph.
func (c *Call) Known() bool { return c.known.Load() }

// Caller names the waiting goroutine and owner, for people.
func (c *Call) Caller() string {
	who := fmt.Sprintf("goroutine %d", uint64(c.Goroutine))
	if c.Owner.Shared() {
		who += fmt.Sprintf(" as owner %d", c.Owner.Number())
	}
	return who
}

// Enter adds a call to the graph. If the call closes an endless cycle, Enter removes it again and fails.
func (g *Graph) Enter(c *Call) error {
	c.self = waitLink{call: c, key: c.Goroutine}
	g.shards.link(&c.self)
	c.more = c.others()
	for i := range c.more { // links must not move from here on
		g.shards.link(&c.more[i])
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

// others returns links for the owners that the call may block, besides its goroutine.
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

// Leave removes a call from the graph. It reports whether the call was published, see Record.
func (g *Graph) Leave(c *Call) (recorded bool) {
	g.shards.unlink(&c.self)
	for i := range c.more {
		g.shards.unlink(&c.more[i])
	}
	if c.look != nil { // only Enter sets it
		g.closing.Lock()
		c.look.over = true
		c.look.timer.Stop()
		g.closing.Unlock()
	}
	return c.recorded.Load()
}

// Record notes that a call is published, so that Leave reports true. It reports false if the call has left, perhaps without
// having seen the note.
func (g *Graph) Record(c *Call) (waits bool) {
	c.recorded.Store(true)
	return g.has(c)
}

// any reports whether there are calls with a key, except calls for l by its holder: they have just been given the lock and are
// about to leave the graph.
func (g *Graph) any(key owner.ID, l Lock, holder owner.ID) bool {
	s, _ := g.shards.at(key)
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
	s, _ := g.shards.at(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.of(key) {
		l.call.known.Store(true)
		calls = append(calls, l.call)
	}
	return calls
}

func (g *Graph) has(c *Call) bool {
	s, _ := g.shards.at(c.Goroutine)
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.self.linked
}

// blocks reports whether an obstacle of a call for l may itself wait for another lock.
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

// Blockers returns the calls that may keep an owner from unlocking a lock, and the calls that surely do.
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

// filter says which edges count for a cycle.
type filter uint8

const (
	anyEdge  filter = iota
	ownHolds        // only edges of holds that only a waiting goroutine can end
	endless         // of these, only edges of calls that never end by themselves and have no shared owner
)

// stops reports whether the call is about to end without the lock, even if its goroutine has not noticed yet.
func (c *Call) stops() bool {
	select {
	case <-c.Done:
		return true
	default:
		return c.Lock.Ends(c)
	}
}

// next returns the calls that block what c waits for.
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
			continue // its hold is about to end
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

// cycle returns a cycle that contains start, beginning with start.
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

// stands reports whether each edge of a cycle still exists.
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

// judge decides about a call that may close a cycle.
func (g *Graph) judge(c *Call) error {
	g.closing.Lock()
	defer g.closing.Unlock()
	c.known.Store(true)
	// The strictest search comes last: another call may close an endless cycle between two searches, which must not count as one
	// that may end.
	suspects := g.cycle(c, anyEdge)
	own := g.cycle(c, ownHolds)
	if found := g.cycle(c, endless); found != nil {
		err := report(found)
		g.Leave(c) // it has no second look yet, which Leave would end with the mutex
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

// lookAgain reports a cycle if it still exists.
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

// report calls Report of the first call's lock. The caller holds Graph.closing.
func report(cycle []Step) error {
	first := false
	for _, s := range cycle {
		first = s.Call.tell() || first
	}
	return cycle[0].Call.Lock.Report(cycle, first)
}

// tell notes that a call is in a reported cycle. It reports false if that was noted before. The caller holds Graph.closing.
func (c *Call) tell() (first bool) {
	first, c.reported = !c.reported, true
	return first
}

// Unreported reports whether one of the calls is in no reported cycle.
func (g *Graph) Unreported(calls []*Call) bool {
	g.closing.Lock()
	defer g.closing.Unlock()
	return slices.ContainsFunc(calls, func(c *Call) bool { return !c.reported })
}

// Tell notes that the calls are in a reported cycle. It reports false if that was noted for each of them before.
func (g *Graph) Tell(calls []*Call) (first bool) {
	g.closing.Lock()
	defer g.closing.Unlock()
	for _, c := range calls {
		first = c.tell() || first
	}
	return first
}
