package registry_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// ofSentinel pretends to be a client for Sentinel.
type ofSentinel struct{ rueidis.Client }

func (ofSentinel) Mode() rueidis.ClientMode { return rueidis.ClientModeSentinel }

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

func ofSet(addresses ...string) rueidis.ClientOption {
	return rueidis.ClientOption{InitAddress: addresses, Sentinel: rueidis.SentinelOption{MasterSet: "main"}}
}

func TestNew_WithSentinelsThatMakeNoSense(t *testing.T) {
	client := kit.UnusedClient(t)
	readsReplicas, onReplicas := ofSet("a:1"), ofSet("a:1")
	readsReplicas.SendToReplicas = func(rueidis.Completed) bool { return true }
	onReplicas.ReplicaOnly = true
	shortLived := ofSet("a:1")
	shortLived.ConnLifetime = time.Minute
	for _, c := range []struct {
		option rueidis.ClientOption
		client rueidis.Client
		says   string
	}{
		{ofSet(), ofSentinel{client}, "WithSentinels: InitAddress is empty: it must have the addresses of the Sentinels"},
		{ofSet("a:1", ""), ofSentinel{client}, "WithSentinels: an address in InitAddress is empty"},
		{rueidis.ClientOption{InitAddress: []string{"a:1"}}, ofSentinel{client}, "WithSentinels: Sentinel.MasterSet is empty"},
		{readsReplicas, ofSentinel{client}, "WithSentinels: ReplicaOnly or SendToReplicas is set, but locks are on masters: unset it"},
		{onReplicas, ofSentinel{client}, "WithSentinels: ReplicaOnly or SendToReplicas is set, but locks are on masters: unset it"},
		{
			shortLived, ofSentinel{client},
			"WithSentinels: ConnLifetime is set, but then a command whose reply was lost may be sent again: unset it",
		},
		{ofSet("a:1"), client, "WithSentinels: the client is not for Sentinel"},
	} {
		r, err := lockregistry.New(c.client, "orders", lockregistry.WithSentinels(c.option))
		require.Nil(t, r, c.says)
		kit.Complains(t, err, c.says)
		require.NotContains(t, err.Error(), "\n", "nothing else is wrong")
	}
	_, err := lockregistry.Open(t.Context(), "redis://host?master_set=main", "orders", lockregistry.WithSentinels(ofSet("a:1")))
	kit.Complains(t, err, "WithSentinels: it is for New only; Open knows the Sentinels")
}

// Sentinels that cannot be reached keep calls from locking only for as long as a deposed master might still answer. The log
// names them. They are asked once for all registries on a client.
func TestNew_WithSentinelsThatDoNotAnswer(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		client, log, dialed := ofSentinel{w.Client()}, &lines{}, make(chan string, 100)
		option := ofSet("10.0.0.9:26379")
		option.DialCtxFn = func(_ context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			dialed <- address
			return nil, errors.New("no route to host")
		}
		sentinels := lockregistry.WithSentinels(option)
		logger := lockregistry.WithLogger(slog.New(slog.NewTextHandler(log, nil)))
		r := w.RegistryOn(client, sentinels, logger, lockregistry.WithCommandTimeout(time.Minute))
		other := w.RegistryOn(client, lockregistry.WithSentinels(ofSet("10.0.0.8:26379")))
		require.Equal(w, "10.0.0.9:26379", <-dialed)
		require.Eventually(w, func() bool { return log.has("most Sentinels do not answer") }, time.Minute, time.Millisecond)
		require.True(w, log.has("10.0.0.9:26379"))
		w.Lock(r.Obtain("42"))
		w.Unlock(r.Obtain("42"))
		require.NoError(w, r.Close())
		w.Lock(other.Obtain("42"))
		w.Unlock(other.Obtain("42"))
		require.NoError(w, other.Close())
	})
}

// An operator has the Sentinels watch another server, which is no failover: the former master stays one. The registry leaves
// it, and holds that are only there are lost.
func TestOpen_SentinelsThatAreToWatchAnotherServer(t *testing.T) {
	t.Parallel()
	d, next := redistest.StartSentinels(t, 0, 3), redistest.Start(t)
	host, port, err := net.SplitHostPort(next.Addr())
	require.NoError(t, err)
	r, err := lockregistry.Open(t.Context(), "redis://"+d.Addresses()[0]+"?master_set="+redistest.MasterSet, "orders")
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	former, err := r.Acquire(t.Context(), "42")
	require.NoError(t, err)
	held := former.Context(t.Context())
	for _, s := range d.Sentinels {
		s.Command(t, "SENTINEL", "REMOVE", redistest.MasterSet)
		s.Command(t, "SENTINEL", "MONITOR", redistest.MasterSet, host, port, "2")
	}
	require.Eventually(t, func() bool {
		hold, err := r.Acquire(t.Context(), "43")
		if err != nil {
			return false
		}
		there := next.Command(t, "EXISTS", "orders:43") == "1"
		_ = hold.Release(t.Context())
		return there
	}, 20*time.Second, 10*time.Millisecond)
	<-held.Done()
	require.ErrorIs(t, former.Release(t.Context()), lockregistry.ErrLockLost)
}

// grantsOn returns a function that tries to lock, and reports whether the lock was on a server.
func grantsOn(t *testing.T, r *lockregistry.Registry, server *redistest.Server) func() bool {
	return func() bool {
		ctx, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		hold, err := r.Acquire(ctx, "42")
		if err != nil {
			return false
		}
		there := server.Command(t, "EXISTS", "orders:42") == "1"
		_ = hold.Release(t.Context())
		return there
	}
}

// All Sentinels are replaced, as when their machines are. Then the new ones replace the master: the registry follows them,
// although none of the Sentinels that it knew is left.
func TestOpen_AllSentinelsAreReplaced(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 1, 3)
	former, next := d.Servers[0], d.Servers[1]
	all := strings.Join(d.Addresses(), "&addr=")
	all = strings.Replace(all, "&", "?", 1) + "&master_set=" + redistest.MasterSet
	r, err := lockregistry.Open(t.Context(), "redis://"+all, "orders")
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	gone := d.Sentinels
	d.AddSentinels(3)
	for i := range gone { // the first one, which the client follows, comes last
		gone[len(gone)-1-i].Stop()
	}
	d.Sentinels = d.Sentinels[len(gone):]
	for _, s := range d.Sentinels {
		s.Command(t, "SENTINEL", "RESET", redistest.MasterSet) // so that it forgets the stopped ones
	}
	d.AwaitHealthy()
	d.Sentinels[0].Command(t, "SENTINEL", "FAILOVER", redistest.MasterSet)
	d.AwaitPromotion("orders:42", former)
	require.Eventually(t, grantsOn(t, r, next), 30*time.Second, time.Millisecond)
}

// The Sentinel that the client follows is cut off from the others, and still names the former master after a failover. The
// registry asks all of them, and locks on the successor once a deposed master would have been demoted.
func TestOpen_ASentinelThatIsCutOffFromTheOthers(t *testing.T) {
	t.Parallel()
	d := redistest.StartSentinels(t, 1, 3)
	former, next, deaf := d.Servers[0], d.Servers[1], d.Sentinels[2]
	deaf.Command(t, "ACL", "SETUSER", "default", "-publish") // the others would use it to tell it
	deaf.Command(t, "SENTINEL", "SET", redistest.MasterSet, "auth-user", "deaf", "auth-pass", "s3cret")
	name := "name=sentinel-" + strings.TrimSpace(deaf.Command(t, "SENTINEL", "MYID"))[:8]
	for _, s := range d.Servers {
		s.Command(t, "ACL", "SETUSER", "deaf", "on", ">s3cret", "~*", "&*", "+@all", "-subscribe")
		for line := range strings.Lines(s.Command(t, "CLIENT", "LIST")) {
			if id, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " "); strings.Contains(line, name) {
				s.Command(t, "CLIENT", "KILL", "ID", id)
			}
		}
	}
	r, err := lockregistry.Open(t.Context(), "redis://"+deaf.Addr()+"?master_set="+redistest.MasterSet, "orders")
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	locks := grantsOn(t, r, next)
	require.Eventually(t, locks, 20*time.Second, time.Millisecond)
	d.Sentinels[0].Command(t, "SENTINEL", "FAILOVER", redistest.MasterSet)
	d.AwaitPromotion("orders:42", former)
	require.Eventually(t, locks, 30*time.Second, time.Millisecond)
	_, port, _ := net.SplitHostPort(former.Addr())
	require.Contains(t, deaf.Command(t, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", redistest.MasterSet), port)
}

// The master's machine is gone, and with it the Sentinel that the client follows: it does not answer, and nothing refuses a
// connection to it. The client moves to the others at once.
func TestOpen_ASentinelThatIsGoneWithTheMaster(t *testing.T) {
	t.Parallel()
	const connects = 20 * time.Second
	d := redistest.StartSentinels(t, 1, 3)
	at, gone := d.Addresses(), atomic.Bool{}
	r, err := lockregistry.Open(t.Context(), "redis://"+at[0]+"?addr="+at[1]+"&addr="+at[2]+"&master_set="+redistest.MasterSet,
		"orders", lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
			o.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				if gone.Load() && address == at[0] {
					ctx, end := context.WithTimeout(ctx, connects)
					defer end()
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return d.DialContext(ctx, "tcp", address)
			}
		}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	gone.Store(true)
	d.Sentinels[0].Freeze()
	d.Servers[0].Kill()
	_, promoted := d.AwaitPromotion("orders:42", d.Servers[0])
	hold, err := r.Acquire(t.Context(), "42", lockregistry.Wait(time.Minute))
	require.NoError(t, err)
	require.Less(t, time.Since(promoted), connects/2)
	require.NoError(t, hold.Release(t.Context()))
}
