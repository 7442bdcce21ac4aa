package lockregistry

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/observe"
)

// The defaults are Spring's.
const (
	defaultExpiry   = 60 * time.Second
	defaultPoll     = 100 * time.Millisecond
	defaultHandoff  = 100 * time.Millisecond
	defaultCapacity = 100_000

	// leastLease is the shortest lease in whole milliseconds that is longer than its margin.
	leastLease = 2 * time.Millisecond

	// defaultWatchdog is Redisson's lockWatchdogTimeout.
	defaultWatchdog = 30 * time.Second
)

// Option changes what [New] makes.
type Option func(*settings)

// settings is what the options of a registry add up to. Options only write them down; check judges them.
type settings struct {
	identity
	telling
	expiry     *time.Duration
	poll       time.Duration
	limit      *time.Duration
	capacity   int
	renewal    bool
	wakeup     wakeup
	oldChannel bool
	releasing
	layout   Layout
	replicas *protocol.Replicas
	fencing  bool
	tolerant bool                          // see WithoutDeadlockErrors
	changes  []func(*rueidis.ClientOption) // see WithClientOption
}

// releasing is how locks are released.
type releasing struct {
	handoff *time.Duration
	behind  bool // see WithBackgroundRelease
}

// telling is who is told of events.
type telling struct {
	log      *slog.Logger
	observer *observe.Observer
}

// identity is what a registry is called by others.
type identity struct {
	clientID *string
	name     *string // that people read
}

// WithLease sets the lease of a lock: how long it stays locked in Redis when nobody unlocks or renews it. It counts whole
// milliseconds, at least two: the holder counts on 1 % and a millisecond less, a margin for clocks, and a lease of one
// millisecond would be over at once. A lease must outlast the round trip to Redis by far to be useful. Default: 60 s, as in
// Spring, or 30 s with LayoutRedisson. See [Lease] for the lease of a single call.
func WithLease(d time.Duration) Option { return func(s *settings) { s.expiry = &d } }

// WithPollInterval sets the pause between two attempts on Redis while a call waits. It must be positive. Default: 100 ms, as
// Spring's idleBetweenTries.
func WithPollInterval(d time.Duration) Option { return func(s *settings) { s.poll = d } }

// WithCommandTimeout sets how long one command waits for the answer of Redis, whatever the context of the call: longer than
// nothing. A call whose first command is not answered in that time returns [ErrUnavailable]; one that waits tries again.
// Neither the command nor its connection is ended by it: the server may still execute it, which harms no later hold.
// Unlock has limits of its own. Default: 5 s, or a third of the lease that [WithLease] sets, if that is shorter, and two round
// trips to the server.
func WithCommandTimeout(d time.Duration) Option { return func(s *settings) { s.limit = &d } }

// WithCapacity sets how many lock objects the registry keeps, at least one. To make room the least recently obtained one
// that is not in use is dropped; when all are in use, locking one more returns [ErrCapacity]. Default: 100 000, as Spring's
// cacheCapacity. See also [Registry.SetCapacity].
func WithCapacity(n int) Option { return func(s *settings) { s.capacity = n } }

// WithRenewal renews what [Lock.Lock] and [Lock.TryLock] lock, too, each third of its lease, for as long as it is held and its
// lease is not lost. A lease then only has to outlast interruptions, not the work. Spring does the same once it has a renewal
// task scheduler. Default: those leases end unless [Lock.Renew] is called, or a Do within runs, but for what is locked
// without [Lease] with LayoutRedisson, or by the reader of a [ReadWriteLock]. [Lock.Do], [Lock.Acquire],
// [Registry.AcquireAll] and [Registry.Once] renew always.
func WithRenewal() Option { return func(s *settings) { s.renewal = true } }

// WithPolling makes waiting calls try every poll interval only, without a place in the queue, and releases publish nothing that
// Java listens to, as Spring's SPIN_LOCK. Releases serve the queue of others all the same.
//
// Default: waiting calls queue in Redis, and a release makes the first one the owner and sends it a message. The first one
// learns that Java has released the lock, or that the key is gone, by CLIENT TRACKING (Redis 6 or newer, RESP3) where the
// server and the user's permissions allow that, else by the messages of the layout's channels, else by polling. What they do
// not allow is logged once. Releases are published, as with Spring's PUB_SUB_LOCK. The client needs one more connection, which
// its registries share, from the first waiting call on; on a cluster one to each master that has a key waited for.
func WithPolling() Option { return withWakeup(wakeupPoll) }

func withWakeup(m wakeup) Option { return func(s *settings) { s.wakeup = m } }

// WithOldChannel publishes releases on "<prefix>-channel" too. Java services in PUB_SUB_LOCK mode listen there before
// Spring Integration 6.4.8, 6.5.3 and 7.0.0. Waiting calls of this package wake for releases on either. Default: only
// on the channel of newer versions, "<prefix>-channel:<key>".
func WithOldChannel() Option { return func(s *settings) { s.oldChannel = true } }

// WithHandoff sets for how long the goroutines of this process may hand a lock to each other, first in, first out, while
// its key stays in Redis. That is much faster than to release and obtain it anew, but keeps other processes waiting: after
// this time, counted from when the process got the key, it is the turn of the next process that waits. It
// also is when less than half of the lease is left, and when the next owner asks for a longer lease than the running one,
// or for one that is shorter by more than a third. The next owner's lease is renewed as if it had obtained the lock itself.
// 0 turns it off: every unlock releases the key. Otherwise a key that somebody has removed meanwhile is noticed that much
// later, see [Lock.Unlock]. It must not be negative. Default: 100 ms.
func WithHandoff(limit time.Duration) Option { return func(s *settings) { s.handoff = &limit } }

// WithBackgroundRelease has Unlock, [Hold.Release] and Do return before the key is removed from Redis, where a round
// trip to its master takes long: 200 µs as commands have shown while nothing else was under way, or 2 ms by all of late. The
// removal is sent at once, and its reply is not waited for. Nil then means that the hold was valid until then by the clock of
// this process, not that the key is gone. When Redis replies that the key was not this hold's any more, the observer and the
// log are told, see [observe.Observer.Lost]; when it does not reply, the registry tries again.
//
// The path's next call of this registry, also with TryLock or [NoWait], is not refused because of that. It asks Redis at once,
// and takes over the key if that is still there, until the registry has had the key for as long as [WithHandoff] says. After
// that it waits for the removal, as it does where others are known to wait, and where there is no queue, see [WithPolling].
// AcquireAll waits for it when it asks for all paths at once. So where a round trip takes a tenth of that time or longer,
// sections of one path that follow each other gain less; and others may have to wait for that time, although nobody of this
// process waits. A loss may stay unnoticed when the next call has not waited: it has locked the key that was gone.
//
// Unlock waits for the removal all the same while the time of [AtLeast] lasts, with Once, leaders, AcquireAll, readers, writers,
// semaphores and [WithReplicas], while Redis is slow to answer, and when the registry has 64 removals under way, to whatever
// masters. [Registry.Close] and [Registry.Shutdown] wait for all of them: a process that ends without leaves keys to their
// leases. Default: Unlock waits for the removal.
func WithBackgroundRelease() Option { return func(s *settings) { s.behind = true } }

// WithName sets what people see of this registry when they look who holds a lock or waits for one, see [observe.Label]: the
// name of a service, for instance. Several registries may have the same. It is valid UTF-8 of at most 100 bytes, and not
// empty. Default: none; the label has the host and the process.
func WithName(name string) Option { return func(s *settings) { s.name = &name } }

// WithLayout sets the format of plain locks in Redis: one of the constants of [Layout]. Read-write locks have Redisson's in
// either case. Default: [LayoutSpring].
func WithLayout(l Layout) Option { return func(s *settings) { s.layout = l } }

// WithClientID sets the name that the registry's values in Redis begin with, for people who look at them. It must not be
// empty, and may be any other text of 1024 bytes at most: each key, ticket and message has it. Two registries never share
// holds, whatever their ids: with an id of yours the values carry a random UUID as well. With an id of more than four bytes,
// the queue in which the registry waits takes more memory in Redis, which keeps sets compact while their members are no
// longer than 64 bytes. Default: that UUID alone.
func WithClientID(id string) Option { return func(s *settings) { s.clientID = &id } }

// WithLogger sets where the registry writes about events that no call can return, such as a lock lost in the background. It
// must not be nil. Lines are written one after another by a goroutine that exists only while there are some, so a handler
// that blocks or panics holds up nothing but the lines. Those that come while 1024 wait are dropped, and their number is
// logged. Default: no log.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.log = l } }

// WithClientOption changes what the client of [Open] is made with: its TLSConfig, or user and password of Sentinels, for
// instance. An AuthCredentialsFn is asked for each connection, those to Sentinels and those on which calls wait included,
// instead of what the URL says; the Address that it gets tells them apart. The function gets what the URL says, and is called
// once, before Open connects. DisableCache stays set: this package does not use the client's cache. ReplicaOnly and
// SendToReplicas are bad input. It is for Open only. Default: what the URL says, with one connection for commands, and
// buffers of 32 KiB.
func WithClientOption(change func(o *rueidis.ClientOption)) Option {
	return func(s *settings) { s.changes = append(s.changes, change) }
}

// WithReplicas has a hold count only once n replicas of the master have it, so that it outlives the master: a lock that was
// granted is not free on the replica that is promoted. N must be the number of all replicas that may be promoted, in a cluster
// those of one master; with fewer, one of the others may be promoted. It must be positive. With all of them there is no lock
// while one is down.
//
// A call waits for the replicas for timeout, at least a millisecond, and no longer than [WithCommandTimeout]. When too few have
// acknowledged by then, the lock is released, and the call goes on waiting, if it may, or fails with [ErrUnavailable]. So do
// Renew and the renewals of the registry: the lease is then not extended, and [ErrLockLost] follows at its end. A lock that
// goes from one goroutine of this process to another one needs no acknowledgement, nor does Unlock. It costs a round trip
// between the servers, and one more connection to each master while calls are under way; the user needs the right to WAIT.
// Default: a hold counts once the master has it, as in Spring. Redisson waits for replicas by itself.
func WithReplicas(n int, timeout time.Duration) Option {
	return func(s *settings) { s.replicas = &protocol.Replicas{N: n, Timeout: timeout} }
}

// Layout is the format of locks in Redis.
type Layout = observe.Layout

// The formats. See [observe.Layout].
const (
	LayoutSpring   = observe.LayoutSpring
	LayoutRedisson = observe.LayoutRedisson
)

// LockOption changes one call that locks.
type LockOption struct {
	name  string
	value time.Duration
	set   func(*request, time.Duration)
}

// Lease sets the lease of this acquisition, in whole milliseconds, at least two, see [WithLease]. What is finer is cut off.
// Where the lock is renewed it is renewed with that, see [WithRenewal]; [AtMost] ends it. Default: the registry's lease; for an
// owner that locks again, the lease that its hold has.
func Lease(d time.Duration) LockOption {
	return LockOption{"Lease", d, func(q *request, d time.Duration) { q.lease = lease.NewTerm(d) }}
}

// Wait sets how long the call waits at most, for local holders and for Redis together. When it is not positive, as what is left
// until a deadline may be, the call does not wait, as with [NoWait]. TryLock then returns false, Do and Lock return
// [ErrTaken]. Default: TryLock does not wait at all, Lock and Do wait as long as their context lets them. See also
// [NoWait].
func Wait(d time.Duration) LockOption {
	return LockOption{"Wait", d, func(q *request, d time.Duration) { q.wait = max(d, notAtAll) }}
}

// NoWait has the call try once, without a place in any queue, here or in Redis: Lock and Do return [ErrTaken] at once when
// another owner has the lock, and [ErrUnavailable] when Redis cannot be asked. TryLock does so without it. It cannot be
// combined with Wait. Default: see [Wait].
func NoWait() LockOption {
	return LockOption{"NoWait", 0, func(q *request, _ time.Duration) { q.wait = notAtAll }}
}

// AtLeast keeps the path taken for d, from when this call has obtained the lock, even when it is released sooner: nobody
// gets it before d is over, in this process or elsewhere, Java included; then the waiters do. It is for jobs that are
// shorter than the difference between the clocks that start them, as ShedLock's lockAtLeastFor. D must be positive;
// parts of a millisecond count as one. It may be longer than the lease, and is independent of it: while the lock is held, and
// after a crash or a loss, the lease alone decides. [Registry.ForceUnlock] ends it. Default: the path is free when it is
// released.
//
// It is for plain locks; readers and writers refuse it, and so does a call of an owner that holds the lock already.
func AtLeast(d time.Duration) LockOption {
	return LockOption{"AtLeast", d, func(q *request, d time.Duration) { q.atLeast = d }}
}

// request is what the options of a call that locks add up to.
type request struct {
	lease *lease.Term   // nil: the registry's, or the hold's
	plain bool          // the call named no lease, so this is the registry's
	wait  time.Duration // 0: not at all; negative: until the context ends
	as    owner.ID      // of a Hold, or of a run of Once; nobody: the caller

	atLeast  time.Duration // 0: no longer than it is held
	atMost   time.Duration // 0: for as long as it is renewed
	failFast bool          // see FailFast
	permits  int           // of a semaphore; 0: it was not said
	leads    bool          // see hold.leads
	quiet    bool          // see hold.Terms
	blocked  clock.Instant // when the call began to wait for anybody; 0: it has not

	// What an observer gets of the call, in the end.
	how     observe.How
	here    time.Duration
	wakeups observe.Wakeups
}

// with returns the request that the options make of q. It is apart from the caller so that a call without options needs no
// memory for it. The error says all that is wrong.
func (q request) with(opts []LockOption) (_ request, failed error) {
	var waits, tries bool
	for _, o := range opts {
		if o.set == nil {
			failed = fault.Join(failed, errors.New("a LockOption that no function of this package made"))
			continue
		}
		var err error
		switch o.name {
		case "Wait":
			waits = true
		case "NoWait":
			tries = true
		case "FailFast":
		case "Permits":
			err = fewPermits(o.value)
		case "Lease", "OnceLease":
			if err = positive(o.name, o.value); err == nil {
				err = leasable(o.name, o.value)
			}
		default:
			err = positive(o.name, o.value)
		}
		failed = fault.Join(failed, err)
		o.set(&q, o.value)
	}
	failed = fault.Join(failed, checkAtMost(&q))
	if waits && tries {
		failed = fault.Join(failed, errors.New("NoWait and Wait: a call cannot have both"))
	}
	return q, failed
}

// settingsOf applies options to the defaults.
func settingsOf(opts []Option) (s settings, err error) {
	s = settings{
		poll:     defaultPoll,
		capacity: defaultCapacity,
		telling:  telling{log: slog.New(slog.DiscardHandler)},
	}
	for _, o := range opts {
		if o == nil {
			err = errors.New("an option is nil")
			continue
		}
		o(&s)
	}
	return s, err
}

// config is how a registry does what it does.
func (s *settings) config() config {
	c := config{
		lease:    lease.NewTerm(s.lease()),
		renewal:  s.renewal,
		handoff:  defaultHandoff,
		layout:   s.layout,
		tolerant: s.tolerant,
	}
	if s.handoff != nil {
		c.handoff = *s.handoff
	}
	return c
}

// queue is how its calls on a client ask Redis, and wait.
func (s *settings) queue(client rueidis.Client) queue.Settings {
	q := queue.Settings{
		Cluster:   client.Mode() == rueidis.ClientModeCluster,
		Limit:     s.commandLimit(),
		Usual:     s.limit == nil,
		Poll:      s.poll,
		StandBack: queue.Turnaround,
		Replicas:  s.replicas,
	}
	if s.wakeup == wakeupPoll {
		q.StandBack = clock.Plus(s.poll, s.poll/10) // so that it surely polls once meanwhile
	}
	return q
}

// lease is that of a lock whose call names none.
func (s *settings) lease() time.Duration {
	switch {
	case s.expiry != nil:
		return *s.expiry
	case s.layout == LayoutRedisson:
		return defaultWatchdog
	default:
		return defaultExpiry
	}
}

// mostLimit is the longest limit of a command that no option sets.
const mostLimit = 5 * time.Second

// commandLimit is how long a command waits for its answer.
func (s *settings) commandLimit() time.Duration {
	if s.limit != nil {
		return *s.limit
	}
	return max(min(mostLimit, s.lease()/3), time.Millisecond)
}

func (s *settings) check(prefix string) error {
	return fault.Join(
		prefixed(prefix),
		leasable("WithLease", s.lease()),
		positive("WithPollInterval", s.poll),
		positiveIfSet("WithCommandTimeout", s.limit),
		capacious("WithCapacity", s.capacity),
		notNegative("WithHandoff", s.handoff),
		known("WithLayout", int(s.layout), int(LayoutRedisson)),
		named(s.clientID),
		present(s.log),
		checkReplicas(s.replicas),
		changing(s.changes),
		observes(s.observer),
		presence.CheckName(s.name),
	)
}

func prefixed(prefix string) error {
	if prefix == "" {
		return errors.New("the prefix is empty")
	}
	return nil
}

func positive(name string, d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("%s(%v): the duration must be positive", name, d)
	}
	return nil
}

func positiveIfSet(name string, d *time.Duration) error {
	if d == nil {
		return nil
	}
	return positive(name, *d)
}

func notNegative(name string, d *time.Duration) error {
	if d != nil && *d < 0 {
		return fmt.Errorf("%s(%v): the duration must not be negative", name, *d)
	}
	return nil
}

func leasable(name string, d time.Duration) error {
	if d < leastLease {
		return fmt.Errorf("%s(%v): a lease must be at least %v, since 1 %% and a millisecond of it are a margin for clocks",
			name, d, leastLease)
	}
	return nil
}

func capacious(name string, n int) error {
	if n <= 0 {
		return fmt.Errorf("%s(%d): the capacity must be positive", name, n)
	}
	return nil
}

func known(name string, value, last int) error {
	if value < 0 || value > last {
		return fmt.Errorf("%s(%d): there is no such value", name, value)
	}
	return nil
}

// mostClientID is how many bytes a client's id may have.
const mostClientID = 1 << 10

func named(clientID *string) error {
	switch {
	case clientID == nil:
		return nil
	case *clientID == "":
		return errors.New("WithClientID(\"\"): the id is empty")
	case len(*clientID) > mostClientID:
		return fmt.Errorf("WithClientID(%q...): the id has %d bytes, more than %d", (*clientID)[:20], len(*clientID), mostClientID)
	}
	return nil
}

func present(log *slog.Logger) error {
	if log == nil {
		return errors.New("WithLogger(nil): leave the option out to have no log")
	}
	return nil
}

func changing(changes []func(*rueidis.ClientOption)) error {
	if slices.ContainsFunc(changes, func(change func(*rueidis.ClientOption)) bool { return change == nil }) {
		return errors.New("WithClientOption(nil): leave the option out to change nothing")
	}
	return nil
}

func checkReplicas(r *protocol.Replicas) error {
	switch {
	case r == nil:
		return nil
	case r.N <= 0:
		return fmt.Errorf("WithReplicas(%d, %v): the number of replicas must be positive", r.N, r.Timeout)
	case r.Timeout < time.Millisecond:
		return fmt.Errorf("WithReplicas(%d, %v): the timeout must be at least a millisecond", r.N, r.Timeout)
	default:
		return nil
	}
}
