package lockregistry_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(200) // little is in use at any time: less of the time goes into looking for it
	}
	// Miniredis makes an interpreter for each script that it runs, by default with 100 kB of stacks.
	lua.RegistrySize, lua.CallStackSize = 1<<10, 64
	// Most of the time a test on a real server waits, and one in fake time computes: so there is enough to do for each core.
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	// A cluster client of rueidis closes connections that it no longer needs five seconds later, also after its Close.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		// A delayed look at the cluster's nodes outlives the client's Close by a second, too.
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

// world is a server for a test and what the test may do with it. Most tests run in several worlds: on miniredis in fake
// time, and on real servers. They run at the same time as other tests. One that measures what the process does, such as its
// goroutines, memory or time, runs alone: fakeWorldAlone, realWorldsAlone.
type world struct {
	*testing.T
	dial   func(ctx context.Context) (net.Conn, error)
	do     func(args ...string) string // one command, past this library
	fake   bool                        // time is fake: it passes when every goroutine waits, at no cost
	mini   *miniredis.Miniredis        // nil on real servers
	server *redistest.Server           // nil on miniredis
	layout lockregistry.Layout         // of its registries
}

// Cleanup forgets what it has called: a test that has run in parallel is kept until the last one ends.
func (w *world) Cleanup(end func()) {
	w.Helper()
	w.T.Cleanup(func() {
		end()
		end = nil
	})
}

// fakeWorld runs a test on miniredis in a bubble of fake time.
func fakeWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	t.Parallel()
	fakeWorldAlone(t, test)
}

func fakeWorldAlone(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		t.Cleanup(m.Close)
		// Time stands still when the test is over: whoever connects to a silent server has to give up before that.
		t.Cleanup(func() { <-time.After(10 * time.Second) })
		w := &world{
			T:    t,
			dial: func(context.Context) (net.Conn, error) { return m.Dial() },
			fake: true,
			mini: m,
		}
		command := w.client()
		w.do = func(args ...string) string { return said(command, args...) }
		test(w)
	})
}

// realWorlds runs a test on every real server that there is, in real time.
func realWorlds(t *testing.T, test func(w *world)) {
	t.Helper()
	t.Parallel()
	onServers(t, func(t *testing.T, server string) {
		t.Helper()
		t.Parallel()
		test(realWorld(t, redistest.StartBinary(t, server)))
	})
}

func realWorldsAlone(t *testing.T, test func(w *world)) {
	t.Helper()
	onServers(t, func(t *testing.T, server string) {
		t.Helper()
		test(realWorld(t, redistest.StartBinary(t, server)))
	})
}

func onServers(t *testing.T, test func(t *testing.T, server string)) {
	t.Helper()
	for _, server := range redistest.Binaries(t) {
		t.Run(filepath.Base(server), func(t *testing.T) { test(t, server) })
	}
}

func realWorld(t *testing.T, server *redistest.Server) *world {
	t.Helper()
	return &world{
		T: t,
		dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", server.Addr())
		},
		do:     func(args ...string) string { return server.Command(t, args...) },
		server: server,
	}
}

// worlds runs a test on miniredis in fake time and on every real server.
func worlds(t *testing.T, test func(w *world)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { fakeWorld(t, test) })
	realWorlds(t, test)
}

func worldsAlone(t *testing.T, test func(w *world)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { fakeWorldAlone(t, test) })
	realWorldsAlone(t, test)
}

// said is the reply of a command as text, "(nil)" for a null.
func said(c rueidis.Client, args ...string) string {
	reply, err := c.Do(context.Background(), c.B().Arbitrary(args...).Build()).ToAny()
	if rueidis.IsRedisNil(err) {
		return "(nil)"
	}
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(fmt.Sprint(reply))
}

// newClient returns a client with little memory: by default each of its connections has a megabyte, and places for 1024 commands
// under way, which take longer to make than many a test.
func newClient(o rueidis.ClientOption) (rueidis.Client, error) {
	const buffer, places = 16 << 10, 8 // 256
	o.ReadBufferEachConn = cmp.Or(o.ReadBufferEachConn, buffer)
	o.WriteBufferEachConn = cmp.Or(o.WriteBufferEachConn, buffer)
	o.RingScaleEachConn = cmp.Or(o.RingScaleEachConn, places)
	return rueidis.NewClient(o)
}

// clientWith returns a client of its own that dials as told, closed at the end of the test.
func (w *world) clientWith(
	dial func(ctx context.Context) (net.Conn, error), change ...func(*rueidis.ClientOption),
) rueidis.Client {
	w.Helper()
	option := rueidis.ClientOption{
		InitAddress:       []string{"redis:6379"},
		ForceSingleClient: true,
		DisableCache:      w.fake,
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx)
		},
	}
	for _, c := range change {
		c(&option)
	}
	client, err := newClient(option)
	require.NoError(w, err)
	w.Cleanup(client.Close)
	return client
}

// client returns one with nothing between it and the server.
func (w *world) client() rueidis.Client {
	w.Helper()
	if w.fake {
		return w.clientWith(w.dial, unasked)
	}
	return w.clientWith(w.dial)
}

// unasked has a client ask no server each second whether it is there, for worlds in which none falls silent: in an hour of fake
// time that is ten thousand commands.
func unasked(o *rueidis.ClientOption) {
	o.Dialer.KeepAlive, o.ConnWriteTimeout = 24*time.Hour, 10*time.Second
}

// registry returns a registry with a client of its own, as another process would have one.
func (w *world) registry(opts ...lockregistry.Option) *lockregistry.Registry {
	w.Helper()
	return w.registryOn(w.client(), opts...)
}

func (w *world) registryOn(client rueidis.Client, opts ...lockregistry.Option) *lockregistry.Registry {
	w.Helper()
	r, err := lockregistry.New(client, "orders", append([]lockregistry.Option{lockregistry.WithLayout(w.layout)}, opts...)...)
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, r.Close()) })
	return r
}

// pass lets time go by; only where it is fake.
func (w *world) pass(d time.Duration) {
	w.Helper()
	if !w.fake {
		w.Fatal("time passes only in a fake world")
	}
	<-time.After(d)
}

// settle returns when every goroutine waits for something; only where time is fake.
func (w *world) settle() {
	w.Helper()
	if !w.fake {
		w.Fatal("nobody can tell who waits in a real world")
	}
	synctest.Wait()
}

// await waits until something has become true, and fails the test when it takes too long. A look may cost a connection and a
// command: the pauses grow from one millisecond to five, so that a test can tell when it happened.
func (w *world) await(what string, happened func() bool) {
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

// awaitGone waits until a key has expired or was removed.
func (w *world) awaitGone(key string) {
	w.Helper()
	w.await(key+" is gone", func() bool { return w.do("EXISTS", key) == "0" })
}

// pttl is what is left of a key's lease: -1 when it has no end, -2 when there is no key.
func (w *world) pttl(key string) time.Duration {
	w.Helper()
	ms, err := strconv.Atoi(w.do("PTTL", key))
	require.NoError(w, err)
	if ms < 0 {
		return time.Duration(ms)
	}
	return time.Duration(ms) * time.Millisecond
}

// lock and unlock do so for the goroutine of the test.
func (w *world) lock(l *lockregistry.Lock, opts ...lockregistry.LockOption) {
	w.Helper()
	require.NoError(w, l.Lock(w.Context(), opts...))
}

func (w *world) unlock(l *lockregistry.Lock) {
	w.Helper()
	require.NoError(w, l.Unlock(w.Context()))
}

// free tells whether a lock's key is not there.
func (w *world) free(key string) bool {
	w.Helper()
	return w.do("EXISTS", key) == "0"
}

// leftNothing checks that there is nothing of a lock, and no ticket.
func (w *world) leftNothing() {
	w.Helper()
	require.Empty(w, w.left())
}

// left is what there is of locks, and queues with tickets. A queue without any stays for a while, since it says when there was a
// window for those without a ticket. So does the record of a registry, which is about no lock.
func (w *world) left() string {
	w.Helper()
	return strings.Trim(w.do("EVAL", `local left = {}
		for _, key in ipairs(redis.call('KEYS', '*')) do
			local queue = string.find(key, ':waiters$')
			if queue and redis.call('ZCOUNT', key, 0, '+inf') > 0 or not queue and not string.find(key, ':registry$') then
				left[#left + 1] = key
			end
		end
		return left`, "0"), "[]\n")
}

// keys is how many keys there are, but for the records of registries, which are there when something has lasted a while.
func (w *world) keys() string {
	w.Helper()
	return w.do("EVAL", keysButRecords, "0")
}

const keysButRecords = `return #redis.call('KEYS', '*') - #redis.call('KEYS', '*:registry')`

// sentinels are what callers tell errors apart by.
var sentinels = []error{
	lockregistry.ErrNotOwner, lockregistry.ErrLockLost, lockregistry.ErrTaken, lockregistry.ErrClosed, lockregistry.ErrCapacity,
	lockregistry.ErrUnavailable, lockregistry.ErrDeadlock, lockregistry.ErrUpgrade, lockregistry.ErrWrongType,
	context.Canceled, context.DeadlineExceeded,
}

// about are the sentinels that an error matches.
func about(err error) (all []error) {
	for _, s := range sentinels {
		if errors.Is(err, s) {
			all = append(all, s)
		}
	}
	return all
}

// fails checks that an error is the *LockError of an operation on a key, about a reason, and about nothing else that a caller may
// test for but what is named here.
func (w *world) fails(err, reason error, op, key string, also ...error) {
	w.Helper()
	require.ErrorIs(w, err, reason)
	for _, s := range about(err) {
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

// goroutine is a goroutine that does one thing after another, as told: an owner of its own.
type goroutine struct {
	w    *world
	todo chan func()
}

func (w *world) goroutine() *goroutine {
	g := &goroutine{w, make(chan func(), 8)}
	w.Cleanup(func() { close(g.todo) })
	go func() {
		for do := range g.todo {
			do()
		}
	}()
	return g
}

// start makes the goroutine do something after what it does now.
func (g *goroutine) start(do func() error) <-chan error {
	result := make(chan error, 1)
	g.todo <- func() { result <- do() }
	return result
}

func (g *goroutine) do(do func() error) error { return <-g.start(do) }

func (g *goroutine) starts(l *lockregistry.Lock, opts ...lockregistry.LockOption) <-chan error {
	return g.start(func() error { return l.Lock(g.w.Context(), opts...) })
}

func (g *goroutine) lock(l *lockregistry.Lock, opts ...lockregistry.LockOption) error {
	return <-g.starts(l, opts...)
}

func (g *goroutine) try(l *lockregistry.Lock, opts ...lockregistry.LockOption) (ok bool, err error) {
	_ = g.do(func() error {
		ok, err = l.TryLock(g.w.Context(), opts...)
		return nil
	})
	return ok, err
}

func (g *goroutine) unlock(l *lockregistry.Lock) error {
	return g.do(func() error { return l.Unlock(g.w.Context()) })
}

// pending checks that a result is not there yet.
func (w *world) pending(result <-chan error) {
	w.Helper()
	select {
	case err := <-result:
		w.Fatal("ended too soon: ", err)
	default:
	}
}

// elsewhere runs a function on another goroutine and returns its result: for a second owner.
func elsewhere[T any](f func() T) T {
	result := make(chan T)
	go func() { result <- f() }()
	return <-result
}

//nolint:revive // the order of l.Lock(ctx)
func lockElsewhere(l *lockregistry.Lock, ctx context.Context, opts ...lockregistry.LockOption) <-chan error {
	result := make(chan error, 1)
	go func() { result <- l.Lock(ctx, opts...) }()
	return result
}

// tryElsewhere tells whether another goroutine gets the lock, and unlocks it if it does.
func (w *world) tryElsewhere(l *lockregistry.Lock) bool {
	w.Helper()
	return elsewhere(func() bool {
		ok, err := l.TryLock(w.Context())
		if err != nil {
			w.Error(err)
		}
		if ok {
			if err := l.Unlock(w.Context()); err != nil {
				w.Error(err)
			}
		}
		return ok
	})
}
