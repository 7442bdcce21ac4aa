package leader_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/leader"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(redistest.Patient{M: m, Leaks: leaks})
}

func leaks() error { return goleak.Find() }

const (
	role = "singleton"
	key  = "orders:" + role
)

// world is a server for a test.
type world struct {
	*testing.T
	dial   func(ctx context.Context) (net.Conn, error)
	do     func(args ...string) string // one command, past this library
	mini   *miniredis.Miniredis        // nil on real servers
	server *redistest.Server           // nil on miniredis
}

// fakeWorld runs a test on miniredis in a bubble of fake time.
func fakeWorld(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		m.ClockTTL(true)
		t.Cleanup(m.Close)
		w := &world{T: t, mini: m, dial: func(context.Context) (net.Conn, error) { return m.Dial() }}
		command := w.client()
		w.do = func(args ...string) string {
			said, err := command.Do(context.Background(), command.B().Arbitrary(args...).Build()).ToAny()
			if rueidis.IsRedisNil(err) {
				return ""
			}
			require.NoError(t, err)
			return fmt.Sprint(said)
		}
		test(w)
	})
}

// realWorlds runs a test on every real server that there is, in real time.
func realWorlds(t *testing.T, test func(w *world)) {
	t.Helper()
	for _, binary := range redistest.Binaries(t) {
		t.Run(filepath.Base(binary), func(t *testing.T) {
			server := redistest.StartBinary(t, binary)
			test(&world{
				T:      t,
				server: server,
				dial: func(ctx context.Context) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "tcp", server.Addr())
				},
				do: func(args ...string) string {
					return strings.TrimPrefix(server.Command(t, args...), "(nil)")
				},
			})
		})
	}
}

// worlds runs a test on miniredis in fake time and on every real server.
func worlds(t *testing.T, test func(w *world)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { fakeWorld(t, test) })
	realWorlds(t, test)
}

func (w *world) client() rueidis.Client {
	w.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress:       []string{"redis:6379"},
		ForceSingleClient: true,
		DisableCache:      w.mini != nil,
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return w.dial(ctx)
		},
	})
	require.NoError(w, err)
	w.Cleanup(client.Close)
	return client
}

// registry returns a registry with a client of its own, as another process would have one.
func (w *world) registry(opts ...lockregistry.Option) *lockregistry.Registry {
	w.Helper()
	r, err := lockregistry.New(w.client(), "orders", opts...)
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, r.Close()) })
	return r
}

// await waits until something has become true, and fails the test when it takes too long.
func (w *world) await(what string, happened func() bool) {
	w.Helper()
	const limit = 20 * time.Second
	for deadline := time.Now().Add(limit); !happened(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// waits returns when somebody waits for a role to become free.
func (w *world) waits(role string) {
	w.Helper()
	if w.mini != nil { // which has no queue
		synctest.Wait()
		return
	}
	w.await("it waits", func() bool { return w.do("ZCOUNT", "orders:{orders:"+role+"}:waiters", "0", "+inf") != "0" })
}

func (w *world) leads(c *candidate) {
	w.Helper()
	w.await("it leads", c.IsLeader)
}

// within waits for what a channel brings, and fails the test when it takes too long.
func within[T any](w *world, what string, ch <-chan T) T {
	w.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(20 * time.Second):
		w.Fatal("nothing within 20 s: ", what)
		panic("unreachable")
	}
}

// candidate is one that is run, and what happened to it.
type candidate struct {
	*leader.Candidate
	w       *world
	stop    context.CancelFunc
	result  chan error // of Run
	granted chan context.Context
	revoked chan error
	failed  chan error
}

// campaigns makes a candidate and runs it until the end of the test.
func (w *world) campaigns(r *lockregistry.Registry, lead func(context.Context) error, opts ...leader.Option) *candidate {
	w.Helper()
	return w.campaignsIn(context.Background(), role, r, lead, opts...)
}

func (w *world) campaignsFor(role string, r *lockregistry.Registry, lead func(context.Context) error) *candidate {
	w.Helper()
	return w.campaignsIn(context.Background(), role, r, lead)
}

func (w *world) campaignsIn(
	ctx context.Context, role string, r *lockregistry.Registry, lead func(context.Context) error, opts ...leader.Option,
) *candidate {
	w.Helper()
	c := w.candidate(role, r, lead, opts...)
	c.run(ctx)
	w.Cleanup(func() {
		c.stop()
		select { // the test may have taken it
		case err := <-c.result:
			w.Log("Run returned: ", err)
		case <-time.After(20 * time.Second):
			w.Error("Run does not return")
		}
	})
	return c
}

func (w *world) candidate(
	role string, r *lockregistry.Registry, lead func(context.Context) error, opts ...leader.Option,
) *candidate {
	w.Helper()
	c := &candidate{
		w: w, granted: make(chan context.Context, 1000), revoked: make(chan error, 1000), failed: make(chan error, 1000),
	}
	opts = append([]leader.Option{
		leader.OnGranted(func(ctx context.Context) { c.granted <- ctx }),
		leader.OnRevoked(func(err error) { c.revoked <- err }),
		leader.OnFailed(func(err error) { c.failed <- err }),
	}, opts...)
	var err error
	c.Candidate, err = leader.New(r, role, lead, opts...)
	require.NoError(w, err)
	return c
}

// run runs it in a goroutine. Result is closed after it brought what Run returned.
func (c *candidate) run(ctx context.Context) {
	ctx, c.stop = context.WithCancel(ctx)
	result := make(chan error, 1)
	c.result = result
	go func() {
		defer close(result)
		result <- c.Run(ctx)
	}()
}

// untilEnd is a lead that does its work until it is told to stop.
func untilEnd(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

var errWork = errors.New("out of paper")
