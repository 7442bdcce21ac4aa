package registry_test

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// springSettings has a test for each row of the table of application.yml in docs/migration/spring.md, by the row's first
// column.
var springSettings = map[string]func(t *testing.T){
	"host, port": func(t *testing.T) {
		t.Helper()
		s := redistest.Start(t)
		locksOn(t, s, 0, "redis://"+s.Addr())
		require.Equal(t, []string{"redis.internal:6379"}, optionFrom(t, "redis://redis.internal").InitAddress)
	},
	"username, password": func(t *testing.T) {
		t.Helper()
		s := redistest.Start(t, "--requirepass", "alone")
		s.Command(t, "ACL", "SETUSER", "service", "on", ">p@ss/word", "~*", "&*", "+@all")
		locksOn(t, s, 0, "redis://service:p%40ss%2Fword@"+s.Addr())
		locksOn(t, s, 0, "redis://:alone@"+s.Addr())
	},
	"database": func(t *testing.T) {
		t.Helper()
		socket := filepath.Join(t.TempDir(), "r.sock")
		s := redistest.Start(t, "--unixsocket", socket)
		locksOn(t, s, 3, "redis://"+s.Addr()+"/3")
		locksOn(t, s, 4, "unix://"+socket+"?db=4")
		d := redistest.StartSentinels(t, 0, 1)
		locksOn(t, d.Servers[0], 5, "redis://"+d.Addresses()[0]+"?db=5&master_set="+redistest.MasterSet)
	},
	"url": func(t *testing.T) {
		t.Helper()
		s := redistest.Start(t, "--requirepass", "secret")
		locksOn(t, s, 2, "redis://default:secret@"+s.Addr()+"/2")
		locksOn(t, s, 0, "redis://:secret@"+s.Addr())
		_, err := lockregistry.Open(t.Context(), "redis://secret@"+s.Addr(), "orders")
		require.Error(t, err)
		require.NotErrorIs(t, err, lockregistry.ErrUnavailable, "it lasts")
	},
	"ssl.enabled": func(t *testing.T) {
		t.Helper()
		require.NotNil(t, optionFrom(t, "rediss://redis.internal").TLSConfig)
		require.Nil(t, optionFrom(t, "redis://redis.internal").TLSConfig)
	},
	"ssl.bundle": func(t *testing.T) {
		t.Helper()
		certificate, port := redistest.NewCertificate(t), strconv.Itoa(redistest.FreePort(t))
		s, address := redistest.Start(t, certificate.Args(port)...), "127.0.0.1:"+port
		locksOn(t, s, 0, "rediss://"+address, lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
			o.TLSConfig.RootCAs, o.TLSConfig.Certificates = certificate.Roots, []tls.Certificate{certificate.Pair}
		}))
		_, err := lockregistry.Open(t.Context(), "rediss://"+address, "orders")
		require.ErrorContains(t, err, "its certificate is not trusted")
		_, err = lockregistry.Open(t.Context(), "rediss://"+address, "orders",
			lockregistry.WithClientOption(func(o *rueidis.ClientOption) { o.TLSConfig.RootCAs = certificate.Roots }))
		require.Error(t, err, "the server asks for one")
	},
	"timeout": func(t *testing.T) {
		t.Helper()
		s := redistest.Start(t)
		r := opensAt(t, "redis://"+s.Addr(), lockregistry.WithCommandTimeout(100*time.Millisecond))
		s.Freeze()
		start := time.Now()
		_, err := r.Obtain("42").TryLock(t.Context())
		require.ErrorIs(t, err, lockregistry.ErrUnavailable)
		require.Less(t, time.Since(start), 4*time.Second, "the default is 5 s")
		s.Thaw()
	},
	"connect-timeout": func(t *testing.T) {
		t.Helper()
		s := redistest.Start(t)
		s.Freeze()
		start := time.Now()
		_, err := lockregistry.Open(t.Context(), "redis://"+s.Addr()+"?dial_timeout=100ms", "orders")
		require.ErrorIs(t, err, lockregistry.ErrUnavailable)
		require.Less(t, time.Since(start), 4*time.Second, "the default is 5 s")
		s.Thaw()
	},
	"client-name": func(t *testing.T) {
		t.Helper()
		s := redistest.Start(t)
		locksOn(t, s, 0, "redis://"+s.Addr()+"?client_name=billing")
		opensAt(t, "redis://"+s.Addr()+"?client_name=billing")
		require.Contains(t, s.Command(t, "CLIENT", "LIST"), " name=billing ")
	},
	"sentinel.master, sentinel.nodes": func(t *testing.T) {
		t.Helper()
		d := redistest.StartSentinels(t, 0, 3)
		d.Servers[0].Command(t, "ACL", "SETUSER", "service", "on", ">secret", "~*", "&*", "+@all")
		at := d.Addresses()
		for _, s := range d.Sentinels { // they do not know the user
			require.NotContains(t, s.Command(t, "ACL", "LIST"), "service")
		}
		locksOn(t, d.Servers[0], 0, "redis://service:secret@"+at[0]+"?addr="+at[1]+"&addr="+at[2]+"&master_set="+redistest.MasterSet)
	},
	"sentinel.username, sentinel.password": func(t *testing.T) {
		t.Helper()
		d := redistest.StartSentinels(t, 0, 1)
		d.Sentinels[0].Command(t, "ACL", "SETUSER", "asks", "on", ">whom", "~*", "&*", "+@all")
		d.Sentinels[0].Command(t, "ACL", "SETUSER", "default", "-sentinel")
		url := "redis://" + d.Addresses()[0] + "?master_set=" + redistest.MasterSet
		_, err := lockregistry.Open(t.Context(), url+"&dial_timeout=1s", "orders")
		require.Error(t, err)
		locksOn(t, d.Servers[0], 0, url, lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
			o.Sentinel.Username, o.Sentinel.Password = "asks", "whom"
		}))
	},
	"cluster.nodes": func(t *testing.T) {
		t.Helper()
		nodes := redistest.StartCluster(t, 3)
		url := "redis://" + nodes[0].Addr()
		for _, of := range []string{url + "?addr=" + nodes[1].Addr() + "&addr=" + nodes[2].Addr(), url} {
			locks(t, opensAt(t, of), func() bool {
				return slices.ContainsFunc(nodes, func(s *redistest.Server) bool { return s.Command(t, "DBSIZE") != "0" })
			})
		}
	},
	"cluster.max-redirects, lettuce.cluster.refresh.*": func(t *testing.T) {
		t.Helper()
		d := redistest.StartReplicatedCluster(t, 3, 0)
		r := opensAt(t, "redis://"+d.Servers[0].Addr())
		from := d.Master("orders:42", nil)
		to := d.Servers[(slices.Index(d.Servers, from)+1)%len(d.Servers)]
		locks(t, r, holds(t, from, 0))
		d.Move(to, d.Slot("orders:42"))
		locks(t, r, holds(t, to, 0))
	},
	"masterreplica.nodes": func(t *testing.T) {
		t.Helper()
		master := redistest.Start(t)
		host, port, err := net.SplitHostPort(master.Addr())
		require.NoError(t, err)
		replica := redistest.Start(t, "--replicaof", host, port)
		locksOn(t, master, 0, "redis://"+master.Addr())
		_, err = lockregistry.Open(t.Context(), "redis://"+master.Addr()+"?addr="+replica.Addr()+"&dial_timeout=1s", "orders")
		require.Error(t, err)
	},
	"lettuce.read-from": func(t *testing.T) {
		t.Helper()
		for _, set := range []func(o *rueidis.ClientOption){
			func(o *rueidis.ClientOption) { o.ReplicaOnly = true },
			func(o *rueidis.ClientOption) { o.SendToReplicas = func(rueidis.Completed) bool { return true } },
			func(o *rueidis.ClientOption) { o.Standalone.ReplicaAddress = []string{"127.0.0.1:2"} },
		} {
			_, err := lockregistry.Open(t.Context(), "redis://127.0.0.1:1", "orders", lockregistry.WithClientOption(set))
			require.ErrorContains(t, err, "is set, but")
		}
	},
	"lettuce.pool.*, jedis.pool.*": func(t *testing.T) {
		t.Helper()
		s := redistest.Start(t)
		r := opensAt(t, "redis://"+s.Addr()+"?client_name=opened")
		var all sync.WaitGroup
		for i := range 64 {
			all.Go(func() {
				_ = r.Do(t.Context(), strconv.Itoa(i), func(context.Context) error { return nil })
			})
		}
		all.Wait()
		require.LessOrEqual(t, strings.Count(s.Command(t, "CLIENT", "LIST"), "name=opened"), 4)
	},
	"lettuce.shutdown-timeout": func(t *testing.T) {
		t.Helper()
		s := redistest.Start(t)
		for _, ends := range []func(r *lockregistry.Registry) error{
			(*lockregistry.Registry).Close,
			func(r *lockregistry.Registry) error { return r.Shutdown(t.Context()) },
		} {
			r := opensAt(t, "redis://"+s.Addr())
			require.NoError(t, ends(r))
			require.ErrorIs(t, r.Obtain("42").Lock(t.Context()), lockregistry.ErrClosed)
		}
	},
}

// ofBoot are the properties of Spring Boot 4.1 below spring.data.redis, with each group as one.
var ofBoot = []string{
	"client-name", "client-type", "cluster.max-redirects", "cluster.nodes", "connect-timeout", "database", "host", "jedis.pool.*",
	"lettuce.cluster.refresh.*", "lettuce.pool.*", "lettuce.read-from", "lettuce.shutdown-timeout", "listener.*",
	"masterreplica.nodes", "password", "port", "sentinel.master", "sentinel.nodes", "sentinel.password", "sentinel.username",
	"ssl.bundle", "ssl.enabled", "timeout", "url", "username",
}

func TestOpen_SettingsOfSpringBoot(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/migration/spring.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "| `spring.data.redis.*` | here |\n| --- | --- |\n")
	require.True(t, found, "the page has the table")
	table, rest, _ := strings.Cut(section, "\n\n")
	rest, _, found = strings.Cut(rest, " concern Java only")
	require.True(t, found, "and what follows")
	var rows, names []string
	for row := range strings.Lines(table) {
		rows = append(rows, strings.ReplaceAll(strings.TrimSpace(strings.Split(row, "|")[1]), "`", ""))
		names = append(names, strings.Split(rows[len(rows)-1], ", ")...)
	}
	for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(rest, -1) {
		names = append(names, name[1])
	}
	slices.Sort(names)
	require.Equal(t, ofBoot, names)
	for _, row := range rows {
		require.Contains(t, springSettings, row, "no test for this row")
	}
	for row, check := range springSettings {
		require.Contains(t, rows, row, "the table has no such row")
		t.Run(row, func(t *testing.T) {
			t.Parallel()
			check(t)
		})
	}
}

// opensAt returns a registry made by Open, which the test closes.
func opensAt(t *testing.T, url string, opts ...lockregistry.Option) *lockregistry.Registry {
	t.Helper()
	r, err := lockregistry.Open(t.Context(), url, "orders", opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// locks checks that a lock of the registry is where seen looks for it.
func locks(t *testing.T, r *lockregistry.Registry, seen func() bool) {
	t.Helper()
	require.NoError(t, r.Do(t.Context(), "42", func(context.Context) error {
		require.True(t, seen())
		return nil
	}))
}

// locksOn checks that a registry with that URL locks in a database of a server.
func locksOn(t *testing.T, s *redistest.Server, database int, url string, opts ...lockregistry.Option) {
	t.Helper()
	r, err := lockregistry.Open(t.Context(), url, "orders", opts...)
	require.NoError(t, err)
	locks(t, r, holds(t, s, database))
	require.NoError(t, r.Close())
}

// holds returns a function that asks a server whether a lock of path 42 is in a database.
func holds(t *testing.T, s *redistest.Server, database int) func() bool {
	t.Helper()
	return func() bool {
		return strings.Contains(s.Command(t, "INFO", "keyspace"), "db"+strconv.Itoa(database)+":keys=")
	}
}

// optionFrom returns the rueidis options that the URL stands for, without a server.
func optionFrom(t *testing.T, url string) (seen rueidis.ClientOption) {
	t.Helper()
	_, err := lockregistry.Open(t.Context(), url, "orders", lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
		seen = *o
		o.InitAddress = []string{"127.0.0.1:1"}
	}))
	require.ErrorIs(t, err, lockregistry.ErrUnavailable)
	return seen
}
