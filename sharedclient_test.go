package lockregistry_test

import (
	"context"
	"net"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// The connection for wake-ups: who shares it, and what happens when it is not to be had, or does not last.

// Registries of one client that wait for the same lock, each in its own way, all wake.
func TestSharedClient_RegistriesOfOneClientInAllModes(t *testing.T) {
	realWorlds(t, func(w *world) {
		client := w.clientWith(w.dial, called("waits"))
		holder := w.waker(lockregistry.WakeupAuto)
		w.lock(holder.Obtain("42"))
		results := make(chan error, len(wakeups))
		for _, mode := range wakeups {
			l := w.registryOn(client, lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(noPoll)).Obtain("42")
			go func() { results <- l.Lock(w.Context()) }()
		}
		w.await("all listen", func() bool {
			return w.tickets() == len(wakeups) && w.tracked()+w.subscribers(theChannel) == 1
		})
		require.Len(w, w.connections("name=waits"), 2)
		for range wakeups { // whoever was quicker
			start := time.Now()
			w.do("EVAL", "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], KEYS[1])", "1", theKey, theChannel)
			w.Log(w.takes(start, results))
		}
	})
}

// Hundreds of registries on a client share its connection for wake-ups, and are small.
func TestSharedClient_ManyRegistriesOfOneClient(t *testing.T) {
	realWorldsAlone(t, func(w *world) {
		const registries = 300
		client := w.clientWith(w.dial, called("waits"), func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
		w.setAll(registries)
		heap := func() int {
			runtime.GC()
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			return int(stats.HeapAlloc + stats.StackInuse)
		}
		waits := func(i int) (*lockregistry.Registry, <-chan error) {
			r := w.registryOn(client, lockregistry.WithPollInterval(noPoll))
			return r, lockElsewhere(r.Obtain(strconv.Itoa(i)), w.Context())
		}
		// The client's connections and buffers are there before anything is measured.
		_, first := waits(0)
		w.await("the first one listens", func() bool { return w.tracked() == 1 })
		before := heap()
		all := make([]*lockregistry.Registry, 0, registries)
		results := []<-chan error{first}
		for i := 1; i < registries; i++ {
			r, result := waits(i)
			all, results = append(all, r), append(results, result)
		}
		w.await("all listen", func() bool { return w.tracked() == registries })
		each := (heap() - before) / len(all)
		w.Logf("%d bytes for a registry with a waiting call", each)
		if !raced() {
			require.Less(w, each, 20_000)
		}
		require.Len(w, w.connections("name=waits"), 2)
		start := time.Now()
		w.do("FLUSHALL")
		for _, result := range results {
			w.takes(start, result)
		}
		start = time.Now()
		for _, r := range all {
			require.NoError(w, r.Close())
		}
		require.Less(w, time.Since(start), atOnce)
	})
}

// When the client has no connection left for wake-ups, waiting calls poll and a line says so; a registry that is closed does
// not wait for one, and once there is one again waiting calls wake.
func TestSharedClient_NoConnectionLeft(t *testing.T) {
	const mode = lockregistry.WakeupAuto
	realWorlds(t, func(w *world) {
		client := w.clientWith(w.dial, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
		_, giveBack := client.Dedicate()
		defer func() { giveBack() }()
		var log journal
		const poll = 50 * time.Millisecond
		r := w.registryOn(client, lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(poll), log.option())
		w.do("SET", theKey, "somebody")
		g := w.goroutine()
		result := g.starts(r.Obtain("42"))
		tries := w.executed("evalsha")
		w.await("some polls", func() bool { return w.executed("evalsha") >= tries+3 })
		w.await("a line", func() bool { return len(log.lines("no connection for wake-ups", "BlockingPoolSize")) == 1 })
		w.do("DEL", theKey)
		require.NoError(w, <-result)
		require.NoError(w, g.unlock(r.Obtain("42")))
		w.do("SET", theKey, "somebody")
		result = g.starts(r.Obtain("42"))
		start := time.Now()
		require.NoError(w, r.Close())
		require.ErrorIs(w, <-result, lockregistry.ErrClosed)
		require.Less(w, time.Since(start), atOnce/2)

		r = w.registryOn(client, lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(noPoll))
		result = g.starts(r.Obtain("42"))
		giveBack()
		giveBack = func() {}
		w.listening(mode, 1, 1)
		w.do("EVAL", "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], KEYS[1])", "1", theKey, theChannel)
		w.takes(time.Now(), result)
	})
}

// A peer that breaks the connection for wake-ups as soon as something is sent on it is left in peace for longer each time,
// and waiting calls poll.
func TestSharedClient_ConnectionsThatDoNotLast(t *testing.T) {
	t.Parallel()
	for command, mode := range map[string]lockregistry.Wakeup{
		"SUBSCRIBE": lockregistry.WakeupPubSub,
		"PTTL":      lockregistry.WakeupAuto,
		"EVAL":      lockregistry.WakeupTracking,
	} {
		t.Run(command, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				f := w.flaky()
				var dials atomic.Int64
				client := w.clientWith(func(ctx context.Context) (net.Conn, error) {
					dials.Add(1)
					return f.Dial(ctx)
				}, func(o *rueidis.ClientOption) { o.DisableCache, o.ClientSetInfo = true, rueidis.DisableClientSetInfo })
				var log journal
				const poll = 20 * time.Millisecond
				r := w.registryOn(client, lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(poll), log.option())
				w.lock(r.Obtain("warm"))
				w.unlock(r.Obtain("warm"))
				f.all(command, cut)
				w.do("SET", theKey, "somebody")
				g := w.goroutine()
				result := g.starts(r.Obtain("42"))
				w.await("it tries to listen", func() bool { return f.count(command) >= 3 })
				w.pending(result)
				tries := f.count("obtain")
				start := time.Now()
				w.await("it polls", func() bool { return f.count("obtain") > tries+30 })
				took := time.Since(start)
				w.Logf("%d connections", dials.Load())
				require.GreaterOrEqual(w, took, 20*poll, "it tries more often than it polls")
				require.LessOrEqual(w, dials.Load(), int64(12+took/(100*time.Millisecond)))
				require.Empty(w, log.lines("way="), "the network is not the server")
				f.Forget()
				w.await("it listens", func() bool { return w.tracked() > 0 || w.subscribers(theChannel) > 0 })
				w.do("DEL", theKey)
				require.NoError(w, <-result)
			})
		})
	}
}

// A connection that breaks while it is found out what the server can do says nothing about the server.
func TestSharedClient_BreakWhileFindingOut(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"HELLO", "CLIENT", "EVAL", "PING"} {
		t.Run(command, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				f := w.flaky()
				client := f.client(called("waits"), func(o *rueidis.ClientOption) {
					o.DisableCache, o.ClientSetInfo = true, rueidis.DisableClientSetInfo
				})
				var log journal
				r := w.registryOn(client, lockregistry.WithWakeup(lockregistry.WakeupTracking),
					lockregistry.WithPollInterval(noPoll), log.option())
				holder := w.registry()
				w.lock(holder.Obtain("42"))
				w.lock(r.Obtain("warm")) // the client has the connection that it sends commands on
				f.next(command, cut)
				result := lockElsewhere(r.Obtain("42"), w.Context())
				w.await("it is tracked", func() bool { return w.tracked() == 1 })
				w.pending(result)
				start := time.Now()
				w.unlock(holder.Obtain("42"))
				w.takes(start, result)
				require.Empty(w, log.lines("way="))
				require.Len(w, log.lines("no connection for wake-ups"), 1, "%s", log.lines())
			})
		})
	}
}

// Redis 6.0 answers a HELLO that names no version of the protocol with an error, and has version 3 all the same. Where
// scripts are not permitted, HELLO tells.
func TestSharedClient_FindingOutTheProtocol(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		command string
		tracks  bool
	}{
		"HELLO is refused":     {"bare HELLO", true},
		"scripts are refused":  {"EVAL", true},
		"neither is permitted": {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				f := w.flaky()
				if c.command == "" {
					f.all("EVAL", refused("NOPERM this user has no permissions to run the 'eval' command"))
					f.all("bare HELLO", refused("ERR wrong number of arguments for 'hello' command"))
				} else {
					f.all(c.command, refused("ERR wrong number of arguments for 'hello' command"))
				}
				var log journal
				r := f.registry(lockregistry.WithWakeup(lockregistry.WakeupTracking), log.option())
				w.do("SET", theKey, "somebody")
				result := lockElsewhere(r.Obtain("42"), w.Context())
				if c.tracks {
					w.await("it is tracked", func() bool { return w.tracked() == 1 })
					require.Empty(w, log.lines("way=tracking"))
				} else {
					w.await("a line", func() bool { return len(log.lines("way=tracking")) == 1 })
				}
				w.do("DEL", theKey)
				require.NoError(w, <-result)
			})
		})
	}
}

// A server that can track fewer keys than are waited for tells of changes all the time that are none. Waiting calls try a
// few times for each poll interval all the same.
func TestSharedClient_SmallTrackingTable(t *testing.T) {
	t.Parallel()
	for _, table := range []int{1, 10} {
		t.Run(strconv.Itoa(table), func(t *testing.T) {
			t.Parallel()
			w := realWorld(t, redistest.Start(t, "--tracking-table-max-keys", strconv.Itoa(table)))
			const (
				waiters = 50
				poll    = 100 * time.Millisecond
				polls   = 10
			)
			f := w.flaky()
			r := f.registry(lockregistry.WithPollInterval(poll))
			w.setAll(waiters)
			results := make([]<-chan error, 0, waiters)
			for i := range waiters {
				results = append(results, lockElsewhere(r.Obtain(strconv.Itoa(i)), w.Context()))
			}
			w.await("each is in doubt", func() bool { return f.count("PTTL") > 20*waiters })
			tries, looks := f.count("obtain"), f.count("PTTL")
			begun := time.Now()
			<-time.After(polls * poll)
			tries, looks = f.count("obtain")-tries, f.count("PTTL")-looks
			passed := int((time.Since(begun) + poll - 1) / poll)
			t.Logf("%d tries and %d looks in %d poll intervals", tries, looks, passed)
			require.Less(t, tries, 3*waiters*passed)
			require.Less(t, looks, 3*waiters*passed)
			start := time.Now()
			w.do("FLUSHALL")
			for _, result := range results {
				require.NoError(t, <-result)
			}
			require.Less(t, time.Since(start), atOnce)
		})
	}
}
