// Package locktest makes lock registries for tests, on a Redis server that is embedded in the test. Nothing has to be installed
// or started, and tests can run in parallel.
//
//	func TestBusy(t *testing.T) {
//		locks := locktest.New(t)
//		defer locks.HoldElsewhere("42", time.Minute)()
//		ok, err := locks.Obtain("42").TryLock(t.Context())
//		if ok || err != nil {
//			t.Error("locked although another process has the lock:", err)
//		}
//	}
//
// It works in real time, and in the fake time of testing/synctest, where leases, waits and timeouts take no real time: call [New]
// within the bubble, with the bubble's T. No sockets are used.
//
// # Limits
//
// The server is miniredis. It lacks three things that lock registries use, or could use, on a real server:
//
//   - Tracking (client-side caching). A waiter is not notified of a key that is deleted without a message, as by Spring's
//     SPIN_LOCK. It finds out by polling.
//   - WAIT. There are no replicas: WAIT returns 0 at once.
//   - Clusters, Sentinel, access lists and eviction.
//
// Use a real server to test those, and to measure performance.
package locktest

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/seam"
	"github.com/lockregistry/lockregistry/observe"
)

// prefix is the prefix of all registries that this package makes.
const prefix = "locktest"

// Registry is a lock registry on an embedded server, with methods to disturb its locks and its connection. Pass the field
// Registry to code that needs a [*lockregistry.Registry].
//
// Its methods report misuse with the test's Error, so all but [Registry.Peer] may be called from any goroutine.
type Registry struct {
	*lockregistry.Registry

	tb       testing.TB
	redis    *miniredis.Miniredis
	stranger rueidis.Client // does not go through network
	opts     []lockregistry.Option
	client   rueidis.Client
	network  *network
}

// New returns a registry on a new embedded server. Both are closed at the end of the test, after any functions that you register
// with Cleanup later. It takes the options of [lockregistry.New], with the same defaults, such as a lease of 60 s. Invalid
// options end the test with Fatal, so call New from the test's own goroutine.
func New(tb testing.TB, opts ...lockregistry.Option) *Registry {
	tb.Helper()
	redis := miniredis.NewMiniRedis()
	redis.ClockTTL(true) // without this leases never expire
	tb.Cleanup(redis.Close)
	stranger := connect(tb, (&network{server: redis.Dial}).dial)
	tb.Cleanup(stranger.Close)
	return newRegistry(tb, redis, stranger, opts)
}

// Peer returns a registry that acts as another process, on the same server, with its own connection. It has the options of r,
// followed by opts. Call it from the test's own goroutine, like [New].
func (r *Registry) Peer(opts ...lockregistry.Option) *Registry {
	r.tb.Helper()
	return newRegistry(r.tb, r.redis, r.stranger, slices.Concat(r.opts, opts))
}

func newRegistry(tb testing.TB, redis *miniredis.Miniredis, stranger rueidis.Client, opts []lockregistry.Option) *Registry {
	tb.Helper()
	r := &Registry{tb: tb, redis: redis, stranger: stranger, opts: opts, network: &network{server: redis.Dial}}
	r.client = connect(tb, r.network.dial)
	tb.Cleanup(r.client.Close)
	locks, err := lockregistry.New(r.client, prefix, opts...)
	if err != nil {
		tb.Fatal("locktest:", err)
	}
	r.Registry = locks
	tb.Cleanup(func() {
		r.network.connect() // otherwise closing waits for answers
		_ = locks.Close()
	})
	return r
}

func connect(tb testing.TB, dial func(context.Context) (net.Conn, error)) rueidis.Client {
	tb.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:       []string{"embedded"},
		ForceSingleClient: true,
		DisableCache:      true, // the cache needs tracking
		PipelineMultiplex: -1,   // one connection, so that one answer shows that it works again
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx)
		},
	})
	if err != nil {
		tb.Fatal("locktest:", err)
	}
	return client
}

// Lose makes this registry lose the lock of path, plain or read-write, as if its lease had just ended. When Lose returns, the
// contexts of the hold have ended with the cause [lockregistry.ErrLockLost], and others can get the lock. Unlock will also return
// ErrLockLost. If it is a reader's hold, the readers of all Peers lose the lock, too, and notice at their next renewal or
// unlock.
//
// The registry must hold the lock, and be connected. [inspect.Inspector.ForceUnlock] does the same for the holds of a semaphore.
// To lose a lock as in production, let its lease pass, which takes no time in a bubble.
func (r *Registry) Lose(path string) {
	r.tb.Helper()
	pair := r.ReadWrite(path)
	if !r.Obtain(path).IsHeld() && !pair.Reader().IsHeld() && !pair.Writer().IsHeld() {
		r.tb.Errorf("locktest: lose %q: this registry does not hold it", path)
		return
	}
	if err := inspect.Of(r.Registry).ForceUnlock(context.Background(), path); err != nil {
		r.tb.Errorf("locktest: lose %q: %v", path, err)
	}
}

// The scripts of a stranger. ARGV[1] is its name, ARGV[2] the type of its locks, a string or a hash, ARGV[3] the lease in
// milliseconds. It publishes ARGV[5] on ARGV[4].
const (
	take = `
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
elseif ARGV[2] == 'hash' then
  redis.call('HSET', KEYS[1], ARGV[1], '1')
else
  redis.call('SET', KEYS[1], ARGV[1])
end
return redis.call('PEXPIRE', KEYS[1], ARGV[3])`

	leave = `
local mine
if ARGV[2] == 'hash' then
  mine = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
else
  mine = redis.call('GET', KEYS[1]) == ARGV[1]
end
if not mine then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[4], ARGV[5])
return 1`
)

// HoldElsewhere takes the plain lock of path for a stranger: a client that does not use this library, such as a Java service with
// Spring's PUB_SUB_LOCK, or Redisson with [lockregistry.WithRedissonLayout]. Use [Registry.Peer] for a process with this library,
// and for read-write locks.
//
// The lock must be free. The stranger holds it until you call release, or until the lease is over; to simulate a crash, do not
// call release. It has a connection of its own, so [Registry.Disconnect] and [Registry.Hang] do not affect it. The lease is in
// whole milliseconds, at least one. Release may be called from any goroutine; further calls do nothing.
func (r *Registry) HoldElsewhere(path string, lease time.Duration) (release func()) {
	r.tb.Helper()
	if lease < time.Millisecond {
		r.tb.Errorf("locktest: hold %q elsewhere: the lease %v is shorter than a millisecond", path, lease)
		return func() {}
	}
	key := prefix + ":" + path
	name, kind, channel, message := "stranger-"+rand.Text(), "string", prefix+"-channel:"+key, key
	if seam.Lockregistry.Parts(r.Registry).Layout == observe.LayoutRedisson {
		name, kind, channel, message = name+":1", "hash", "redisson_lock__channel:{"+key+"}", "0"
		if strings.Contains(key, "{") {
			channel = "redisson_lock__channel:" + key
		}
	}
	run := func(script string) (done bool) {
		r.tb.Helper()
		ms := strconv.FormatInt(lease.Milliseconds(), 10)
		eval := r.stranger.B().Eval().Script(script).Numkeys(1).Key(key).Arg(name, kind, ms, channel, message).Build()
		n, err := r.stranger.Do(context.Background(), eval).AsInt64()
		if err != nil {
			r.tb.Errorf("locktest: hold %q elsewhere: %v", path, err)
			return true
		}
		return n == 1
	}
	if !run(take) {
		r.tb.Errorf("locktest: hold %q elsewhere: the lock is taken", path)
		return func() {}
	}
	return func() { run(leave) }
}
