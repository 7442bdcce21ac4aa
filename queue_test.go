package lockregistry_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
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
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// What the queue in Redis promises, on real servers; miniredis has none.

// member is one process that waits in the queue of the first lock.
type member struct {
	*goroutine
	net    *flaky
	reg    *lockregistry.Registry
	lock   *lockregistry.Lock
	result <-chan error
}

// joins has a new process wait, as the last one of the queue.
func (w *world) joins(ctx context.Context, opts ...lockregistry.Option) *member {
	w.Helper()
	m := &member{goroutine: w.goroutine(), net: w.flaky()}
	m.reg = m.net.registry(opts...)
	m.lock = m.reg.Obtain("42")
	m.waits(ctx)
	return m
}

// waits has the process wait once more.
func (m *member) waits(ctx context.Context, opts ...lockregistry.LockOption) {
	m.w.Helper()
	before := m.w.tickets()
	m.result = m.start(func() error { return m.lock.Lock(ctx, opts...) })
	m.w.await("a ticket", func() bool { return m.w.tickets() == before+1 })
}

// watched waits until the first in the queue is told of changes of the key.
func (w *world) watched() {
	w.Helper()
	w.await("the key is tracked", func() bool { return w.tracked() == 1 })
}

// within checks that none of some durations is out of all proportion, and that the best one is below a limit: on a machine that
// is busy with other things each may be late.
func (w *world) within(limit time.Duration, all []time.Duration) {
	w.Helper()
	w.Log(all)
	require.LessOrEqual(w, slices.Min(all), limit)
	require.Less(w, slices.Max(all), atOnce)
}

// Tickets are served in the order in which they came, whoever's they are.
func TestQueue_TicketsAreServedInOrder(t *testing.T) {
	realWorlds(t, func(w *world) {
		const processes, rounds = 3, 3
		holder := w.waker(lockregistry.WakeupAuto).Obtain("42")
		w.lock(holder)
		queue := make([]*member, 0, processes)
		for range processes {
			queue = append(queue, w.joins(w.Context(), lockregistry.WithPollInterval(noPoll)))
		}
		w.unlock(holder)
		for range rounds * processes {
			m := queue[0]
			require.NoError(w, <-m.result)
			for _, other := range queue[1:] {
				w.pending(other.result)
			}
			again := w.joins(w.Context(), lockregistry.WithPollInterval(noPoll))
			require.NoError(w, m.unlock(m.lock))
			queue = append(queue[1:], again)
		}
	})
}

// owners returns a function that returns the client ids of the registries that the server has made owners of the first lock, in
// the order in which it did. Their calls may learn of that late, or when it is over.
func (w *world) owners() (all func() []string) {
	w.Helper()
	conn, err := w.dial(w.Context())
	require.NoError(w, err)
	w.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(w, err)
	lines := bufio.NewReader(conn)
	line, err := lines.ReadString('\n')
	require.NoError(w, err)
	require.Equal(w, "+OK\r\n", line)
	sets := regexp.MustCompile(`"(?:HSET|SET)" "` + theKey + `" "([^:]*):[^"]*" "(?:PX|1)"`) // not SET with NX or XX
	return func() (all []string) {
		w.Helper()
		w.do("ECHO", "that is all")
		for {
			line, err := lines.ReadString('\n')
			require.NoError(w, err)
			if strings.Contains(line, `"ECHO" "that is all"`) {
				return all
			}
			if set := sets.FindStringSubmatch(line); set != nil {
				all = append(all, set[1])
			}
		}
	}
}

// servesInOrder has processes wait, one after another, until a holder has crashed, and checks that the server serves them in
// this order as leases end. A process that stands still for all of its grant is served once more, which does not count.
func (w *world) servesInOrder(processes []*lockregistry.Registry, wait func(r *lockregistry.Registry) error) {
	w.Helper()
	crashes := w.registry(lockregistry.WithLease(3*time.Second), lockregistry.WithRenewal())
	w.lock(crashes.Obtain("42"))
	owners := w.owners()
	var all sync.WaitGroup
	var first []string
	for i, r := range processes {
		all.Go(func() {
			if err := wait(r); err != nil {
				w.Error(err)
			}
		})
		w.await("a ticket", func() bool { return w.tickets() > i }) // a newcomer may take a lock that is free just then
		first = append(first, r.ClientID())
	}
	require.NoError(w, crashes.Close())
	all.Wait()
	var served []string
	for _, owner := range owners() {
		if !slices.Contains(served, owner) {
			served = append(served, owner)
		}
	}
	require.Equal(w, first, served)
}

// So they are when a lease ends, also when the first one looks later than the second one does.
func TestQueue_TicketsAreServedInOrderWhenLeasesEnd(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]lockregistry.Layout{
		"spring": lockregistry.LayoutSpring, "redisson": lockregistry.LayoutRedisson,
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				w.layout = layout
				net := w.flaky()
				net.All(netfault.Match{Name: "obtain", Asks: "check"}, fate{Delay: 180 * time.Millisecond})
				all := []*lockregistry.Registry{net.registry(lockregistry.WithClientID("first"))}
				for _, id := range []string{"second", "third"} {
					all = append(all, w.registry(lockregistry.WithClientID(id)))
				}
				w.servesInOrder(all, func(r *lockregistry.Registry) error {
					_, err := r.Acquire(w.Context(), "42", lockregistry.AtMost(2*time.Second))
					return err
				})
			})
		})
	}
}

// So they are when many short leases end.
func TestQueue_ManyTicketsAreServedInOrderWhenLeasesEnd(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(ctx context.Context, r *lockregistry.Registry) error{
		"Lock": func(ctx context.Context, r *lockregistry.Registry) error {
			return r.Obtain("42").Lock(ctx, lockregistry.Lease(500*time.Millisecond)) // nothing renews it
		},
		"Acquire": func(ctx context.Context, r *lockregistry.Registry) error {
			_, err := r.Acquire(ctx, "42", lockregistry.AtMost(time.Second))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				var all []*lockregistry.Registry
				for i := range 8 {
					all = append(all, w.registry(lockregistry.WithClientID(strconv.Itoa(i))))
				}
				w.servesInOrder(all, func(r *lockregistry.Registry) error { return wait(w.Context(), r) })
			})
		})
	}
}

// A call that gives up leaves nothing in the queue, and is passed over.
func TestQueue_WhoGivesUpLeavesTheQueue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts   []lockregistry.LockOption
		ends   func(m *member, cancel context.CancelFunc)
		reason error
	}{
		"cancelled": {nil, func(_ *member, cancel context.CancelFunc) { cancel() }, context.Canceled},
		"timed out": { // it must have a ticket by then, and another behind it
			[]lockregistry.LockOption{lockregistry.Wait(2 * time.Second)},
			func(*member, context.CancelFunc) {}, lockregistry.ErrTaken,
		},
		"closed": {nil, func(m *member, _ context.CancelFunc) { _ = m.reg.Close() }, lockregistry.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				var all []time.Duration
				for range 3 {
					holder := w.registry().Obtain("42")
					w.lock(holder)
					ctx, cancel := context.WithCancel(w.Context())
					first := &member{goroutine: w.goroutine(), net: w.flaky()}
					first.reg = first.net.registry(lockregistry.WithPollInterval(noPoll))
					first.lock = first.reg.Obtain("42")
					first.waits(ctx, c.opts...)
					second := w.joins(w.Context(), lockregistry.WithPollInterval(noPoll))
					c.ends(first, cancel)
					require.ErrorIs(w, <-first.result, c.reason)
					w.await("its ticket is gone", func() bool { return w.tickets() == 1 })
					w.pending(second.result)
					start := time.Now()
					w.unlock(holder)
					all = append(all, w.takes(start, second.result))
					require.NoError(w, second.unlock(second.lock))
					w.leftNothing()
					cancel()
				}
				w.within(50*time.Millisecond, all)
			})
		})
	}
}

// A grant that crosses with the end of the call is passed on, whichever of the two is late.
func TestQueue_GrantThatCrossesWithTheEnd(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]string{"the grant is late": grant, "the leave is late": "release"} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				var all []time.Duration
				for range 3 {
					holder := w.registry(lockregistry.WithWakeup(lockregistry.WakeupTracking)).Obtain("42") // opens no short windows
					w.lock(holder)
					ctx, cancel := context.WithCancel(w.Context())
					first := w.joins(ctx, lockregistry.WithPollInterval(noPoll), lockregistry.WithWakeup(lockregistry.WakeupPubSub))
					second := w.joins(w.Context(), lockregistry.WithPollInterval(noPoll))
					tries, since := 0, time.Now()
					w.await("the first one has looked, and sleeps", func() bool {
						if now := first.net.count("obtain"); now != tries || w.subscribers(theChannel) == 0 {
							tries, since = now, time.Now()
						}
						return time.Since(since) > 30*time.Millisecond
					})
					until := make(chan struct{})
					deliver := sync.OnceFunc(func() { close(until) })
					w.Cleanup(deliver)
					first.net.next(late, heldUp(until))
					owner := w.do("GET", theKey)
					var start time.Time
					if late == grant {
						w.unlock(holder)
						w.await("the first one owns the key", func() bool { return w.do("GET", theKey) != owner })
						w.pending(first.result)
						start = time.Now()
						cancel()
					} else {
						cancel()
						require.ErrorIs(w, <-first.result, context.Canceled)
						w.await("it is about to leave", func() bool { return first.net.count("release") > 0 })
						require.Equal(w, 2, w.tickets())
						w.unlock(holder)
						w.await("the first one owns the key", func() bool { return w.do("GET", theKey) != owner })
						w.pending(second.result)
						start = time.Now()
						deliver()
					}
					all = append(all, w.takes(start, second.result))
					if late == grant {
						require.ErrorIs(w, <-first.result, context.Canceled)
					}
					deliver()
					require.NoError(w, second.unlock(second.lock))
					w.await("nothing is left", func() bool { return w.free(theKey) && w.tickets() == 0 })
				}
				w.within(100*time.Millisecond, all)
			})
		})
	}
}

// A grant whose message is lost is found by looking.
func TestQueue_LostGrant(t *testing.T) {
	t.Parallel()
	for name, mode := range wakeups {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				holder := w.registry(lockregistry.WithWakeup(mode)).Obtain("42")
				w.lock(holder)
				m := w.joins(w.Context(), lockregistry.WithWakeup(mode))
				m.net.next(grant, fate{Lost: true})
				w.pending(m.result)
				start := time.Now()
				w.unlock(holder)
				w.Log(w.takes(start, m.result))
				require.LessOrEqual(w, time.Since(start), 1500*time.Millisecond)
				require.Equal(w, 1, m.net.count(grant))
				require.NoError(w, m.unlock(m.lock))
				w.leftNothing()
			})
		})
	}
}

// A process that stands still, while the server counts it as a subscriber, is granted the lock in vain, and blocks those behind
// it for not much longer than the short lease of a grant. So does each of several.
func TestQueue_GrantToAProcessThatStandsStill(t *testing.T) {
	t.Parallel()
	for dead, limit := range map[int]time.Duration{1: 1500 * time.Millisecond, 3: 4 * time.Second} {
		t.Run(strconv.Itoa(dead), func(t *testing.T) {
			realWorlds(t, func(w *world) {
				holder := w.registry().Obtain("42")
				w.lock(holder)
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				for range dead {
					m := w.joins(ctx)
					m.net.Hang()
					defer m.net.reconnectNow()
				}
				alive := w.joins(w.Context())
				start := time.Now()
				w.unlock(holder)
				require.NoError(w, <-alive.result)
				took := time.Since(start)
				w.Log(took)
				require.LessOrEqual(w, took, limit)
				require.Zero(w, w.tickets())
			})
		})
	}
}

// When it goes on, it has its place again, in front of those that came after it.
func TestQueue_AMissedGrantCostsNoPlace(t *testing.T) {
	realWorlds(t, func(w *world) {
		holder := w.registry().Obtain("42")
		w.lock(holder)
		stands := w.joins(w.Context())
		second, third := w.joins(w.Context()), w.joins(w.Context())
		stands.net.Hang()
		w.unlock(holder)
		require.NoError(w, <-second.result)
		w.pending(stands.result)
		require.Equal(w, 1, w.tickets())
		stands.net.reconnectNow()
		w.await("its ticket is back", func() bool { return w.tickets() == 2 })
		require.NoError(w, second.unlock(second.lock))
		require.NoError(w, <-stands.result)
		w.pending(third.result)
		require.NoError(w, stands.unlock(stands.lock))
		require.NoError(w, <-third.result)
		require.NoError(w, third.unlock(third.lock))
	})
}

// Calls come and give up all the time, in several processes, and some messages are lost: two never have the lock at once, it goes
// on, and nothing stays behind.
func TestQueue_GivingUpInTheQueue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		losses bool
		layout lockregistry.Layout
	}{
		"spring":                  {false, lockregistry.LayoutSpring},
		"redisson":                {false, lockregistry.LayoutRedisson},
		"spring, grants are lost": {true, lockregistry.LayoutSpring},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				const processes, goroutines, lasts = 4, 3, time.Second
				var all sync.WaitGroup
				var inside, entered, gaveUp atomic.Int32
				begin := time.Now()
				registries := make([]*lockregistry.Registry, 0, processes)
				for i := range processes {
					f := w.flaky()
					r := f.registry(lockregistry.WithLayout(c.layout), lockregistry.WithHandoff(time.Duration(i%2)*5*time.Millisecond))
					registries = append(registries, r)
					l := r.Obtain("42")
					for range goroutines {
						all.Go(func() {
							// On a busy machine few of these calls have the time for a lock.
							rare := func() bool { return min(entered.Load(), gaveUp.Load()) <= 100 && time.Since(begin) < time.Minute }
							for time.Since(begin) < lasts || rare() {
								if c.losses && rand.N(20) == 0 {
									f.next(grant, fate{Lost: true})
								}
								ctx, cancel := context.WithTimeout(w.Context(), rand.N(40*time.Millisecond))
								err := l.Lock(ctx)
								if err == nil {
									if inside.Add(1) != 1 {
										w.Error("two are inside")
									}
									entered.Add(1)
									inside.Add(-1)
									if err := l.Unlock(w.Context()); err != nil {
										w.Error(err)
									}
								} else {
									gaveUp.Add(1)
								}
								cancel()
							}
						})
					}
				}
				all.Wait()
				w.Logf("%d had the lock, %d gave up", entered.Load(), gaveUp.Load())
				require.Greater(w, entered.Load(), int32(100))
				require.Greater(w, gaveUp.Load(), int32(100))
				start := time.Now()
				w.await("nothing is left", func() bool { return w.free(theKey) && w.tickets() == 0 })
				require.Less(w, time.Since(start), atOnce)
				for _, r := range registries { // it works as ever
					require.NoError(w, r.Obtain("42").Lock(w.Context()))
					w.unlock(r.Obtain("42"))
				}
			})
		})
	}
}

// A process whose connection is gone is skipped.
func TestQueue_DeadProcessIsSkipped(t *testing.T) {
	realWorlds(t, func(w *world) {
		var all []time.Duration
		for range 3 {
			holder := w.registry().Obtain("42")
			w.lock(holder)
			ctx, cancel := context.WithCancel(w.Context())
			dead := w.joins(ctx, lockregistry.WithPollInterval(noPoll))
			alive := w.joins(w.Context(), lockregistry.WithPollInterval(noPoll))
			listening := func() int { return len(strings.Fields(w.do("PUBSUB", "CHANNELS", "orders-channel@*"))) }
			before := listening()
			dead.net.Down()
			w.await("the server has noticed", func() bool { return listening() == before-1 })
			require.Equal(w, 2, w.tickets())
			start := time.Now()
			w.unlock(holder)
			all = append(all, w.takes(start, alive.result))
			require.NoError(w, alive.unlock(alive.lock))
			cancel()
			require.ErrorIs(w, <-dead.result, context.Canceled)
			dead.net.Forget()
		}
		w.within(50*time.Millisecond, all)
	})
}

// The release of a Java holder skips nobody: the second one in the queue does, when the process of the first one is dead.
func TestQueue_DeadProcessBehindAJavaHolder(t *testing.T) {
	realWorldsAlone(t, func(w *world) {
		var all []time.Duration
		for range 3 {
			w.do("SET", theKey, "ad5f8a4e-6c0f-4ab2-8a55-9d0f6a1a7c11", "PX", "60000")
			ctx, cancel := context.WithCancel(w.Context())
			dead := w.joins(ctx, lockregistry.WithPollInterval(noPoll))
			w.watched()
			alive := w.joins(w.Context(), lockregistry.WithPollInterval(noPoll))
			last := w.joins(w.Context(), lockregistry.WithPollInterval(noPoll))
			w.await("both are told of changes", func() bool { return w.info("stats", "tracking_total_items") == 2 })
			listening := func() int { return len(strings.Fields(w.do("PUBSUB", "CHANNELS", "orders-channel@*"))) }
			before := listening()
			dead.net.Down()
			w.await("the server has noticed", func() bool { return listening() == before-1 })
			start := time.Now()
			w.do("DEL", theKey)
			all = append(all, w.takes(start, alive.result))
			w.pending(last.result)
			require.NoError(w, alive.unlock(alive.lock))
			require.NoError(w, <-last.result)
			require.NoError(w, last.unlock(last.lock))
			cancel()
			require.ErrorIs(w, <-dead.result, context.Canceled)
			dead.net.Forget()
		}
		w.within(50*time.Millisecond, all)
	})
}

// Whatever becomes of the queue, who waits has the lock at once, and a line is logged where there can be none.
func TestQueue_ThatIsGone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, while []string // commands
		lines         int
	}{
		"deleted":                  {nil, []string{"DEL", theQueue}, 0},
		"expired":                  {nil, []string{"PEXPIRE", theQueue, "1"}, 0},
		"another type":             {[]string{"SET", theQueue, "x"}, nil, 1},
		"another type in the wait": {nil, []string{"SET", theQueue, "x"}, 1},
		"not permitted":            {[]string{"ACL", "SETUSER", "app", "resetkeys", "~" + theKey}, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				app := w.allowed()
				if c.before != nil {
					w.do(c.before...)
				}
				var log journal
				holder := w.waker(lockregistry.WakeupAuto).Obtain("42")
				r := w.registryOn(w.clientWith(w.dial, app), lockregistry.WithPollInterval(noPoll), log.option())
				l := r.Obtain("42")
				for range 3 {
					w.lock(holder)
					g := w.goroutine()
					result := g.starts(l)
					w.watched()
					w.pending(result)
					if c.while != nil {
						w.do(c.while...)
					}
					start := time.Now()
					w.unlock(holder)
					w.Log(w.takes(start, result))
					require.NoError(w, g.unlock(l))
				}
				require.True(w, w.free(theKey))
				require.Len(w, log.lines(), c.lines, "%s", log.lines())
				require.Len(w, log.lines("refuses the queue"), c.lines)
			})
		})
	}
}

// A granted hold has its full lease soon, and goroutines of the process hand it on before that, too.
func TestQueue_GrantIsLengthened(t *testing.T) {
	realWorlds(t, func(w *world) {
		var all []time.Duration
		for range 3 {
			holder := w.registry().Obtain("42")
			w.lock(holder)
			m := w.joins(w.Context(), lockregistry.WithPollInterval(noPoll), lockregistry.WithHandoff(time.Minute))
			next := w.goroutine()
			nexts := next.starts(m.lock)
			w.unlock(holder)
			require.NoError(w, <-m.result)
			start := time.Now()
			value := w.do("GET", theKey)
			require.NoError(w, m.unlock(m.lock))
			require.NoError(w, <-nexts)
			require.Equal(w, value, w.do("GET", theKey), "handed over")
			w.await("the full lease", func() bool { return w.pttl(theKey) > 50*time.Second })
			all = append(all, time.Since(start))
			require.NoError(w, next.unlock(m.lock))
		}
		w.within(600*time.Millisecond, all)
	})
}

// A window for those without a ticket is due when tickets have kept the key from them for a while. A long hold of a lock that was
// free has not, so the one who waits behind it has the lock at once; and so it is when nobody has waited for a while, but not
// each time.
func TestQueue_ALongHoldIsFollowedAtOnce(t *testing.T) {
	realWorlds(t, func(w *world) {
		// passes makes times in the queue as old as if the server's clock had gone on.
		passes := func(d time.Duration, members ...string) {
			w.do(append([]string{"EVAL", `for _, member in ipairs(ARGV) do
				local score = tonumber(redis.call('ZSCORE', KEYS[2], member) or 0)
				if score < -1 then redis.call('ZINCRBY', KEYS[2], KEYS[1], member) end
			end`, "2", strconv.FormatInt(d.Milliseconds(), 10), theQueue}, members...)...)
		}
		const due = 20 * time.Second // after that a window is due, whether a process has learned in time that it is quiet or not
		holder := w.registry().Obtain("42")
		told := uint64(0) // windows of which that process knew
		// follows has another process follow a long hold, and tells whether it had to wait for a window.
		follows := func() (window bool) {
			w.lock(holder)
			since, m := time.Now(), w.joins(w.Context(), lockregistry.WithPollInterval(noPoll))
			w.await("its release looks for windows", func() bool {
				return time.Since(since) > 150*time.Millisecond && w.tickets() == 1
			})
			passes(due, "open", "wide")
			w.unlock(holder)
			require.NoError(w, <-m.result)
			told = m.reg.Stats().Windows
			require.NoError(w, m.unlock(m.lock))
			window = w.do("ZSCORE", theQueue, "open") == w.wide()
			passes(3*time.Second, "open", "wide")
			return window
		}
		follows() // a rush begins
		require.False(w, follows(), "it was put off")
		require.Zero(w, told)
		require.True(w, follows(), "but not twice")
		require.EqualValues(w, 1, told)
		require.False(w, follows())

		// Goroutines of one process have it at once, too, although the process has had its time.
		g := w.goroutine()
		w.do("DEL", theQueue)
		var all []time.Duration
		for range 2 {
			w.lock(holder)
			since, next := time.Now(), g.starts(holder)
			w.await("its time is over", func() bool { return time.Since(since) > 150*time.Millisecond })
			start := time.Now()
			w.unlock(holder)
			all = append(all, w.takes(start, next))
			require.NoError(w, g.unlock(holder))
			passes(3*time.Second, "open", "wide")
		}
		w.within(50*time.Millisecond, all)

		// Those who take the lock from each other leave a window when it is time, however long each has it.
		w.lock(holder)
		since := time.Now()
		a, b := w.joins(w.Context(), lockregistry.WithPollInterval(noPoll)), w.joins(w.Context(), lockregistry.WithPollInterval(noPoll))
		w.await("its release looks for windows", func() bool {
			return time.Since(since) > 150*time.Millisecond && w.tickets() == 2
		})
		w.unlock(holder)
		require.NoError(w, <-a.result)
		passes(due, "open", "wide")
		w.do("EVAL", `return redis.call('ZINCRBY', KEYS[1], -ARGV[1], redis.call('ZRANGE', KEYS[1], '-1', '-1')[1])`,
			"1", theQueue, strconv.FormatInt(due.Microseconds(), 10))
		start := time.Now()
		require.NoError(w, a.unlock(a.lock))
		require.GreaterOrEqual(w, w.takes(start, b.result), 100*time.Millisecond)
		require.NoError(w, b.unlock(b.lock))
	})
}

// A call that does not wait shows itself when another one has just not got the lock either: somebody tries again and again.
func TestQueue_WhoTriesAgainAndAgainIsSeen(t *testing.T) {
	realWorlds(t, func(w *world) {
		holder := w.registry().Obtain("42")
		w.lock(holder)
		m := w.joins(w.Context(), lockregistry.WithPollInterval(noPoll))
		w.await("the ticket", func() bool { return w.do("ZCARD", theQueue) == "3" })
		l := w.registry().Obtain("42")
		tries := func() {
			ok, err := l.TryLock(w.Context())
			require.NoError(w, err)
			require.False(w, ok)
		}
		tries()
		require.NotContains(w, w.wide(), ".5", "once")
		tries()
		require.Contains(w, w.wide(), ".5")
		w.unlock(holder)
		require.NoError(w, <-m.result)
		require.NoError(w, m.unlock(m.lock))
	})
}

// Those who have waited for a second are told when they are the next ones: a release by one that has waited for so long is no
// short one.
func TestQueue_TheNextOneIsTold(t *testing.T) {
	realWorlds(t, func(w *world) {
		told := w.heard(func(c rueidis.Client) rueidis.Completed {
			return c.B().Psubscribe().Pattern("orders-channel@*").Build()
		}, "", "1")
		holder := w.registry().Obtain("42")
		w.lock(holder)
		var waiters []*member
		for range 6 {
			waiters = append(waiters, w.joins(w.Context(), lockregistry.WithPollInterval(noPoll)))
		}
		newest := waiters[5].net
		asked := newest.scripts("obtain") // it looks after its ticket a second or two later
		require.Eventually(w, func() bool { return newest.scripts("obtain") > asked }, 20*time.Second, 10*time.Millisecond)
		w.unlock(holder)
		for k, m := range waiters[:5] {
			require.NoError(w, <-m.result)
			for len(told) > 0 {
				<-told
			}
			require.NoError(w, m.unlock(m.lock))
			for limit := time.After(20 * time.Second); k < 4; {
				select {
				case message := <-told:
					if !strings.HasPrefix(strings.Fields(message)[1], "n") {
						continue
					}
				case <-limit:
					require.Fail(w, "nobody was told")
				}
				break
			}
			require.Zero(w, m.net.known(protocol.Direct))
		}
		require.NoError(w, <-waiters[5].result)
		require.NoError(w, waiters[5].unlock(waiters[5].lock))
	})
}

// contend has processes lock and unlock without a pause, until the test ends.
func (w *world) contend(processes int) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range processes {
		l := w.registry().Obtain("42")
		for range 2 {
			all.Go(func() {
				for l.Lock(ctx) == nil {
					if err := l.Unlock(context.WithoutCancel(ctx)); err != nil {
						w.Error(err)
					}
				}
			})
		}
	}
	w.Cleanup(func() { cancel(); all.Wait() })
	w.await("they contend", func() bool { return w.tickets() >= processes-1 })
}

// springObtains is the script by which a registry of Spring Integration 7.1 tries. The server knows it from then on.
const springObtains = `local lockClientId = redis.call('GET', KEYS[1])
if lockClientId == ARGV[1] then
	redis.call('PEXPIRE', KEYS[1], ARGV[2])
	return true
elseif not lockClientId then
	redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
	return true
end
return false
`

// triesLikeSpring tells whether a registry of Spring's would have got the lock just now.
func triesLikeSpring(client rueidis.Client) bool {
	return said(client, "EVAL", springObtains, "1", theKey, "java", "10000") == "1"
}

// triesByHand is the same for a client that nobody knows.
func triesByHand(client rueidis.Client) bool {
	return said(client, "SET", theKey, "java", "NX", "PX", "10000") == "OK"
}

// Those without a ticket have the lock in time although others queue all the time.
func TestQueue_ThoseWithoutATicketDoNotStarve(t *testing.T) {
	t.Parallel()
	require.Contains(t, protocol.Foreign(), digest(springObtains))
	const allowance = time.Second // for a machine that is busy with other things
	for name, c := range map[string]struct {
		limit time.Duration
		asks  func(client rueidis.Client) bool
		tries func(w *world) <-chan time.Time // when to try
	}{
		"polls": {2 * time.Second, triesLikeSpring, func(w *world) <-chan time.Time {
			ticker := time.NewTicker(100 * time.Millisecond)
			w.Cleanup(ticker.Stop)
			return ticker.C
		}},
		"is told of releases": {400 * time.Millisecond, triesByHand, func(w *world) <-chan time.Time {
			heard := w.heard(func(c rueidis.Client) rueidis.Completed {
				return c.B().Subscribe().Channel(theChannel).Build()
			}, theChannel, "1")
			tries := make(chan time.Time)
			stop := make(chan struct{})
			w.Cleanup(func() { close(stop) })
			go func() {
				for {
					select {
					case <-heard:
					case <-stop:
						return
					}
					select {
					case tries <- time.Now():
					case <-stop:
						return
					}
				}
			}()
			return tries
		}},
	} {
		for _, processes := range []int{0, 1, 4} {
			if processes == 0 && name != "polls" {
				continue
			}
			t.Run(fmt.Sprint(name, ", against ", processes), func(t *testing.T) {
				realWorlds(t, func(w *world) {
					ctx, cancel := context.WithCancel(context.Background())
					var done *sync.WaitGroup
					switch processes {
					case 0: // one, whose goroutines ask for leases with which they cannot hand the lock to each other
						done = new(sync.WaitGroup)
						l := w.registry().Obtain("42")
						for i := range 4 {
							done.Go(func() {
								for l.Lock(ctx, lockregistry.Lease(time.Duration(1+i*i)*10*time.Second)) == nil {
									<-time.After(80 * time.Millisecond)
									if err := l.Unlock(context.WithoutCancel(ctx)); err != nil {
										w.Error(err)
									}
								}
							})
						}
					case 1: // whose goroutines hand the lock to each other, and have no tickets
						done = w.saturate(ctx, w.registry(), func() { <-time.After(500 * time.Microsecond) })
					default:
						done = new(sync.WaitGroup)
						w.contend(processes)
					}
					w.Cleanup(func() { cancel(); done.Wait() })
					java := w.client()
					tries := c.tries(w)
					var all []time.Duration
					for range 3 {
						for start := time.Now(); ; {
							<-tries
							if c.asks(java) {
								all = append(all, time.Since(start))
								break
							}
							require.Less(w, time.Since(start), c.limit+allowance, "%v", all)
						}
						said(java, "EVAL", "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], KEYS[1])", "1", theKey, theChannel)
						<-tries // its own message, maybe
					}
					w.Log(all)
					slices.Sort(all)
					require.LessOrEqual(w, all[len(all)/2], c.limit)
				})
			})
		}
	}
}

// wide is the time from which long windows are counted, and what happened since.
func (w *world) wide() string { return w.do("ZSCORE", theQueue, "wide") }

// takesTurns has three processes take turns with sections of a second, until the test ends, and the first releases be over.
func (w *world) takesTurns(section time.Duration) (handOvers func() []time.Duration) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var mu sync.Mutex
	var released time.Time
	var took []time.Duration
	for range 3 {
		l := w.registry(lockregistry.WithPollInterval(noPoll)).Obtain("42")
		all.Go(func() {
			for l.Lock(ctx) == nil {
				mu.Lock()
				if !released.IsZero() {
					took = append(took, time.Since(released))
				}
				mu.Unlock()
				select {
				case <-time.After(section):
				case <-ctx.Done():
				}
				mu.Lock()
				released = time.Now()
				mu.Unlock()
				if err := l.Unlock(context.WithoutCancel(ctx)); err != nil {
					w.Error(err)
				}
			}
		})
	}
	w.Cleanup(func() { cancel(); all.Wait() })
	return func() []time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(took)
	}
}

// Where nobody is who tries without a ticket, no hand-over waits for one, however long the sections are. One who comes later has
// the lock in time: the server knows its script, and the process that releases has asked since.
func TestQueue_NobodyWaitsForWhoIsNotThere(t *testing.T) {
	realWorlds(t, func(w *world) {
		handOvers := w.takesTurns(time.Second)
		w.await("they have begun", func() bool { return len(handOvers()) == 2 })
		counted := w.wide()
		require.NotEqual(w, "-1", counted)
		w.await("they go on", func() bool { return len(handOvers()) == 8 })
		w.Log(handOvers())
		require.Equal(w, counted, w.wide(), "there was no window, nor was one put off")

		java := w.client()
		var all []time.Duration
		for round := range 3 {
			start := time.Now()
			if round == 1 { // the server knows its script again with its next try
				require.False(w, triesLikeSpring(java))
				w.do("SCRIPT", "FLUSH")
			}
			w.await("its turn", func() bool { return triesLikeSpring(java) })
			all = append(all, time.Since(start))
			said(java, "DEL", theKey)
			w.await("others have it", func() bool { return strings.Contains(w.do("GET", theKey), ":") })
		}
		w.Log(all)
		for _, d := range all {
			require.Less(w, d, 5*time.Second)
		}
	})
}

// A client that nobody knows waits for 15 s at most. Once it has had the lock while others waited it is seen, and waits no longer
// than Java.
func TestQueue_WhoIsNotKnownWaitsLonger(t *testing.T) {
	realWorlds(t, func(w *world) {
		w.takesTurns(50 * time.Millisecond)
		w.await("they have begun", func() bool { return w.tickets() == 2 })
		stranger := w.client()
		var all []time.Duration
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for range 3 {
			for start := time.Now(); ; {
				<-ticker.C
				if triesByHand(stranger) {
					all = append(all, time.Since(start))
					break
				}
				require.Less(w, time.Since(start), 18*time.Second)
			}
			w.await("it is seen", func() bool { return strings.HasSuffix(w.wide(), ".5") })
			said(stranger, "DEL", theKey)
		}
		w.Log(all)
		require.Less(w, all[1], 4*time.Second)
		require.Less(w, all[2], 4*time.Second)
	})
}

// Where the user may not ask for scripts, nobody knows that it is quiet.
func TestQueue_WithoutPermissionToAskForScripts(t *testing.T) {
	realWorlds(t, func(w *world) {
		w.do("ACL", "SETUSER", "default", "-script")
		handOvers := w.takesTurns(50 * time.Millisecond)
		w.await("they have begun", func() bool { return len(handOvers()) == 2 })
		for counted := w.wide(); counted == w.wide(); { // each 1.7 s
			require.Less(w, len(handOvers()), 100)
		}
	})
}

// A process that comes has its turn after those that were there.
func TestQueue_NewProcessHasItsTurn(t *testing.T) {
	realWorldsAlone(t, func(w *world) {
		const processes = 4
		w.contend(processes)
		var all []time.Duration
		for range 5 {
			l := w.registry().Obtain("42")
			start := time.Now()
			w.lock(l)
			all = append(all, time.Since(start))
			w.unlock(l)
		}
		w.Log(all)
		slices.Sort(all)
		require.LessOrEqual(w, all[len(all)/2], (processes+1)*100*time.Millisecond, "each in front has the lock for a handoff limit")
		require.Less(w, slices.Max(all), atOnce)
	})
}

// A key that goes away although tickets wait is the first one's at once.
func TestQueue_KeyThatGoesAway(t *testing.T) {
	t.Parallel()
	for name, command := range map[string][]string{
		"deleted": {"DEL", theKey},
		"renamed": {"RENAME", theKey, "elsewhere"},
		"expired": {"PEXPIRE", theKey, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				var all []time.Duration
				for range 5 {
					w.do("SET", theKey, "somebody", "PX", "600000")
					var queue []*member
					for range 3 {
						queue = append(queue, w.joins(w.Context(), lockregistry.WithPollInterval(noPoll)))
					}
					w.watched()
					start := time.Now()
					w.do(command...)
					all = append(all, w.takes(start, queue[0].result))
					for i, m := range queue {
						for _, later := range queue[i+1:] {
							w.pending(later.result)
						}
						require.NoError(w, m.unlock(m.lock))
						if i < len(queue)-1 {
							w.takes(time.Now(), queue[i+1].result)
						}
					}
					w.do("DEL", "elsewhere")
					w.leftNothing()
				}
				w.within(50*time.Millisecond, all)
			})
		})
	}
}

// With WakeupPubSub nothing tells of a key that goes away in silence. The first in the queue polls then, and no other does.
func TestQueue_FirstInTheQueuePolls(t *testing.T) {
	realWorlds(t, func(w *world) {
		const poll = 50 * time.Millisecond
		w.do("SET", theKey, "somebody", "PX", "600000")
		opts := []lockregistry.Option{lockregistry.WithWakeup(lockregistry.WakeupPubSub), lockregistry.WithPollInterval(poll)}
		first, second := w.joins(w.Context(), opts...), w.joins(w.Context(), opts...)
		before := second.net.count("obtain")
		tries := first.net.count("obtain")
		w.await("it polls", func() bool { return first.net.count("obtain") >= tries+10 })
		require.LessOrEqual(w, second.net.count("obtain")-before, 1, "but for its first look")
		w.pending(first.result)
		start := time.Now()
		w.do("DEL", theKey)
		w.Log(w.takes(start, first.result))
		require.NoError(w, first.unlock(first.lock))
		w.takes(start, second.result)
		require.NoError(w, second.unlock(second.lock))
		w.leftNothing()
	})
}

// A server before version 7 may replicate scripts whole, and then refuses what they write once they have asked for the time,
// unless they have said before that their commands are to be replicated. Queues, windows and grants work all the same. Newer
// servers do not know the setting.
func TestQueue_QueuesWhereScriptsAreReplicatedWhole(t *testing.T) {
	t.Parallel()
	for name, locks := range map[string]func(r *lockregistry.Registry) []*lockregistry.Lock{
		"plain": func(r *lockregistry.Registry) []*lockregistry.Lock { return []*lockregistry.Lock{r.Obtain("42")} },
		"read-write": func(r *lockregistry.Registry) []*lockregistry.Lock {
			return []*lockregistry.Lock{r.ReadWrite("42").Reader(), r.ReadWrite("42").Writer()}
		},
	} {
		for _, layout := range []lockregistry.Layout{lockregistry.LayoutSpring, lockregistry.LayoutRedisson} {
			t.Run(fmt.Sprint(name, ", ", layout), func(t *testing.T) {
				realWorlds(t, func(w *world) {
					lasts := 200 * time.Millisecond
					if w.do("EVAL", "return redis.REDIS_VERSION_NUM and 'yes' or 'no'", "0") == "no" {
						w.do("CONFIG", "SET", "lua-replicate-commands", "no")
						defer w.do("CONFIG", "SET", "lua-replicate-commands", "yes")
						lasts = 2500 * time.Millisecond // windows of both kinds
					}
					var log journal
					var all sync.WaitGroup
					var sections atomic.Int64
					end := time.Now().Add(lasts)
					for range 3 {
						r := w.registry(log.option(), lockregistry.WithLayout(layout), lockregistry.WithPollInterval(noPoll))
						for _, l := range locks(r) {
							all.Go(func() {
								few := func() bool { return sections.Load() <= 100 && time.Since(end) < time.Minute }
								for time.Now().Before(end) || few() {
									if err := l.Lock(w.Context()); err != nil {
										w.Error(err)
										return
									}
									sections.Add(1)
									if err := l.Unlock(w.Context()); err != nil {
										w.Error(err)
									}
								}
							})
						}
					}
					all.Wait()
					require.Empty(w, log.lines())
					require.Greater(w, sections.Load(), int64(100))
				})
			})
		}
	}
}
