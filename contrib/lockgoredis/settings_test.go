package lockgoredis_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/lockgoredis"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// settings has a test for each row of the table in docs/operations.md, by what its first column names.
var settings = map[string]func(t *testing.T){
	"Addr": func(t *testing.T) {
		t.Helper()
		rdb := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr()})
		works(t, open(t, rdb), rdb)
	},
	`Network: "unix"`: func(t *testing.T) {
		t.Helper()
		at := filepath.Join(socketDir(t), "r@1.sock")
		redistest.Start(t, "--unixsocket", at)
		here, err := os.Getwd()
		require.NoError(t, err)
		relative, err := filepath.Rel(here, at)
		require.NoError(t, err)
		for _, path := range []string{at, relative} {
			rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: path})
			works(t, open(t, rdb), rdb)
		}
	},
	"Username, Password": func(t *testing.T) {
		t.Helper()
		server := redistest.Start(t, "--requirepass", "another")
		server.Command(t, "ACL", "SETUSER", "service", "on", ">a secret", "~*", "&*", "+@all")
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "service", Password: "a secret"})
		works(t, open(t, rdb), rdb)
	},
	"DB": func(t *testing.T) {
		t.Helper()
		server := redistest.Start(t)
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), DB: 3})
		works(t, open(t, rdb), rdb)
	},
	"CredentialsProvider": func(t *testing.T) {
		t.Helper()
		rotates(t, func(o *redis.Options, password *atomic.Pointer[string]) {
			o.CredentialsProvider = func() (string, string) { return "service", *password.Load() }
		})
	},
	"CredentialsProviderContext": func(t *testing.T) {
		t.Helper()
		rotates(t, func(o *redis.Options, password *atomic.Pointer[string]) {
			o.CredentialsProviderContext = func(ctx context.Context) (string, string, error) {
				return "service", *password.Load(), ctx.Err()
			}
		})
	},
	"StreamingCredentialsProvider": func(t *testing.T) {
		t.Helper()
		var p *provider
		rotates(t, func(o *redis.Options, password *atomic.Pointer[string]) {
			p = &provider{password: password}
			o.StreamingCredentialsProvider = p
		})
		ours := 0
		p.listeners.Range(func(who, _ any) bool {
			if strings.Contains(fmt.Sprintf("%T", who), "lockgoredis") {
				ours++
			}
			return true
		})
		require.Equal(t, 1, ours, "one stays")
	},
	"TLSConfig": func(t *testing.T) {
		t.Helper()
		certificate, port := redistest.NewCertificate(t), strconv.Itoa(redistest.FreePort(t))
		redistest.Start(t, append(certificate.Args(port), "--tls-auth-clients", "no")...)
		rdb := redis.NewClient(&redis.Options{
			Addr: "127.0.0.1:" + port, TLSConfig: &tls.Config{RootCAs: certificate.Roots, MinVersion: tls.VersionTLS12},
		})
		works(t, open(t, rdb), rdb)
	},
	"Dialer": func(t *testing.T) {
		t.Helper()
		server := redistest.Start(t)
		var dialled atomic.Int64
		dial := func(ctx context.Context, network, address string) (net.Conn, error) {
			assert.Equal(t, somewhere, address)
			dialled.Add(1)
			return new(net.Dialer).DialContext(ctx, network, server.Addr())
		}
		rdb := redis.NewClient(&redis.Options{Addr: somewhere, Dialer: dial})
		reg := open(t, rdb)
		require.Positive(t, dialled.Load())
		works(t, reg, rdb)
	},
	"DialTimeout": func(t *testing.T) {
		t.Helper()
		hangs := func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		rdb := redis.NewClient(&redis.Options{Addr: somewhere, DialTimeout: 50 * time.Millisecond, Dialer: hangs})
		defer func() { _ = rdb.Close() }()
		_, err := lockgoredis.Open(t.Context(), rdb, "orders")
		require.ErrorIs(t, err, lockregistry.ErrUnavailable)
		require.NoError(t, t.Context().Err())
	},
	"ReadTimeout": func(t *testing.T) {
		t.Helper()
		for given, want := range map[time.Duration]time.Duration{
			2 * time.Second: 2 * time.Second, 100 * time.Millisecond: time.Second, -1: 5 * time.Second,
		} {
			require.Equal(t, want, seen(t, &redis.Options{ReadTimeout: given}).ConnWriteTimeout)
		}
		rdb := redis.NewClient(&redis.Options{})
		defer func() { _ = rdb.Close() }()
		require.Equal(t, rdb.Options().ReadTimeout, seen(t, &redis.Options{}).ConnWriteTimeout, "its default differs by version")
	},
	"Protocol: 2": func(t *testing.T) {
		t.Helper()
		require.True(t, seen(t, &redis.Options{Protocol: 2}).AlwaysRESP2)
		require.False(t, seen(t, &redis.Options{Protocol: 3}).AlwaysRESP2)
	},
	"ClientName": func(t *testing.T) {
		t.Helper()
		server := redistest.Start(t)
		reg := open(t, redis.NewClient(&redis.Options{Addr: server.Addr(), ClientName: "service"}))
		h, err := reg.Acquire(t.Context(), "42", lockregistry.Wait(limit))
		require.NoError(t, err)
		releases(t, h)
		require.Contains(t, server.Command(t, "CLIENT", "LIST"), " name=service ")
	},
	"DisableIdentity": func(t *testing.T) {
		t.Helper()
		require.Empty(t, seen(t, &redis.Options{DisableIdentity: true}).ClientSetInfo)
		require.NotNil(t, seen(t, &redis.Options{DisableIdentity: true}).ClientSetInfo)
		require.Nil(t, seen(t, &redis.Options{}).ClientSetInfo)
	},
	"Addrs": func(t *testing.T) { // of a cluster
		t.Helper()
		nodes := redistest.StartCluster(t, 3)
		rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1", nodes[1].Addr()}})
		works(t, open(t, rdb), rdb)
	},
	"MasterName, SentinelAddrs": func(t *testing.T) {
		t.Helper()
		d := redistest.StartSentinels(t, 1, 3)
		failover(t, d, &redis.FailoverOptions{})
	},
	"SentinelUsername, SentinelPassword": func(t *testing.T) {
		t.Helper()
		d := redistest.StartSentinels(t, 1, 3)
		for _, s := range d.Sentinels {
			s.Command(t, "ACL", "SETUSER", "asks", "on", ">whom", "~*", "&*", "+@all")
		}
		for _, s := range d.Servers {
			s.Command(t, "ACL", "SETUSER", "service", "on", ">a secret", "~*", "&*", "+@all")
		}
		failover(t, d, &redis.FailoverOptions{
			SentinelUsername: "asks", SentinelPassword: "whom",
			CredentialsProviderContext: func(ctx context.Context) (string, string, error) { // for the master alone
				until, limited := ctx.Deadline()
				assert.True(t, limited)
				assert.LessOrEqual(t, time.Until(until), goRedisDial)
				return "service", "a secret", nil
			},
		})
		// Of a caller's options for Sentinels each counts, and the master's user stays with the master.
		var dialled atomic.Int64
		failover(t, d, &redis.FailoverOptions{
			SentinelUsername: "nobody", SentinelPassword: "nothing",
			CredentialsProvider: func() (string, string) { return "service", "a secret" },
		}, lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
			o.Sentinel.Username, o.Sentinel.Password = "asks", "whom"
			o.Sentinel.Dialer = net.Dialer{Timeout: 7 * time.Second}
			o.DialCtxFn, o.DialFn = nil, func(address string, n *net.Dialer, _ *tls.Config) (net.Conn, error) {
				toSentinel := slices.Contains(d.Addresses(), address)
				assert.Equal(t, toSentinel, n.Timeout == 7*time.Second)
				assert.Zero(t, n.FallbackDelay)
				dialled.Add(1)
				return n.DialContext(t.Context(), "tcp", address)
			}
		}))
		require.Positive(t, dialled.Load())
	},
}

func TestSettings(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "| go-redis | here |\n| --- | --- |\n")
	require.True(t, found, "the page has the table")
	table, _, _ = strings.Cut(table, "\n\n")
	var named []string
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		named = append(named, strings.ReplaceAll(strings.TrimSpace(cells[1]), "`", ""))
	}
	for name, check := range settings {
		require.Contains(t, named, name, "the table has no such row")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t)
		})
	}
	for _, name := range named {
		require.Contains(t, settings, name, "no test for this row")
	}
}

// unnamed are the settings without effect that the page does not name one by one.
var unnamed = []string{
	// pools
	"PoolFIFO", "PoolSize", "PoolTimeout", "MaxConcurrentDials", "MinIdleConns", "MaxIdleConns", "MaxActiveConns",
	"ConnMaxIdleTime", "ConnMaxLifetime", "ConnMaxLifetimeJitter", "ReadBufferSize", "WriteBufferSize",
	"PipelinePoolSize", "PipelineReadBufferSize", "PipelineWriteBufferSize",
	// retries
	"MaxRetries", "MinRetryBackoff", "MaxRetryBackoff", "DialerRetries", "DialerRetryTimeout", "DialerRetryBackoff", "MaxRedirects",
	// pipelines and caches: newer versions of go-redis than the one in go.mod have them
	"AutoPipelineOptions", "ClientSideCache", "ClientSideCacheConfig", "ClientSideCacheStrategy",
	"ClientSideCacheRefreshOnInvalidate",
	"ClientSideCacheCoalesceMisses", "ClientSideCacheInvalidationBatchWindow",
	// how a client of go-redis works, whatever the server
	"ContextTimeoutEnabled", "PushNotificationProcessor", "FailingTimeoutSeconds", "MaintNotificationsConfig", "NodeAddress",
	"DisableRoutingPolicies", "ShardPicker", "ClusterStateReloadInterval", "UseDisconnectedReplicas", "UnstableResp3",
	"RouteByLatencyTolerance", // only for RouteByLatency, which is refused
	"DisableIndentity",        // the old name of DisableIdentity
}

// The page says what becomes of each setting that go-redis has.
func TestSettings_EachIsNamed(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "### Alongside go-redis\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	for _, o := range []any{redis.Options{}, redis.ClusterOptions{}, redis.FailoverOptions{}} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(o)) {
			if field.IsExported() && !slices.Contains(unnamed, field.Name) {
				assert.Regexp(t, "`"+field.Name+"[:`]", section, "%T", o)
			}
		}
	}
}

// seen returns the options that the registry's client is made with.
func seen(t *testing.T, o *redis.Options) (c rueidis.ClientOption) {
	t.Helper()
	o.Addr = "127.0.0.1:1"
	rdb := redis.NewClient(o)
	defer func() { _ = rdb.Close() }()
	_, err := lockgoredis.Open(t.Context(), rdb, "orders", lockregistry.WithClientOption(func(o *rueidis.ClientOption) { c = *o }))
	require.ErrorIs(t, err, lockregistry.ErrUnavailable)
	return c
}

// rotates changes the password while a registry is in use, and breaks its connections: it comes back with the new one.
func rotates(t *testing.T, set func(o *redis.Options, password *atomic.Pointer[string])) {
	t.Helper()
	server, passwords := redistest.Start(t), []string{"the first", "the second"}
	server.Command(t, "ACL", "SETUSER", "service", "on", ">"+passwords[0], "~*", "&*", "+@all")
	password := new(atomic.Pointer[string])
	password.Store(&passwords[0])
	o := &redis.Options{Addr: server.Addr()}
	set(o, password)
	rdb := redis.NewClient(o)
	reg := open(t, rdb)
	works(t, reg, rdb)

	server.Command(t, "ACL", "SETUSER", "service", "resetpass", ">"+passwords[1])
	password.Store(&passwords[1])
	server.Command(t, "CLIENT", "KILL", "USER", "service")
	works(t, reg, rdb)
}

// provider hands out credentials that change.
type provider struct {
	password  *atomic.Pointer[string]
	listeners sync.Map
}

func (p *provider) Subscribe(who auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	p.listeners.Store(who, nil)
	leave := func() error {
		p.listeners.Delete(who)
		return nil
	}
	return auth.NewBasicCredentials("service", *p.password.Load()), leave, nil
}

// failover opens a registry with OpenFailover, and shows that it locks on the master.
func failover(t *testing.T, d *redistest.Deployment, o *redis.FailoverOptions, opts ...lockregistry.Option) {
	t.Helper()
	o.MasterName, o.SentinelAddrs = redistest.MasterSet, d.Addresses()
	before := slices.Clone(o.SentinelAddrs)
	reg, err := lockgoredis.OpenFailover(t.Context(), o, "orders", opts...)
	require.NoError(t, err)
	defer func() { require.NoError(t, reg.Close()) }()
	require.Equal(t, before, o.SentinelAddrs)
	h, err := reg.Acquire(t.Context(), "42", lockregistry.Wait(limit))
	require.NoError(t, err)
	require.Equal(t, "1", d.Servers[0].Command(t, "EXISTS", "orders:42"))
	releases(t, h)
}

// socketDir makes a directory with a short name: the path of a socket has a hundred bytes at most.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "r") //nolint:usetesting // the name of t.TempDir has the name of the test in it
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// The README is short, and links to the table.
func TestREADME(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "../../docs/operations.md#alongside-go-redis")
}
