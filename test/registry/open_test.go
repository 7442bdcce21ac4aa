package registry_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"strconv"
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

// Open fails in time if no server answers.
func TestOpen_NoServer(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		for _, more := range []string{"", "?addr=127.0.0.1:2", "?master_set=m"} {
			r, err := lockregistry.Open(w.Context(), "redis://u:s3cret@127.0.0.1:1"+more, "orders")
			require.Nil(w, r)
			require.Equal(w, []error{lockregistry.ErrUnavailable}, kit.SentinelsOf(err), err)
			require.NotContains(w, err.Error(), "s3cret")
		}
		w.Server.Freeze()
		for _, more := range []string{"", "&addr=" + w.Server.Addr(), "&master_set=m"} {
			ctx, cancel := context.WithTimeoutCause(w.Context(), 100*time.Millisecond, errors.New("too slow"))
			r, err := lockregistry.Open(ctx, "redis://u:s3cret@"+w.Server.Addr()+"?dial_timeout=1h&client_name=opened"+more, "orders")
			cancel()
			require.Nil(w, r)
			require.Equal(w, []error{lockregistry.ErrUnavailable, context.DeadlineExceeded}, kit.SentinelsOf(err), err)
			require.ErrorContains(w, err, "too slow")
			require.NotContains(w, err.Error(), "s3cret")
		}
		r, err := lockregistry.Open(w.Context(), "redis://u:s3cret@"+w.Server.Addr()+"?dial_timeout=100ms", "orders")
		require.Nil(w, r)
		require.Equal(w, []error{lockregistry.ErrUnavailable}, kit.SentinelsOf(err), err)
		w.Server.Thaw()
		w.Await("no connection but that of the test", func() bool {
			return !strings.Contains(strings.TrimSpace(w.Do("CLIENT", "LIST")), "\n")
		})

		w.Do("CONFIG", "SET", "requirepass", "right")
		r, err = lockregistry.Open(w.Context(), "redis://u:s3cret@"+w.Server.Addr(), "orders")
		require.Nil(w, r)
		require.ErrorContains(w, err, "to redis://"+w.Server.Addr()+": the user or the password is wrong")
		require.Empty(w, kit.SentinelsOf(err))
	})
}

// Open at a replica asks again until its time is over, and then says that it is a replica. If the address leads to a master
// meanwhile, Open succeeds.
func TestOpen_Replica(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		const replica = "it leads to a replica, but locks are on its master: name the master"
		url := "redis://u:s3cret@" + w.Replica.Addr() + "?client_name=opened&dial_timeout="
		w.Replica.Command(w, "ACL", "SETUSER", "u", "on", ">s3cret", "~*", "&*", "+@all")
		const limit = 5 * time.Second // time enough for a busy machine to connect
		ctx, cancel := context.WithTimeoutCause(w.Context(), limit, errors.New("too slow"))
		r, err := lockregistry.Open(ctx, url+"1h", "orders")
		cancel()
		require.Nil(w, r)
		require.Equal(w, []error{lockregistry.ErrUnavailable, context.DeadlineExceeded}, kit.SentinelsOf(err), err)
		require.EqualError(w, err, "lockregistry: open: cannot connect to redis://"+w.Replica.Addr()+": "+replica+
			"; context deadline exceeded; too slow")

		r, err = lockregistry.Open(w.Context(), url+limit.String(), "orders")
		require.Nil(w, r)
		require.Equal(w, []error{lockregistry.ErrUnavailable}, kit.SentinelsOf(err), err)
		require.EqualError(w, err, "lockregistry: open: cannot connect to redis://"+w.Replica.Addr()+": "+replica)
		w.Await("no connection is left", func() bool {
			return !strings.Contains(w.Replica.Command(w, "CLIENT", "LIST"), "name=opened")
		})

		connections := func() int { // these looks count, too
			_, after, _ := strings.Cut(w.Replica.Command(w, "INFO", "stats"), "total_connections_received:")
			n, err := strconv.Atoi(after[:strings.IndexByte(after, '\r')])
			require.NoError(w, err)
			return n
		}
		opened := make(chan error)
		before := connections()
		go func() {
			r, err := lockregistry.Open(w.Context(), url+"1h", "orders")
			if err == nil {
				err = errors.Join(r.Do(w.Context(), "42", func(context.Context) error { return nil }), r.Close())
			}
			opened <- err
		}()
		w.Await("it has connected", func() bool {
			before++
			return connections() > before
		})
		w.Replica.Command(w, "REPLICAOF", "NO", "ONE")
		require.NoError(w, <-opened)
	})
}

// opened returns a registry made by Open, whose client dials like the clients of the world. The test closes it.
func opened(w *kit.World, opts ...lockregistry.Option) *lockregistry.Registry {
	w.Helper()
	opts = append([]lockregistry.Option{dialing(w)}, opts...)
	r, err := lockregistry.Open(w.Context(), "redis://redis?client_name=opened", "orders", opts...)
	require.NoError(w, err)
	return r
}

func dialing(w *kit.World) lockregistry.Option {
	return lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
		o.ForceSingleClient = true
		o.DialCtxFn = func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return w.Dial(ctx)
		}
	})
}

// opens returns how many connections the client of Open has.
func opens(w *kit.World) int {
	w.Helper()
	if w.Fake {
		return w.Mini.CurrentConnectionCount() - 1
	}
	return strings.Count(w.Do("CLIENT", "LIST"), "name=opened")
}

// hasConnections waits until the client of Open has so many connections. After a late answer it has one more for half a minute.
func hasConnections(w *kit.World, want int) {
	w.Helper()
	require.True(w, redistest.Await(time.Minute, func() bool { return opens(w) == want }), want)
}

func TestOpen(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := opened(w)
		require.NoError(w, w.Answer(func() error {
			return r.Do(w.Context(), "42", func(context.Context) error {
				require.False(w, w.Free("orders:42"))
				return nil
			})
		}))
		hasConnections(w, 1)
		require.NoError(w, r.Close())
		w.LeftNothing()
		w.Await("no connection", func() bool { return opens(w) == 0 })
		require.NoError(w, r.Close())
		require.ErrorIs(w, r.Obtain("42").Lock(w.Context()), lockregistry.ErrClosed)
		require.NotEmpty(w, r.Stats())
	})
}

// A waiter needs one more connection, and both end with the registry.
func TestOpen_Connections(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := opened(w)
		w.Lock(w.Registry().Obtain("42"))
		waits := kit.LockElsewhere(r.Obtain("42"), w.Context())
		w.Await("it waits", func() bool { return w.Tickets() == 1 })
		hasConnections(w, 2)
		require.NoError(w, r.Close())
		require.ErrorIs(w, <-waits, lockregistry.ErrClosed)
		w.Await("no connection", func() bool { return opens(w) == 0 })
	})
}

// Locks that are held when the registry is closed can still be unlocked. Then the client is closed.
func TestOpen_UnlockAfterClose(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(r *lockregistry.Registry) *lockregistry.Lock{
		"lock":   func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") },
		"reader": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Reader() },
		"writer": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
	} {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				r := opened(w)
				l := lock(r)
				w.Lock(l)
				hold, err := r.Acquire(w.Context(), "43")
				require.NoError(w, err)
				require.NoError(w, r.Close())
				w.Unlock(l)
				w.IsFree("orders:42")
				require.NotZero(w, opens(w), "another hold is left")
				w.Released(hold.Release(w.Context()))
				w.LeftNothing()
				w.Await("no connection", func() bool { return opens(w) == 0 })
			})
		})
	}
}

// A call without a reply yet keeps the client, even beside a lost hold of the other side: the lock that it gets is unlocked
// later.
func TestOpen_CallUnderWayBesideALostHold(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := opened(w, lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
			o.DialCtxFn = func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
				return f.Dial(ctx)
			}
		}))
		owner, rw := w.Goroutine(), r.ReadWrite("42")
		require.NoError(w, owner.Lock(rw.Writer(), lockregistry.Lease(time.Second)))
		w.Pass(time.Second)
		require.False(w, rw.Writer().IsHeld())
		answered := make(chan struct{})
		f.Fate("obtain", kit.HeldUp(answered))
		reads := owner.Starts(rw.Reader(), lockregistry.Lease(time.Hour))
		w.Settle()
		require.NoError(w, r.Close())
		close(answered)
		require.NoError(w, <-reads)
		require.NoError(w, owner.Unlock(rw.Reader()))
		w.LeftNothing()
		w.Pass(time.Second)
		require.Zero(w, opens(w))
	})
}

// A hold that is never unlocked keeps the client for its lease.
func TestOpen_ClientEndsWithTheLastLease(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := opened(w)
		w.Lock(r.Obtain("short"), lockregistry.Lease(10*time.Second))
		w.Lock(r.ReadWrite("rw").Reader(), lockregistry.Lease(5*time.Second))
		w.Lock(r.Obtain("long"), lockregistry.Lease(time.Minute))
		require.NoError(w, r.Close())
		w.Pass(58 * time.Second)
		require.NotZero(w, opens(w))
		w.Pass(3 * time.Second)
		require.Zero(w, opens(w))
		require.ErrorIs(w, r.Obtain("long").Unlock(w.Context()), lockregistry.ErrLockLost)
	})
}

// Close does not wait for a silent server. Nor does it leave goroutines behind, which TestMain looks for.
func TestOpen_CloseWithASilentServer(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := opened(w)
		w.Lock(r.Obtain("42"))
		w.Server.Freeze()
		start := time.Now()
		require.ErrorIs(w, r.Obtain("42").Unlock(w.Context()), lockregistry.ErrUnavailable)
		require.NoError(w, r.Close())
		require.Less(w, time.Since(start), 8*time.Second) // the connections break after 12 s
		w.Server.Thaw()
		w.Await("no connection", func() bool { return opens(w) == 0 })
	})
}

func TestOpen_ClosedAtOnceFromManyGoroutines(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := opened(w)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				_ = r.Do(w.Context(), "42", func(context.Context) error { return nil })
			})
			all.Go(func() {
				if err := r.Close(); err != nil {
					w.Error(err)
				}
			})
		}
		all.Wait()
		w.Await("no connection", func() bool { return opens(w) == 0 })
		w.LeftNothing()
	})
}

// All kinds of addresses work, each with a lock that excludes another client's.
func TestOpen_Addresses(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "redis.sock")
	single := redistest.Start(t, "--requirepass", "s3cret", "--unixsocket", socket)
	cluster := redistest.StartCluster(t, 3)
	sentinels := redistest.StartSentinels(t, 1, 3)
	for name, address := range map[string]string{
		"single":   "redis://:s3cret@" + single.Addr() + "/3",
		"socket":   "unix://:s3cret@" + socket + "?db=3",
		"cluster":  "redis://" + cluster[0].Addr() + "?addr=" + cluster[1].Addr(),
		"sentinel": "redis://" + sentinels.Addresses()[0] + "?master_set=" + redistest.MasterSet,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			var asked sync.Map
			first, err := lockregistry.Open(ctx, address, "orders", lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
				o.AuthCredentialsFn = func(c rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
					asked.Store(c.Address.String(), true)
					return rueidis.AuthCredentials{Username: "default", Password: "s3cret"}, nil
				}
			}))
			require.NoError(t, err)
			if name == "sentinel" {
				for _, server := range []string{sentinels.Addresses()[0], sentinels.Servers[0].Addr()} {
					_, found := asked.Load(server)
					require.True(t, found, server)
				}
			}
			second, err := lockregistry.Open(ctx, address, "orders")
			require.NoError(t, err)
			require.NoError(t, first.Do(ctx, "42", func(ctx context.Context) error {
				ok, err := second.Obtain("42").TryLock(ctx)
				require.NoError(t, err)
				require.False(t, ok)
				return nil
			}))
			require.NoError(t, first.Close())
			require.NoError(t, second.Close())
		})
	}
}

// A hook sets what no URL can set. It cannot turn the cache on.
func TestOpen_WithClientOption(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Do("ACL", "SETUSER", "app", "on", ">s3cret", "~*", "&*", "+@all", "-client")
		var asked atomic.Int32
		r := opened(w, lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
			require.True(w, o.DisableCache)
			o.DisableCache = false
			o.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
				asked.Add(1)
				return rueidis.AuthCredentials{Username: "app", Password: "s3cret"}, nil
			}
		}))
		require.EqualValues(w, 1, asked.Load())
		l := w.Registry().Obtain("42")
		w.Lock(l)
		other := w.Goroutine()
		waits := other.Starts(r.Obtain("42"))
		w.Await("it waits", func() bool { return w.Tickets() == 1 })
		require.Greater(w, asked.Load(), int32(1), "that on which calls wait, too")
		for line := range strings.Lines(w.Do("CLIENT", "LIST")) {
			require.Equal(w, strings.Contains(line, "name=opened"), strings.Contains(line, "user=app"), line)
		}
		w.Unlock(l)
		require.NoError(w, <-waits)
		require.NoError(w, other.Unlock(r.Obtain("42")))
		require.NoError(w, r.Close())
	})
}

// Everything that is wrong is reported at once, before anything is sent, and without the password.
func TestOpen_BadInput(t *testing.T) {
	t.Parallel()
	touched := lockregistry.WithClientOption(func(*rueidis.ClientOption) { t.Error("it is about to connect") })
	for _, c := range []struct {
		url, prefix string
		opts        []lockregistry.Option
		want        []string
	}{
		{"", "orders", nil, []string{"the address of Redis is empty"}},
		{"redis://u:se/cret@host", "orders", nil, []string{"the address of Redis cannot be read"}},
		{"http://u:secret@host", "orders", nil, []string{"the address of Redis has an unknown scheme"}},
		{"redis://u:secret@host", "", nil, []string{"the prefix is empty"}},
		{"redis://u:secret@host", "orders", []lockregistry.Option{nil}, []string{"an option is nil"}},
		{"secret", "", []lockregistry.Option{lockregistry.WithLease(0)}, []string{"the address", "the prefix", "WithLease(0s)"}},
		{"redis://user:secret", "orders", nil, []string{"the address of Redis cannot be read"}},
		{"redis://:p%zzcret@host", "orders", nil, []string{"the address of Redis cannot be read"}},
		{"redis://host?addr=u:secret", "orders", nil, []string{"the address of Redis has a port that is not a number"}},
		{"redis://host", "orders", []lockregistry.Option{lockregistry.WithClientOption(nil)}, []string{"WithClientOption(nil)"}},
	} {
		r, err := lockregistry.Open(context.Background(), c.url, c.prefix, append(c.opts, touched)...)
		require.Nil(t, r)
		require.ErrorContains(t, err, "lockregistry: open: ")
		for _, want := range c.want {
			require.ErrorContains(t, err, want)
		}
		require.NotContains(t, err.Error(), "cret")
		require.Empty(t, kit.SentinelsOf(err))
	}
	for _, c := range []struct {
		says   string
		change func(o *rueidis.ClientOption)
	}{
		{"locks are on masters", func(o *rueidis.ClientOption) { o.ReplicaOnly = true }},
		{"locks are on masters", func(o *rueidis.ClientOption) { o.SendToReplicas = func(rueidis.Completed) bool { return true } }},
		{"scripts are not redirected", func(o *rueidis.ClientOption) { o.Standalone.EnableRedirect = true }},
		{"scripts are not redirected", func(o *rueidis.ClientOption) { o.Standalone.ReplicaAddress = []string{"host:1"} }},
		{"may be sent again", func(o *rueidis.ClientOption) { o.ConnLifetime = time.Minute }},
	} {
		_, err := lockregistry.Open(context.Background(), "redis://host", "orders", lockregistry.WithClientOption(c.change))
		kit.Complains(t, err, c.says)
		require.Empty(t, kit.SentinelsOf(err))
	}
	_, err := lockregistry.Open(nil, "redis://host", "orders", touched) //nolint:staticcheck // a caller may do that
	require.ErrorContains(t, err, "the context is nil")
	_, err = lockregistry.New(nil, "orders", touched)
	require.ErrorContains(t, err, "WithClientOption: it is for Open only")
}
