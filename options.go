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
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/observe"
)

// The defaults are Spring's.
const (
	defaultExpiry   = 60 * time.Second
	defaultPoll     = 100 * time.Millisecond
	defaultHandoff  = defaultPoll // so that goroutines give way to one poll
	defaultCapacity = 100_000

	// leastLease is the shortest lease, in whole milliseconds, that is longer than its margin.
	leastLease = 2*time.Millisecond + clock.Step

	// longestLease keeps a crash from blocking a path forever, and catches durations in the wrong unit.
	longestLease = 30 * 24 * time.Hour
)

// Option changes what [New] and [Open] make.
type Option func(*settings)

// settings is the result of a registry's options. Options only store values; check validates them.
type settings struct {
	config
	clientID   *string
	name       *string // for people
	log        *slog.Logger
	observer   *observe.Observer
	expiry     *time.Duration
	poll       time.Duration
	limit      *time.Duration
	wakeup     wakeup
	oldChannel bool
	replicas   *protocol.Replicas
	fencing    bool
	servers
}

// servers is what the options say about the client and its servers.
type servers struct {
	changes   []func(*rueidis.ClientOption) // see WithClientOption
	sentinels *rueidis.ClientOption         // see WithSentinels; nil: none are given
}

// WithLease sets the lease of a lock: how long it stays locked in Redis if it is neither unlocked nor renewed. Default: 60 s, as
// in Spring; 30 s with [WithRedissonLayout], and of readers, as in Redisson. See [Lease] for the lease of a single call.
//
// The lease is from two milliseconds to 30 days, in whole milliseconds. The holder relies on 1 % and a millisecond less, as a
// margin for clocks. A useful lease is much longer than the round trip to Redis.
func WithLease(d time.Duration) Option { return func(s *settings) { s.expiry = &d } }

// WithPollInterval sets the pause between two attempts of a call that polls, see [WithPolling]. It must be positive. Default: 100
// ms, like Spring's idleBetweenTries.
func WithPollInterval(d time.Duration) Option { return func(s *settings) { s.poll = d } }

// WithCommandTimeout sets how long one command waits for Redis to answer, whatever the call's context. It must be
// positive. A call whose first command is not answered in that time returns [ErrUnavailable]. A waiting call retries. With
// the lease of [WithLease] the default is
//
//	min(5 s, lease / 3) + 2 round trips to the server
//
// The timeout ends neither the command nor its connection: the server may still execute the command, which harms no later hold.
// [Lock.Unlock] has its own limits.
func WithCommandTimeout(d time.Duration) Option { return func(s *settings) { s.limit = &d } }

// WithRenewal also renews locks taken by [Lock.Lock] and [Lock.TryLock], every third of their lease, until they are unlocked or
// lost. [AtMost] limits that. So the lease need only outlast interruptions, not the work. Spring does the same once it has a
// renewal task scheduler. Default: the lease of a Lock or TryLock ends, unless [Lock.Renew] is called or a nested Do runs.
//
// [Lock.Do], [Lock.Acquire], [Registry.AcquireAll] and [Registry.Once] always renew. Lock and TryLock without [Lease] also renew
// with [WithRedissonLayout], as in Redisson, and for the reader of a [ReadWriteLock].
func WithRenewal() Option { return func(s *settings) { s.renewal = true } }

// WithPolling makes waiting calls poll, see [WithPollInterval], without a place in the queue. Releases publish nothing that Java
// listens to, as with Spring's SPIN_LOCK, but they still serve the queue of other processes. Default: waiting calls queue in
// Redis, and a release makes the first one the owner and sends it a message.
//
// # Details
//
// Without this option, the first waiting call learns in one of these ways that Java has released the lock, or that the key is
// gone. It uses the first one that the server and the user's permissions allow. Each one that they refuse is logged once.
//
//   - CLIENT TRACKING (Redis 6 or newer, RESP3)
//   - messages on the layout's channels
//   - polling
//
// Releases are published, as with Spring's PUB_SUB_LOCK. From the first waiting call on, the client needs one more connection,
// which its registries share. On a cluster it needs one to each master with a key that calls wait for.
func WithPolling() Option { return withWakeup(wakeupPoll) }

func withWakeup(m wakeup) Option { return func(s *settings) { s.wakeup = m } }

// WithOldChannel is for Java services in PUB_SUB_LOCK mode with Spring Integration before 6.4.8, 6.5.3 or 7.0.0 (5.5.7 to 5.5.12
// have no other mode). It also publishes releases on "<prefix>-channel", where these services listen. Waiting calls of this
// package wake for releases on either channel. Default: releases are published only on the channel of newer versions,
// "<prefix>-channel:<key>".
func WithOldChannel() Option { return func(s *settings) { s.oldChannel = true } }

// WithHandoff sets how long the goroutines of this process may hand a lock to each other, first in, first out, while its key
// stays in Redis. That is much faster than releasing the lock and obtaining it again, but it keeps other processes waiting.
// With 0 every unlock releases the key. It must not be negative. Default: 100 ms.
//
// # Details
//
// The time counts from when the process got the key. When it is over, the next waiting process gets its turn. It also gets its
// turn in these cases:
//
//   - less than half of the lease is left
//   - the next owner asks for a lease that is longer than the running one, or shorter by more than a third
//
// The lease of the next owner is renewed as if that owner had obtained the lock itself. If the key was removed from outside, the
// registry may notice that later, by up to the time of WithHandoff, see [Lock.Unlock].
func WithHandoff(limit time.Duration) Option { return func(s *settings) { s.handoff = limit } }

// WithName sets the name that people see when this registry holds a lock or waits for one, see [observe.Label]: the name of a
// service, for instance. Several registries may have the same name. The name must be valid UTF-8 of 1 to 100 bytes. Default:
// none; the label has the host and the process.
func WithName(name string) Option { return func(s *settings) { s.name = &name } }

// WithRedissonLayout keeps plain locks as Redisson's RLock does: each is a hash, whose name is prefix + ":" + path. Default: a
// string for each lock, as Spring Integration's RedisLockRegistry keeps it. In either case, read-write locks have Redisson's
// format, and semaphores have the library's own.
//
// As in Redisson, a lock taken without a lease has a lease of 30 s, or the one of [WithLease], and is renewed for as long as it
// is held. (Redisson calls this lockWatchdogTimeout.) A lease that the call names is not renewed, unless [WithRenewal] is also
// set.
func WithRedissonLayout() Option { return func(s *settings) { s.layout = redissonLayout } }

// WithClientID puts a text before the registry's values in Redis, for people who inspect them. Default: only a random UUID.
//
// The id may be any text of 1 to 1024 bytes. The UUID follows it, so two registries never share holds, even with the same id.
// Each key, ticket and message contains the id. With an id longer than four bytes the queues take more memory in Redis, which
// stores sets compactly only while their members are at most 64 bytes long.
func WithClientID(id string) Option { return func(s *settings) { s.clientID = &id } }

// WithLogger sets where the registry logs events that no call can return, such as a lock lost in the background. It must not be
// nil. Default: no log.
//
// A goroutine writes the lines one after another, and exists only while there are lines. So a handler that blocks or panics
// delays only other lines. Lines that arrive while 1024 wait are dropped, and their number is logged.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.log = l } }

// WithClientOption changes the options of the client of [Open], for instance its TLSConfig, or the user and password for
// Sentinels. It is only for Open. Default: what the URL says, with one connection for commands, and buffers of 32 KiB.
//
// # Details
//
// Open calls change once, before it connects, with the options from the URL.
//
//   - AuthCredentialsFn replaces the URL's user and password. It is called for each connection, including those to Sentinels and
//     those on which calls wait. The Address in its argument tells them apart.
//   - With Sentinels, TLSConfig is for servers, and Sentinel.TLSConfig for Sentinels. Put your own certificate authority, and a
//     client certificate, in both. On a cluster whose nodes have certificates for their own addresses, set TLSConfig.ServerName
//     to "".
//   - DisableCache stays set: this package does not use the client's cache.
//   - ReplicaOnly, SendToReplicas, Standalone and ConnLifetime are bad input. With ConnLifetime, rueidis resends
//     commands whose replies were lost.
func WithClientOption(change func(o *rueidis.ClientOption)) Option {
	return func(s *settings) { s.changes = append(s.changes, change) }
}

// WithSentinels names the Sentinels of a client that is given to [New]: option is what that client was made with. With it, the
// registry does not trust a master that was frozen and answers again after it was replaced, see New. WithSentinels is only for
// New, since [Open] knows the Sentinels. Default: no Sentinel is asked.
//
// # Details
//
// The registry connects to each Sentinel in the background, over one connection for all registries on the client. It asks the
// Sentinels about a server that was silent before it trusts that server again, and is told when they begin to replace a server.
// If most of them do not answer, the first call waits 10 s before it sends anything. The Sentinels' user needs permission for
// SENTINEL and SUBSCRIBE.
//
// These fields of option are used: InitAddress, which must not be empty; Sentinel, which must have a MasterSet; the functions
// that dial and authenticate; ConnWriteTimeout, AlwaysRESP2, ClientSetInfo and DisableTCPNoDelay. What is bad input for
// [WithClientOption] is bad input here, and so is a client that is not for Sentinel. If several registries on one client have
// this option, the option of the first one counts.
func WithSentinels(option rueidis.ClientOption) Option {
	return func(s *settings) { s.sentinels = &option }
}

// WithReplicas makes a hold count only once n replicas of the master have it, so that a granted lock outlives its master. N must
// be positive. Default: a hold counts once the master has it, as in Spring. Redisson always waits for replicas.
//
// Do not use it where locks must be available while a replica is down, or where [WithFencing] can reject late writes instead. N
// should be the number of replicas that may be promoted; in a cluster, the number for each master. Then no lock is granted while
// one of them is down. With a smaller n, a replica without the hold may be promoted.
//
// # Details
//
// A call waits for the replicas for timeout, which is at least a millisecond, and no longer than [WithCommandTimeout]. If too few
// have acknowledged by then, the lock is released. Then the call keeps waiting, if it may, or fails with [ErrUnavailable].
//
// Renewals, including those by Renew, also wait for replicas. If too few acknowledge, the lease is not extended, and
// [ErrLockLost] follows at its end. Handing a lock to another goroutine of this process needs no acknowledgement; neither does
// Unlock.
//
// The option costs a round trip between the servers for each grant and renewal, and one more connection to each master while
// calls are under way. The user needs permission for WAIT.
func WithReplicas(n int, timeout time.Duration) Option {
	return func(s *settings) { s.replicas = &protocol.Replicas{N: n, Timeout: timeout} }
}

// settingsOf applies options to the defaults.
func settingsOf(opts []Option) (s settings, err error) {
	s = settings{
		config: config{handoff: defaultHandoff, layout: springLayout},
		poll:   defaultPoll,
		log:    slog.New(slog.DiscardHandler),
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

// leaseLength returns the lease of a call that names none.
func (s *settings) leaseLength() time.Duration {
	if s.expiry != nil {
		return *s.expiry
	}
	return s.layout.lease
}

// mostLimit is the longest default of WithCommandTimeout.
const mostLimit = 5 * time.Second

// commandLimit returns how long a command waits for its answer.
func (s *settings) commandLimit() time.Duration {
	if s.limit != nil {
		return *s.limit
	}
	return max(min(mostLimit, s.leaseLength()/3), time.Millisecond)
}

func (s *settings) check(prefix string) error {
	noChange := slices.ContainsFunc(s.changes, func(change func(*rueidis.ClientOption)) bool { return change == nil })
	return fault.Join(
		invalid(prefix == "", "the prefix is empty"),
		leasable("WithLease", s.leaseLength()),
		positive("WithPollInterval", s.poll),
		positive("WithCommandTimeout", s.commandLimit()),
		invalid(s.handoff < 0, "WithHandoff(%v): the duration must not be negative", s.handoff),
		named(s.clientID),
		invalid(s.log == nil, "WithLogger(nil): leave the option out to have no log"),
		checkReplicas(s.replicas),
		checkSentinels(s.sentinels),
		invalid(noChange, "WithClientOption(nil): leave the option out to change nothing"),
		observes(s.observer),
		presence.CheckName(s.name),
	)
}

// invalid returns an error if a value is invalid.
func invalid(is bool, format string, about ...any) error {
	if !is {
		return nil
	}
	return fmt.Errorf(format, about...)
}

func checkSentinels(o *rueidis.ClientOption) error {
	if o == nil {
		return nil
	}
	return fault.Join(
		invalid(len(o.InitAddress) == 0, "WithSentinels: InitAddress is empty: it must have the addresses of the Sentinels"),
		invalid(slices.Contains(o.InitAddress, ""), "WithSentinels: an address in InitAddress is empty"),
		invalid(o.Sentinel.MasterSet == "", "WithSentinels: Sentinel.MasterSet is empty"),
		checkClient("WithSentinels", o),
	)
}

// checkClient returns an error if the options of a client are not for locks. Rueidis sends a command again if its connection had
// outlived ConnLifetime and then broke before the reply. It cannot know that the server has not executed the command.
func checkClient(from string, o *rueidis.ClientOption) error {
	return fault.Join(
		invalid(o.ReplicaOnly || o.SendToReplicas != nil,
			"%s: ReplicaOnly or SendToReplicas is set, but locks are on masters: unset it", from),
		invalid(o.Standalone.EnableRedirect || len(o.Standalone.ReplicaAddress) > 0,
			"%s: Standalone is set, but scripts are not redirected: unset it", from),
		invalid(o.ConnLifetime > 0,
			"%s: ConnLifetime is set, but then a command whose reply was lost may be sent again: unset it", from),
	)
}

// positive and leasable run in each call with options: a valid value allocates nothing.
func positive(name string, d time.Duration) error {
	if d > 0 {
		return nil
	}
	return fmt.Errorf("%s(%v): the duration must be positive", name, d)
}

func leasable(name string, d time.Duration) error {
	switch {
	case leastLease <= d && d <= longestLease:
		return nil
	case d > longestLease:
		return fmt.Errorf("%s(%v): a lease must be at most 30 days", name, d)
	default:
		return fmt.Errorf("%s(%v): a lease must be at least %v, since 1 %% and a millisecond of it are a margin for clocks%s",
			name, d, leastLease, unitless(d))
	}
}

// unitless says how to write a duration that is most likely a number without a unit.
func unitless(d time.Duration) string {
	switch {
	case d <= 0 || d >= time.Millisecond:
		return ""
	case d < time.Microsecond:
		return fmt.Sprintf("; %d is %d ns: write %d*time.Second", d, d, d)
	default: // milliseconds, as in Java
		return fmt.Sprintf("; %d is %d ns: write %d*time.Millisecond", d, d, d)
	}
}

// mostClientID is how many bytes a client id may have.
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
