package lockregistry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/background"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/connect"
	"github.com/lockregistry/lockregistry/internal/dispatch"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/health"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/permits"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/internal/sentinel"
	"github.com/lockregistry/lockregistry/internal/tenure"
	"github.com/lockregistry/lockregistry/internal/transport"
	"github.com/lockregistry/lockregistry/observe"
)

// Registry hands out the locks of one prefix. It is safe for use by many goroutines. Services that must exclude each other use
// the same prefix on the same Redis database, each with its own registry.
type Registry struct {
	names
	config
	kinds
	client    rueidis.Client
	transport *onClient

	cache      lockCache
	permits    *permits.Calls[*Lock]
	waiters    *local.Pool
	queues     queue.Shared
	background *background.Work
	reader     readonly.Reader // of what there is in Redis
	record     *ownRecord
	reports    reports

	ending
}

// names are the names of a registry and its holds.
type names struct {
	prefix   string
	clientID string
	numbers  protocol.Numbers
}

// now returns the instant by the clock that all parts share.
func (r *Registry) now() clock.Instant { return r.transport.Clock.Now() }

// config is what the options of a registry have set.
type config struct {
	lease   *lease.Term // of calls that name none
	readers *lease.Term // likewise, of readers
	renewal bool        // see WithRenewal
	handoff time.Duration
	layout  *layout
}

// kinds are the kinds of locks: plain locks, the two sides of read-write locks, and semaphores.
type kinds struct {
	plain, read, write *queue.Kind
	permit             *queue.Kind // for removals, and for what all calls of a semaphore share

	formats protocol.Config
}

// reports are the ways in which users learn of events, besides the results of calls.
type reports struct {
	dispatch dispatch.Queue
	observer observe.Observer
	handoffs atomic.Uint64
}

// New makes a registry on your client, whose locks are the keys "prefix:path" on that client's server. [Open] makes a registry
// with a client of its own.
//
// New does not talk to Redis. The client stays yours: close the registry first, then the client. Set DisableCache in the client's
// options, since [rueidis.ParseURL] leaves it unset: this package does not use the client's cache, and its calls wait on a
// connection of their own. Leave unset what is bad input for [WithClientOption].
//
// # Sentinel
//
// With Sentinel, use Open, or pass the client's options to [WithSentinels]. Otherwise two owners may have the lock at once:
//
//  1. A master is frozen, and the Sentinels depose it.
//  2. The old master resumes before this client has switched to the new master.
//  3. A lock taken in between exists only on the old master.
//
// In tests the client switched 0.04 to 1.8 s after the promotion. It may take as long as failover-timeout if a replica does not
// follow the new master and the client listens to the Sentinel that leads the failover.
//
// # Errors
//
// New fails when client is nil, prefix is empty, or an option is nil or out of bounds. The error lists everything that is wrong.
func New(client rueidis.Client, prefix string, opts ...Option) (*Registry, error) {
	s, err := settingsOf(opts)
	if client == nil {
		err = fault.Join(err, errors.New("the client is nil"))
	}
	if len(s.changes) > 0 {
		err = fault.Join(err, errors.New("WithClientOption: it is for Open only"))
	}
	if client != nil && s.sentinels != nil && client.Mode() != rueidis.ClientModeSentinel {
		err = fault.Join(err, errors.New("WithSentinels: the client is not for Sentinel"))
	}
	if err = fault.Join(err, s.check(prefix)); err != nil {
		return nil, fmt.Errorf("lockregistry: new: %w", err)
	}
	r := newRegistry(client, prefix, &s)
	if o := s.sentinels; o != nil {
		r.transport.Watch(sentinel.New(connect.Sentinels(o), o.Sentinel.MasterSet), r.reports.dispatch.Log)
	}
	return r, nil
}

func newRegistry(client rueidis.Client, prefix string, s *settings) *Registry {
	r := &Registry{
		config: s.config,
		queues: queue.Shared{Settings: queue.Settings{
			Cluster: client.Mode() == rueidis.ClientModeCluster, Limit: s.commandLimit(), DefaultLimit: s.limit == nil,
			Poll: s.poll, Replicas: s.replicas,
		}},
		client:  client,
		waiters: &local.Pool{},
		ending:  ending{closed: make(chan struct{})},
	}
	r.transport, r.last = clients.Join(client, func() *onClient { return &onClient{Client: transport.New(client)} })
	r.lease = lease.NewTerm(s.leaseLength())
	r.readers = r.lease
	if s.expiry == nil { // see ReadWriteLock
		r.readers = lease.NewTerm(redissonLayout.lease)
	}
	r.cache.init(defaultCapacity)
	r.prefix, r.clientID = prefix, uuid.NewString()
	r.queues.Prefix, r.queues.Values = prefix, r.clientID+":"
	if s.clientID != nil { // the UUID stays: two processes with one id must not mistake each other's holds for their own
		r.clientID, r.queues.Values = *s.clientID, *s.clientID+":"+r.queues.Values
	}
	if handler := s.log.Handler(); handler != slog.DiscardHandler {
		r.reports.dispatch.Handler = handler
	}
	if s.observer != nil {
		r.reports.observer = *s.observer
	}
	if replicas := r.queues.Replicas; replicas != nil {
		replicas.Settled = health.NewShortage(r.transport.Clock, r.reports.dispatch.Log)
	}
	r.background = background.New(client, r.transport.Client, background.Tells{
		Verify: r.verifyHolds, Renewing: r.tellRenewing, Log: r.reports.dispatch.Log,
	})
	r.makeKinds(s)
	r.permits = r.semaphores()
	r.keepRecord(s.name)
	q := &r.queues
	q.Transport, q.Closed = r.transport.Client, r.closed
	q.Cleaner, q.Lease = r.background.Cleaner, r.lease.Length
	q.Draining.Begins = r.drain.Init(r.holdersNow)
	q.Draining.GoesOn = func(ctx context.Context) bool { return !r.turnsAway(tenure.CarriedBy(ctx).Carried) }
	r.listen(s.wakeup, s.log)
	return r
}

// layout is the format of plain locks.
type layout struct {
	name     observe.Layout
	format   func(protocol.Config) *protocol.Format
	lease    time.Duration // of calls that name none
	watchdog bool          // such a lease is renewed, as by Redisson's watchdog
}

var (
	springLayout   = &layout{observe.LayoutSpring, protocol.NewSpring, defaultExpiry, false}
	redissonLayout = &layout{observe.LayoutRedisson, protocol.NewRedisson, 30 * time.Second, true}
)

func (r *Registry) makeKinds(s *settings) {
	r.formats = protocol.Config{
		Prefix: r.prefix, Cluster: r.queues.Cluster, Publishes: s.wakeup.publishes(), OldChannel: s.oldChannel, Fencing: s.fencing,
		Beside: protocol.NewBeside(r.transport.Clock),
		Remove: func() string { return r.transport.removal(r.transport.Client, &r.reports.dispatch) },
	}
	env := &hold.Env{
		Clock: r.transport.Clock, Server: r.transport.Client, Schedule: r.background.Holds, NumberAt: len(r.queues.Values),
		Demand:      func(c *protocol.Call) { c.Replicas, c.Wrote = r.queues.Replicas, queue.Renews },
		Log:         r.reports.dispatch.Log,
		Unreachable: r.background.Orphans.Orphan,
	}
	r.plain = r.queues.Kind(hold.Kind{Format: r.layout.format(r.formats), Env: env}, "")
	r.read = r.queues.Kind(hold.Kind{Format: protocol.NewRead(r.formats), Shared: true, Env: env}, queue.Reads)
	r.write = r.queues.Kind(hold.Kind{Format: protocol.NewWrite(r.formats), Env: env}, queue.Writes)
	r.permit = r.permitsOf(1, 1)
}

// begin initializes a lock for a key. Anchor is as in Lock.anchor.
func (l *Lock) begin(r *Registry, k *queue.Kind, key string, anchor *Lock) {
	l.reg = r
	l.redis.Init(k, key, (*forHold)(l), (*forQueue)(l), &anchor.redis)
	l.entry().Use(r.now())
}

// Obtain returns the lock of a path. It never returns nil, never fails and never talks to Redis: the lock's methods report what
// is wrong, such as an empty path.
//
// Calls with the same path return the same lock while the registry caches it. A lock that the registry has dropped keeps working.
func (r *Registry) Obtain(path string) *Lock {
	l, ok := r.cache.find(path)
	if !ok {
		return r.cache.Put(r.newLock(path))
	}
	r.cache.Touch(l.entry())
	return l
}

// ReadWrite returns the read-write lock of a path. Like [Registry.Obtain], it never returns nil, never fails, and never talks to
// Redis.
//
// The format is that of Redisson's RReadWriteLock, whatever the layout of the registry's plain locks. The plain lock of the path
// would use the same key, so use only one of the two for a path: while one is held, the other returns [ErrWrongType]. A
// read-write lock counts as one lock for the registry's capacity.
func (r *Registry) ReadWrite(path string) *ReadWriteLock {
	l, ok := r.cache.findReadWrite(path)
	if !ok {
		return r.cache.Put(&r.newReadWrite(path).writer).pair
	}
	r.cache.Touch(l.entry())
	return l.pair
}

// Renew sets the lease of the hold on the plain lock of path, whichever owner of this process has it: from now on the hold is
// valid for lease, in whole milliseconds, at least two. Any goroutine may call it, like Spring's renewLock; [Lock.Renew] is only
// for the owner.
//
// Otherwise it works like Lock.Renew, with the same limits, including [AtMost], and the same errors. [ErrNotOwner] means that no
// owner of this process holds the lock, or that the owner has unlocked it while Renew waited for the reply. Renew does not apply
// to the path's read-write lock or semaphore.
func (r *Registry) Renew(ctx context.Context, path string, lease time.Duration) error {
	l, ok := r.cache.find(path)
	if !ok {
		l = r.newLock(path)
	}
	if err := l.check(ctx); err != nil {
		return l.fail("renew", err)
	}
	return l.renew(ctx, hold.Part{Hold: l.hold.Load()}, lease)
}

// ExpireUnusedOlderThan drops the lock objects that are not in use and were last locked at least age ago. For a lock object that
// was never locked, the time when it was made counts. If age is not positive, it drops every object that is not in use. It
// returns how many it dropped. Spring has the same method.
//
// This only frees memory: nothing changes in Redis, and a dropped lock keeps working. But it forgets which owners have lost it
// and have yet to unlock, see [Lock.Unlock]. ExpireUnusedOlderThan does not block other calls, even with millions of locks.
func (r *Registry) ExpireUnusedOlderThan(age time.Duration) int {
	return r.cache.DropUnused(r.now().Add(-max(age, 0)))
}

// SetCapacity sets how many lock objects the registry keeps, at least one. When there are more, the registry drops the unused
// ones that were obtained least recently. Default: 100 000, like Spring's cacheCapacity.
//
// Locks that are held or waited for are never dropped. If more than n are in use, a call on a new lock returns [ErrCapacity];
// [Registry.Obtain] never fails. SetCapacity returns an error when n is not positive.
func (r *Registry) SetCapacity(n int) error {
	if n <= 0 {
		return fmt.Errorf("lockregistry: SetCapacity(%d): the capacity must be positive", n)
	}
	r.cache.Resize(n)
	return nil
}

func newPlain() *Lock {
	l := &plainLock{}
	l.plain = l
	return &l.Lock
}

func (r *Registry) newLock(path string) *Lock {
	l := newPlain()
	l.begin(r, r.plain, r.prefix+":"+path, l)
	return l
}

// String returns the registry's prefix and client id. Like all String methods of this package, it is for logs and debuggers: none
// of them blocks or reports a loss.
func (r *Registry) String() string {
	return "Registry(" + r.prefix + ", client id " + r.clientID + ")"
}
