package doctor_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/doctor"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

// in adds a layout to the options of a registry.
func in(l observe.Layout, opts ...lockregistry.Option) []lockregistry.Option {
	if l == observe.LayoutRedisson {
		opts = append(opts, lockregistry.WithRedissonLayout())
	}
	return opts
}

// Of a server that is well set up there is nothing to say, whatever the user needs, and nothing is left on it.
func TestNothingIsWrong(t *testing.T) {
	s := healthy(t)
	for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
		r := examine(t, option(s.Addr()), func(o *doctor.Options) { o.Need, o.Layout = doctor.Modes(), layout })
		require.Empty(t, findings(r, ""))
		require.Equal(t, "standalone", r.Mode)
		require.Equal(t, "default", r.User)
		require.Equal(t, []doctor.Node{{Address: s.Addr(), Server: r.Nodes[0].Server, Role: "master"}}, r.Nodes)
		require.Contains(t, r.Nodes[0].Server, " ")
	}
	require.Equal(t, "0", s.Command(t, "DBSIZE"))
	require.Equal(t, "0", infoOf(t, s, "rdb_changes_since_last_save"), "nothing was ever written")
}

// Locks that are in use, of all kinds, are no leftovers.
func TestLocksInUse(t *testing.T) {
	s := healthy(t)
	client := dial(t, option(s.Addr()))
	for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
		r, err := lockregistry.New(client, "orders", in(layout, lockregistry.WithFencing())...)
		require.NoError(t, err)
		defer func() { require.NoError(t, r.Close()) }()
		path := string(layout)
		_, err = r.Acquire(t.Context(), "plain "+path, lockregistry.Wait(patience))
		require.NoError(t, err)
		rw := r.ReadWrite("rw " + path)
		require.NoError(t, rw.Reader().Lock(t.Context(), lockregistry.Wait(patience)))
		ctx, cancel := context.WithCancel(t.Context())
		other, err := lockregistry.New(client, "orders", in(layout, lockregistry.WithFencing())...)
		require.NoError(t, err)
		defer func() { require.NoError(t, other.Close()) }()
		waits := make(chan error)
		go func() { waits <- other.Do(ctx, "plain "+path, func(context.Context) error { return nil }) }()
		defer func() {
			cancel()
			require.Error(t, <-waits)
		}()
		await(t, "a ticket", func() bool {
			return s.Command(t, "EXISTS", "orders:{orders:plain "+path+"}:waiters") == "1"
		})
	}
	require.Contains(t, s.Command(t, "KEYS", "*"), "rwlock_timeout")
	require.Contains(t, s.Command(t, "KEYS", "*"), "redisson_lock_token")
	require.Empty(t, findings(examine(t, option(s.Addr())), ""))
}

// Each finding about a server is provoked, and is gone once its advice has been followed as it is written.
func TestFindings(t *testing.T) {
	t.Parallel()
	do := func(commands ...[]string) func(*testing.T, *redistest.Server) {
		return func(t *testing.T, s *redistest.Server) {
			t.Helper()
			for _, command := range commands {
				s.Command(t, command...)
			}
		}
	}
	set := func(name, value string) func(*testing.T, *redistest.Server) {
		return do([]string{"CONFIG", "SET", name, value})
	}
	for _, c := range []struct {
		id       string
		severity doctor.Severity
		provoke  func(*testing.T, *redistest.Server)
		others   []string // findings that the same thing leads to
	}{
		{"eviction", doctor.Info, set("maxmemory-policy", "volatile-lru"), nil},
		{"eviction", doctor.Error, do([]string{"CONFIG", "SET", "maxmemory-policy", "allkeys-lru"},
			[]string{"CONFIG", "SET", "maxmemory", "1000000000"}), nil},
		{"memory", doctor.Warning, func(t *testing.T, s *redistest.Server) {
			t.Helper()
			s.Command(t, "SETRANGE", "large", "50000000", "x")
			used, err := strconv.Atoi(infoOf(t, s, "used_memory"))
			require.NoError(t, err)
			s.Command(t, "CONFIG", "SET", "maxmemory", strconv.Itoa(used+used/20)) // connections take some, too
		}, nil},
		{"memory", doctor.Error, set("maxmemory", "100000"), nil},
		{"persistence", doctor.Warning, set("appendonly", "no"), nil},
		{"buffer-limit", doctor.Warning, set("client-output-buffer-limit", "pubsub 4096 4096 1"), nil},
		{"idle-timeout", doctor.Warning, set("timeout", "5"), nil},
		{"keepalive", doctor.Warning, set("tcp-keepalive", "0"), nil},
		{"clients", doctor.Warning, func(t *testing.T, s *redistest.Server) {
			t.Helper()
			for range 40 { // what a client has besides is far less
				conn, err := net.Dial("tcp", s.Addr())
				require.NoError(t, err)
				t.Cleanup(func() { _ = conn.Close() })
			}
			await(t, "connections", func() bool { n, _ := strconv.Atoi(infoOf(t, s, "connected_clients")); return n >= 40 })
			s.Command(t, "CONFIG", "SET", "maxclients", "44")
		}, nil},
		{"key-lease", doctor.Warning, do([]string{"SET", "orders:42", "by hand"}, []string{"SET", "other:42", "theirs"},
			[]string{"HSET", `orders:a "b"`, "f", "1"}, []string{"ZADD", "orders:{orders:43}:waiters", "1", "m"},
			[]string{"SET", "{orders:44}:x:1:rwlock_timeout:1", "1"}, []string{"SET", "redisson_lock_token:{orders:42}", "7"}), nil},
		{"key-type", doctor.Warning, do([]string{"RPUSH", "orders:42", "1"},
			[]string{"SET", "orders:{orders:43}:waiters", "1", "PX", "600000"},
			[]string{"SADD", "orders:\x1b\xff", "1"}, []string{"RPUSH", "xorders:42", "1"}), nil},
	} {
		t.Run(c.id+" "+string(c.severity), func(t *testing.T) {
			t.Parallel()
			s := healthy(t)
			c.provoke(t, s)
			before := examine(t, option(s.Addr()))
			f := has(t, before, c.id, c.severity)
			require.Equal(t, []string{s.Addr()}, f.Nodes)
			require.Len(t, findings(before, ""), 1, "%+v", before.Findings)
			follow(t, s, f)
			after := examine(t, option(s.Addr()))
			hasNot(t, after, c.id)
			require.Empty(t, findings(after, ""))
		})
	}
}

func infoOf(t *testing.T, s *redistest.Server, name string) string {
	t.Helper()
	for line := range strings.Lines(s.Command(t, "INFO")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	require.Fail(t, "not in INFO", name)
	return ""
}

// What is not left over stays when the advice about leftovers is followed.
func TestLeftoversOnly(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	s.Command(t, "SET", "orders:free", "by hand")
	s.Command(t, "SET", "orders:held", "a:1", "PX", "600000")
	s.Command(t, "SET", "other:42", "theirs")
	s.Command(t, "SET", "ord*rs:42", "theirs")
	f := has(t, examine(t, option(s.Addr())), "key-lease", doctor.Warning)
	require.Equal(t, []string{"DEL orders:free"}, f.Commands)
	require.Contains(t, f.Seen, "orders:free (string)")
	hasNot(t, examine(t, option(s.Addr()), func(o *doctor.Options) { o.Prefix = "o*" }), "key-lease")
	f = has(t, examine(t, option(s.Addr()), func(o *doctor.Options) { o.Prefix = "ord*rs" }), "key-lease", doctor.Warning)
	require.Equal(t, []string{"DEL ord*rs:42"}, f.Commands)
}

// Semaphores are no leftovers: neither this library's, nor Redisson's, held or not. What looks alike is.
func TestSemaphoresAreNoLeftovers(t *testing.T) {
	t.Parallel()
	for _, layout := range []observe.Layout{observe.LayoutRedisson, observe.LayoutSpring} {
		s := healthy(t)
		for _, key := range []string{"orders:java", "orders:{4}2"} {
			name := key
			if !strings.Contains(key, "{") {
				name = "{" + key + "}"
			}
			s.Command(t, "SET", key, "-3")
			s.Command(t, "ZADD", name+":timeout", "922337203685477", "0123456789abcdef")
		}
		s.Command(t, "SET", "orders:idle", "7")
		s.Command(t, "ZADD", "orders:spring", "-3", "permits", "99999999999999", "a:1")
		s.Command(t, "ZADD", "orders:other", "1", "any")
		s.Command(t, "SET", "orders:text", "1.5")
		s.Command(t, "SET", "orders:long", "123456789012")
		s.Command(t, "SET", "orders:{a}:timeout", "by hand")
		r := examine(t, option(s.Addr()), func(o *doctor.Options) { o.Layout = layout })
		forever := []string{"DEL orders:long", "DEL orders:text", "DEL orders:{a}:timeout"}
		require.Equal(t, forever, has(t, r, "key-lease", doctor.Warning).Commands)
		require.Equal(t, []string{"DEL orders:other"}, has(t, r, "key-type", doctor.Warning).Commands)
	}
}

// Names of any length are not shown in full, nor sent, and many leftovers are counted.
func TestLongNames(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	s.Command(t, "EVAL", `for i = 1, 20 do redis.call('SET', 'orders:' .. 100 + i .. string.rep('x', 1e6), '1') end
		redis.call('SET', 'other:' .. string.rep('x', 1e6), '1')
		for i = 1, 300 do redis.call('SET', 'orders:' .. i, 'me') end`, "0")
	s.Command(t, "CONFIG", "RESETSTAT")
	r := examine(t, option(s.Addr()))
	f := has(t, r, "key-name", doctor.Warning)
	require.Contains(t, f.Seen, "20 keys have names that are too long: orders:101xxx")
	require.Contains(t, f.Seen, "xxx (too long: 1000010 bytes), orders:102xxx")
	require.Empty(t, f.Commands)
	require.Less(t, len(f.Seen), 2000)
	require.Contains(t, has(t, r, "key-lease", doctor.Warning).Seen,
		"300 keys have no expiry: orders:1 (string), orders:10 (string)")
	sent, err := strconv.Atoi(infoOf(t, s, "total_net_output_bytes"))
	require.NoError(t, err)
	require.Less(t, sent, 1_000_000)
}

// Looking for leftovers ends when its time is over, and takes a small part of the server's.
func TestManyKeys(t *testing.T) {
	s := healthy(t)
	s.Command(t, "EVAL", "for i = 1, 30000 do redis.call('SET', 'other:' .. i, 'x') end", "0")
	s.Command(t, "CONFIG", "RESETSTAT")
	r := examine(t, option(s.Addr()), func(o *doctor.Options) { o.ScanFor = time.Nanosecond })
	has(t, r, "keys-unseen", doctor.Info)
	require.Contains(t, s.Command(t, "INFO", "commandstats"), "cmdstat_scan:calls=2,", "the other one tries the permission")
	r = examine(t, option(s.Addr()), func(o *doctor.Options) { o.ScanFor = time.Minute })
	require.Empty(t, findings(r, "keys-unseen"))
}

func TestTrackingTable(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	s.Command(t, "CONFIG", "SET", "tracking-table-max-keys", "20")
	o := option(s.Addr())
	o.DisableCache = false // as other programs have it
	client := dial(t, o)
	for i := range 20 {
		err := client.DoCache(t.Context(), client.B().Get().Key(strconv.Itoa(i)).Cache(), time.Minute).Error()
		require.True(t, rueidis.IsRedisNil(err), err)
	}
	f := has(t, examine(t, option(s.Addr())), "tracking-table", doctor.Warning)
	follow(t, s, f)
	hasNot(t, examine(t, option(s.Addr())), "tracking-table")
}

// A server that cannot write to its disk refuses locks.
func TestDiskFails(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := redistest.Start(t, "--dir", folder, "--save", "3600", "1")
	obstacle := filepath.Join(folder, "dump.rdb")
	require.NoError(t, os.Mkdir(obstacle, 0o700))
	s.Command(t, "BGSAVE")
	await(t, "saving fails", func() bool { return infoOf(t, s, "rdb_last_bgsave_status") == "err" })
	_, err := s.Do("SET", "orders:42", "a:1", "PX", "1000")
	require.ErrorContains(t, err, "MISCONF")
	f := has(t, examine(t, option(s.Addr())), "persistence-failing", doctor.Error)
	require.NoError(t, os.Remove(obstacle))
	follow(t, s, f)
	await(t, "saving succeeds", func() bool { return infoOf(t, s, "rdb_last_bgsave_status") == "ok" })
	hasNot(t, examine(t, option(s.Addr())), "persistence-failing")
}

// Several findings of a check come in the same order each time.
func TestOrderOfFindings(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	fails := through(option(s.Addr()), func(c net.Conn) net.Conn { return pretending{c, "_status:ok\r", "_status:err"} })
	for range 5 {
		var names []string
		for _, f := range findings(examine(t, fails), "persistence-failing") {
			names = append(names, strings.Fields(f.Seen)[0])
		}
		require.Equal(t, []string{"rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"}, names)
	}
}

func TestOldVersions(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	version := infoOf(t, s, "redis_version")
	for old, severity := range map[string]doctor.Severity{"2.4": doctor.Error, "3.2": doctor.Warning, "5.0": doctor.Warning} {
		says := old + "." + strings.Repeat("0", len(version)-len(old)-1)
		o := through(option(s.Addr()), func(c net.Conn) net.Conn {
			return pretending{pretending{c, "redis_version:" + version, "redis_version:" + says}, "valkey_version", "valkey_varsion"}
		})
		f := has(t, examine(t, o), "version", severity)
		require.Contains(t, f.Seen, old)
	}
	hasNot(t, examine(t, option(s.Addr())), "version")
}

func TestSlowServer(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	late := through(option(s.Addr()), func(c net.Conn) net.Conn {
		return slow{c, func() time.Duration { return 150 * time.Millisecond }}
	})
	has(t, examine(t, late, func(o *doctor.Options) { o.Lease = time.Hour }), "latency", doctor.Warning)
	has(t, examine(t, late, func(o *doctor.Options) { o.Lease = time.Second }), "latency", doctor.Error)
	// A moment in which the machine is not busy.
	awaitFindings(t, false, "latency", func() doctor.Report { return examine(t, option(s.Addr())) })
}

// A server that stood still for a moment.
func TestServerStandsStill(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	var asked atomic.Int64
	once := through(option(s.Addr()), func(c net.Conn) net.Conn {
		return slow{c, func() time.Duration {
			if asked.Add(1) == 10 {
				return 1100 * time.Millisecond
			}
			return 0
		}}
	})
	f := has(t, examine(t, once), "latency", doctor.Warning)
	require.Contains(t, f.Seen, "slowest")
}

func TestClocks(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	ahead := func(o *doctor.Options) { o.Now = func() time.Time { return time.Now().Add(time.Hour) } }
	f := has(t, examine(t, option(s.Addr()), ahead), "clock", doctor.Warning)
	require.Contains(t, f.Seen, "1h0m0s")
	var asked atomic.Int64
	jumps := func(o *doctor.Options) {
		o.Now = func() time.Time { return time.Now().Add(time.Duration(asked.Add(1)/21) * 10 * time.Minute) }
	}
	has(t, examine(t, option(s.Addr()), jumps), "clock-jumps", doctor.Error)
	r := examine(t, option(s.Addr()))
	hasNot(t, r, "clock")
	hasNot(t, r, "clock-jumps")
}

func TestClientSettings(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	for id, c := range map[string]struct {
		severity doctor.Severity
		change   func(*rueidis.ClientOption)
	}{
		"client-cache":         {doctor.Info, func(o *rueidis.ClientOption) { o.DisableCache = false }},
		"client-resp2":         {doctor.Warning, func(o *rueidis.ClientOption) { o.AlwaysRESP2 = true }},
		"client-dial-timeout":  {doctor.Warning, func(o *rueidis.ClientOption) { o.Dialer.Timeout = time.Minute }},
		"client-write-timeout": {doctor.Warning, func(o *rueidis.ClientOption) { o.ConnWriteTimeout = time.Minute }},
		"client-pool":          {doctor.Warning, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 }},
		"client-lifetime":      {doctor.Warning, func(o *rueidis.ClientOption) { o.ConnLifetime = time.Minute }},
	} {
		o := option(s.Addr())
		c.change(&o)
		r := examine(t, o)
		has(t, r, id, c.severity)
		for _, f := range findings(r, "") {
			require.True(t, f.ID == id || id == "client-resp2" && f.ID == "resp3", "%+v", f)
		}
	}
	// With these options rueidis does not connect to such a server. What a client was made with can be told all the same.
	client, o := dial(t, option(s.Addr())), option(s.Addr())
	o.SendToReplicas = func(rueidis.Completed) bool { return true }
	r, err := doctor.Check(t.Context(), client, doctor.Options{Prefix: "orders", Client: &o})
	require.NoError(t, err)
	has(t, r, "client-replicas", doctor.Error)
	o.Standalone.EnableRedirect = true
	r, err = doctor.Check(t.Context(), client, doctor.Options{Prefix: "orders", Client: &o})
	require.NoError(t, err)
	has(t, r, "client-redirect", doctor.Warning)
	// As docs/operations.md has it: three connections, or five with WithReplicas.
	o = option(s.Addr())
	for size, replicas := range map[int]int{3: 0, 5: 1} {
		needs := func(o *doctor.Options) { o.Replicas = replicas }
		o.BlockingPoolSize = size
		require.Empty(t, findings(examine(t, o, needs), "client-pool"))
		o.BlockingPoolSize = size - 1
		has(t, examine(t, o, needs), "client-pool", doctor.Warning)
	}
}

func TestReplicaInPlaceOfMaster(t *testing.T) {
	t.Parallel()
	master := healthy(t)
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	copied := healthy(t, "--replicaof", host, port)
	f := has(t, examine(t, option(copied.Addr())), "role", doctor.Error)
	require.Contains(t, f.Do, master.Addr())
	hasNot(t, examine(t, option(master.Addr())), "role")
}

func TestMistakes(t *testing.T) {
	t.Parallel()
	s := healthy(t)
	client := dial(t, option(s.Addr()))
	for name, o := range map[string]doctor.Options{
		"prefix is empty": {}, "no mode": {Prefix: "orders", Need: []string{"everything"}}, "negative": {Prefix: "orders", Lease: -1},
	} {
		_, err := doctor.Check(t.Context(), client, o)
		require.ErrorContains(t, err, name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := doctor.Check(ctx, client, doctor.Options{Prefix: "orders"})
	require.ErrorIs(t, err, context.Canceled)
	s.Stop()
	_, err = doctor.Check(t.Context(), client, doctor.Options{Prefix: "orders"})
	require.ErrorContains(t, err, "no server answers")
}

// The report is for programs, too.
func TestJSON(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	text, err := json.Marshal(examine(t, option(s.Addr())))
	require.NoError(t, err)
	require.Contains(t, string(text),
		`{"id":"persistence","severity":"warning","nodes":["`+s.Addr()+`"],"seen":"appendonly is off","why":"`)
	require.Contains(t, string(text), `"commands":["CONFIG SET appendonly yes"]}`)
}
