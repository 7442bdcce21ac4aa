package queue

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/cleanup"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
	"github.com/lockregistry/lockregistry/internal/wake"
	"github.com/lockregistry/lockregistry/observe"
)

// Path is a lock's key in Redis, for the calls that obtain or release it: one at a time, the one that has the local half. The
// two sides of a read-write lock are two paths of one key, and each call of a semaphore has its own path. What is known of
// other processes concerns all paths of a key, and is kept at the anchor.
type Path struct {
	hold.Path
	*Kind
	lock   Lock
	anchor *Path // the writer's path, the semaphore's, or this one

	others atomic.Pointer[contention] // nil until others wait for the key; only at the anchor, except for expected
	active atomic.Pointer[activeWait] // of the goroutine that asks Redis, once its first try takes long or has failed; see whole
	last   atomic.Uint64              // the number of the newest hold whose removal is confirmed
	lastAt atomic.Int64               // an instant: when that was
}

// Kind is what a registry's paths of one kind share: of plain locks, readers, writers, or permits.
type Kind struct {
	Holds hold.Kind

	all  *Shared
	side string // r for readers, w for writers, p and a number for permits, in tickets; empty for plain locks

	// Found is called when a semaphore in Redis has another number of permits than a call named.
	Found func(number int)
}

// The sides of a read-write lock, as tickets name them. See also [Shared.Permits].
const (
	Reads  = "r"
	Writes = "w"
)

// Kind makes what the paths of one kind of lock share; side is empty for plain locks, else [Reads] or [Writes].
func (all *Shared) Kind(holds hold.Kind, side string) *Kind {
	return &Kind{Holds: holds, all: all, side: side}
}

// Permits makes what the paths of a semaphore share, for holds of n permits.
func (all *Shared) Permits(holds hold.Kind, n int) *Kind { return all.Kind(holds, "p"+strconv.Itoa(n)) }

// isSide reports whether a path is a side of a read-write lock.
func (k *Kind) isSide() bool { return k.side == Reads || k.side == Writes }

// Lock is the lock above a path: its local half, its hold, and what else a call tells it.
type Lock interface {
	// NewHold makes a hold on these terms, to be asked for.
	NewHold(t hold.Terms) *hold.Hold

	// Hold returns the lock's hold; nil if it has none.
	Hold() *hold.Hold

	// Won gives the lock its hold, which is live. Its owner may use it from since on.
	Won(h *hold.Hold, since clock.Instant)

	// Free frees the local half: the call did not get the lock, or its hold is over.
	Free()

	// Taken tells calls that wait only for this reply that another owner has the lock.
	Taken()

	// Contended reports whether goroutines of this process wait.
	Contended() bool

	// Under returns the value of the writer's hold, if the owner that wants to read has it; otherwise the empty string.
	Under() string

	// Block adds a call that waits for another process to the graph of waiting calls, and EndWait removes it.
	Block(ctx context.Context, call *deadlock.Call, w Waiting)
	EndWait(call *deadlock.Call)
}

// Node returns the node of the key.
func (p *Path) Node() *transport.Node { return p.all.Transport.Node(p.Key) }

// Init initializes the path of a lock. For both sides of a read-write lock anchor is the writer's path; all calls of a
// semaphore have the same anchor.
func (p *Path) Init(kind *Kind, key string, above hold.Above, lock Lock, anchor *Path) {
	p.Path = hold.Path{Kind: &kind.Holds, Key: key, Above: above}
	p.Kind, p.lock, p.anchor = kind, lock, anchor
}

// whole returns the path for which one goroutine at a time asks Redis: for both sides of a read-write lock the writer's. Each
// call of a semaphore has its own.
func (p *Path) whole() *Path {
	if p.Format.Many() {
		return p
	}
	return p.anchor
}

// Waits returns when a call began to wait for another process; 0 if none waits. Queued: it has a ticket. Leads: it is a candidate
// of package leader.
func (p *Path) Waits() (since clock.Instant, queued, leads bool) {
	w := p.active.Load()
	if w == nil || w.waitsSince == 0 {
		return 0, false, false
	}
	return w.waitsSince, w.queued.Load(), w.leads
}

// Request is what a call that has the local half asks for.
type Request struct {
	Waiting
	Terms    hold.Terms
	Wait     time.Duration // 0: not at all; negative: until the context ends
	Deadline clock.Instant // the last moment to begin a try, except the first
	Queued   bool          // the call has waited in this process before
	FailFast bool          // the call ends when Redis cannot be asked, although its wait is not over

	// How the call got the hold, and what woke it.
	How   observe.How // the caller sets HowFree, which a first try leaves as it is
	Woken observe.Wakeups
}

// Waiting is what the graph of waiting calls needs to know about a call.
type Waiting struct {
	By    owner.ID
	Holds deadlock.Holds // that its context carries; nil: none
	Ends  bool           // the call gives up at some point
	Since clock.Instant  // when the call began to wait; 0: it has not
}

// Shared is what all paths of a registry share.
type Shared struct {
	Settings
	Prefix    string
	Values    string // the prefix of the values of the registry's holds
	Transport *transport.Client
	Listening *wake.Listener // nil when calls only poll
	Own       string         // the channel for grants to this registry, except on a cluster
	Closed    <-chan struct{}
	Draining  Draining
	Cleaner   *cleanup.Cleaner
	Lease     time.Duration // of holds, unless a call names another

	kits   sync.Pool // of *waitKit
	freed  freed
	proofs proofs
	Counts
	refusals
}

// Counts are figures about waiting calls.
type Counts struct {
	Grants  atomic.Uint64 // messages that made a call the owner
	Polls   atomic.Uint64 // tries that were made only because it was time
	Windows atomic.Uint64 // how often a waiter left a free key to calls without a ticket
}

// refusals is what servers, or proxies in front of them, refuse.
type refusals struct {
	Apart protocol.Apart // whether a proxy keeps paths on several servers: one script cannot obtain them

	unqueued  atomic.Bool  // a refusal for good was logged
	postponed atomic.Int64 // an instant: until then a refusal for now is not logged again
}

// Draining ends waiting calls when the registry shuts down, except those that may go on.
type Draining struct {
	Begins <-chan struct{}
	// GoesOn reports whether a call may go on. The call's goroutine calls it.
	GoesOn func(ctx context.Context) bool
}

// numberIn returns the number in the value of a hold of the registry; 0 if there is none, since the value may come from a
// message.
func (all *Shared) numberIn(value string) uint64 {
	n, err := strconv.ParseUint(value[len(all.Values):], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Stopped returns why a call must stop waiting: its context has ended, or the registry is closed. It returns nil if neither is
// true.
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

// Settings are the settings of a registry's calls.
type Settings struct {
	Cluster      bool               // the client is a cluster's
	Limit        time.Duration      // of a command
	DefaultLimit bool               // Limit is the default, to which two round trips are added
	Poll         time.Duration      // the poll interval
	Replicas     *protocol.Replicas // that must acknowledge holds, see WithReplicas; nil: holds count at once
}

// CommandWait returns how long a command of the registry waits for its reply.
func (s *Settings) CommandWait(ctx context.Context, l *transport.Node) transport.Wait {
	if s.DefaultLimit {
		return transport.Wait{Ctx: ctx, Limit: l.Plus(s.Limit), Near: s.Limit}
	}
	return transport.Wait{Ctx: ctx, Limit: s.Limit}
}

// grants reports whether a reply is a grant, which replicas must acknowledge.
func grants(c *protocol.Call, result rueidis.RedisResult) bool {
	s, err := c.Decode(result)
	return err == nil && s.Granted
}

// Renews is grants for a renewal.
func Renews(_ *protocol.Call, result rueidis.RedisResult) bool {
	n, err := result.AsInt64()
	return err == nil && n > 0
}

// acknowledging returns how long a renewal may wait for replicas.
func (s *Settings) acknowledging() time.Duration {
	if s.Replicas == nil {
		return 0
	}
	return clock.Plus(s.Replicas.Timeout, transport.WaitAtMost)
}

// ownChannel returns the channel on which scripts on a cluster publish messages for a registry about a key. It is in the key's
// slot, and begins with the prefix, as access lists expect. If the key's hash tag begins within the prefix, only a channel that
// begins with the whole key does both. See internal/protocol/lua/queue.lua.
func ownChannel(prefix, key, registry string) string {
	if _, tag, begins := strings.Cut(prefix, "{"); begins && !strings.Contains(tag, "}") {
		return key + "-channel@" + registry
	}
	return prefix + "-channel@{" + protocol.HashTag(key) + "}" + registry
}
