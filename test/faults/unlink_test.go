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

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// teller is the miniredis of a fake world. It answers INFO as the test says, and counts the commands that matter here,
// including those of scripts.
type teller struct {
	*kit.World
	mu     sync.Mutex
	counts map[string]int
	tell   func(asked int, c *server.Peer) // answers INFO, asked for the first, second, ... time
}

// withTeller runs a test in fake time. INFO is asked again whenever its reply takes long.
func withTeller(t *testing.T, tell func(asked int, c *server.Peer), test func(m *teller)) {
	t.Helper()
	kit.FakeWorld(t, func(w *kit.World) {
		m := &teller{World: w, counts: map[string]int{}, tell: tell}
		w.Mini.Server().SetPreHook(func(c *server.Peer, command string, _ ...string) bool {
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
		test(m)
	})
}

// client returns a client with a single connection: if INFO gets no reply, later commands get none either.
func (m *teller) client() rueidis.Client {
	m.Helper()
	return m.ClientWith(m.Dial, kit.OneConnection, func(o *rueidis.ClientOption) { o.DisableRetry = true })
}

// proofs is how often the first lock of a registry makes the server execute UNLINK on a missing key, if the server does not say
// what it permits.
const proofs = 2

// counted returns how often INFO, UNLINK and DEL arrived.
func (m *teller) counted() [3]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return [3]int{m.counts["INFO"], m.counts["UNLINK"], m.counts["DEL"]}
}

func telling(reply string) func(int, *server.Peer) {
	return func(_ int, c *server.Peer) { c.WriteBulk(reply) }
}

func lockAndUnlock(w *kit.World, r *lockregistry.Registry, times int) {
	w.Helper()
	for i := range times {
		l := r.Obtain(strconv.Itoa(i))
		w.Lock(l)
		w.Unlock(l)
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
			withTeller(t, c.tell, func(m *teller) {
				r := m.RegistryOn(m.client())
				require.Equal(m, [3]int{}, m.counted(), "New does not talk to Redis")
				lockAndUnlock(m.World, r, rounds)
				want := [3]int{1, 0, rounds}
				if c.unlink {
					want = [3]int{1, rounds, 0}
				}
				want[1] += proofs
				require.Equal(m, want, m.counted(), "INFO, UNLINK, DEL")
				require.Equal(m, "0", m.Keys())
			})
		})
	}
}

func TestUnlink_ServerIsAskedOncePerClient(t *testing.T) {
	withTeller(t, telling("redis_version:7.0.15"), func(m *teller) {
		client := m.client()
		first, second := m.RegistryOn(client), m.RegistryOn(client)
		lockAndUnlock(m.World, first, 2)
		lockAndUnlock(m.World, second, 2)
		lockAndUnlock(m.World, first, 1)
		require.Equal(m, [3]int{1, 2*proofs + 5, 0}, m.counted())
		lockAndUnlock(m.World, m.RegistryOn(m.client()), 1) // may be on another server
		require.Equal(m, [3]int{2, 3*proofs + 6, 0}, m.counted())

		// while one of them is open
		require.NoError(m, first.Close())
		third := m.RegistryOn(client)
		lockAndUnlock(m.World, third, 1)
		require.Equal(m, [3]int{2, 4*proofs + 7, 0}, m.counted())
	})
}

func TestUnlink_ServerIsAskedOnceByManyGoroutines(t *testing.T) {
	withTeller(t, telling("redis_version:7.0.15"), func(m *teller) {
		client := m.client()
		const goroutines = 20
		registries := []*lockregistry.Registry{m.RegistryOn(client), m.RegistryOn(client)}
		errs := make(chan error, goroutines)
		for i := range goroutines {
			go func() {
				errs <- registries[i%2].Do(m.Context(), strconv.Itoa(i), func(context.Context) error { return nil })
			}()
		}
		for range goroutines {
			require.NoError(m, <-errs)
		}
		counted := m.counted()
		require.Equal(m, 1, counted[0])
		require.LessOrEqual(m, counted[1]+counted[2], goroutines*(1+proofs))
		require.Equal(m, "0", m.Keys())
	})
}

func TestUnlink_ServerIsAskedAgainAfterANetworkFailure(t *testing.T) {
	const failures = 3
	withTeller(t, func(asked int, c *server.Peer) {
		if asked <= failures {
			c.Close()
			return
		}
		c.WriteBulk("redis_version:7.0.15")
	}, func(m *teller) {
		r := m.RegistryOn(m.client())
		for i := range failures {
			lockAndUnlock(m.World, r, 1)
			require.Equal(m, [3]int{i + 1, proofs, i + 1}, m.counted(), "unlocks all the same")
		}
		lockAndUnlock(m.World, r, 3)
		require.Equal(m, [3]int{failures + 1, proofs + 3, failures}, m.counted())
		require.Equal(m, "0", m.Keys())
	})
}

// An unlock whose context ends while the server is asked does not settle the question.
func TestUnlink_ServerIsAskedAgainAfterACancelledUnlock(t *testing.T) {
	withTeller(t, nil, func(m *teller) {
		asked, answer := make(chan struct{}), make(chan struct{})
		m.tell = func(n int, c *server.Peer) {
			if n == 1 {
				close(asked)
				<-answer
			}
			c.WriteBulk("redis_version:7.0.15")
		}
		r := m.RegistryOn(m.client())
		l := r.Obtain("42")
		owner := lockregistry.ContextWithOwner(m.Context())
		require.NoError(m, l.Lock(owner))
		ctx, cancel := context.WithCancel(owner)
		unlocked := make(chan error, 1)
		go func() { unlocked <- l.Unlock(ctx) }()
		<-asked
		cancel()
		err := <-unlocked
		m.Settle() // the next removal asks
		close(answer)
		require.ErrorIs(m, err, lockregistry.ErrUnavailable, "the removal goes on in the background")
		require.NoError(m, l.Lock(m.Context()), "as soon as the removal is done")
		require.NoError(m, l.Unlock(m.Context()))
		before := m.counted()
		lockAndUnlock(m.World, r, 1)
		after := m.counted()
		require.Equal(m, 2, after[0], "INFO")
		require.Equal(m, before[1]+1, after[1], "UNLINK")
	})
}

func TestUnlink_WhyKeysAreRemovedWithDelIsLoggedOnce(t *testing.T) {
	t.Parallel()
	for reply, logged := range map[string]int{"redis_version:7.0.15": 0, "redis_version:3.2.12": 1} {
		t.Run(reply, func(t *testing.T) {
			withTeller(t, telling(reply), func(m *teller) {
				var text bytes.Buffer
				r := m.RegistryOn(m.client(), lockregistry.WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
				lockAndUnlock(m.World, r, 3)
				require.NoError(m, r.Close()) // waits for the log lines
				require.Equal(m, logged, strings.Count(text.String(), "removed with DEL"), &text)
			})
		})
	}
}

// commandStats returns how often a real server has executed commands since resetCommandStats.
func commandStats(w *kit.World, commands ...string) []int {
	w.Helper()
	stats := w.Do("INFO", "commandstats") // INFO counts itself only afterwards
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
		w.Await("the server has said that it has UNLINK", func() bool {
			resetCommandStats(w)
			lockAndUnlock(w, first, 1)
			return slices.Equal([]int{0, 0}, commandStats(w, "info", "del"))
		})
		resetCommandStats(w)
		lockAndUnlock(w, first, 3)
		lockAndUnlock(w, second, 4)
		executed(w, []int{0, 7 + proofs, 0})
	})
}

// executed checks that the server has executed INFO, UNLINK and DEL at least as often as wanted, and never if that is zero: on
// a busy machine a command with a late reply is sent again.
func executed(w *kit.World, want []int) {
	w.Helper()
	w.Await("nothing is left", func() bool { return w.Keys() == "0" })
	got := commandStats(w, "info", "unlink", "del")
	for i, n := range want {
		require.Truef(w, got[i] >= n && (got[i] == 0) == (n == 0), "INFO, UNLINK, DEL: %v, at least %v wanted", got, want)
	}
}

// A user with few permissions can unlock all the same.
func TestUnlink_RemovalWithFewPermissions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rule string
		want []int // INFO, UNLINK, DEL that were executed in 5 rounds at least
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
				lockAndUnlock(w, r, 5)
				want := slices.Clone(c.want)
				if strings.Contains(c.rule, "-unlink") {
					want[2] += proofs
				} else {
					want[1] += proofs
				}
				executed(w, want)
			})
		})
	}
}

// A reply that comes too late for one unlock serves the following ones.
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
