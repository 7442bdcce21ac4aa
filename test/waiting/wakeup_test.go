package waiting_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
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
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A lock that is released just before a waiter listens is not missed.
func TestWakeup_ReleaseBeforeTheWaiterListens(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode  kit.Wakeup
		asks  string // the command with which it listens
		first int    // how many of these are delivered first
	}{
		"auto, tracking":      {kit.WakeupAuto, "PTTL", 0},
		"pubsub, connecting":  {kit.WakeupPubSub, "SUBSCRIBE", 0},
		"pubsub, subscribing": {kit.WakeupPubSub, "SUBSCRIBE", 1},
		"tracking":            {kit.WakeupTracking, "PTTL", 0},
	} {
		t.Run(name, func(t *testing.T) {
			test := func(w *kit.World) {
				f := w.Flaky()
				until := make(chan struct{})
				deliver := sync.OnceFunc(func() { close(until) })
				f.Fates(c.asks, append(slices.Repeat([]kit.Fate{kit.Delivered}, c.first), kit.HeldUp(until))...)
				waits := f.Registry(kit.WithWakeup(c.mode), lockregistry.WithPollInterval(kit.NoPoll))
				w.Cleanup(deliver)
				w.Do("SET", kit.TheKey, "somebody")
				result := kit.LockElsewhere(waits.Obtain("42"), w.Context())
				w.Await("it is about to listen", func() bool { return f.Count(c.asks) == c.first+1 })
				w.Do("EVAL", "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], KEYS[1])", "1", kit.TheKey, kit.TheChannel)
				if w.Fake {
					w.Settle()
				}
				if w.Fake || c.asks == "PTTL" { // otherwise one of its first looks may reach a real server late, and find the key gone
					w.Pending(result)
				}
				start := time.Now()
				deliver()
				w.Log(w.Takes(start, result))
			}
			if c.mode == kit.WakeupPubSub {
				t.Run("miniredis", func(t *testing.T) { kit.FakeWorld(t, test) })
			}
			kit.RealWorlds(t, test)
		})
	}
}

func TestWakeup_AtOnce(t *testing.T) {
	t.Parallel()
	for name, mode := range kit.Wakeups {
		t.Run(name, func(t *testing.T) {
			test := func(w *kit.World) {
				const rounds = 5
				registries := []*lockregistry.Registry{w.Waker(mode), w.Waker(mode)}
				owners := []*kit.Goroutine{w.Goroutine(), w.Goroutine()}
				locks := []*lockregistry.Lock{registries[0].Obtain("42"), registries[1].Obtain("42")}
				require.NoError(w, owners[0].Lock(locks[0]))
				all := make([]time.Duration, 0, rounds)
				for round := range rounds {
					has, waits := round%2, (round+1)%2
					result := owners[waits].Starts(locks[waits])
					if w.Fake {
						w.Settle()
					} else {
						w.Listening(mode, 1, 1)
					}
					w.Pending(result)
					start := time.Now()
					require.NoError(w, owners[has].Unlock(locks[has]))
					all = append(all, w.Takes(start, result))
				}
				w.Log(all)
			}
			if mode != kit.WakeupTracking { // miniredis lacks tracking
				t.Run("miniredis", func(t *testing.T) { kit.FakeWorld(t, test) })
			}
			kit.RealWorlds(t, test)
		})
	}
}

// A Java service in PUB_SUB_LOCK mode publishes the key, on the channel of its version.
func TestWakeup_ByAJavaService(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]kit.Wakeup{
		"auto":   kit.WakeupAuto,
		"pubsub": kit.WakeupPubSub,
	} {
		for _, channel := range []string{kit.TheChannel, kit.OldChannel} {
			t.Run(name+" on "+channel, func(t *testing.T) {
				kit.Worlds(t, func(w *kit.World) {
					w.Do("SET", kit.TheKey, "a-java-service", "PX", "600000")
					g := w.Goroutine()
					l := w.Waker(mode).Obtain("42")
					result := g.Starts(l)
					w.Listening(mode, 1, 1)
					if w.Fake {
						w.Settle()
						w.Do("DEL", kit.TheKey)
						w.Settle()
						w.Pending(result) // so that the message wakes it
					}
					start := time.Now()
					w.Do("EVAL", "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], KEYS[1])", "1", kit.TheKey, channel)
					w.Log(w.Takes(start, result))
				})
			})
		}
	}
}

func TestWakeup_MessagesAboutOtherLocks(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(kit.WithWakeup(kit.WakeupPubSub), lockregistry.WithPollInterval(kit.NoPoll))
		for _, path := range []string{"42", "43"} {
			w.Do("SET", "orders:"+path, "somebody", "PX", "600000")
		}
		first, second := w.Goroutine(), w.Goroutine()
		for g, path := range map[*kit.Goroutine]string{first: "42", second: "43"} {
			g.Starts(r.Obtain(path))
		}
		w.Settle()
		before := f.Count("obtain")
		for _, message := range []string{"orders:44", "43", "", "orders:42:"} {
			w.Do("PUBLISH", kit.OldChannel, message)
		}
		w.Do("PUBLISH", kit.OldChannel+":orders:44", "orders:44")
		w.Settle()
		require.Equal(w, before, f.Count("obtain"), "nobody waits for what the messages are about")

		for _, publish := range [][]string{{kit.OldChannel, kit.TheKey}, {kit.TheChannel, kit.TheKey}, {kit.TheChannel, "anything"}} {
			before := f.Count("obtain")
			w.Do("PUBLISH", publish[0], publish[1])
			w.Settle()
			tries := f.Sent("obtain")[before:]
			require.Len(w, tries, 1, "%v", publish)
			require.Contains(w, tries[0].Args, kit.TheKey)
		}
	})
}

func TestWakeup_ReleasesArePublished(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options      []lockregistry.Option
		newer, older bool
	}{
		"auto":                         {nil, true, false},
		"pubsub":                       {[]lockregistry.Option{kit.WithWakeup(kit.WakeupPubSub)}, true, false},
		"poll":                         {[]lockregistry.Option{kit.WithWakeup(kit.WakeupPoll)}, false, false},
		"tracking":                     {[]lockregistry.Option{kit.WithWakeup(kit.WakeupTracking)}, false, false},
		"auto, and on the old channel": {[]lockregistry.Option{lockregistry.WithOldChannel()}, true, true},
		"poll, and on the old channel": {[]lockregistry.Option{lockregistry.WithOldChannel(),
			kit.WithWakeup(kit.WakeupPoll)}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				newer := w.Heard(func(c rueidis.Client) rueidis.Completed {
					return c.B().Psubscribe().Pattern(kit.OldChannel + ":*").Build()
				}, "", "1")
				older := w.Heard(func(c rueidis.Client) rueidis.Completed {
					return c.B().Subscribe().Channel(kit.OldChannel).Build()
				}, kit.OldChannel, "1")
				l := w.Registry(c.options...).Obtain("42")
				w.Lock(l)
				w.Lock(l)
				w.Unlock(l) // not the last one, so nothing is published
				w.Unlock(l)
				w.Do("PUBLISH", kit.TheChannel, "the end")
				w.Do("PUBLISH", kit.OldChannel, "the end")

				if c.newer {
					require.Equal(w, kit.TheChannel+" "+kit.TheKey, <-newer)
				}
				require.Equal(w, kit.TheChannel+" the end", <-newer)
				if c.older {
					require.Equal(w, kit.OldChannel+" "+kit.TheKey, <-older)
				}
				require.Equal(w, kit.OldChannel+" the end", <-older)
			})
		})
	}
}

func TestWakeup_LateReleasePublishesNothing(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		newer := w.Heard(func(c rueidis.Client) rueidis.Completed {
			return c.B().Psubscribe().Pattern(kit.OldChannel + ":*").Build()
		}, "", "1")
		l := w.Registry().Obtain("42")
		w.Lock(l)
		w.Do("SET", kit.TheKey, "somebody")
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		w.Do("PUBLISH", kit.TheChannel, "the end")
		require.Equal(w, kit.TheChannel+" the end", <-newer)
	})
}

// Whatever makes the key go away wakes the waiter that tracks it.
func TestWakeup_TrackingWakesOnAnyRemoval(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]kit.Wakeup{
		"auto":     kit.WakeupAuto,
		"tracking": kit.WakeupTracking,
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				spin := w.Registry(kit.WithWakeup(kit.WakeupPoll))
				r := w.Waker(mode)
				removals := []struct {
					name        string
					take, leave func(path string)
				}{
					{
						name:  "a service that publishes nothing unlocks",
						take:  func(path string) { w.Lock(spin.Obtain(path)) },
						leave: func(path string) { w.Unlock(spin.Obtain(path)) },
					},
					{name: "DEL", leave: func(path string) { w.Do("DEL", "orders:"+path) }},
					{name: "UNLINK", leave: func(path string) { w.Do("UNLINK", "orders:"+path) }},
					{name: "RENAME", leave: func(path string) { w.Do("RENAME", "orders:"+path, "elsewhere") }},
					{name: "expiry that comes sooner", leave: func(path string) { w.Do("PEXPIRE", "orders:"+path, "50") }},
					{name: "expiry in the past", leave: func(path string) { w.Do("PEXPIREAT", "orders:"+path, "1") }},
					{name: "FLUSHDB", leave: func(string) { w.Do("FLUSHDB") }},
					{name: "FLUSHALL", leave: func(string) { w.Do("FLUSHALL") }},
				}
				for i, c := range removals {
					path := strconv.Itoa(i)
					if c.take == nil {
						w.Do("SET", "orders:"+path, "somebody")
					} else {
						c.take(path)
					}
					g := w.Goroutine()
					l := r.Obtain(path)
					result := g.Starts(l)
					w.Await(c.name+": the key is tracked", func() bool { return w.Tracked() == 1 })
					w.Pending(result)

					// A change that does not free the lock wakes the waiter in vain, and it has the key tracked again.
					looks := w.Executed("pttl")
					w.Do("PERSIST", "orders:"+path)
					w.Do("PEXPIRE", "orders:"+path, "600000")
					w.Await(c.name+": the key is tracked again", func() bool { return w.Executed("pttl") > looks && w.Tracked() == 1 })
					w.Pending(result)

					start := time.Now()
					c.leave(path)
					w.Log(c.name, w.Takes(start, result))
					require.NoError(w, g.Unlock(l))
					w.Await(c.name+": nothing is tracked", func() bool { return w.Tracked() == 0 })
				}
			})
		})
	}
}

// A crashed holder publishes nothing, and its key stays until the lease ends.
func TestWakeup_CrashOfTheHolder(t *testing.T) {
	t.Parallel()
	modes := map[string]kit.Wakeup{"poll": kit.WakeupPoll}
	maps.Copy(modes, kit.Wakeups)
	for name, mode := range modes {
		for renewed, option := range map[string][]lockregistry.Option{
			"":                nil,
			", once renewed":  {lockregistry.WithRenewal()},
			", after handoff": {lockregistry.WithHandoff(time.Hour)},
		} {
			t.Run(name+renewed, func(t *testing.T) {
				crash := func(w *kit.World, lease time.Duration) (late time.Duration) {
					crashed := w.Registry(append(option, lockregistry.WithLease(lease))...)
					w.Lock(crashed.Obtain("42"))
					g := w.Goroutine()
					l := w.Waker(mode).Obtain("42")
					result := g.Starts(l)
					if mode != kit.WakeupPoll {
						w.Listening(mode, 1, 1)
					}
					switch renewed {
					case ", once renewed":
						before := w.Pttl(kit.TheKey)
						w.Await("a renewal", func() bool { now := w.Pttl(kit.TheKey); was := before; before = now; return now > was })
					case ", after handoff":
						second := w.Goroutine()
						handed := second.Starts(crashed.Obtain("42"))
						if w.Fake {
							w.Settle()
						}
						w.Unlock(crashed.Obtain("42"))
						require.NoError(w, <-handed)
					}
					require.NoError(w, crashed.Close()) // leaves the key to its lease
					end := time.Now().Add(w.Pttl(kit.TheKey))
					select {
					case err := <-result:
						require.NoError(w, err)
					case <-time.After(lease + 10*time.Second):
						w.Fatal("nobody noticed the end of the lease")
					}
					late = time.Since(end)
					require.GreaterOrEqual(w, late, -2*time.Millisecond, "before the end of the lease") // PTTL rounds
					require.NoError(w, g.Unlock(l))
					return late
				}
				t.Run("miniredis", func(t *testing.T) {
					kit.FakeWorld(t, func(w *kit.World) { require.LessOrEqual(w, crash(w, 20*time.Second), 20*time.Millisecond) })
				})
				if renewed == "" {
					kit.RealWorlds(t, func(w *kit.World) {
						var all []time.Duration
						for range 3 {
							all = append(all, crash(w, 2*time.Second)) // so that others wait before it is over, even on a busy machine
						}
						w.Within(300*time.Millisecond, all)
					})
				}
			})
		}
	}
}

// Whatever the user may not do, or the server cannot do, waiting calls wake in the way that is left, or poll, and locks work.
// The log says once what is missing.
func TestWakeup_Fallbacks(t *testing.T) {
	t.Parallel()
	const (
		noSubscribing = "way=subscribing"
		noTracking    = "way=tracking"
		noQueueing    = "way=queueing"
		noInfo        = "INFO"
		noQueue       = "refuses the queue"
	)
	everything := []kit.Wakeup{kit.WakeupAuto, kit.WakeupPubSub, kit.WakeupTracking}
	type outcome struct {
		wakes  bool     // at once, when another registry with the same rights releases
		logged []string // everything in the log, each once
	}
	for name, c := range map[string]struct {
		rights   []string
		outcomes [3]outcome // as in everything
		unlinks  bool
	}{
		"everything": {
			nil,
			[3]outcome{{true, nil}, {true, nil}, {true, nil}},
			true,
		},
		"no channels": {
			[]string{"resetchannels"},
			[3]outcome{
				{true, []string{noQueueing}}, {false, []string{noQueueing, noSubscribing}}, {true, []string{noQueueing}},
			},
			true,
		},
		"no SUBSCRIBE": {
			[]string{"-subscribe"},
			[3]outcome{
				{true, []string{noQueueing}}, {false, []string{noQueueing, noSubscribing}}, {true, []string{noQueueing}},
			},
			true,
		},
		"no CLIENT": {
			[]string{"-client"},
			[3]outcome{{true, []string{noTracking}}, {true, nil}, {false, []string{noTracking}}},
			true,
		},
		"no CLIENT, no channels": {
			[]string{"-client", "resetchannels"},
			[3]outcome{
				{false, []string{noQueueing, noTracking, noSubscribing}},
				{false, []string{noQueueing, noSubscribing}},
				{false, []string{noTracking}},
			},
			true,
		},
		"no INFO": {
			[]string{"-info"},
			[3]outcome{{true, []string{noInfo}}, {true, []string{noInfo}}, {true, []string{noInfo}}},
			false,
		},
		"no PUBLISH": {
			[]string{"-publish"},
			[3]outcome{{true, []string{noQueueing}}, {false, []string{noQueueing}}, {true, []string{noQueueing}}},
			true,
		},
		"no UNLINK": {
			[]string{"-unlink"},
			[3]outcome{{true, nil}, {true, nil}, {true, nil}},
			false,
		},
		"no PUBSUB": {
			[]string{"-pubsub"},
			[3]outcome{{true, []string{noQueueing}}, {true, []string{noQueueing}}, {true, []string{noQueueing}}},
			true,
		},
		"no sorted sets": {
			[]string{"-@sortedset"},
			[3]outcome{{true, []string{noQueue}}, {true, []string{noQueue}}, {true, []string{noQueue}}},
			true,
		},
		"only the old channel": {
			[]string{"resetchannels", "&" + kit.OldChannel},
			[3]outcome{
				{true, []string{noQueueing}}, {false, []string{noQueueing, noSubscribing}}, {true, []string{noQueueing}},
			},
			true,
		},
		"only the channels of the keys": {
			[]string{"resetchannels", "&" + kit.OldChannel + ":*"},
			[3]outcome{
				{true, []string{noQueueing}}, {true, []string{noQueueing, noSubscribing}}, {true, []string{noQueueing}},
			},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				app := w.Allowed(c.rights...)
				for i, mode := range everything {
					want := c.outcomes[i]
					w.Do("CONFIG", "RESETSTAT")
					poll := kit.NoPoll
					if !want.wakes {
						poll = 20 * time.Millisecond
					}
					var log kit.Journal
					made := func(opts ...lockregistry.Option) *lockregistry.Registry {
						opts = append(opts, kit.WithWakeup(mode), lockregistry.WithPollInterval(poll))
						return w.RegistryOn(w.ClientWith(w.Dial, app), opts...)
					}
					holds, waits := made(), made(log.Option())

					const rounds = 3 // what is missing is not logged again
					for round := range rounds {
						path := strconv.Itoa(round + 42)
						w.Lock(holds.Obtain(path))
						g := w.Goroutine()
						result := g.Starts(waits.Obtain(path))
						tries := w.Executed("evalsha")
						if want.wakes {
							listens(w, path)
						} else {
							w.Await("some polls, after it has tried to listen", func() bool {
								silent := func(text string) bool { return len(log.Lines(text)) == 0 }
								return w.Executed("evalsha") >= tries+3 && !slices.ContainsFunc(want.logged, silent)
							})
						}
						w.Pending(result)
						start := time.Now()
						w.Unlock(holds.Obtain(path))
						w.Logf("%v after %v", mode, w.Takes(start, result))
						require.NoError(w, g.Unlock(waits.Obtain(path)))
						w.IsFree("orders:" + path)
					}
					for _, text := range want.logged {
						log.Await(w, 1, text)
					}
					require.Len(w, log.Lines(), len(want.logged), "in mode %v: %s", mode, log.Lines())
					require.Equal(w, c.unlinks, w.Executed("unlink") > 2*w.Proofs(), "UNLINK")
					require.NoError(w, holds.Close())
					require.NoError(w, waits.Close())
				}
			})
		})
	}
}

// listens waits until a path's waiter listens in at least one way, whichever is allowed.
func listens(w *kit.World, path string) {
	w.Helper()
	w.Await("somebody listens for "+path, func() bool {
		return w.Tracked() > 0 || w.Subscribers(kit.OldChannel+":orders:"+path) > 0
	})
}

// The library learns from the server's replies what the server does not support.
func TestWakeup_ServerWithoutTracking(t *testing.T) {
	t.Parallel()
	for name, mode := range kit.Wakeups {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				const poll = 100 * time.Millisecond
				var log kit.Journal
				holds := w.Registry(kit.WithWakeup(mode), lockregistry.WithPollInterval(poll))
				waits := w.Registry(kit.WithWakeup(mode), lockregistry.WithPollInterval(poll), log.Option())
				w.Do("CONFIG", "RESETSTAT")
				for range 3 {
					l := waits.Obtain("42")
					w.Lock(holds.Obtain("42"))
					g := w.Goroutine()
					result := g.Starts(l)
					w.Settle()
					w.Pass(10 * time.Millisecond)
					start := time.Now()
					w.Unlock(holds.Obtain("42"))
					require.NoError(w, <-result)
					if mode == kit.WakeupTracking {
						require.LessOrEqual(w, time.Since(start), poll)
					} else {
						require.Zero(w, time.Since(start))
					}
					require.NoError(w, g.Unlock(l))
				}
				missing := map[kit.Wakeup][]string{
					kit.WakeupAuto:     {"tracking", "queueing"},
					kit.WakeupPubSub:   {"queueing"},
					kit.WakeupTracking: {"tracking"},
				}[mode]
				for _, way := range missing {
					require.Len(w, log.Lines("way="+way), 1, "%s", log.Lines())
				}
				require.Len(w, log.Lines("way="), len(missing), "%s", log.Lines())
			})
		})
	}
}

// Version 2 of the protocol has no pushed messages: nothing can report a change of a key, although the server lets a client ask
// for it.
func TestWakeup_ProtocolWithoutTracking(t *testing.T) {
	t.Parallel()
	for name, mode := range kit.Wakeups {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				poll := kit.NoPoll
				if mode == kit.WakeupTracking {
					poll = 20 * time.Millisecond
				}
				old := func(o *rueidis.ClientOption) {
					o.AlwaysRESP2, o.DisableCache = true, true
					kit.NamedConnection("old")(o)
				}
				var log kit.Journal
				holds := w.Waker(mode)
				waits := w.RegistryOn(w.ClientWith(w.Dial, old),
					kit.WithWakeup(mode), lockregistry.WithPollInterval(poll), log.Option())
				for range 3 {
					w.Lock(holds.Obtain("42"))
					tries := w.Executed("evalsha")
					g := w.Goroutine()
					result := g.Starts(waits.Obtain("42"))
					if mode == kit.WakeupTracking {
						w.Await("some polls, after it has tried to listen", func() bool {
							return w.Executed("evalsha") >= tries+3 && len(log.Lines("way=tracking")) > 0
						})
					} else {
						w.Await("it is subscribed", func() bool { return w.Subscribers(kit.TheChannel) == 1 })
					}
					w.Pending(result)
					start := time.Now()
					w.Unlock(holds.Obtain("42"))
					w.Log(w.Takes(start, result))
					require.NoError(w, g.Unlock(waits.Obtain("42")))
				}
				extra := len(w.Connections("name=old")) - 1
				if extra > 2 { // the client then needs one for commands and one for subscriptions
					w.Errorf("%d connections more than without waiters", extra)
				}
				if mode != kit.WakeupPubSub {
					log.Await(w, 1, "way=tracking")
				}
			})
		})
	}
}

func TestWakeup_KilledConnectionComesBack(t *testing.T) {
	t.Parallel()
	for name, mode := range kit.Wakeups {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				var log kit.Journal
				holds := w.Waker(mode)
				client := w.ClientWith(w.Dial, kit.NamedConnection("waits"), kit.Unasked) // the last command of a connection is a call's
				waits := w.RegistryOn(client, log.Option(), kit.WithWakeup(mode), lockregistry.WithPollInterval(kit.NoPoll))
				w.Lock(holds.Obtain("42"))
				g := w.Goroutine()
				result := g.Starts(waits.Obtain("42"))
				seen := map[int]bool{}
				for _, line := range w.Connections("name=waits") {
					seen[kit.ClientField(" "+line, "id")] = false
				}
				const kills = 5
				for kill := range kills {
					// The listening connection is a new one each time.
					var id int
					w.Await("a connection that listens", func() bool {
						for _, line := range w.Connections("name=waits") {
							listens := kit.ClientField(line, "sub") == map[kit.Wakeup]int{
								kit.WakeupAuto:   1, // to be counted
								kit.WakeupPubSub: 3, // and to the key's channels, of this version and of older ones
							}[mode]
							if mode == kit.WakeupTracking {
								listens = strings.Contains(line, "cmd=pttl ")
							}
							if id = kit.ClientField(" "+line, "id"); listens && !seen[id] {
								return mode == kit.WakeupPubSub || w.Tracked() == 1
							}
						}
						return false
					})
					seen[id] = true
					if kill == kills-1 {
						break // this one stays
					}
					if mode == kit.WakeupPubSub {
						w.Do("CLIENT", "KILL", "TYPE", "pubsub")
					} else {
						w.Do("CLIENT", "KILL", "ID", strconv.Itoa(id))
					}
				}
				w.Pending(result)
				start := time.Now()
				w.Unlock(holds.Obtain("42"))
				w.Log(w.Takes(start, result))
				log.Await(w, kills-1, "lost the connection for wake-ups")
			})
		})
	}
}

func TestWakeup_ServerRestartsWhileACallWaits(t *testing.T) {
	t.Parallel()
	for name, mode := range kit.Wakeups {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				var log kit.Journal
				waits := w.Registry(kit.WithWakeup(mode), lockregistry.WithPollInterval(50*time.Millisecond), log.Option())
				w.Do("SET", kit.TheKey, "somebody", "PX", "600000")
				g := w.Goroutine()
				result := g.Starts(waits.Obtain("42"))
				w.Listening(mode, 1, 1)
				w.Server.Freeze() // nobody may find the lock free before somebody has it again
				w.Server.Stop()
				w.Await("the loss is in the log", func() bool { return len(log.Lines("lost the connection for wake-ups")) == 1 })
				w.Pending(result)
				w.Server.Restart(w)
				require.NoError(w, <-result, "the restart dropped the key")
				require.NoError(w, g.Unlock(waits.Obtain("42")))

				// The next one waits as usual, and wakes at once.
				holds := w.Waker(mode)
				patient := w.Goroutine()
				w.Lock(holds.Obtain("42"))
				result = patient.Starts(waits.Obtain("42"))
				w.Listening(mode, 1, 1)
				start := time.Now()
				w.Unlock(holds.Obtain("42"))
				w.Log(w.Takes(start, result))
				require.LessOrEqual(w, len(log.Lines("no connection for wake-ups")), 1, "%s", log.Lines())
			})
		})
	}
}

func TestWakeup_OneConnectionMore(t *testing.T) {
	t.Parallel()
	for name, mode := range kit.Wakeups {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				client := kit.Wrapper{Client: w.ClientWith(w.Dial, kit.NamedConnection("waits"))} // has no connection for single commands
				const registries = 3                                                              // on one client
				waits := make([]*lockregistry.Registry, 0, registries)
				for range registries {
					waits = append(waits, w.RegistryOn(client, kit.WithWakeup(mode), lockregistry.WithPollInterval(kit.NoPoll)))
				}
				// There is one more for half a minute after a late reply on a busy machine.
				connections := func(n int, why string) {
					w.Helper()
					require.True(w, redistest.Await(time.Minute, func() bool { return len(w.Connections("name=waits")) == n }), why)
				}
				for _, r := range waits {
					for i := range 50 {
						w.Lock(r.Obtain(strconv.Itoa(i)))
						w.Unlock(r.Obtain(strconv.Itoa(i)))
					}
					w.Lock(r.Obtain("taken"))
					require.False(w, w.TryElsewhere(r.Obtain("taken")))
					w.Unlock(r.Obtain("taken"))
				}
				connections(1, "nobody has waited so far")

				const paths = 40
				for i := range paths {
					w.Do("SET", "orders:"+strconv.Itoa(i), "somebody")
				}
				w.Do("SET", kit.TheKey, "somebody")
				results := make([]<-chan error, 0, registries*(paths+1))
				for _, r := range waits {
					for j := range paths {
						results = append(results, kit.LockElsewhere(r.Obtain(strconv.Itoa(j)), w.Context()))
					}
					results = append(results, kit.LockElsewhere(r.Obtain("42"), w.Context()))
					w.Listening(mode, 1, paths)
					connections(2, "the registries share it")
				}
				for i, r := range waits {
					connections(2, strconv.Itoa(i)+" of them are closed")
					require.NoError(w, r.Close())
					for range paths + 1 {
						require.ErrorIs(w, <-results[0], lockregistry.ErrClosed)
						results = results[1:]
					}
				}
				connections(1, "a connection less")
				require.ErrorIs(w, waits[0].Obtain("43").Lock(w.Context()), lockregistry.ErrClosed)
				connections(1, "none is made after that")
			})
		})
	}
}

func TestWakeup_PollingOpensNoConnection(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		const poll = 5 * time.Millisecond
		var dials atomic.Int32
		r := w.RegistryOn(w.ClientWith(func(ctx context.Context) (net.Conn, error) {
			dials.Add(1)
			return w.Dial(ctx)
		}, func(o *rueidis.ClientOption) { o.PipelineMultiplex = -1 }),
			kit.WithWakeup(kit.WakeupPoll), lockregistry.WithPollInterval(poll))
		w.Do("SET", kit.TheKey, "somebody")
		result := kit.LockElsewhere(r.Obtain("42"), w.Context())
		if w.Fake {
			w.Pass(10 * poll)
		} else {
			w.Await("some polls", func() bool { return w.Executed("evalsha") > 5 })
		}
		w.Pending(result)
		w.Do("DEL", kit.TheKey)
		require.NoError(w, <-result)
		if w.Fake { // no reply is late there: after a late one a command uses another connection
			require.EqualValues(w, 1, dials.Load())
			return
		}
		for _, command := range []string{"subscribe", "psubscribe", "publish"} {
			require.Zero(w, w.Executed(command), command)
		}
		require.LessOrEqual(w, w.Executed("exists"), w.Proofs())
		require.Zero(w, w.Tracked())
	})
}

func TestWakeup_LostWakeups(t *testing.T) {
	t.Parallel()
	for name, mode := range kit.Wakeups {
		t.Run(name, func(t *testing.T) {
			test := func(w *kit.World) {
				const poll = 100 * time.Millisecond
				d := &kit.DeafDialer{W: w}
				client := w.ClientWith(d.Dial, func(o *rueidis.ClientOption) { o.ConnWriteTimeout = time.Second })
				waits := w.RegistryOn(client, kit.WithWakeup(mode), lockregistry.WithPollInterval(poll))
				holds := w.Registry(kit.WithWakeup(mode))
				w.Lock(holds.Obtain("42"))
				g := w.Goroutine()
				result := g.Starts(waits.Obtain("42"))
				w.Listening(mode, 1, 1)
				if w.Fake {
					w.Settle()
				}
				require.EqualValues(w, 1, d.Ears.Load())
				d.Deafen()
				w.Pending(result)
				start := time.Now()
				w.Unlock(holds.Obtain("42"))
				require.NoError(w, <-result)
				took := time.Since(start)
				w.Log(took)
				allowance := 4 * time.Second // the first in the queue is told of all changes, and does not poll: its client notices
				if w.Fake {
					allowance = 0
					require.NotZero(w, took, "nothing wakes before the poll")
				}
				require.LessOrEqual(w, took, poll+allowance)
				w.Await("the wake-up came, and nobody heard it", func() bool { return d.Missed.Load() > 0 })
			}
			if mode != kit.WakeupTracking {
				t.Run("miniredis", func(t *testing.T) { kit.FakeWorld(t, test) })
			}
			kit.RealWorlds(t, test)
		})
	}
}

// A connection that stays open but is silent is detected, and replaced.
func TestWakeup_SilentConnectionComesBack(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		d := &kit.DeafDialer{W: w}
		waits := w.RegistryOn(w.ClientWith(d.Dial), lockregistry.WithPollInterval(time.Hour))
		holds := w.Registry(lockregistry.WithLease(2 * time.Hour))
		w.Lock(holds.Obtain("42"))
		g := w.Goroutine()
		result := g.Starts(waits.Obtain("42"))
		w.Settle()
		d.Deafen()
		w.Pass(time.Minute) // rueidis asks, and waits for the reply no longer than that
		require.EqualValues(w, 2, d.Ears.Load())
		w.Pending(result)
		start := time.Now()
		w.Unlock(holds.Obtain("42"))
		w.Takes(start, result)
	})
}

// A waiter that gives up while it is being subscribed leaves no subscription forever.
func TestWakeup_SubscriptionsOfWhoGaveUp(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const paths, others = 1500, 600
		f := w.Flaky()
		r := f.Registry(lockregistry.WithPollInterval(kit.NoPoll))
		w.SetAll(paths + others)
		until := make(chan struct{})
		f.Fates("SUBSCRIBE", kit.Delivered, kit.HeldUp(until)) // the first one opens the connection
		ctx, cancel := context.WithCancel(w.Context())
		results := make([]<-chan error, 0, paths)
		for i := range paths {
			results = append(results, kit.LockElsewhere(r.Obtain(strconv.Itoa(i)), ctx))
		}
		w.Settle()
		cancel()
		for _, result := range results {
			require.ErrorIs(w, <-result, context.Canceled)
		}
		close(until)
		w.Settle()

		// Others come and go while there is a connection.
		ctx, cancel = context.WithCancel(w.Context())
		results = results[:0]
		for i := range others {
			results = append(results, kit.LockElsewhere(r.Obtain(strconv.Itoa(paths+i)), ctx))
		}
		w.Settle()
		cancel()
		for _, result := range results {
			require.ErrorIs(w, <-result, context.Canceled)
		}
		w.Pass(3 * time.Second) // until it is time to clean up
		require.Len(w, strings.Fields(w.Do("PUBSUB", "CHANNELS")), 1, "the one of all paths; nobody waits for any other")
	})
}

// While calls wait the server is asked something now and then, and answers.
func TestWakeup_Pulse(t *testing.T) {
	t.Parallel()
	for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
		t.Run(fmt.Sprint(layout), func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				one := func(o *rueidis.ClientOption) {
					o.PipelineMultiplex = -1 // making another connection causes errors on old servers
					o.Dialer.KeepAlive = -1  // the client's own pings
				}
				holder := w.RegistryOn(w.ClientWith(w.Dial, one), kit.WithLayout(layout))
				waiter := w.RegistryOn(w.ClientWith(w.Dial, one), kit.WithLayout(layout))
				w.Lock(holder.Obtain("42"))
				result := kit.LockElsewhere(waiter.Obtain("42"), w.Context())
				w.Await("a ticket", func() bool { return w.Do("ZCARD", kit.TheQueue) != "0" })
				for range 2 {
					w.Do("CONFIG", "RESETSTAT")
					w.Await("a pulse", func() bool { return strings.Contains(w.Do("INFO", "commandstats"), "cmdstat_script") })
				}
				require.NotContains(w, w.Do("INFO", "errorstats"), "errorstat_ERR")
				w.Unlock(holder.Obtain("42"))
				require.NoError(w, <-result)
			})
		})
	}
}
