package torture

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// TestReplicas stops the replica, and expects that a hold counts only once a replica has it.
func TestReplicas(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(server.Addr())
	require.NoError(t, err)
	replica := redistest.Start(t, "--replicaof", host, port)
	server.Command(t, "SET", "first", "1")
	until := func(what string, happened func() bool) {
		t.Helper()
		require.Eventually(t, happened, 20*time.Second, time.Millisecond, what)
	}
	until("the replica follows", func() bool { return replica.Command(t, "GET", "first") == "1" })

	registry := func(opts ...lockregistry.Option) *lockregistry.Registry {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{server.Addr()}, ForceSingleClient: true, DisableCache: true,
		})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		r, err := lockregistry.New(client, "replicas", opts...)
		require.NoError(t, err)
		t.Cleanup(func() { _ = r.Close() })
		return r
	}
	r := registry(lockregistry.WithReplicas(1, 200*time.Millisecond))
	other := registry()
	gone := func(path string) bool { return server.Command(t, "EXISTS", "replicas:"+path) == "0" }

	ctx := lockregistry.ContextWithOwner(t.Context())
	require.NoError(t, r.Obtain("renewed").Lock(ctx, lockregistry.Lease(time.Minute), lockregistry.Wait(20*time.Second)))
	blocks, err := other.Acquire(t.Context(), "granted", lockregistry.Wait(20*time.Second))
	require.NoError(t, err)
	waits := make(chan error, 1)
	go func() {
		waits <- r.Obtain("granted").Lock(lockregistry.ContextWithOwner(context.Background()), lockregistry.Wait(8*time.Second))
	}()
	until("a call waits", func() bool {
		return server.Command(t, "ZCOUNT", "replicas:{replicas:granted}:waiters", "0", "+inf") == "1"
	})
	// The client now has several connections for blocking commands. The replica has, and has acknowledged, what was written before
	// the last command on each.
	for range 3 {
		nothing := func(context.Context) error { return nil }
		require.NoError(t, unlessLate(r.Do(t.Context(), "before", nothing, lockregistry.Wait(20*time.Second))))
	}
	until("the replica has acknowledged all", func() bool {
		info := server.Command(t, "INFO", "replication")
		_, after, _ := strings.Cut(info, "master_repl_offset:")
		offset, _, _ := strings.Cut(after, "\r")
		return strings.Contains(info, ",offset="+offset+",")
	})
	replica.Freeze()

	ok, err := r.Obtain("free").TryLock(t.Context())
	require.ErrorIs(t, err, lockregistry.ErrUnavailable)
	require.False(t, ok)
	until("it is given back", func() bool { return gone("free") })
	require.ErrorIs(t, r.Renew(t.Context(), "renewed", time.Hour), lockregistry.ErrUnavailable)
	require.NoError(t, unlessLate(r.Obtain("renewed").Unlock(ctx)))
	require.NoError(t, unlessLate(blocks.Release(t.Context())))
	err = <-waits
	require.ErrorIs(t, err, lockregistry.ErrUnavailable)
	require.NotErrorIs(t, err, lockregistry.ErrTaken)
	until("it is given back", func() bool { return gone("granted") })

	replica.Thaw()
	ok, err = r.Obtain("free").TryLock(t.Context(), lockregistry.Wait(20*time.Second))
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "1", replica.Command(t, "EXISTS", "replicas:free"))
}
