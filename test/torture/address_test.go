package torture

import (
	"context"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// twofold is a cluster with two masters behind one address. The older one is deposed and does not know it. New connections lead
// to the newer one, which all nodes name as the owner of the same slots.
type twofold struct {
	proxy        *netfault.Proxy
	older, newer *redistest.Server
	paths        []string // two of the slots that they serve
	client       rueidis.Client
}

func openTwofold(t *testing.T) *twofold {
	t.Helper()
	nodes := redistest.StartCluster(t, 3)
	f := &twofold{older: nodes[0], newer: redistest.StartCluster(t, 1)[0]}
	f.proxy = listen(t, f.older.Addr())
	_, port, err := net.SplitHostPort(f.proxy.Addr())
	require.NoError(t, err)
	for _, s := range []*redistest.Server{f.older, f.newer} {
		s.Command(t, "CONFIG", "SET", "cluster-announce-port", port)
		for body := range scripts() {
			s.Command(t, "SCRIPT", "LOAD", body)
		}
	}
	for _, s := range append(nodes, f.newer) {
		told := func() bool { return strings.Contains(s.Command(t, "CLUSTER", "SLOTS"), port) }
		require.Eventually(t, told, 20*time.Second, 10*time.Millisecond)
	}
	for i := 0; len(f.paths) < 2; i++ { // the older master serves the first third of the slots
		slot, err := strconv.Atoi(f.older.Command(t, "CLUSTER", "KEYSLOT", keyOf(strconv.Itoa(i))))
		require.NoError(t, err)
		if slot < 16384/3 {
			f.paths = append(f.paths, strconv.Itoa(i))
		}
	}
	f.client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{f.proxy.Addr()}, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(f.client.Close)
	require.Equal(t, rueidis.ClientModeCluster, f.client.Mode())
	return f
}

// openAlone is the same with two servers outside any cluster.
func openAlone(t *testing.T) *twofold {
	t.Helper()
	f := &twofold{older: redistest.Start(t), newer: redistest.Start(t), paths: []string{"one", "two"}}
	f.proxy = listen(t, f.older.Addr())
	for body := range scripts() {
		f.older.Command(t, "SCRIPT", "LOAD", body)
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{f.proxy.Addr()}, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	require.Equal(t, rueidis.ClientModeStandalone, client.Mode())
	f.client = client
	return f
}

// TestDeposedBehindOneAddress expects that no reply of the deposed master is believed, although all nodes of the cluster name
// it.
func TestDeposedBehindOneAddress(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) *twofold{"cluster": openTwofold, "alone": openAlone} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deposedBehindOneAddress(t, open)
		})
	}
}

func deposedBehindOneAddress(t *testing.T, twofoldOf func(t *testing.T) *twofold) {
	t.Helper()
	of := settings{Lease: outageLease, Poll: poll, Handoff: -1}
	open := func(t *testing.T) (f *twofold, l *lockregistry.Lock, ctx context.Context, elsewhere func(context.Context) error) {
		t.Helper()
		ctx = lockregistry.ContextWithOwner(t.Context())
		f = twofoldOf(t)
		r, err := lockregistry.New(f.client, prefix, lockregistry.WithLease(of.Lease))
		require.NoError(t, err)
		t.Cleanup(func() { _ = r.Close() })
		l = r.Obtain(f.paths[0])
		for range 3 { // so that the registry knows the round trip
			require.NoError(t, l.Lock(ctx, lockregistry.Wait(time.Minute)))
			require.NoError(t, unlessLate(l.Unlock(ctx)))
		}
		return f, l, ctx, func(ctx context.Context) error { return r.Obtain(f.paths[1]).Lock(ctx) }
	}
	t.Run("grant", func(t *testing.T) {
		t.Parallel()
		f, l, ctx, elsewhere := open(t)
		err := late(t, f.proxy, f.newer, "obtain", func() error { return l.Lock(ctx) }, func() {
			f.newer.Command(t, "SET", keyOf(l.Path()), "another:1", "PX", "60000")
		}, elsewhere)
		require.ErrorIs(t, err, lockregistry.ErrUnavailable)
		require.Equal(t, "another:1", f.newer.Command(t, "GET", keyOf(l.Path())))
	})
	t.Run("renewal", func(t *testing.T) {
		t.Parallel()
		f, l, ctx, elsewhere := open(t)
		require.NoError(t, l.Lock(ctx, lockregistry.Wait(time.Minute)))
		alive := l.Context(ctx)
		err := late(t, f.proxy, f.newer, "renew", func() error { return l.Renew(ctx, of.Lease) }, func() {
			f.newer.Command(t, "SET", keyOf(l.Path()), "another:1", "PX", "60000")
		}, elsewhere)
		require.ErrorIs(t, err, lockregistry.ErrLockLost)
		require.Error(t, alive.Err())
	})
	t.Run("unlock", func(t *testing.T) {
		t.Parallel()
		f, l, ctx, elsewhere := open(t)
		require.NoError(t, l.Lock(ctx, lockregistry.Wait(time.Minute)))
		value := f.older.Command(t, "GET", keyOf(l.Path()))
		_ = late(t, f.proxy, f.newer, "release", func() error { return l.Unlock(ctx) }, func() {
			f.newer.Command(t, "SET", keyOf(l.Path()), value, "PX", "60000") // as if replicated
		}, elsewhere)
		require.Eventually(t, func() bool { return f.newer.Command(t, "EXISTS", keyOf(l.Path())) == "0" }, outageFree, time.Millisecond)
	})
}
