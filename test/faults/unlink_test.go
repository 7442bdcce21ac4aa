package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// teller is a miniredis that answers INFO as told, and counts the commands that matter here. Commands of scripts count too.
type teller struct {
	*miniredis.Miniredis
	mu     sync.Mutex
	counts map[string]int
	tell   func(asked int, c *server.Peer) // answers INFO, asked for the first, second, ... time
}

func startTeller(t *testing.T, tell func(asked int, c *server.Peer)) *teller {
	t.Helper()
	m := &teller{Miniredis: miniredis.RunT(t), counts: map[string]int{}, tell: tell}
	m.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
		m.mu.Lock()
		m.counts[command]++
		asked := m.counts["INFO"]
		m.mu.Unlock()
		if command != "INFO" || m.tell == nil {
			return false
		}
		m.tell(asked, c)
		return true
	})
	return m
}

func (m *teller) client(t *testing.T) rueidis.Client {
	t.Helper()
	client, err := kit.NewClient(rueidis.ClientOption{
		InitAddress: []string{m.Addr()}, ForceSingleClient: true, DisableCache: true, DisableRetry: true,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// proofs is how often the first lock of a registry has UNLINK executed on a key that is not there, on a server that does not say
// what it permits.
const proofs = 2

// counted is how often INFO, UNLINK and DEL came.
func (m *teller) counted() [3]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return [3]int{m.counts["INFO"], m.counts["UNLINK"], m.counts["DEL"]}
}

func telling(reply string) func(int, *server.Peer) {
	return func(_ int, c *server.Peer) { c.WriteBulk(reply) }
}

func lockAndUnlock(t *testing.T, r *lockregistry.Registry, times int) {
	t.Helper()
	for i := range times {
		require.NoError(t, r.Do(t.Context(), strconv.Itoa(i), func(context.Context) error { return nil }))
	}
}

func TestUnlink_RemovalCommand(t *testing.T) {
	t.Parallel()
	const rounds = 5
	for name, c := range map[string]struct {
		tell   func(int, *server.Peer)
		unlink bool
	}{
		"Redis 3.2":               {telling("# Server\r\nredis_version:3.2.12\r\n"), false},
		"Redis 4.0":               {telling("# Server\r\nredis_version:4.0.0\r\n"), true},
		"Redis 7.0":               {telling("# Server\r\nredis_version:7.0.15\r\n"), true},
		"Valkey":                  {telling("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\n"), true},
		"no Redis version at all": {telling("valkey_version:8.1.1\r\n"), true},
		"empty":                   {telling(""), false},
		"garbled":                 {telling("\x00redis_version\xff7.0.15"), false},
		"null":                    {func(_ int, c *server.Peer) { c.WriteNull() }, false},
		"no text":                 {func(_ int, c *server.Peer) { c.WriteInt(7) }, false},
		"an array":                {func(_ int, c *server.Peer) { c.WriteStrings([]string{"redis_version:7.0.15"}) }, false},
		"forbidden": {func(_ int, c *server.Peer) {
			c.WriteError("NOPERM this user has no permissions to run the 'info' command")
		}, false},
		"unknown":   {func(_ int, c *server.Peer) { c.WriteError("ERR unknown command 'INFO'") }, false},
		"miniredis": {nil, false}, // an error
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := startTeller(t, c.tell)
			r := kit.OpenOn(t, m.client(t))
			require.Equal(t, [3]int{}, m.counted(), "New does not talk to Redis")
			lockAndUnlock(t, r, rounds)
			want := [3]int{1, 0, rounds}
			if c.unlink {
				want = [3]int{1, rounds, 0}
			}
			want[1] += proofs
			require.Equal(t, want, m.counted(), "INFO, UNLINK, DEL")
			require.Empty(t, m.Keys())
		})
	}
}

func TestUnlink_ServerIsAskedOncePerClient(t *testing.T) {
	m := startTeller(t, telling("redis_version:7.0.15"))
	client := m.client(t)
	first, second := kit.OpenOn(t, client), kit.OpenOn(t, client)
	lockAndUnlock(t, first, 2)
	lockAndUnlock(t, second, 2)
	lockAndUnlock(t, first, 1)
	require.Equal(t, [3]int{1, 2*proofs + 5, 0}, m.counted())
	lockAndUnlock(t, kit.OpenOn(t, m.client(t)), 1) // may be of another server
	require.Equal(t, [3]int{2, 3*proofs + 6, 0}, m.counted())

	// As long as one of them is open.
	require.NoError(t, first.Close())
	third := kit.OpenOn(t, client)
	lockAndUnlock(t, third, 1)
	require.Equal(t, [3]int{2, 4*proofs + 7, 0}, m.counted())
}

func TestUnlink_ServerIsAskedOnceByManyGoroutines(t *testing.T) {
	m := startTeller(t, telling("redis_version:7.0.15"))
	client := m.client(t)
	const goroutines = 20
	registries := []*lockregistry.Registry{kit.OpenOn(t, client), kit.OpenOn(t, client)}
	errs := make(chan error, goroutines)
	for i := range goroutines {
		go func() {
			errs <- registries[i%2].Do(t.Context(), strconv.Itoa(i), func(context.Context) error { return nil })
		}()
	}
	for range goroutines {
		require.NoError(t, <-errs)
	}
	counted := m.counted()
	require.Equal(t, 1, counted[0])
	require.LessOrEqual(t, counted[1]+counted[2], goroutines*(1+proofs))
	require.Empty(t, m.Keys())
}

func TestUnlink_ServerIsAskedAgainAfterANetworkFailure(t *testing.T) {
	const failures = 3
	m := startTeller(t, func(asked int, c *server.Peer) {
		if asked <= failures {
			c.Close()
			return
		}
		c.WriteBulk("redis_version:7.0.15")
	})
	r := kit.OpenOn(t, m.client(t))
	for i := range failures {
		lockAndUnlock(t, r, 1)
		require.Equal(t, [3]int{i + 1, proofs, i + 1}, m.counted(), "unlocks all the same")
	}
	lockAndUnlock(t, r, 3)
	require.Equal(t, [3]int{failures + 1, proofs + 3, failures}, m.counted())
	require.Empty(t, m.Keys())
}

// An unlock whose context ends while the server is asked does not settle the question.
func TestUnlink_ServerIsAskedAgainAfterACancelledUnlock(t *testing.T) {
	asked := make(chan struct{})
	answer := make(chan struct{})
	m := startTeller(t, func(n int, c *server.Peer) {
		if n == 1 {
			close(asked)
			<-answer
		}
		c.WriteBulk("redis_version:7.0.15")
	})
	r := kit.OpenOn(t, m.client(t))
	l := r.Obtain("42")
	owner := lockregistry.ContextWithOwner(t.Context())
	require.NoError(t, l.Lock(owner))
	ctx, cancel := context.WithCancel(owner)
	unlocked := make(chan error, 1)
	go func() { unlocked <- l.Unlock(ctx) }()
	<-asked
	cancel()
	err := <-unlocked
	close(answer)
	require.ErrorIs(t, err, lockregistry.ErrUnavailable, "the removal goes on in the background")
	require.NoError(t, l.Lock(t.Context()), "as soon as the removal is done")
	require.NoError(t, l.Unlock(t.Context()))
	lockAndUnlock(t, r, 1)
	counted := m.counted()
	require.Equal(t, 2, counted[0], "INFO")
	require.Positive(t, counted[1], "UNLINK")
}

func TestUnlink_WhyKeysAreRemovedWithDelIsLoggedOnce(t *testing.T) {
	for reply, logged := range map[string]int{"redis_version:7.0.15": 0, "redis_version:3.2.12": 1} {
		m := startTeller(t, telling(reply))
		var text bytes.Buffer
		r := kit.OpenOn(t, m.client(t), lockregistry.WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
		lockAndUnlock(t, r, 3)
		require.NoError(t, r.Close()) // which waits for the lines
		require.Equal(t, logged, strings.Count(text.String(), "removed with DEL"), "%s: %s", reply, &text)
	}
}

// commandStats is how often a real server has executed commands since resetCommandStats.
func commandStats(w *kit.World, commands ...string) []int {
	w.Helper()
	stats := w.Do("INFO", "commandstats") // counts itself only afterwards
	calls := make([]int, len(commands))
	for i, command := range commands {
		if found := regexp.MustCompile(fmt.Sprintf(`(?m)^cmdstat_%s:calls=(\d+)`, command)).FindStringSubmatch(stats); found != nil {
			n, err := strconv.Atoi(found[1])
			require.NoError(w, err)
			calls[i] = n
		}
	}
	return calls
}

func resetCommandStats(w *kit.World) { w.Do("CONFIG", "RESETSTAT") }

func TestUnlink_OnRealServers(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		client := w.Client()
		first, second, proofs := w.RegistryOn(client), w.RegistryOn(client), w.Proofs()
		resetCommandStats(w)
		lockAndUnlock(w.T, first, 3)
		lockAndUnlock(w.T, second, 4)
		require.Equal(w, []int{1, 7 + 2*proofs, 0}, commandStats(w, "info", "unlink", "del"))
		require.Equal(w, "0", w.Keys())
	})
}

// A user who may not do everything can unlock all the same.
func TestUnlink_RemovalWithFewPermissions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule string
		want []int // INFO, UNLINK, DEL that were executed in 5 rounds
	}{
		"no INFO":              {"-info", []int{0, 0, 5}},
		"no UNLINK":            {"-unlink", []int{1, 0, 5}},
		"no DEL":               {"-del", []int{1, 5, 0}},
		"no INFO and no DEL":   {"-info -del", []int{0, 5, 0}},
		"no INFO, no UNLINK":   {"-info -unlink", []int{0, 0, 5}},
		"no dangerous command": {"-@dangerous", []int{0, 0, 5}}, // INFO is one
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				w.Do(append([]string{"ACL", "SETUSER", "orders", "on", ">secret", "~orders:*", "&*", "+@all"}, strings.Fields(c.rule)...)...)
				client := w.ClientWith(w.Dial, func(o *rueidis.ClientOption) {
					o.Username, o.Password = "orders", "secret"
					o.DisableCache = true // before version 7 all of CLIENT is dangerous, and the cache needs CLIENT TRACKING
				})
				r, proofs := w.RegistryOn(client), w.Proofs()
				resetCommandStats(w)
				lockAndUnlock(w.T, r, 5)
				want := slices.Clone(c.want)
				if strings.Contains(c.rule, "-unlink") {
					want[2] += proofs
				} else {
					want[1] += proofs
				}
				require.Equal(w, want, commandStats(w, "info", "unlink", "del"))
				require.Equal(w, "0", w.Keys())
			})
		})
	}
}

// An answer that takes longer than an unlock waits for it is for those that follow.
func TestUnlink_TheServerIsSlowToSayWhatItIs(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry().Obtain("42")
		f.Fate("INFO", kit.SlowReply(150*time.Millisecond))
		w.Lock(l)
		w.Unlock(l)
		w.Pass(time.Second)
		w.Lock(l)
		start := time.Now()
		w.Unlock(l)
		require.Zero(w, time.Since(start))
	})
}
