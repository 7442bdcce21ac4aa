package lockregistry_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
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
)

// The modes that wake, and how each is told from the others by its name.
var wakeups = map[string]lockregistry.Wakeup{
	"auto":     lockregistry.WakeupAuto,
	"pubsub":   lockregistry.WakeupPubSub,
	"tracking": lockregistry.WakeupTracking,
}

const (
	// A poll interval so long that a test which needs a poll fails.
	noPoll = time.Minute

	// What counts as at once on a machine that is busy with other things: a thirtieth of noPoll.
	atOnce = 2 * time.Second
)

const (
	theKey     = "orders:42"
	theQueue   = "orders:{orders:42}:waiters"
	theChannel = "orders-channel:orders:42"
	oldChannel = "orders-channel"
)

// waker is a registry whose waiting calls must be woken, or they take too long.
func (w *world) waker(mode lockregistry.Wakeup, opts ...lockregistry.Option) *lockregistry.Registry {
	w.Helper()
	return w.registry(append(opts, lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(noPoll))...)
}

// subscribers is how many listen on a channel.
func (w *world) subscribers(channel string) int {
	w.Helper()
	said := strings.Fields(strings.Trim(w.do("PUBSUB", "NUMSUB", channel), "[]map"))
	last := said[len(said)-1]
	n, err := strconv.Atoi(last[strings.LastIndex(last, ":")+1:])
	require.NoError(w, err)
	return n
}

// info reads a number from INFO; 0 when it is not there.
func (w *world) info(section, name string) int {
	w.Helper()
	for line := range strings.Lines(w.do("INFO", section)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			n, err := strconv.Atoi(value)
			require.NoError(w, err)
			return n
		}
	}
	return 0
}

// executed is how often the server has executed a command, inside of scripts included.
func (w *world) executed(command string) int {
	w.Helper()
	return w.commandStat(command, "calls")
}

// commandStat is a figure that the server keeps of a command; 0 as long as nobody has sent it.
func (w *world) commandStat(command, name string) int {
	w.Helper()
	for line := range strings.Lines(w.do("INFO", "commandstats")) {
		stats, ok := strings.CutPrefix(strings.TrimSpace(line), "cmdstat_"+command+":")
		if !ok {
			continue
		}
		for stat := range strings.SplitSeq(stats, ",") {
			if count, ok := strings.CutPrefix(stat, name+"="); ok {
				n, err := strconv.Atoi(count)
				require.NoError(w, err)
				return n
			}
		}
	}
	return 0
}

// tracked is how many keys the server remembers for those who want to know of a change.
func (w *world) tracked() int {
	w.Helper()
	return w.info("stats", "tracking_total_keys")
}

// tickets is how many wait in the queue of the first lock.
func (w *world) tickets() int {
	w.Helper()
	n, err := strconv.Atoi(w.do("ZCOUNT", theQueue, "0", "+inf"))
	require.NoError(w, err)
	return n
}

// listening waits until n processes wait for the first lock. On real servers they do in its queue, and the first in each of so
// many queues listens to its key; miniredis has no queue, and all listen.
func (w *world) listening(mode lockregistry.Wakeup, n, keys int) {
	w.Helper()
	if w.fake {
		if mode != lockregistry.WakeupTracking { // else it polls
			w.await("waiters are subscribed", func() bool { return w.subscribers(theChannel) >= n })
		}
		return
	}
	w.await("waiters have tickets", func() bool { return w.tickets() >= n })
	if mode == lockregistry.WakeupPubSub {
		w.await("the first one is subscribed", func() bool { return w.subscribers(theChannel) >= 1 })
	} else {
		w.await("keys are tracked", func() bool { return w.tracked() >= keys })
	}
}

// takes waits for a result that must be there at once, and returns how long it took since start.
func (w *world) takes(start time.Time, result <-chan error) time.Duration {
	w.Helper()
	select {
	case err := <-result:
		require.NoError(w, err)
	case <-time.After(atOnce):
		w.Fatal("nothing woke the waiter")
	}
	took := time.Since(start)
	if w.fake {
		require.Zero(w, took, "no time passes from the release to the next holder")
	}
	return took
}

// connections are the server's lines about the connections that carry a mark: their name, or their user's.
func (w *world) connections(mark string) (lines []string) {
	w.Helper()
	for line := range strings.Lines(w.do("CLIENT", "LIST")) {
		if strings.Contains(line, mark+" ") {
			lines = append(lines, line)
		}
	}
	return lines
}

// property reads a number from a line about a connection.
func property(line, name string) int {
	_, rest, _ := strings.Cut(line, " "+name+"=")
	value, _, _ := strings.Cut(rest, " ")
	n, _ := strconv.Atoi(value)
	return n
}

// called gives a client's connections a name, and has it use one only, but for those that are for one use.
func called(name string) func(*rueidis.ClientOption) {
	return func(o *rueidis.ClientOption) { o.ClientName, o.PipelineMultiplex = name, -1 }
}

// journal is a log that a test can read.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) option() lockregistry.Option {
	return lockregistry.WithLogger(slog.New(slog.NewTextHandler(j, nil)))
}

// lines are those that contain all of the texts.
func (j *journal) lines(texts ...string) (found []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
lines:
	for line := range strings.Lines(j.text.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		found = append(found, line)
	}
	return found
}

func TestWakeup_AtOnce(t *testing.T) {
	t.Parallel()
	for name, mode := range wakeups {
		t.Run(name, func(t *testing.T) {
			test := func(w *world) {
				const rounds = 5
				registries := []*lockregistry.Registry{w.waker(mode), w.waker(mode)}
				owners := []*goroutine{w.goroutine(), w.goroutine()}
				locks := []*lockregistry.Lock{registries[0].Obtain("42"), registries[1].Obtain("42")}
				require.NoError(w, owners[0].lock(locks[0]))
				all := make([]time.Duration, 0, rounds)
				for round := range rounds {
					has, waits := round%2, (round+1)%2
					result := owners[waits].starts(locks[waits])
					if w.fake {
						w.settle()
					} else {
						w.listening(mode, 1, 1)
					}
					w.pending(result)
					start := time.Now()
					require.NoError(w, owners[has].unlock(locks[has]))
					all = append(all, w.takes(start, result))
				}
				w.Log(all)
			}
			if mode != lockregistry.WakeupTracking { // miniredis cannot
				t.Run("miniredis", func(t *testing.T) { fakeWorld(t, test) })
			}
			realWorlds(t, test)
		})
	}
}

// A Java service in PUB_SUB_LOCK mode publishes the key, on the channel of its version.
func TestWakeup_ByAJavaService(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]lockregistry.Wakeup{
		"auto":   lockregistry.WakeupAuto,
		"pubsub": lockregistry.WakeupPubSub,
	} {
		for _, channel := range []string{theChannel, oldChannel} {
			t.Run(name+" on "+channel, func(t *testing.T) {
				worlds(t, func(w *world) {
					w.do("SET", theKey, "a-java-service", "PX", "600000")
					g := w.goroutine()
					l := w.waker(mode).Obtain("42")
					result := g.starts(l)
					w.listening(mode, 1, 1)
					if w.fake {
						w.settle()
						w.do("DEL", theKey)
						w.settle()
						w.pending(result) // so it is the message that wakes
					}
					start := time.Now()
					w.do("EVAL", "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], KEYS[1])", "1", theKey, channel)
					w.Log(w.takes(start, result))
				})
			})
		}
	}
}

func TestWakeup_MessagesAboutOtherLocks(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithWakeup(lockregistry.WakeupPubSub), lockregistry.WithPollInterval(noPoll))
		for _, path := range []string{"42", "43"} {
			w.do("SET", "orders:"+path, "somebody", "PX", "600000")
		}
		first, second := w.goroutine(), w.goroutine()
		for g, path := range map[*goroutine]string{first: "42", second: "43"} {
			g.starts(r.Obtain(path))
		}
		w.settle()
		before := f.count("obtain")
		for _, message := range []string{"orders:44", "43", "", "orders:42:"} {
			w.do("PUBLISH", oldChannel, message)
		}
		w.do("PUBLISH", oldChannel+":orders:44", "orders:44")
		w.settle()
		require.Equal(t, before, f.count("obtain"), "nobody waits for what the messages are about")

		for _, publish := range [][]string{{oldChannel, theKey}, {theChannel, theKey}, {theChannel, "anything"}} {
			before := f.count("obtain")
			w.do("PUBLISH", publish[0], publish[1])
			w.settle()
			tries := f.sent("obtain")[before:]
			require.Len(t, tries, 1, "%v", publish)
			require.Contains(t, tries[0].Args, theKey)
		}
	})
}

// heard subscribes past this library, and returns what it hears as "channel message".
func (w *world) heard(subscribe func(c rueidis.Client) rueidis.Completed, ready string, count string) <-chan string {
	w.Helper()
	heard := make(chan string, 64)
	client := w.client()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = client.Receive(ctx, subscribe(client), func(m rueidis.PubSubMessage) { heard <- m.Channel + " " + m.Message })
	}()
	w.Cleanup(func() { cancel(); <-done })
	w.await("a subscription by hand", func() bool {
		if ready == "" {
			return w.do("PUBSUB", "NUMPAT") == count
		}
		return strconv.Itoa(w.subscribers(ready)) == count
	})
	return heard
}

func TestWakeup_ReleasesArePublished(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		options      []lockregistry.Option
		newer, older bool
	}{
		"auto":                         {nil, true, false},
		"pubsub":                       {[]lockregistry.Option{lockregistry.WithWakeup(lockregistry.WakeupPubSub)}, true, false},
		"poll":                         {[]lockregistry.Option{lockregistry.WithWakeup(lockregistry.WakeupPoll)}, false, false},
		"tracking":                     {[]lockregistry.Option{lockregistry.WithWakeup(lockregistry.WakeupTracking)}, false, false},
		"auto, and on the old channel": {[]lockregistry.Option{lockregistry.WithOldChannel()}, true, true},
		"poll, and on the old channel": {[]lockregistry.Option{lockregistry.WithOldChannel(),
			lockregistry.WithWakeup(lockregistry.WakeupPoll)}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				newer := w.heard(func(c rueidis.Client) rueidis.Completed {
					return c.B().Psubscribe().Pattern(oldChannel + ":*").Build()
				}, "", "1")
				older := w.heard(func(c rueidis.Client) rueidis.Completed {
					return c.B().Subscribe().Channel(oldChannel).Build()
				}, oldChannel, "1")
				l := w.registry(c.options...).Obtain("42")
				w.lock(l)
				w.lock(l)
				w.unlock(l) // not the last one: nothing to publish
				w.unlock(l)
				w.do("PUBLISH", theChannel, "the end")
				w.do("PUBLISH", oldChannel, "the end")

				if c.newer {
					require.Equal(w, theChannel+" "+theKey, <-newer)
				}
				require.Equal(w, theChannel+" the end", <-newer)
				if c.older {
					require.Equal(w, oldChannel+" "+theKey, <-older)
				}
				require.Equal(w, oldChannel+" the end", <-older)
			})
		})
	}
}

func TestWakeup_LateReleasePublishesNothing(t *testing.T) {
	worlds(t, func(w *world) {
		newer := w.heard(func(c rueidis.Client) rueidis.Completed {
			return c.B().Psubscribe().Pattern(oldChannel + ":*").Build()
		}, "", "1")
		l := w.registry().Obtain("42")
		w.lock(l)
		w.do("SET", theKey, "somebody")
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		w.do("PUBLISH", theChannel, "the end")
		require.Equal(w, theChannel+" the end", <-newer)
	})
}

// Whatever makes the key go away wakes who tracks it.
func TestWakeup_TrackingWakesOnAnyRemoval(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]lockregistry.Wakeup{
		"auto":     lockregistry.WakeupAuto,
		"tracking": lockregistry.WakeupTracking,
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				spin := w.registry(lockregistry.WithWakeup(lockregistry.WakeupPoll))
				r := w.waker(mode)
				removals := []struct {
					name        string
					take, leave func(path string)
				}{
					{
						name:  "a service that publishes nothing unlocks",
						take:  func(path string) { w.lock(spin.Obtain(path)) },
						leave: func(path string) { w.unlock(spin.Obtain(path)) },
					},
					{name: "DEL", leave: func(path string) { w.do("DEL", "orders:"+path) }},
					{name: "UNLINK", leave: func(path string) { w.do("UNLINK", "orders:"+path) }},
					{name: "RENAME", leave: func(path string) { w.do("RENAME", "orders:"+path, "elsewhere") }},
					{name: "expiry that comes sooner", leave: func(path string) { w.do("PEXPIRE", "orders:"+path, "50") }},
					{name: "expiry in the past", leave: func(path string) { w.do("PEXPIREAT", "orders:"+path, "1") }},
					{name: "FLUSHDB", leave: func(string) { w.do("FLUSHDB") }},
					{name: "FLUSHALL", leave: func(string) { w.do("FLUSHALL") }},
				}
				for i, c := range removals {
					path := strconv.Itoa(i)
					if c.take == nil {
						w.do("SET", "orders:"+path, "somebody")
					} else {
						c.take(path)
					}
					g := w.goroutine()
					l := r.Obtain(path)
					result := g.starts(l)
					w.await(c.name+": the key is tracked", func() bool { return w.tracked() == 1 })
					w.pending(result)

					// A change that is none for the waiter wakes it in vain, and it has the key tracked again.
					looks := w.executed("pttl")
					w.do("PERSIST", "orders:"+path)
					w.do("PEXPIRE", "orders:"+path, "600000")
					w.await(c.name+": the key is tracked again", func() bool { return w.executed("pttl") > looks && w.tracked() == 1 })
					w.pending(result)

					start := time.Now()
					c.leave(path)
					w.Log(c.name, w.takes(start, result))
					require.NoError(w, g.unlock(l))
					w.await(c.name+": nothing is tracked", func() bool { return w.tracked() == 0 })
				}
			})
		})
	}
}

// A holder that crashes says nothing any more, and its key stays until the lease ends.
func TestWakeup_CrashOfTheHolder(t *testing.T) {
	t.Parallel()
	modes := map[string]lockregistry.Wakeup{"poll": lockregistry.WakeupPoll}
	maps.Copy(modes, wakeups)
	for name, mode := range modes {
		for renewed, option := range map[string][]lockregistry.Option{
			"":                  nil,
			", once renewed":    {lockregistry.WithRenewal()},
			", after hand-over": {lockregistry.WithHandoff(time.Hour)},
		} {
			t.Run(name+renewed, func(t *testing.T) {
				crash := func(w *world, lease time.Duration) (late time.Duration) {
					crashed := w.registry(append(option, lockregistry.WithLease(lease))...)
					w.lock(crashed.Obtain("42"))
					g := w.goroutine()
					l := w.waker(mode).Obtain("42")
					result := g.starts(l)
					if mode != lockregistry.WakeupPoll {
						w.listening(mode, 1, 1)
					}
					switch renewed {
					case ", once renewed":
						before := w.pttl(theKey)
						w.await("a renewal", func() bool { now := w.pttl(theKey); was := before; before = now; return now > was })
					case ", after hand-over":
						second := w.goroutine()
						handed := second.starts(crashed.Obtain("42"))
						if w.fake {
							w.settle()
						}
						w.unlock(crashed.Obtain("42"))
						require.NoError(w, <-handed)
					}
					require.NoError(w, crashed.Close()) // leaves the key to its lease
					end := time.Now().Add(w.pttl(theKey))
					select {
					case err := <-result:
						require.NoError(w, err)
					case <-time.After(lease + 10*time.Second):
						w.Fatal("nobody noticed the end of the lease")
					}
					late = time.Since(end)
					require.GreaterOrEqual(w, late, -2*time.Millisecond, "before the end of the lease") // PTTL rounds
					require.NoError(w, g.unlock(l))
					return late
				}
				t.Run("miniredis", func(t *testing.T) {
					fakeWorld(t, func(w *world) { require.LessOrEqual(w, crash(w, 20*time.Second), 20*time.Millisecond) })
				})
				if renewed == "" {
					realWorlds(t, func(w *world) {
						var all []time.Duration
						for range 3 {
							all = append(all, crash(w, 2*time.Second)) // others wait before it is over, also on a busy machine
						}
						w.within(300*time.Millisecond, all)
					})
				}
			})
		}
	}
}

// allowed is an ACL user with rights of its own, and what a client needs to be that user.
func (w *world) allowed(rights ...string) func(*rueidis.ClientOption) {
	w.Helper()
	w.do(append([]string{"ACL", "SETUSER", "app", "reset", "on", ">secret", "~*", "&*", "+@all"}, rights...)...)
	return func(o *rueidis.ClientOption) {
		o.Username, o.Password = "app", "secret"
		o.DisableCache = true // whoever may not use CLIENT must say so to rueidis
		o.PipelineMultiplex = -1
	}
}

// Whatever the user may not do, and the server cannot do, waiting calls wake in the way that is left, or poll, and locks
// work; the log tells what is missing, once.
func TestWakeup_Fallbacks(t *testing.T) {
	t.Parallel()
	const (
		noSubscribing = "way=subscribing"
		noTracking    = "way=tracking"
		noQueueing    = "way=queueing"
		noInfo        = "INFO"
		noQueue       = "refuses the queue"
	)
	everything := []lockregistry.Wakeup{lockregistry.WakeupAuto, lockregistry.WakeupPubSub, lockregistry.WakeupTracking}
	type outcome struct {
		wakes  bool     // at once, when another registry with the same rights releases
		logged []string // what the log says, each once, and nothing else
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
			[]string{"resetchannels", "&" + oldChannel},
			[3]outcome{
				{true, []string{noQueueing}}, {false, []string{noQueueing, noSubscribing}}, {true, []string{noQueueing}},
			},
			true,
		},
		"only the channels of the keys": {
			[]string{"resetchannels", "&" + oldChannel + ":*"},
			[3]outcome{
				{true, []string{noQueueing}}, {true, []string{noQueueing, noSubscribing}}, {true, []string{noQueueing}},
			},
			true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				app := w.allowed(c.rights...)
				for i, mode := range everything {
					want := c.outcomes[i]
					w.do("CONFIG", "RESETSTAT")
					poll := noPoll
					if !want.wakes {
						poll = 20 * time.Millisecond
					}
					var log journal
					made := func(opts ...lockregistry.Option) *lockregistry.Registry {
						opts = append(opts, lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(poll))
						return w.registryOn(w.clientWith(w.dial, app), opts...)
					}
					holds, waits := made(), made(log.option())

					const rounds = 3 // what is missing is not said again
					for round := range rounds {
						path := strconv.Itoa(round + 42)
						w.lock(holds.Obtain(path))
						g := w.goroutine()
						result := g.starts(waits.Obtain(path))
						tries := w.executed("evalsha")
						if want.wakes {
							w.listens(path)
						} else {
							w.await("some polls", func() bool { return w.executed("evalsha") >= tries+3 })
						}
						w.pending(result)
						start := time.Now()
						w.unlock(holds.Obtain(path))
						w.Logf("%v after %v", mode, w.takes(start, result))
						require.NoError(w, g.unlock(waits.Obtain(path)))
						require.True(w, w.free("orders:"+path))
					}
					for _, text := range want.logged {
						require.Len(w, log.lines(text), 1, "in mode %v: %s", mode, log.lines())
					}
					require.Len(w, log.lines(), len(want.logged), "in mode %v: %s", mode, log.lines())
					require.Equal(w, c.unlinks, w.executed("unlink") > 0, "UNLINK")
					require.NoError(w, holds.Close())
					require.NoError(w, waits.Close())
				}
			})
		})
	}
}

// listens waits until a path's waiter listens in at least one way, whichever is allowed.
func (w *world) listens(path string) {
	w.Helper()
	w.await("somebody listens for "+path, func() bool {
		return w.tracked() > 0 || w.subscribers(oldChannel+":orders:"+path) > 0
	})
}

// What the server does not know is found out from its answer.
func TestWakeup_ServerWithoutTracking(t *testing.T) {
	t.Parallel()
	for name, mode := range wakeups {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				const poll = 100 * time.Millisecond
				var log journal
				holds := w.registry(lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(poll))
				waits := w.registry(lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(poll), log.option())
				w.do("CONFIG", "RESETSTAT")
				for range 3 {
					l := waits.Obtain("42")
					w.lock(holds.Obtain("42"))
					g := w.goroutine()
					result := g.starts(l)
					w.settle()
					w.pass(10 * time.Millisecond)
					start := time.Now()
					w.unlock(holds.Obtain("42"))
					require.NoError(w, <-result)
					if mode == lockregistry.WakeupTracking {
						require.LessOrEqual(w, time.Since(start), poll)
					} else {
						require.Zero(w, time.Since(start))
					}
					require.NoError(w, g.unlock(l))
				}
				missing := map[lockregistry.Wakeup][]string{
					lockregistry.WakeupAuto:     {"tracking", "queueing"},
					lockregistry.WakeupPubSub:   {"queueing"},
					lockregistry.WakeupTracking: {"tracking"},
				}[mode]
				for _, way := range missing {
					require.Len(w, log.lines("way="+way), 1, "%s", log.lines())
				}
				require.Len(w, log.lines("way="), len(missing), "%s", log.lines())
			})
		})
	}
}

// Version 2 of the protocol has no pushed messages: nothing can tell of a change of a key, though the server lets a client
// ask for it.
func TestWakeup_ProtocolWithoutTracking(t *testing.T) {
	t.Parallel()
	for name, mode := range wakeups {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				poll := noPoll
				if mode == lockregistry.WakeupTracking {
					poll = 20 * time.Millisecond
				}
				old := func(o *rueidis.ClientOption) {
					o.AlwaysRESP2, o.DisableCache = true, true
					called("old")(o)
				}
				var log journal
				holds := w.waker(mode)
				waits := w.registryOn(w.clientWith(w.dial, old),
					lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(poll), log.option())
				for range 3 {
					w.lock(holds.Obtain("42"))
					tries := w.executed("evalsha")
					g := w.goroutine()
					result := g.starts(waits.Obtain("42"))
					if mode == lockregistry.WakeupTracking {
						w.await("some polls", func() bool { return w.executed("evalsha") >= tries+3 })
					} else {
						w.await("it is subscribed", func() bool { return w.subscribers(theChannel) == 1 })
					}
					w.pending(result)
					start := time.Now()
					w.unlock(holds.Obtain("42"))
					w.Log(w.takes(start, result))
					require.NoError(w, g.unlock(waits.Obtain("42")))
				}
				extra := len(w.connections("name=old")) - 1
				if extra > 2 { // the client needs one of its own for each of commands and subscriptions then
					w.Errorf("%d connections more than without waiters", extra)
				}
				if mode != lockregistry.WakeupPubSub {
					require.Len(w, log.lines("way=tracking"), 1, "the log: %s", log.lines())
				}
			})
		})
	}
}

func TestWakeup_Cluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	addresses := make([]string, 0, len(nodes))
	for _, node := range nodes {
		addresses = append(addresses, node.Addr())
	}
	cluster := func(t *testing.T) rueidis.Client {
		t.Helper()
		client, err := newClient(rueidis.ClientOption{InitAddress: addresses})
		require.NoError(t, err)
		require.Equal(t, rueidis.ClientModeCluster, client.Mode())
		t.Cleanup(client.Close)
		return client
	}
	subscribed := func(t *testing.T, channel string) bool {
		t.Helper()
		for _, node := range nodes {
			if strings.HasSuffix(node.Command(t, "PUBSUB", "NUMSUB", channel), "1") {
				return true
			}
		}
		return false
	}
	w := realWorld(t, nodes[0])
	tracked := func() (n int) {
		for _, node := range nodes {
			n += realWorld(t, node).tracked()
		}
		return n
	}
	for name, mode := range wakeups {
		t.Run(name, func(t *testing.T) {
			var log journal
			made := func(opts ...lockregistry.Option) *lockregistry.Registry {
				r, err := lockregistry.New(cluster(t), "orders", append(opts,
					lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(noPoll))...)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, r.Close()) })
				return r
			}
			holds, waits := made(), made(log.option())
			// Keys on every node, so that most messages have to cross from one to another.
			for _, path := range []string{"1", "2", "3", "4", "5", "{eu}:1", "{eu}:2", "{us}:1", "{jp}:{x}", "{"} {
				key := "orders:" + path
				require.NoError(t, holds.Obtain(path).Lock(t.Context()), path)
				g := w.goroutine()
				result := g.starts(waits.Obtain(path))
				if mode == lockregistry.WakeupPubSub {
					w.await("a subscription for "+path, func() bool { return subscribed(t, oldChannel+":"+key) })
				} else {
					w.await(path+" is tracked", func() bool { return tracked() == 1 })
				}
				w.pending(result)
				start := time.Now()
				require.NoError(t, holds.Obtain(path).Unlock(t.Context()))
				t.Log(path, w.takes(start, result))
				require.NoError(t, g.unlock(waits.Obtain(path)))
			}
			if sharded(t, nodes[0]) {
				require.Empty(t, log.lines())
			} else {
				require.Equal(t, log.lines("way=queueing"), log.lines(), "one line: there is no queue")
			}
		})
	}
}

func TestWakeup_KilledConnectionComesBack(t *testing.T) {
	t.Parallel()
	for name, mode := range wakeups {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				var log journal
				holds := w.waker(mode)
				waits := w.registryOn(w.clientWith(w.dial, called("waits")), log.option(),
					lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(noPoll))
				w.lock(holds.Obtain("42"))
				g := w.goroutine()
				result := g.starts(waits.Obtain("42"))
				seen := map[int]bool{}
				for _, line := range w.connections("name=waits") {
					seen[property(" "+line, "id")] = false
				}
				const kills = 5
				for kill := range kills {
					// The connection that listens, a new one each time, and it listens.
					var id int
					w.await("a connection that listens", func() bool {
						for _, line := range w.connections("name=waits") {
							listens := property(line, "sub") == map[lockregistry.Wakeup]int{
								lockregistry.WakeupAuto:   1, // to be counted
								lockregistry.WakeupPubSub: 3, // and to the key's channels, of this version and of older ones
							}[mode]
							if mode == lockregistry.WakeupTracking {
								listens = strings.Contains(line, "cmd=pttl ")
							}
							if id = property(" "+line, "id"); listens && !seen[id] {
								return mode == lockregistry.WakeupPubSub || w.tracked() == 1
							}
						}
						return false
					})
					seen[id] = true
					if kill == kills-1 {
						break // this one is left alone
					}
					if mode == lockregistry.WakeupPubSub {
						w.do("CLIENT", "KILL", "TYPE", "pubsub")
					} else {
						w.do("CLIENT", "KILL", "ID", strconv.Itoa(id))
					}
				}
				w.pending(result)
				start := time.Now()
				w.unlock(holds.Obtain("42"))
				w.Log(w.takes(start, result))
				require.Len(w, log.lines("connection for wake-ups is lost"), kills-1, "%s", log.lines())
			})
		})
	}
}

func TestWakeup_ServerRestartsWhileACallWaits(t *testing.T) {
	t.Parallel()
	for name, mode := range wakeups {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				var log journal
				waits := w.registry(lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(50*time.Millisecond), log.option())
				w.do("SET", theKey, "somebody", "PX", "600000")
				g := w.goroutine()
				result := g.starts(waits.Obtain("42"))
				w.listening(mode, 1, 1)
				w.server.Freeze() // nobody may find the lock free before somebody has it again
				w.server.Stop()
				w.await("the loss is in the log", func() bool { return len(log.lines("connection for wake-ups is lost")) == 1 })
				w.pending(result)
				w.server.Restart(t)
				require.NoError(w, <-result, "the restart dropped the key")
				require.NoError(w, g.unlock(waits.Obtain("42")))

				// The next one waits as ever, and wakes at once.
				holds := w.waker(mode)
				patient := w.goroutine()
				w.lock(holds.Obtain("42"))
				result = patient.starts(waits.Obtain("42"))
				w.listening(mode, 1, 1)
				start := time.Now()
				w.unlock(holds.Obtain("42"))
				w.Log(w.takes(start, result))
				require.LessOrEqual(w, len(log.lines("no connection for wake-ups")), 1, "%s", log.lines())
			})
		})
	}
}

func TestWakeup_OneConnectionMore(t *testing.T) {
	t.Parallel()
	for name, mode := range wakeups {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				client := wrapper{w.clientWith(w.dial, called("waits"))} // has no connection for single commands
				const registries = 3                                     // on one client
				waits := make([]*lockregistry.Registry, 0, registries)
				for range registries {
					waits = append(waits, w.registryOn(client, lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(noPoll)))
				}
				connections := func() int { return len(w.connections("name=waits")) }
				for _, r := range waits {
					for i := range 50 {
						w.lock(r.Obtain(strconv.Itoa(i)))
						w.unlock(r.Obtain(strconv.Itoa(i)))
					}
					ok, err := r.Obtain("taken").TryLock(w.Context())
					require.NoError(w, err)
					require.True(w, ok)
					require.False(w, w.tryElsewhere(r.Obtain("taken")))
					w.unlock(r.Obtain("taken"))
				}
				require.Equal(w, 1, connections(), "nobody has waited so far")

				const paths = 40
				for i := range paths {
					w.do("SET", "orders:"+strconv.Itoa(i), "somebody")
				}
				w.do("SET", theKey, "somebody")
				results := make([]<-chan error, 0, registries*(paths+1))
				for _, r := range waits {
					for j := range paths {
						results = append(results, lockElsewhere(r.Obtain(strconv.Itoa(j)), w.Context()))
					}
					results = append(results, lockElsewhere(r.Obtain("42"), w.Context()))
					w.listening(mode, 1, paths)
					require.Equal(w, 2, connections(), "the registries share it")
				}
				for i, r := range waits {
					require.Equal(w, 2, connections(), "%d of them are closed", i)
					require.NoError(w, r.Close())
					for range paths + 1 {
						require.ErrorIs(w, <-results[0], lockregistry.ErrClosed)
						results = results[1:]
					}
				}
				w.await("a connection less", func() bool { return connections() == 1 })
				require.ErrorIs(w, waits[0].Obtain("43").Lock(w.Context()), lockregistry.ErrClosed)
				require.Equal(w, 1, connections())
			})
		})
	}
}

func TestWakeup_PollingOpensNoConnection(t *testing.T) {
	realWorlds(t, func(w *world) {
		const poll = 5 * time.Millisecond
		r := w.registryOn(w.clientWith(w.dial, called("polls")),
			lockregistry.WithWakeup(lockregistry.WakeupPoll), lockregistry.WithPollInterval(poll))
		w.do("SET", theKey, "somebody")
		result := lockElsewhere(r.Obtain("42"), w.Context())
		w.await("some polls", func() bool { return w.executed("evalsha") > 5 })
		require.Len(w, w.connections("name=polls"), 1)
		w.pending(result)
		w.do("DEL", theKey)
		require.NoError(w, <-result)
		for _, command := range []string{"subscribe", "psubscribe", "publish", "exists"} {
			require.Zero(w, w.executed(command), command)
		}
		require.Zero(w, w.tracked())
	})
}

// A lock that is released while a waiter is about to listen, but does not yet, is not missed.
func TestWakeup_ReleaseBeforeTheWaiterListens(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode  lockregistry.Wakeup
		asks  string // with what it listens
		first int    // so many of them are delivered
	}{
		"auto, tracking":      {lockregistry.WakeupAuto, "PTTL", 0},
		"pubsub, connecting":  {lockregistry.WakeupPubSub, "SUBSCRIBE", 0},
		"pubsub, subscribing": {lockregistry.WakeupPubSub, "SUBSCRIBE", 1},
		"tracking":            {lockregistry.WakeupTracking, "PTTL", 0},
	} {
		t.Run(name, func(t *testing.T) {
			test := func(w *world) {
				f := w.flaky()
				until := make(chan struct{})
				deliver := sync.OnceFunc(func() { close(until) })
				f.next(c.asks, append(slices.Repeat([]fate{delivered}, c.first), heldUp(until))...)
				waits := f.registry(lockregistry.WithWakeup(c.mode), lockregistry.WithPollInterval(noPoll))
				w.Cleanup(deliver)
				w.do("SET", theKey, "somebody")
				result := lockElsewhere(waits.Obtain("42"), w.Context())
				w.await("it is about to listen", func() bool { return f.count(c.asks) == c.first+1 })
				w.do("EVAL", "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], KEYS[1])", "1", theKey, theChannel)
				if w.fake {
					w.settle()
				}
				w.pending(result)
				start := time.Now()
				deliver()
				w.Log(w.takes(start, result))
			}
			if c.mode == lockregistry.WakeupPubSub {
				t.Run("miniredis", func(t *testing.T) { fakeWorld(t, test) })
			}
			realWorlds(t, test)
		})
	}
}

// deaf is a dialer whose connections that listen can be made to hear nothing any more.
type deaf struct {
	w      *world
	ears   atomic.Int32 // connections that listen
	deaf   atomic.Int32 // so many of them, the first ones, hear nothing
	missed atomic.Int32 // how often they would have heard something
}

func (d *deaf) dial(ctx context.Context) (net.Conn, error) {
	conn, err := d.w.dial(ctx)
	return &deafConn{Conn: conn, deaf: d}, err
}

// deafen makes those deaf that listen now.
func (d *deaf) deafen() { d.deaf.Store(d.ears.Load()) }

type deafConn struct {
	net.Conn
	deaf *deaf
	ear  atomic.Int32 // its number among those that listen; 0 when it does not
}

func (c *deafConn) Write(p []byte) (int, error) {
	text := strings.ToUpper(string(p))
	if c.ear.Load() == 0 && (strings.Contains(text, "\r\nSUBSCRIBE\r\n") || strings.Contains(text, "\r\nPTTL\r\n")) {
		c.ear.Store(c.deaf.ears.Add(1))
	}
	return c.Conn.Write(p)
}

func (c *deafConn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if ear := c.ear.Load(); err != nil || ear == 0 || ear > c.deaf.deaf.Load() {
			return n, err
		}
		c.deaf.missed.Add(1)
	}
}

func TestWakeup_LostWakeups(t *testing.T) {
	t.Parallel()
	for name, mode := range wakeups {
		t.Run(name, func(t *testing.T) {
			test := func(w *world) {
				const poll = 100 * time.Millisecond
				d := &deaf{w: w}
				client := w.clientWith(d.dial, func(o *rueidis.ClientOption) { o.ConnWriteTimeout = time.Second })
				waits := w.registryOn(client, lockregistry.WithWakeup(mode), lockregistry.WithPollInterval(poll))
				holds := w.registry(lockregistry.WithWakeup(mode))
				w.lock(holds.Obtain("42"))
				g := w.goroutine()
				result := g.starts(waits.Obtain("42"))
				w.listening(mode, 1, 1)
				if w.fake {
					w.settle()
				}
				require.EqualValues(w, 1, d.ears.Load())
				d.deafen()
				w.pending(result)
				start := time.Now()
				w.unlock(holds.Obtain("42"))
				require.NoError(w, <-result)
				took := time.Since(start)
				w.Log(took)
				allowance := 4 * time.Second // the first in the queue is told of all changes, and does not poll: its client finds out
				if w.fake {
					allowance = 0
					require.NotZero(w, took, "nothing wakes before the poll")
				}
				require.LessOrEqual(w, took, poll+allowance)
				w.await("the wake-up came, and nobody heard it", func() bool { return d.missed.Load() > 0 })
			}
			if mode != lockregistry.WakeupTracking {
				t.Run("miniredis", func(t *testing.T) { fakeWorld(t, test) })
			}
			realWorlds(t, test)
		})
	}
}

// A connection that stays open and says nothing any more is found out, and made again.
func TestWakeup_SilentConnectionComesBack(t *testing.T) {
	fakeWorld(t, func(w *world) {
		d := &deaf{w: w}
		waits := w.registryOn(w.clientWith(d.dial), lockregistry.WithPollInterval(time.Hour))
		holds := w.registry(lockregistry.WithLease(2 * time.Hour))
		w.lock(holds.Obtain("42"))
		g := w.goroutine()
		result := g.starts(waits.Obtain("42"))
		w.settle()
		d.deafen()
		w.pass(time.Minute) // rueidis asks, and waits for the answer, no longer than that
		require.EqualValues(w, 2, d.ears.Load())
		w.pending(result)
		start := time.Now()
		w.unlock(holds.Obtain("42"))
		w.takes(start, result)
	})
}

// A waiter that gives up while it is being subscribed leaves no subscription for ever.
func TestWakeup_SubscriptionsOfWhoGaveUp(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const paths = 1500
		f := w.flaky()
		r := f.registry(lockregistry.WithPollInterval(noPoll))
		for i := range paths {
			w.do("SET", fmt.Sprintf("orders:%d", i), "somebody")
		}
		until := make(chan struct{})
		f.next("SUBSCRIBE", delivered, heldUp(until)) // the first one opens the connection
		ctx, cancel := context.WithCancel(w.Context())
		results := make([]<-chan error, 0, paths)
		for i := range paths {
			results = append(results, lockElsewhere(r.Obtain(strconv.Itoa(i)), ctx))
		}
		w.settle()
		cancel()
		for _, result := range results {
			require.ErrorIs(w, <-result, context.Canceled)
		}
		close(until)
		w.settle()

		// Others come and go, so that it is time to tidy up.
		ctx, cancel = context.WithCancel(w.Context())
		results = results[:0]
		for i := range 600 {
			w.do("SET", fmt.Sprintf("orders:x%d", i), "somebody")
			results = append(results, lockElsewhere(r.Obtain(fmt.Sprintf("x%d", i)), ctx))
		}
		w.settle()
		cancel()
		for _, result := range results {
			require.ErrorIs(w, <-result, context.Canceled)
		}
		w.settle()
		channels := len(strings.Fields(w.do("PUBSUB", "CHANNELS")))
		w.Log(channels, "channels")
		require.LessOrEqual(w, channels, 600, "nobody waits for any of them")
	})
}

// While calls wait the server is asked something now and then, which it answers.
func TestWakeup_Pulse(t *testing.T) {
	t.Parallel()
	for _, layout := range []lockregistry.Layout{lockregistry.LayoutSpring, lockregistry.LayoutRedisson} {
		t.Run(fmt.Sprint(layout), func(t *testing.T) {
			realWorlds(t, func(w *world) {
				one := func(o *rueidis.ClientOption) {
					o.PipelineMultiplex = -1 // to make another connection has errors on old servers
					o.Dialer.KeepAlive = -1  // the client's own pings
				}
				holder := w.registryOn(w.clientWith(w.dial, one), lockregistry.WithLayout(layout))
				waiter := w.registryOn(w.clientWith(w.dial, one), lockregistry.WithLayout(layout))
				w.lock(holder.Obtain("42"))
				result := lockElsewhere(waiter.Obtain("42"), w.Context())
				w.await("a ticket", func() bool { return w.do("ZCARD", theQueue) != "0" })
				w.do("CONFIG", "RESETSTAT")
				w.await("a pulse", func() bool {
					return strings.Contains(w.do("INFO", "commandstats"), "cmdstat_ping:")
				})
				require.NotContains(w, w.do("INFO", "errorstats"), "errorstat_ERR")
				w.unlock(holder.Obtain("42"))
				require.NoError(w, <-result)
			})
		})
	}
}
