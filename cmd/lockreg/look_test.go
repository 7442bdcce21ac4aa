package main_test

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/internal/seam"
)

// registry is one in this process.
func (s server) registry(t *testing.T, prefix string, opts ...lockregistry.Option) *lockregistry.Registry {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, DisableCache: true})
	require.NoError(t, err)
	r, err := lockregistry.New(client, prefix, opts...)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = r.Close()
		client.Close()
	})
	return r
}

func acquire(t *testing.T, l *lockregistry.Lock) *lockregistry.Hold {
	t.Helper()
	h, err := l.Acquire(context.Background(), lockregistry.NoWait())
	require.NoError(t, err)
	return h
}

// queue has a call wait, until the test ends.
func queue(t *testing.T, s server, prefix string, l *lockregistry.Lock) {
	t.Helper()
	before := s.waiters(t, prefix, l.Path())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = l.Acquire(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	eventually(t, "it waits", func() bool { return s.waiters(t, prefix, l.Path()) > before })
}

// What only reads works at a replica, too, where no lock can be obtained.
func TestReadingAtAReplica(t *testing.T) {
	t.Parallel()
	master := startServer(t, "--repl-diskless-sync-delay", "0")
	host, port, err := net.SplitHostPort(master.Addr())
	require.NoError(t, err)
	replica := startServer(t, "--replicaof", host, port)
	r := master.registry(t, "shop")
	acquire(t, r.Obtain("a"))
	acquire(t, r.ReadWrite("read").Reader())
	eventually(t, "the replica has the locks", func() bool { return replica.has(t, "shop:a") && replica.has(t, "shop:read") })
	for _, args := range [][]string{{"ls", "shop"}, {"show", "shop", "a"}, {"prefixes"}, {"deadlocks", "shop"}} {
		code, out, text := lockreg(t, replica.url, args...)
		assert.Zero(t, code, "%v: %s%s", args, out, text)
	}
	code, _, text := lockreg(t, replica.url, "release", "shop", "a", "--yes")
	assert.Equal(t, 69, code, text)
	assert.Contains(t, text, "READONLY")
	assert.Contains(t, text, `result="not freed"`)
	code, _, text = lockreg(t, replica.url, "release", "shop", "read", "--yes")
	assert.Equal(t, 69, code, text)
	assert.Contains(t, text, "result=unknown", "part of it may be freed")
}

const evil = "\x1b[2Jx\u202e\u009b2J\n\t"

func TestShow(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	one := s.registry(t, "shop", lockregistry.WithFencing(), lockregistry.WithName("billing\u202e"))
	two := s.registry(t, "shop", lockregistry.WithName("billing"))

	code, out, _ := lockreg(t, s.url, "show", "shop", "a")
	assert.Zero(t, code)
	assert.Equal(t, `path a key shop:a kind free nobody holds it nobody waits in Redis no lock has the prefix "shop"`,
		strings.Join(strings.Fields(out), " "))

	h := acquire(t, one.Obtain("a"))
	queue(t, s, "shop", two.Obtain("a"))
	eventually(t, "labels are known", func() bool {
		code, out, _ = lockreg(t, s.url, "show", "shop", "a")
		require.Zero(t, code)
		return !strings.Contains(out, "a Go process, not known")
	})
	host, err := os.Hostname()
	require.NoError(t, err)
	assert.Contains(t, out, `billing\u202e on `+host)
	assert.Contains(t, out, "billing on "+host)
	assert.Contains(t, out, "WAITING")
	assert.Contains(t, out, seam.Lockregistry.Parts(one).Label.Registry+":")
	assert.Regexp(t, `≤ \d{16}`, out, "the token")
	assert.Regexp(t, `ms ago|s ago`, out)
	require.NotZero(t, h.Token())

	code, out, _ = lockreg(t, s.url, "show", "--json", "shop", "a")
	assert.Zero(t, code)
	var lock view.Lock
	require.NoError(t, json.Unmarshal([]byte(out), &lock))
	assert.Equal(t, "shop:a", lock.Key)
	require.Len(t, lock.Holders, 1)
	assert.Equal(t, "billing\u202e", lock.Holders[0].Label.Name)
	assert.NotContains(t, out, "\u202e", "escaped in JSON, too")
	assert.Equal(t, 1, lock.WaiterCount)

	// Java's holders, readers, and names that a terminal would act on.
	s.Command(t, "SET", "shop:java", evil, "PX", "60000")
	_, out, _ = lockreg(t, s.url, "show", "shop", "java")
	assert.Regexp(t, `(?m)^unknown +unknown `, out)
	assert.Contains(t, out, `\x1b[2Jx\u202e\u009b2J\n\t`)
	acquire(t, one.ReadWrite(evil).Reader())
	acquire(t, two.ReadWrite(evil).Reader())
	_, out, _ = lockreg(t, s.url, "show", "shop", evil)
	assert.Contains(t, out, "read-write")
	assert.Equal(t, 2, strings.Count(out, " reads "), out)
	assert.Contains(t, out, `\x1b[2Jx\u202e\u009b2J\n\t`)
	assert.NotContains(t, out, "\x1b")

	code, _, text := lockreg(t, s.url, "show", "shop")
	assert.Equal(t, 64, code)
	assert.Contains(t, text, "write: lockreg show PREFIX PATH")
	s.Command(t, "SADD", "shop:set", "member")
	code, _, text = lockreg(t, s.url, "show", "shop", "set")
	assert.Equal(t, 64, code)
	assert.Contains(t, text, "something other than this kind of lock")
	code, _, _ = lockreg(t, "redis://127.0.0.1:1", "show", "shop", "a")
	assert.Equal(t, 69, code)
}

func TestLs(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	const prefix = "sh*p[a-z]?"
	code, out, _ := lockreg(t, s.url, "ls", prefix)
	assert.Zero(t, code)
	assert.Equal(t, "nothing is locked, and nobody waits; no lock has the prefix \"sh*p[a-z]?\"\n", out)
	code, out, _ = lockreg(t, s.url, "ls", "--json", prefix)
	assert.Zero(t, code)
	assert.Equal(t, "[]\n", out)

	one, two := s.registry(t, prefix), s.registry(t, prefix)
	other := s.registry(t, "shopaz")
	acquire(t, other.Obtain("not this one"))
	acquire(t, one.Obtain("quiet"))
	acquire(t, one.Obtain("busy"))
	queue(t, s, prefix, two.Obtain("busy"))
	acquire(t, one.ReadWrite(evil).Reader())
	acquire(t, two.ReadWrite(evil).Reader())
	s.Command(t, "SET", prefix+":java", "0b6e4bd7-6a8e-4f6e-9f0a-6a2f6d0f4c55", "PX", "60000")
	code, out, _ = lockreg(t, s.url, "ls", prefix)
	assert.Zero(t, code)
	rows := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, rows, 5, out)
	for i, row := range []string{`^PATH +KIND +HOLDER +HELD FOR +LEASE +WAITING$`, `^busy +lock .* +\S+s +1$`,
		`^\\x1b\[2Jx\\u202e\\u009b2J\\n\\t +read-write +2 readers +0$`,
		`^java +lock +Java \(Spring\) +unknown +\S+ +0$`, `^quiet +lock .* +\S+s +0$`} {
		assert.Regexp(t, row, rows[i])
	}
	code, out, _ = lockreg(t, s.url, "ls", "--json", prefix)
	assert.Zero(t, code)
	var locks []view.Lock
	require.NoError(t, json.Unmarshal([]byte(out), &locks))
	require.Len(t, locks, 4)
	assert.Equal(t, "busy", locks[0].Path)
	assert.Equal(t, evil, locks[1].Path)

	code, _, text := lockreg(t, s.url, "ls")
	assert.Equal(t, 64, code)
	assert.Contains(t, text, "write: lockreg ls PREFIX [PATH]")
	code, _, _ = lockreg(t, "redis://127.0.0.1:1", "ls", "shop")
	assert.Equal(t, 69, code)
}

// A replica answers those who only look: nothing is written for that.
func TestLookAtAReplica(t *testing.T) {
	t.Parallel()
	master, replica := startServer(t), startServer(t)
	acquire(t, master.registry(t, "shop", lockregistry.WithName("billing")).Obtain("a"))
	eventually(t, "it is recorded", func() bool { return master.has(t, "shop:{registries}:registry") })
	host, port, found := strings.Cut(master.Addr(), ":")
	require.True(t, found)
	replica.Command(t, "REPLICAOF", host, port)
	eventually(t, "it is replicated", func() bool { return replica.has(t, "shop:{registries}:registry") })
	for command, want := range map[string]string{
		"ls shop": `(?m)^a +lock +billing on `, "show shop a": `(?m)^billing on `, "prefixes": `(?m)^shop +2$`,
		"deadlocks shop": `^no deadlocks\n$`,
	} {
		code, out, text := lockreg(t, replica.url, strings.Fields(command)...)
		assert.Zero(t, code, command+text)
		assert.Regexp(t, want, out, command)
	}
}

// What somebody has written to Redis, and is longer than a lock's own, is not shown in its length.
func TestLookAtWhatIsTooLong(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	acquire(t, s.registry(t, "shop").Obtain("a"))
	s.Command(t, "EVAL", `local long = string.rep('x', 1e6)
		redis.call('SET', 'shop:{shop:a}:fencing', long)
		redis.call('ZADD', 'shop:{shop:a}:waiters', 1795278376064288, long)
		redis.call('SET', 'shop:' .. long, '1')`, "0")
	code, out, _ := lockreg(t, s.url, "ls", "shop")
	assert.Zero(t, code)
	assert.Less(t, len(out), 2000)
	assert.Regexp(t, `(?m)^x+ \(too long: 1000005 bytes\) +too long +unknown +0$`, out)
	code, out, _ = lockreg(t, s.url, "show", "shop", "a")
	assert.Zero(t, code)
	assert.Less(t, len(out), 2000)
	assert.Regexp(t, `too long +\S+:\d+\n`, out, "the token")
	assert.Contains(t, out, "x (too long: 1000000 bytes)")
}

func TestVersionAndHelp(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"--version"}, {"version", "--json"}, {"completion", "bash"}} {
		code, out, _ := lockreg(t, "", args...)
		assert.Zero(t, code, args)
		assert.Contains(t, out, map[bool]string{true: "lockreg", false: "version"}[args[0] != "version" || len(args) == 1])
	}
	_, help, _ := lockreg(t, "")
	assert.NotContains(t, help, "guard")
	assert.True(t, strings.HasPrefix(help, "Something hangs?\n\n  lockreg ls PREFIX "), help)
	commands := []string{"run", "ls", "show", "prefixes", "release", "deadlocks", "doctor", "serve", "metrics", "version"}
	for _, command := range commands {
		assert.Contains(t, help, "\n  "+command+" ")
		code, out, _ := lockreg(t, "", command, "--help")
		assert.Zero(t, code)
		assert.Contains(t, out, "Usage:")
		assert.LessOrEqual(t, strings.Count(out, "Exit codes:"), 1, command)
		for line := range strings.Lines(out) {
			if !strings.Contains(line, "--") { // the flags have lines of their own
				assert.LessOrEqual(t, len(line), 82, "%s: %s", command, line)
			}
		}
	}
	code, _, text := lockreg(t, "", "frob")
	assert.Equal(t, 64, code)
	assert.Contains(t, text, "unknown command")
}

// Two processes, as far as they know, lock two paths in different orders.
func TestDeadlocks(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	code, out, _ := lockreg(t, s.url, "deadlocks", "shop")
	assert.Zero(t, code)
	assert.Equal(t, "no deadlocks; no lock has the prefix \"shop\"\n", out)

	one, two := s.registry(t, "shop", lockregistry.WithName("one")), s.registry(t, "shop", lockregistry.WithName("two"))
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	var all, first sync.WaitGroup
	first.Add(2)
	for r, paths := range map[*lockregistry.Registry][2]string{one: {"a", "b\x1b"}, two: {"b\x1b", "a"}} {
		all.Go(func() {
			if err := r.Obtain(paths[0]).Lock(ctx); err != nil {
				t.Error(err)
			}
			first.Done()
			first.Wait()
			_ = r.Obtain(paths[1]).Lock(ctx)
			_ = r.Obtain(paths[0]).Unlock(context.WithoutCancel(ctx))
		})
	}
	eventually(t, "it is found", func() bool {
		code, out, _ = lockreg(t, s.url, "deadlocks", "shop")
		return code == 1
	})
	assert.Contains(t, out, "deadlock of 2")
	assert.Regexp(t, `(?m)^goroutine \d+ +one on .* a +b\\x1b +\S+ ago$`, out)
	assert.Regexp(t, `(?m)^goroutine \d+ +two on .* b\\x1b +a +\S+ ago$`, out)
	code, out, _ = lockreg(t, s.url, "deadlocks", "--json", "shop")
	assert.Equal(t, 1, code)
	var found []view.Deadlock
	require.NoError(t, json.Unmarshal([]byte(out), &found))
	require.Len(t, found, 1)
	assert.Len(t, found[0].Waits, 2)

	cancel()
	all.Wait()
	eventually(t, "it is over", func() bool {
		code, _, _ = lockreg(t, s.url, "deadlocks", "shop")
		return code == 0
	})
}
