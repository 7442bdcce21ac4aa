package kit

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

// OpenOn makes a registry with the prefix orders on a client, closed at the end of the test.
func OpenOn(t *testing.T, client rueidis.Client, opts ...lockregistry.Option) *lockregistry.Registry {
	t.Helper()
	r, err := lockregistry.New(client, "orders", opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// World is a server for a test, and what the test may do with it. Most tests run in several worlds: on miniredis in fake time,
// and on real servers, at the same time as other tests. A test that measures the process, such as its goroutines, memory or
// time, runs alone: FakeWorldAlone, RealWorldsAlone.
type World struct {
	*testing.T
	Dial   func(ctx context.Context) (net.Conn, error)
	Do     func(args ...string) string // one command, without this library
	Fake   bool                        // time is fake: it passes, at no cost, when every goroutine waits
	Mini   *miniredis.Miniredis        // nil on real servers
	Server *redistest.Server           // nil on miniredis
	Layout observe.Layout              // of its registries
}

// Cleanup lets go of the function once it has run: a parallel test is kept in memory until the last one ends.
func (w *World) Cleanup(end func()) {
	w.Helper()
	w.T.Cleanup(func() {
		end()
		end = nil
	})
}

// FakeWorld runs a test on miniredis in a bubble of fake time.
func FakeWorld(t *testing.T, test func(w *World)) {
	t.Helper()
	t.Parallel()
	FakeWorldAlone(t, test)
}

// FakeWorldAlone is FakeWorld without other tests at the same time.
func FakeWorldAlone(t *testing.T, test func(w *World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(fakeServer(t))
	})
}

// fakeServer returns the world of a miniredis of its own, within a bubble.
func fakeServer(t *testing.T) *World {
	t.Helper()
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true)
	reportsKeys(t, m)
	t.Cleanup(m.Close)
	// Time stops when the test is over: a client that connects to a silent server has to give up before that.
	t.Cleanup(func() { <-time.After(10 * time.Second) })
	w := &World{
		Layout: observe.LayoutSpring,
		T:      t,
		Dial:   func(context.Context) (net.Conn, error) { return m.Dial() },
		Fake:   true,
		Mini:   m,
	}
	command := w.Client()
	w.Do = func(args ...string) string { return Reply(command, args...) }
	return w
}

// RealWorlds runs a test on every real server, in real time.
func RealWorlds(t *testing.T, test func(w *World)) {
	t.Helper()
	t.Parallel()
	OnServers(t, func(t *testing.T, server string) {
		t.Helper()
		t.Parallel()
		test(RealWorld(t, redistest.StartBinary(t, server)))
	})
}

// RealWorldsAlone is RealWorlds without other tests at the same time.
func RealWorldsAlone(t *testing.T, test func(w *World)) {
	t.Helper()
	OnServers(t, func(t *testing.T, server string) {
		t.Helper()
		test(RealWorld(t, redistest.StartBinary(t, server)))
	})
}

// OnServers runs a test for each server, with the path of its program.
func OnServers(t *testing.T, test func(t *testing.T, server string)) {
	t.Helper()
	for _, server := range redistest.Binaries(t) {
		t.Run(filepath.Base(server), func(t *testing.T) { test(t, server) })
	}
}

// RealWorld returns the world of a running server.
func RealWorld(t *testing.T, server *redistest.Server) *World {
	t.Helper()
	return &World{
		Layout: observe.LayoutSpring,
		T:      t,
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", server.Addr())
		},
		Do:     func(args ...string) string { return server.Command(t, args...) },
		Server: server,
	}
}

// Worlds runs a test on miniredis in fake time and on every real server.
func Worlds(t *testing.T, test func(w *World)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { FakeWorld(t, test) })
	RealWorlds(t, test)
}

// WorldsAlone is Worlds without other tests at the same time.
func WorldsAlone(t *testing.T, test func(w *World)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { FakeWorldAlone(t, test) })
	RealWorldsAlone(t, test)
}

// Reply returns the reply to a command as text, "(nil)" for a null.
func Reply(c rueidis.Client, args ...string) string {
	reply, err := c.Do(context.Background(), c.B().Arbitrary(args...).Build()).ToAny()
	if rueidis.IsRedisNil(err) {
		return "(nil)"
	}
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(fmt.Sprint(reply))
}

// NewClient returns a client that needs little memory: by default each of its connections has a megabyte of buffers, and room
// for 1024 commands under way, which takes longer to allocate than many a test runs.
func NewClient(o rueidis.ClientOption) (rueidis.Client, error) {
	const buffer, places = 16 << 10, 8 // 256
	o.ReadBufferEachConn = cmp.Or(o.ReadBufferEachConn, buffer)
	o.WriteBufferEachConn = cmp.Or(o.WriteBufferEachConn, buffer)
	o.RingScaleEachConn = cmp.Or(o.RingScaleEachConn, places)
	return rueidis.NewClient(o)
}

// ClientWith returns a client that dials with the given function, closed at the end of the test.
func (w *World) ClientWith(
	dial func(ctx context.Context) (net.Conn, error), change ...func(*rueidis.ClientOption),
) rueidis.Client {
	w.Helper()
	option := rueidis.ClientOption{
		InitAddress:       []string{"redis:6379"},
		ForceSingleClient: true,
		DisableCache:      w.Fake,
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx)
		},
	}
	for _, c := range change {
		c(&option)
	}
	client, err := NewClient(option)
	require.NoError(w, err)
	w.Cleanup(client.Close)
	return client
}

// Client returns a client with nothing between it and the server.
func (w *World) Client() rueidis.Client {
	w.Helper()
	if w.Fake {
		return w.ClientWith(w.Dial, Unasked)
	}
	return w.ClientWith(w.Dial)
}

// Unasked turns off a client's checks each second that its server is there, for worlds in which no server falls silent: in an
// hour of fake time they are ten thousand commands.
func Unasked(o *rueidis.ClientOption) {
	o.Dialer.KeepAlive, o.ConnWriteTimeout = 24*time.Hour, 10*time.Second
}

// Registry returns a registry with a client of its own, as another process would have.
func (w *World) Registry(opts ...lockregistry.Option) *lockregistry.Registry {
	w.Helper()
	return w.RegistryOn(w.Client(), opts...)
}

// RegistryOn is Registry with a client.
func (w *World) RegistryOn(client rueidis.Client, opts ...lockregistry.Option) *lockregistry.Registry {
	w.Helper()
	r, err := lockregistry.New(client, "orders", append([]lockregistry.Option{WithLayout(w.Layout)}, opts...)...)
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, r.Close()) })
	return r
}

// Pass lets time pass, if it is fake.
func (w *World) Pass(d time.Duration) {
	w.Helper()
	if !w.Fake {
		w.Fatal("time passes only in a fake world")
	}
	<-time.After(d)
}

// Settle returns when every goroutine waits for something, if time is fake.
func (w *World) Settle() {
	w.Helper()
	if !w.Fake {
		w.Fatal("nobody can tell who waits in a real world")
	}
	synctest.Wait()
}

// Await waits until a condition holds, and fails the test if that takes too long. A look may cost a connection and a command:
// the pauses grow from one millisecond to five, so that a test still learns when it happened.
func (w *World) Await(what string, happened func() bool) {
	w.Helper()
	const limit = 20 * time.Second
	for start := time.Now(); !happened(); {
		waited := time.Since(start)
		if waited > limit {
			w.Fatalf("not within %v: %s", limit, what)
		}
		<-time.After(min(max(waited/100, time.Millisecond), 5*time.Millisecond).Truncate(time.Millisecond))
	}
}

// AwaitGone waits until a key has expired or was removed.
func (w *World) AwaitGone(key string) {
	w.Helper()
	w.Await(key+" is gone", func() bool { return w.Do("EXISTS", key) == "0" })
}

// Pttl returns what is left of a key's lease: -1 if it has no end, -2 if there is no key.
func (w *World) Pttl(key string) time.Duration {
	w.Helper()
	ms, err := strconv.Atoi(w.Do("PTTL", key))
	require.NoError(w, err)
	if ms < 0 {
		return time.Duration(ms)
	}
	return time.Duration(ms) * time.Millisecond
}

// Lock locks for the goroutine of the test.
func (w *World) Lock(l *lockregistry.Lock, opts ...lockregistry.LockOption) {
	w.Helper()
	w.obtains(func() error { return l.Lock(w.Context(), opts...) })
}

// Unlock unlocks for the goroutine of the test.
func (w *World) Unlock(l *lockregistry.Lock) {
	w.Helper()
	w.Released(l.Unlock(w.Context()))
}

// obtains makes a call that must succeed.
func (w *World) obtains(call func() error) {
	w.Helper()
	require.NoError(w, w.Answer(call))
}

// Answer returns the result of a call. On a real server it repeats the call if the reply took too long, see TookLong.
func (w *World) Answer(call func() error) error {
	const patience = 20 * time.Second
	began, err := time.Now(), call()
	for !w.Fake && TookLong(err) && time.Since(began) < patience {
		err = call()
	}
	return err
}

// Released checks the result of a releasing call. On a real server its reply may have taken too long: the key is removed all
// the same, a moment later.
func (w *World) Released(err error) {
	w.Helper()
	require.NoError(w, w.UnlessLate(err))
}

// UnlessLate returns the error of a releasing call, see Released.
func (w *World) UnlessLate(err error) error {
	if w.Fake {
		return err
	}
	return UnlessLate(err)
}

// UnlessBusy is UnlessLate for calls that keep taking a lock from each other, see LeaseOver.
func (w *World) UnlessBusy(err error) error {
	if w.Fake {
		return err
	}
	return UnlessBusy(err)
}

// Free reports whether a lock's key is gone.
func (w *World) Free(key string) bool {
	w.Helper()
	return w.Do("EXISTS", key) == "0"
}

// IsFree checks that a lock's key is gone after a release, see Released.
func (w *World) IsFree(key string) {
	w.Helper()
	if !w.Fake {
		w.AwaitGone(key)
	}
	require.True(w, w.Free(key), key)
}

// LeftNothing checks that nothing of any lock, and no ticket, is left.
func (w *World) LeftNothing() {
	w.Helper()
	if !w.Fake { // on a busy machine a release whose reply was late is repeated
		w.Await("nothing is left", func() bool { return w.Left() == "" })
	}
	require.Empty(w, w.Left())
}

// Left returns what is left of locks, and of queues with tickets. A queue without tickets stays for a while, since it says when
// there was a window for calls without one. So does the record of a registry, which belongs to no lock.
func (w *World) Left() string {
	w.Helper()
	return strings.Trim(w.Do("EVAL", `local left = {}
		for _, key in ipairs(redis.call('KEYS', '*')) do
			local queue = string.find(key, ':waiters$')
			if queue and redis.call('ZCOUNT', key, 0, '+inf') > 0 or not queue and not string.find(key, ':registry$') then
				left[#left + 1] = key
			end
		end
		return left`, "0"), "[]\n")
}

// Keys returns how many keys there are, except the records of registries, which a registry writes once something has lasted a
// while.
func (w *World) Keys() string {
	w.Helper()
	return w.Do("EVAL", KeysButRecords, "0")
}

// KeysButRecords is the script of Keys.
const KeysButRecords = `return #redis.call('KEYS', '*') - #redis.call('KEYS', '*:registry')`

// SentinelErrors are the errors by which callers tell failures apart.
var SentinelErrors = []error{
	lockregistry.ErrNotOwner, lockregistry.ErrLockLost, lockregistry.ErrTaken, lockregistry.ErrClosed, lockregistry.ErrCapacity,
	lockregistry.ErrUnavailable, lockregistry.ErrDeadlock, lockregistry.ErrWrongType,
	context.Canceled, context.DeadlineExceeded,
}

// SentinelsOf returns the sentinel errors that an error matches.
func SentinelsOf(err error) (all []error) {
	for _, s := range SentinelErrors {
		if errors.Is(err, s) {
			all = append(all, s)
		}
	}
	return all
}

// Fails checks that an error is the *LockError of an operation on a key, that it matches the reason, and that it matches no
// other error that a caller may test for, except those named here.
func (w *World) Fails(err, reason error, op, key string, also ...error) {
	w.Helper()
	require.ErrorIs(w, err, reason)
	for _, s := range SentinelsOf(err) {
		require.True(w, errors.Is(reason, s) || slices.Contains(also, s), "%v is about %v, too", err, s)
	}
	for _, s := range also {
		require.ErrorIs(w, err, s)
	}
	require.NotContains(w, err.Error(), "\n")
	var failed *lockregistry.LockError
	require.ErrorAs(w, err, &failed)
	require.Equal(w, op, failed.Op)
	require.Equal(w, key, failed.Key)
}

// Pending checks that there is no result yet.
func (w *World) Pending(result <-chan error) {
	w.Helper()
	select {
	case err := <-result:
		w.Fatal("ended too soon: ", err)
	default:
	}
}
