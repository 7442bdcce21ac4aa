package faults_test

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// The connection for wake-ups: which registries share it, and what happens when there is none, or when it does not last.

// Registries of one client that wait for the same lock, each in its own way, are all woken.
func TestSharedClient_RegistriesOfOneClientInAllModes(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		client := w.ClientWith(w.Dial, kit.NamedConnection("waits"))
		holder := w.Waker(kit.WakeupAuto)
		w.Lock(holder.Obtain("42"))
		results := make(chan error, len(kit.Wakeups))
		for _, mode := range kit.Wakeups {
			l := w.RegistryOn(client, kit.WithWakeup(mode), lockregistry.WithPollInterval(kit.NoPoll)).Obtain("42")
			go func() { results <- l.Lock(w.Context()) }()
		}
		w.Await("all listen", func() bool {
			return w.Tickets() == len(kit.Wakeups) && w.Tracked()+w.Subscribers(kit.TheChannel) == 1
		})
		require.LessOrEqual(w, len(w.Connections("name=waits")), 3, "with one that was made when the server seemed slow")
		for range kit.Wakeups { // whoever was quicker
			start := time.Now()
			w.Do("EVAL", "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], KEYS[1])", "1", kit.TheKey, kit.TheChannel)
			w.Log(w.Takes(start, results))
		}
	})
}

// When the client has no connection left for wake-ups, waiting calls poll, and a log line says so. A closed registry does not
// wait for a connection, and once there is one again waiting calls are woken.
func TestSharedClient_NoConnectionLeft(t *testing.T) {
	const mode = kit.WakeupAuto
	kit.RealWorlds(t, func(w *kit.World) {
		client := w.ClientWith(w.Dial, func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
		_, giveBack := client.Dedicate()
		defer func() { giveBack() }()
		var log kit.Journal
		const poll = 50 * time.Millisecond
		r := w.RegistryOn(client, kit.WithWakeup(mode), lockregistry.WithPollInterval(poll), log.Option())
		w.Do("SET", kit.TheKey, "somebody")
		g := w.Goroutine()
		result := g.Starts(r.Obtain("42"))
		tries := w.Executed("evalsha")
		w.Await("some polls", func() bool { return w.Executed("evalsha") >= tries+3 })
		w.Await("a line", func() bool { return len(log.Lines("no connection for wake-ups", "BlockingPoolSize")) == 1 })
		w.Do("DEL", kit.TheKey)
		require.NoError(w, <-result)
		require.NoError(w, g.Unlock(r.Obtain("42")))
		w.Do("SET", kit.TheKey, "somebody")
		result = g.Starts(r.Obtain("42"))
		start := time.Now()
		require.NoError(w, r.Close())
		require.ErrorIs(w, <-result, lockregistry.ErrClosed)
		require.Less(w, time.Since(start), kit.AtOnce)

		r = w.RegistryOn(client, kit.WithWakeup(mode), lockregistry.WithPollInterval(kit.NoPoll))
		result = g.Starts(r.Obtain("42"))
		giveBack()
		giveBack = func() {}
		w.Listening(mode, 1, 1)
		w.Do("EVAL", "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], KEYS[1])", "1", kit.TheKey, kit.TheChannel)
		w.Takes(time.Now(), result)
	})
}

// If the connection for wake-ups breaks as soon as something is sent on it, the pauses before the next one grow, and waiting
// calls poll.
func TestSharedClient_ConnectionsThatDoNotLast(t *testing.T) {
	t.Parallel()
	for command, mode := range map[string]kit.Wakeup{
		"SUBSCRIBE": kit.WakeupPubSub,
		"PTTL":      kit.WakeupAuto,
		"EVAL":      kit.WakeupTracking,
	} {
		t.Run(command, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				f := w.Flaky()
				var dials atomic.Int64
				client := w.ClientWith(func(ctx context.Context) (net.Conn, error) {
					dials.Add(1)
					return f.Dial(ctx)
				}, func(o *rueidis.ClientOption) { o.DisableCache, o.ClientSetInfo = true, rueidis.DisableClientSetInfo })
				var log kit.Journal
				const poll = 20 * time.Millisecond
				r := w.RegistryOn(client, kit.WithWakeup(mode), lockregistry.WithPollInterval(poll), log.Option())
				w.Lock(r.Obtain("warm"))
				w.Unlock(r.Obtain("warm"))
				f.Fate(command, kit.Cut)
				w.Do("SET", kit.TheKey, "somebody")
				g := w.Goroutine()
				result := g.Starts(r.Obtain("42"))
				w.Await("it tries to listen", func() bool { return f.Count(command) >= 3 })
				w.Pending(result)
				tries := f.Count("obtain")
				start := time.Now()
				w.Await("it polls", func() bool { return f.Count("obtain") > tries+30 })
				took := time.Since(start)
				w.Logf("%d connections", dials.Load())
				require.GreaterOrEqual(w, took, 20*poll, "it tries more often than it polls")
				require.LessOrEqual(w, dials.Load(), int64(12+took/(100*time.Millisecond)))
				require.Empty(w, log.Lines("way="), "the network is not the server")
				f.Forget()
				w.Await("it listens", func() bool { return w.Tracked() > 0 || w.Subscribers(kit.TheChannel) > 0 })
				w.Do("DEL", kit.TheKey)
				require.NoError(w, <-result)
			})
		})
	}
}

// A connection that breaks while a registry finds out what the server can do says nothing about the server.
func TestSharedClient_BreakWhileFindingOut(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"HELLO", "CLIENT", "EVAL", "PING"} {
		t.Run(command, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				f := w.Flaky()
				client := f.Client(kit.NamedConnection("waits"), func(o *rueidis.ClientOption) {
					o.DisableCache, o.ClientSetInfo = true, rueidis.DisableClientSetInfo
				})
				var log kit.Journal
				r := w.RegistryOn(client, kit.WithWakeup(kit.WakeupTracking),
					lockregistry.WithPollInterval(kit.NoPoll), log.Option())
				holder := w.Registry()
				w.Lock(holder.Obtain("42"))
				w.Lock(r.Obtain("warm")) // so that the client has its connection for commands
				f.Fate(command, kit.Cut) // another call may ask the same meanwhile
				// The question may go over the connection for commands, which then breaks: that would end a call without a limit.
				result := kit.LockElsewhere(r.Obtain("42"), w.Context(), lockregistry.Wait(time.Minute))
				w.Await("its connection breaks", func() bool { return len(log.Lines("no connection for wake-ups")) > 0 })
				f.Forget()
				w.Await("it is tracked", func() bool { return w.Tracked() == 1 })
				w.Pending(result)
				start := time.Now()
				w.Unlock(holder.Obtain("42"))
				w.Takes(start, result)
				require.Empty(w, log.Lines("way="))
				require.Len(w, log.Lines("no connection for wake-ups"), 1, "%s", log.Lines())
			})
		})
	}
}

// Redis 6.0 answers a HELLO without a protocol version with an error, and supports version 3 all the same. Where scripts are
// not permitted, HELLO finds out.
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
			kit.RealWorlds(t, func(w *kit.World) {
				f := w.Flaky()
				if c.command == "" {
					f.Fate("EVAL", kit.Refused("NOPERM this user has no permissions to run the 'eval' command"))
					f.Fate("bare HELLO", kit.Refused("ERR wrong number of arguments for 'hello' command"))
				} else {
					f.Fate(c.command, kit.Refused("ERR wrong number of arguments for 'hello' command"))
				}
				var log kit.Journal
				r := f.Registry(kit.WithWakeup(kit.WakeupTracking), log.Option())
				w.Do("SET", kit.TheKey, "somebody")
				result := kit.LockElsewhere(r.Obtain("42"), w.Context())
				if c.tracks {
					w.Await("it is tracked", func() bool { return w.Tracked() == 1 })
					require.Empty(w, log.Lines("way=tracking"))
				} else {
					w.Await("a line", func() bool { return len(log.Lines("way=tracking")) == 1 })
				}
				w.Do("DEL", kit.TheKey)
				require.NoError(w, <-result)
			})
		})
	}
}

// A server that can track fewer keys than calls wait for reports changes all the time that are none. Waiting calls try a few
// times in each poll interval all the same.
func TestSharedClient_SmallTrackingTable(t *testing.T) {
	t.Parallel()
	for _, table := range []int{1, 10} {
		t.Run(strconv.Itoa(table), func(t *testing.T) {
			t.Parallel()
			w := kit.RealWorld(t, redistest.Start(t, "--tracking-table-max-keys", strconv.Itoa(table)))
			const (
				waiters = 50
				poll    = 100 * time.Millisecond
				polls   = 10
			)
			f := w.Flaky()
			r := f.Registry(lockregistry.WithPollInterval(poll))
			w.SetAll(waiters)
			results := make([]<-chan error, 0, waiters)
			for i := range waiters {
				results = append(results, kit.LockElsewhere(r.Obtain(strconv.Itoa(i)), w.Context()))
			}
			w.Await("each is in doubt", func() bool { return f.Count("PTTL") > 5*waiters })
			tries, looks := f.Count("obtain"), f.Count("PTTL")
			begun := time.Now()
			<-time.After(polls * poll)
			tries, looks = f.Count("obtain")-tries, f.Count("PTTL")-looks
			passed := int((time.Since(begun) + poll - 1) / poll)
			t.Logf("%d tries and %d looks in %d poll intervals", tries, looks, passed)
			require.Less(t, tries, 3*waiters*passed)
			require.Less(t, looks, 3*waiters*passed)
			start := time.Now()
			w.Do("FLUSHALL")
			for _, result := range results {
				require.NoError(t, <-result)
			}
			require.Less(t, time.Since(start), kit.AtOnce)
		})
	}
}
