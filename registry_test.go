package lockregistry_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	miniserver "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// A few tests that show what a Registry does. All others are below test/, by theme.

// inFakeTime runs a test on miniredis in a bubble, where time passes when every goroutine waits.
func inFakeTime(t *testing.T, test func(t *testing.T, server *miniredis.Miniredis)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		t.Cleanup(server.Close)
		test(t, server)
	})
}

// process makes a registry like that of another process, with a client of its own, on miniredis.
func process(t *testing.T, server *miniredis.Miniredis, opts ...lockregistry.Option) *lockregistry.Registry {
	t.Helper()
	dial := func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) { return server.Dial() }
	return registryOn(t, rueidis.ClientOption{
		InitAddress: []string{"redis:6379"}, DialCtxFn: dial, ForceSingleClient: true, DisableCache: true,
		// The client does not ask each second whether the server is there.
		Dialer: net.Dialer{KeepAlive: 24 * time.Hour}, ConnWriteTimeout: 10 * time.Second,
	}, opts...)
}

func registryOn(t *testing.T, o rueidis.ClientOption, opts ...lockregistry.Option) *lockregistry.Registry {
	t.Helper()
	client, err := rueidis.NewClient(o)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r, err := lockregistry.New(client, "orders", opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// commands counts, by name, what a server executes about orders:42 while a function runs, including what scripts call.
func commands(server *miniredis.Miniredis, during func()) map[string]int {
	var mu sync.Mutex
	executed := map[string]int{}
	server.Server().SetPreHook(func(_ *miniserver.Peer, name string, args ...string) bool {
		mu.Lock()
		defer mu.Unlock()
		if slices.Contains(args, "orders:42") {
			executed[name]++
		}
		return false
	})
	during()
	server.Server().SetPreHook(nil)
	mu.Lock()
	defer mu.Unlock()
	return executed
}

func lockAndUnlock(ctx context.Context, l *lockregistry.Lock) error {
	return errors.Join(l.Lock(ctx), l.Unlock(ctx))
}

// A registry hands out one lock object for each path, whoever asks, and keeps it.
func TestRegistry_OneLockForEachPath(t *testing.T) {
	inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis) {
		r := process(t, server)
		first := r.Obtain("42")
		require.Equal(t, "Lock(orders:42, not held)", first.String())
		require.NotSame(t, first, r.Obtain("43"))
		require.NotSame(t, first, process(t, server).Obtain("42"), "another registry has its own")

		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				if r.Obtain("42") != first {
					t.Error("two lock objects of one path")
				}
			})
		}
		all.Wait()
	})
}

// While one registry holds a lock, no other registry gets it.
func TestRegistry_ExcludesOtherRegistries(t *testing.T) {
	inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis) {
		ctx := t.Context()
		a, b := process(t, server).Obtain("42"), process(t, server).Obtain("42")
		require.NoError(t, a.Lock(ctx))

		ok, err := b.TryLock(ctx)
		require.NoError(t, err)
		require.False(t, ok)
		require.ErrorIs(t, b.Lock(ctx, lockregistry.Wait(time.Second)), lockregistry.ErrTaken)
		require.ErrorIs(t, b.Unlock(ctx), lockregistry.ErrNotOwner)

		locked := make(chan error)
		go func() { locked <- b.Lock(ctx) }()
		synctest.Wait()
		select {
		case err := <-locked:
			t.Fatal("two registries are inside: ", err)
		default:
		}
		require.NoError(t, a.Unlock(ctx))
		require.NoError(t, <-locked)
		require.True(t, server.Exists("orders:42"))
	})
}

// The goroutines of a process queue before Redis: those that wait for their own process send nothing.
func TestRegistry_LocalGoroutinesBeforeRedis(t *testing.T) {
	inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis) {
		ctx := t.Context()
		l := process(t, server, lockregistry.WithPolling()).Obtain("42")
		require.NoError(t, l.Lock(ctx))

		results := make(chan error, 16)
		sent := commands(server, func() {
			for range 16 {
				go func() { results <- lockAndUnlock(ctx, l) }()
			}
			<-time.After(10 * time.Second)
		})
		require.Empty(t, sent, "the lease lasts a minute, so nothing is due for the hold")

		require.NoError(t, l.Unlock(ctx))
		for range 16 {
			require.NoError(t, <-results)
		}
		require.False(t, server.Exists("orders:42"))
	})
}

// A call that nothing wakes tries again every 100 ms, as Spring's does.
func TestRegistry_PollsEach100Milliseconds(t *testing.T) {
	inFakeTime(t, func(t *testing.T, server *miniredis.Miniredis) {
		ctx := t.Context()
		l := process(t, server, lockregistry.WithPolling()).Obtain("42")
		require.NoError(t, l.Lock(ctx)) // the server knows the script
		require.NoError(t, l.Unlock(ctx))
		require.NoError(t, server.Set("orders:42", "a Java service"))

		locked := make(chan error, 1)
		go func() { locked <- l.Lock(ctx) }()
		<-time.After(time.Second + time.Millisecond)
		sent := commands(server, func() { <-time.After(10 * time.Second) })
		require.Equal(t, 100, sent["EVALSHA"], sent)

		server.Del("orders:42")
		removed := time.Now()
		require.NoError(t, <-locked)
		require.LessOrEqual(t, time.Since(removed), 100*time.Millisecond)
	})
}

// If INFO reports a server that has UNLINK, UNLINK removes keys, not DEL.
func TestRegistry_RemovesWithUnlink(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l := registryOn(t, rueidis.ClientOption{InitAddress: []string{server.Addr()}}).Obtain("42")
	executed := func() string {
		require.NoError(t, l.Lock(t.Context(), lockregistry.Wait(time.Minute)))
		require.Equal(t, "1", server.Command(t, "EXISTS", "orders:42"))
		if err := l.Unlock(t.Context()); !errors.Is(err, fault.NoAnswer) && !errors.Is(err, fault.Late) {
			require.NoError(t, err)
		}
		require.True(t, redistest.Await(time.Minute, func() bool { return server.Command(t, "EXISTS", "orders:42") == "0" }))
		return server.Command(t, "INFO", "commandstats")
	}
	stats := executed()
	require.Contains(t, stats, "cmdstat_info:")
	for range 50 { // on a busy machine the answer is too late for this removal, and the next one asks again
		if strings.Contains(stats, "cmdstat_unlink:") {
			break
		}
		stats = executed()
	}
	server.Command(t, "CONFIG", "RESETSTAT")
	stats = executed()
	require.Contains(t, stats, "cmdstat_unlink:calls=")
	require.NotContains(t, stats, "cmdstat_del:")
}
