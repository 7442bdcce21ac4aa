package queue

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/cleanup"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Path is a lock's key in Redis, for the calls that obtain it: one at a time, which has the local half. The two sides of a
// read-write lock are two paths of one key, and each call of a semaphore has one; what others want concerns all of them, and is
// kept at the anchor.
type Path struct {
	hold.Path
	*Side
	local  Local
	anchor *Path // the writer's, that of a semaphore, or this one

	others atomic.Pointer[contention] // nil until others wait for it; the anchor's
	active atomic.Pointer[activeWait] // of the goroutine that asks Redis, once its first try takes a while or failed; see whole
	last   atomic.Uint64              // the number of the newest hold whose key was removed, as far as that is known
	lastAt atomic.Int64               // and when: an instant
}

// Side is what the paths of a registry share that are plain locks, readers or writers.
type Side struct {
	all  *Shared
	side string // r for readers, w for writers, p and a number for permits, in tickets; empty for plain locks
	many bool   // it is for permits

	// Found is told that a semaphore has another number of permits than a call has named.
	Found func(number int)
}

// Side is one of the registry's.
func (all *Shared) Side(side string) *Side {
	return &Side{all: all, side: side, many: strings.HasPrefix(side, "p")}
}

// Many tells whether the path is one call's, of many that may have the key at a time.
func (s *Side) Many() bool { return s.many }

// Local is the local half of a path's lock.
type Local interface { //nolint:interfacebloat // what the two halves of a lock know of each other
	// NewHold makes a hold on these terms, which nobody has yet.
	NewHold(t hold.Terms) *hold.Hold

	// Hold is the hold that the lock has, nil when it has none.
	Hold() *hold.Hold

	// Won gives the lock a hold, which is live. Its owner may use it since then.
	Won(h *hold.Hold, since clock.Instant)

	// Free frees the local half, for a call that has not got the lock.
	Free()

	// Taken tells other calls, which only want to know it, that another owner has the lock.
	Taken()

	// Contended tells whether goroutines of this process wait.
	Contended() bool

	// Under is the value of the hold with which the owner that wants to read writes already; empty when it does not.
	Under() string

	// Block puts a call that waits for another process into the graph of those that wait, and EndWait takes it out.
	Block(ctx context.Context, call *deadlock.Call, w Waiting)
	EndWait(call *deadlock.Call)

	// Abandoned is what a hold may have left, and Unclaimed what one has left that was granted to nobody.
	Abandoned(h *hold.Hold) cleanup.Removal
	Unclaimed(number string) cleanup.Removal
}

// Shared is what the paths of a registry share.
type Shared struct {
	Settings
	Prefix    string
	Values    string // what the values of all holds of the registry begin with
	Clock     clock.Clock
	Transport *transport.Client
	Waker     *Waker
	Closed    <-chan struct{}
	Draining  Draining
	CleanUp   func(cleanup.Removal) // removes what a call has left
	Expedite  func(cleanup.Removal) // the same, soon
	Behind    *Behind               // nil: each release waits for its removal

	spares sync.Pool // of *spare
	Counts
	refusals
}

// Counts are of what happened to those who wait.
type Counts struct {
	Grants  atomic.Uint64 // holds that another process has granted
	Polls   atomic.Uint64 // tries because the time for one had come
	Windows atomic.Uint64 // waiters told that a free key is left to those without a ticket
}

// refusals are what was logged of queues that the server refuses.
type refusals struct {
	unqueued  atomic.Bool  // it was logged that the server refuses a queue
	postponed atomic.Int64 // an instant: not before then it is logged again that it does so for now
}

// Draining is that calls end which wait, but for some.
type Draining struct {
	Begins <-chan struct{}
	// GoesOn tells whether a call does. The goroutine of the call asks.
	GoesOn func(ctx context.Context) bool
}

// Shard is the way to the master that has the key.
func (p *Path) Shard() *transport.Shard { return p.all.Transport.Shard(p.Key) }

// Init makes the path that of a lock; anchor is the path of the writer for both sides of a read-write lock, and one for all calls
// of a semaphore.
func (p *Path) Init(of hold.Path, side *Side, local Local, anchor *Path) {
	p.Path, p.Side, p.local, p.anchor = of, side, local, anchor
}

// whole is the path that stands for a lock, of which one goroutine at a time asks Redis: for a read-write lock the writer's.
func (p *Path) whole() *Path {
	if p.many {
		return p
	}
	return p.anchor
}

// Waits tells whether a call waits for another process, whether it has a ticket, and since when it waits.
func (p *Path) Waits() (waits, queued bool, since clock.Instant) {
	w := p.active.Load()
	if w == nil || !w.call {
		return false, false, 0
	}
	return true, w.queued.Load(), w.begun
}

// WaitsToLead reports whether the call that waits for another process is a leader's to be.
func (p *Path) WaitsToLead() bool {
	w := p.active.Load()
	return w != nil && w.call && w.leads
}

// Unavailable notes that Redis cannot be asked whether anybody has the lock, and why, until over is called.
func (p *Path) Unavailable(why error) (over func()) {
	noted := &activeWait{}
	noted.note(why)
	p.whole().active.CompareAndSwap(nil, noted)
	return func() { p.whole().active.CompareAndSwap(noted, nil) }
}

// NumberIn is the number in the value of a hold of the registry; 0 where there is none, since a message has named it.
func (all *Shared) NumberIn(value string) uint64 {
	n, err := strconv.ParseUint(value[len(all.Values):], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Stopped is why a call must stop waiting: its context or the registry ended. It is nil when neither did.
func (all *Shared) Stopped(ctx context.Context) error {
	if ctx.Err() != nil {
		return fault.Ended(ctx)
	}
	select {
	case <-all.Closed:
		return fault.Closed
	default:
		return nil
	}
}

// Request is what a call asks for, with the local half held.
type Request struct {
	Waiting
	Terms    hold.Terms
	Wait     time.Duration // 0: not at all; negative: until the context ends
	Deadline clock.Instant // the last moment to begin a try, but for the first
	Queued   bool          // the call has waited in this process before
	FailFast bool          // it ends when Redis cannot be asked, although its wait is not over

	// How it went, once the call has the hold.
	How   Outcome
	Woken Woken
}

// Waiting is what the graph of waiting calls is told of one.
type Waiting struct {
	As    owner.ID      // nobody: the caller
	Ends  bool          // it gives up after a while
	Since clock.Instant // when it began to wait for anybody; 0: it has not
}

// Outcome is how a call has got a hold.
type Outcome uint8

// The ways to get one.
const (
	Free         Outcome = iota // nobody had the lock
	Granted                     // another process has granted it
	FoundFree                   // the call waited, and found the lock free
	FoundExpired                // the call waited until the lease of the hold before was over
)

// Woken counts what has woken a call.
type Woken struct{ Messages, Changes, Polls uint64 }

// The sides of a read-write lock, as tickets have them. See also [Permits].
const (
	Reads  = "r"
	Writes = "w"
)

// Permits is the side of a hold of so many permits of a semaphore.
func Permits(n int) string { return "p" + strconv.Itoa(n) }
