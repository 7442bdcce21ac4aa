//go:build !race

package alone_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// large reports whether to run at the sizes that the documentation names, which takes a while.
func large() bool { return os.Getenv("LOCKREGISTRY_TEST_LARGE") != "" }

// few connections, compared with hundreds or thousands of waiting calls.
const few = 10

// Hundreds of registries on a client share its connection for wake-ups, and take little memory.
func TestSharedClient_ManyRegistriesOfOneClient(t *testing.T) {
	kit.RealWorldsAlone(t, func(w *kit.World) {
		const registries = 300
		client := w.ClientWith(w.Dial, kit.NamedConnection("waits"), func(o *rueidis.ClientOption) { o.BlockingPoolSize = 1 })
		w.SetAll(registries)
		heap := func() int {
			runtime.GC()
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			return int(stats.HeapAlloc + stats.StackInuse)
		}
		waits := func(i int) (*lockregistry.Registry, <-chan error) {
			r := w.RegistryOn(client, lockregistry.WithPollInterval(kit.NoPoll))
			return r, kit.LockElsewhere(r.Obtain(strconv.Itoa(i)), w.Context())
		}
		// The client makes its connections and buffers before anything is measured.
		_, first := waits(0)
		w.Await("the first one listens", func() bool { return w.Tracked() == 1 })
		before := heap()
		all := make([]*lockregistry.Registry, 0, registries)
		results := []<-chan error{first}
		for i := 1; i < registries; i++ {
			r, result := waits(i)
			all, results = append(all, r), append(results, result)
		}
		w.Await("all listen", func() bool { return w.Tracked() == registries })
		each := (heap() - before) / len(all)
		w.Logf("%d bytes for a registry with a waiting call", each)
		// Some 10 000 are for goroutines that the runtime keeps, if this is the first test of the process.
		require.Less(w, each, 30_000)
		// One for commands, one for wake-ups, and some for commands if the machine was so slow that replies were late.
		require.LessOrEqual(w, len(w.Connections("name=waits")), few)
		w.Do("FLUSHALL")
		for _, result := range results {
			require.NoError(w, <-result)
		}
		woken := uint64(0)
		for _, r := range all {
			woken += r.Stats().Wakeups.Changes
		}
		require.GreaterOrEqual(w, woken, uint64(registries*9/10), "others have looked by themselves")
		start := time.Now()
		for _, r := range all {
			require.NoError(w, r.Close())
		}
		// No call waits a second or more for its background work. If the machine is so slow that a reply was late, each may wait for
		// 0.1 s, since this client has no room for another connection.
		require.Less(w, time.Since(start), registries*200*time.Millisecond)
	})
}

// Thousands of calls that wait for as many locks take one connection, one subscription or tracked key each, and commands that
// are sent many at a time.
func TestScale_ManyWaiters(t *testing.T) {
	waiters := 2000
	if large() {
		waiters = 10_000
	}
	for name, mode := range map[string]kit.Wakeup{"auto": kit.WakeupAuto, "pubsub": kit.WakeupPubSub} { // auto tracks keys here
		t.Run(name, func(t *testing.T) {
			kit.RealWorldsAlone(t, func(w *kit.World) {
				r := w.RegistryOn(w.ClientWith(w.Dial, kit.NamedConnection("waits")),
					kit.WithWakeup(mode), lockregistry.WithPollInterval(kit.NoPoll))
				subscriptions := map[kit.Wakeup]int{
					kit.WakeupPubSub: waiters + 1, // and the channel for older versions
				}[mode] + 1 // the registry's own channel
				tracked := 0
				if mode != kit.WakeupPubSub {
					tracked = waiters
				}
				listens := func() (subscribed int) {
					for _, line := range w.Connections("name=waits") {
						subscribed += kit.ClientField(line, "sub") + kit.ClientField(line, "psub")
					}
					return subscribed
				}

				w.SetAll(waiters)
				var all sync.WaitGroup
				w.Cleanup(all.Wait)
				var got atomic.Int32
				for i := range waiters {
					all.Go(func() {
						l := r.Obtain(strconv.Itoa(i))
						if err := w.Answer(func() error { return l.Lock(w.Context()) }); err != nil {
							w.Error(err)
							return
						}
						got.Add(1)
						if err := w.UnlessLate(l.Unlock(w.Context())); err != nil {
							w.Error(err)
						}
					})
				}
				w.Await("all listen", func() bool { return listens() == subscriptions && w.Tracked() == tracked })
				// One for commands, one for wake-ups, and some for commands if the machine was so slow that replies were late.
				require.LessOrEqual(w, len(w.Connections("name=waits")), few)
				require.Zero(w, got.Load())
				// Waiters arrive while earlier ones are being armed, so not all batches are full.
				w.Logf("%d SUBSCRIBE, %d reads for %d commands", w.Executed("subscribe"),
					w.Info("stats", "total_reads_processed"), w.Info("stats", "total_commands_processed"))
				require.Less(w, w.Executed("subscribe"), waiters/2)

				start := time.Now()
				w.Do("EVAL", `for i = 0, ARGV[1] - 1 do
					redis.call('DEL', 'orders:' .. i)
					redis.call('PUBLISH', 'orders-channel:orders:' .. i, 'orders:' .. i)
				end`, "0", strconv.Itoa(waiters))
				all.Wait()
				w.Logf("all had their locks after %v", time.Since(start))
				require.Less(w, time.Since(start), kit.NoPoll/2)
				// One for commands, one for wake-ups, and some for commands if the machine was so slow that replies were late.
				require.LessOrEqual(w, len(w.Connections("name=waits")), few)
				w.LeftNothing()
				w.Await("subscriptions are given up", func() bool { return listens() < 1000 })
			})
		})
	}
}

// A release wakes one goroutine of the process that is first in the queue, or one in each process where there is no queue.
// However many wait there, only one tries, and once. The next process is told that it is first now, and looks once.
func TestScale_NoHerd(t *testing.T) {
	t.Parallel()
	const processes, goroutines = 3, 50
	for name, mode := range kit.Wakeups {
		t.Run(name, func(t *testing.T) {
			test := func(w *kit.World) {
				nets := make([]*kit.Flaky, 0, processes)
				registries := make([]*lockregistry.Registry, 0, processes)
				var all sync.WaitGroup
				ctx, cancel := context.WithCancel(w.Context())
				entered, leave := make(chan *lockregistry.Lock, 1), make(chan struct{})
				finish := sync.OnceFunc(func() {
					cancel()
					close(leave)
					all.Wait()
				})
				w.Do("SET", kit.TheKey, "somebody")
				for range processes {
					f := w.Flaky()
					r := f.Registry(kit.WithWakeup(mode), lockregistry.WithPollInterval(kit.NoPoll), lockregistry.WithHandoff(0))
					w.Cleanup(finish)
					nets, registries = append(nets, f), append(registries, r)
					for range goroutines {
						all.Go(func() {
							l := r.Obtain("42")
							if l.Lock(ctx) != nil {
								return
							}
							entered <- l
							<-leave
							if err := w.UnlessLate(l.Unlock(context.WithoutCancel(ctx))); err != nil {
								w.Error(err)
							}
						})
					}
					w.Listening(mode, len(nets), 1)
				}
				// quiet waits until no process has asked for a while, and returns how often each has.
				quiet := func(pause time.Duration) (tries []int) {
					since := time.Now()
					w.Await("nobody asks any more", func() bool {
						now := make([]int, 0, processes)
						for i, f := range nets {
							now = append(now, f.Count("obtain")-int(registries[i].Stats().Wakeups.Polls)) // without looks by itself
						}
						if !slices.Equal(now, tries) {
							since, tries = time.Now(), now
						}
						return time.Since(since) > pause
					})
					return tries
				}
				first := 50 * time.Millisecond
				if !w.Fake { // each ticket is looked at more than a second after it was queued, and then seconds later
					first = 1500 * time.Millisecond
				}
				before := quiet(first)
				w.Do("EVAL", "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], KEYS[1])", "1", kit.TheKey, kit.TheChannel)
				<-entered
				after := quiet(50 * time.Millisecond)
				asked := 0
				for i := range processes {
					tries := after[i] - before[i]
					asked += tries
					w.Logf("process %d: %d tries", i, tries)
					if tries > 1 || tries == 0 && w.Fake {
						w.Errorf("a release led to %d tries of one process, not to one", tries)
					}
					if !w.Fake && i > 1 && tries > 0 {
						w.Errorf("a release woke the process at place %d", i)
					}
				}
				if asked == 0 { // in the queue the second one may be quicker, and serve the first
					w.Error("a release woke nobody")
				}
				finish()
			}
			if mode != kit.WakeupTracking {
				t.Run("miniredis", func(t *testing.T) { kit.FakeWorld(t, test) })
			}
			kit.RealWorlds(t, test)
		})
	}
}

// While one process hands a lock around its goroutines without end, two others get it again and again. Neither waits longer
// than the handoff limit, the critical sections in between, and the time it needs to notice. Where there is no queue, as on
// miniredis, chance decides between the two each time the crowd stands back.
func TestScale_OthersAreNotStarved(t *testing.T) {
	modes := map[string]kit.Wakeup{"poll": kit.WakeupPoll}
	maps.Copy(modes, kit.Wakeups)
	// On real servers each mode runs with one limit, and each of these limits with a mode.
	const usual = 100 * time.Millisecond
	limits := map[kit.Wakeup]time.Duration{kit.WakeupAuto: 0, kit.WakeupPubSub: usual, kit.WakeupTracking: usual}
	// A section may be longer than the crowd stands back for, or than a waiter sleeps: each mode runs with both.
	const stands, sleeps = 17 * time.Millisecond, 137 * time.Millisecond
	long := map[kit.Wakeup]map[time.Duration]time.Duration{
		kit.WakeupAuto: {0: stands, usual: sleeps}, kit.WakeupPubSub: {0: sleeps, usual: stands},
	}
	const poll = 100 * time.Millisecond
	for name, mode := range modes {
		for _, limit := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond} {
			test := func(w *kit.World, turns int, section, allowance time.Duration) {
				most := limit + 3*section + 10*time.Millisecond + allowance
				round := cmp.Or(limit, poll) + 2*section + poll + 10*time.Millisecond
				if mode == kit.WakeupPoll {
					// A polling process may find the other one there. Then it gets the next round or, rarely, the one after that.
					most = 4 * round
				} else if w.Fake {
					most = 8 * round
				}
				registry := func(poll time.Duration) *lockregistry.Registry {
					return w.Registry(kit.WithWakeup(mode), lockregistry.WithPollInterval(poll), lockregistry.WithHandoff(limit))
				}
				ctx, cancel := context.WithCancel(w.Context())
				var inside atomic.Int32
				w.Do("SET", kit.TheKey, "somebody") // until all that can listen do so
				crowd := w.Saturate(ctx, registry(poll), func() { inside.Add(1); <-time.After(section) })
				var waits [2][]time.Duration
				var others sync.WaitGroup
				for i := range waits {
					// Two that poll at the same moments, as happens only in fake time, would collide each time.
					r := registry(poll - time.Duration(i)*7*time.Millisecond)
					others.Go(func() {
						l := r.Obtain("42")
						for range turns {
							start := time.Now()
							if err := l.Lock(ctx, lockregistry.Wait(10*most)); err != nil {
								w.Error(err)
								return
							}
							waits[i] = append(waits[i], time.Since(start))
							<-time.After(section)
							if err := w.UnlessLate(l.Unlock(ctx)); err != nil {
								w.Error(err)
								return
							}
							<-time.After(rand.N(limit + poll))
						}
					})
				}
				if mode != kit.WakeupPoll {
					w.Listening(mode, 3, 1)
				}
				if w.Fake {
					w.Settle()
				}
				w.Do("EVAL", "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], KEYS[1])", "1", kit.TheKey, kit.TheChannel)
				others.Wait()
				cancel()
				crowd.Wait()
				for _, waited := range waits {
					require.Len(w, waited, turns)
					w.Log(slices.Max(waited), "at most, of", waited)
					if !w.Fake { // the machine may be busy for a moment
						require.Less(w, slices.Max(waited), most+kit.AtOnce)
						slices.Sort(waited)
						waited = waited[:turns-1]
					}
					require.LessOrEqual(w, slices.Max(waited), most)
				}
				require.Positive(w, inside.Load(), "the crowd had its turns, too")
			}
			t.Run(fmt.Sprint(name, " with a limit of ", limit), func(t *testing.T) {
				if mode != kit.WakeupTracking {
					t.Run("miniredis", func(t *testing.T) {
						kit.FakeWorld(t, func(w *kit.World) { test(w, 8, time.Millisecond, 0) })
					})
				}
				if section, ok := long[mode][limit]; ok {
					t.Run(fmt.Sprint("miniredis, sections of ", section), func(t *testing.T) {
						kit.FakeWorld(t, func(w *kit.World) { test(w, 8, section, 0) })
					})
				}
				if its, ok := limits[mode]; ok && limit == its {
					kit.RealWorldsAlone(t, func(w *kit.World) { test(w, 5, time.Millisecond, 500*time.Millisecond) })
				}
			})
		}
	}
}

// Each of many held locks is renewed in time, many in one pipeline, by a few goroutines.
func TestScale_RenewalAtScale(t *testing.T) {
	locks := 10_000
	if large() {
		locks = 100_000
	}
	kit.RealWorldsAlone(t, func(w *kit.World) {
		const goroutines = 64
		each := func(count int, do func(i int, ctx context.Context) error) {
			var all sync.WaitGroup
			for i := range goroutines {
				all.Go(func() {
					ctx := lockregistry.ContextWithOwner(w.Context())
					for j := i; j < count; j += goroutines {
						if err := do(j, ctx); err != nil {
							w.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		}
		// A lease too short for this machine, with what else it does now, would prove nothing: measure how fast it is.
		client := w.ClientWith(w.Dial, kit.NamedConnection("renews"))
		sample := w.RegistryOn(client)
		start := time.Now()
		each(locks/10, func(i int, ctx context.Context) error {
			l := sample.Obtain("sample" + strconv.Itoa(i))
			if err := w.Answer(func() error { return l.Lock(ctx) }); err != nil {
				return err
			}
			return w.UnlessLate(l.Unlock(ctx))
		})
		lease := min(max(4*time.Second, 25*time.Since(start)), 9*time.Second).Round(time.Millisecond)

		before := runtime.NumGoroutine()
		var log kit.Journal
		r := kit.Capped(w.RegistryOn(client, log.Option(),
			lockregistry.WithRenewal(), lockregistry.WithLease(lease)), locks)
		var contexts [goroutines]context.Context
		each(locks, func(i int, ctx context.Context) error {
			err := w.Answer(func() error { return r.Obtain(strconv.Itoa(i)).Lock(ctx) })
			if i < goroutines {
				contexts[i] = r.Obtain(strconv.Itoa(i)).Context(ctx)
			}
			return err
		})
		w.Logf("%d locks with a lease of %v", locks, lease)
		require.Equal(w, strconv.Itoa(locks), w.Keys())

		renewals, reads := w.Executed("pexpire"), w.Info("stats", "total_reads_processed")
		most := 0
		for start := time.Now(); time.Since(start) < 2*lease; <-time.After(10 * time.Millisecond) {
			most = max(most, runtime.NumGoroutine()-before)
		}
		renewals, reads = w.Executed("pexpire")-renewals, w.Info("stats", "total_reads_processed")-reads
		w.Logf("%d renewals in %d reads of the server, %d goroutines more than before", renewals, reads, most)

		require.Empty(w, log.Lines(), "nothing lost, nothing refused")
		require.Equal(w, strconv.Itoa(locks), w.Keys(), "no key has expired")
		for i := range locks {
			require.True(w, r.Obtain(strconv.Itoa(i)).IsHeld(), i)
		}
		for _, ctx := range contexts {
			require.NoError(w, ctx.Err())
		}
		require.LessOrEqual(w, most, 20)
		require.GreaterOrEqual(w, renewals, 3*locks, "each third of the lease; a busy machine may be late, but not by as much again")
		require.LessOrEqual(w, renewals, 7*locks, "no more often than needed")
		require.Less(w, 20*reads, renewals, "many in one packet")
	})
}

// A call that takes paths in order is not slowed down by the paths that it has already: their contexts form no chain.
func TestAcquireAll_OfManyPaths(t *testing.T) {
	kit.RealWorldsAlone(t, func(w *kit.World) {
		const paths = 3000 // more than one script has
		var lookups []time.Duration
		r, other := w.Registry(lockregistry.WithObserver(observe.Observer{
			Acquired: func(ctx context.Context, _ observe.Acquired) {
				start := time.Now()
				require.Nil(w, ctx.Value(w))
				lookups = append(lookups, time.Since(start))
			},
		})), w.Registry().Obtain("0000")
		w.Lock(other)
		all := make([]string, paths)
		for i := range all {
			all[i] = fmt.Sprintf("%04d", i)
		}
		g := w.Goroutine()
		var h *lockregistry.Hold
		got := g.Start(func() (err error) {
			h, err = r.AcquireAll(w.Context(), all)
			return err
		})
		w.Await("it waits for the first path", func() bool { return r.Stats().Tickets == 1 })
		w.Unlock(other)
		require.NoError(w, <-got)
		require.GreaterOrEqual(w, len(lookups), paths)
		first, last := slices.Min(lookups), slices.Min(lookups[len(lookups)-100:])
		require.Less(w, last, 20*first)
		require.Len(w, h.Paths(), paths)
		w.Release(h)

		h, err := r.AcquireAll(w.Context(), all, lockregistry.NoWait())
		require.NoError(w, err)
		w.Release(h)
		require.Empty(w, w.Left())
	})
}
