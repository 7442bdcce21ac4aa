package waiting_test

import (
	"bufio"
	"context"
	"errors"
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
	"github.com/lockregistry/lockregistry/internal/barging"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Calls that have waited for a second are told when they are next. A release after such a wait does not count as one of a short
// wait.
func TestQueue_TheNextOneIsTold(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		told := w.Heard(func(c rueidis.Client) rueidis.Completed {
			return c.B().Psubscribe().Pattern("orders-channel@*").Build()
		}, "", "1")
		holder := w.Registry().Obtain("42")
		w.Lock(holder)
		var waiters []*kit.Member
		for range 6 {
			waiters = append(waiters, w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll)))
		}
		newest := waiters[5].Net
		asked := newest.Scripts("obtain") // it looks after its ticket a second or two later
		require.Eventually(w, func() bool { return newest.Scripts("obtain") > asked }, 20*time.Second, 10*time.Millisecond)
		w.Unlock(holder)
		for k, m := range waiters[:5] {
			require.NoError(w, <-m.Result)
			for len(told) > 0 {
				<-told
			}
			require.NoError(w, m.Unlock(m.Lock))
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
		}
		require.NoError(w, <-waiters[5].Result)
		require.NoError(w, waiters[5].Unlock(waiters[5].Lock))
	})
}

// springObtains is the script with which a registry of Spring Integration 7.1 tries to lock. The server knows it from then on.
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

// triesLikeSpring reports whether a registry of Spring would have got the lock just now.
func triesLikeSpring(client rueidis.Client) bool {
	return kit.Reply(client, "EVAL", springObtains, "1", kit.TheKey, "java", "10000") == "1"
}

// triesByHand is the same for a client whose commands are not known.
func triesByHand(client rueidis.Client) bool {
	return kit.Reply(client, "SET", kit.TheKey, "java", "NX", "PX", "10000") == "OK"
}

// Calls without a ticket get the lock in time although others queue all the time.
func TestQueue_ThoseWithoutATicketDoNotStarve(t *testing.T) {
	t.Parallel()
	require.Contains(t, protocol.Foreign(), kit.Digest(springObtains))
	const allowance = 8 * time.Second // for a busy machine: a call that starves gets nothing at all
	for name, c := range map[string]struct {
		limit time.Duration
		asks  func(client rueidis.Client) bool
		tries func(w *kit.World) <-chan time.Time // when to try
	}{
		"polls": {2 * time.Second, triesLikeSpring, func(w *kit.World) <-chan time.Time {
			ticker := time.NewTicker(100 * time.Millisecond)
			w.Cleanup(ticker.Stop)
			return ticker.C
		}},
		"is told of releases": {400 * time.Millisecond, triesByHand, func(w *kit.World) <-chan time.Time {
			heard := w.Heard(func(c rueidis.Client) rueidis.Completed {
				return c.B().Subscribe().Channel(kit.TheChannel).Build()
			}, kit.TheChannel, "1")
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
				kit.RealWorlds(t, func(w *kit.World) {
					ctx, cancel := context.WithCancel(context.Background())
					var done *sync.WaitGroup
					switch processes {
					case 0: // one process, whose goroutines ask for leases with which they cannot hand the lock to each other
						done = new(sync.WaitGroup)
						l := w.Registry().Obtain("42")
						for i := range 4 {
							done.Go(func() {
								for l.Lock(ctx, lockregistry.Lease(time.Duration(1+i*i)*10*time.Second)) == nil {
									<-time.After(80 * time.Millisecond)
									if err := w.UnlessBusy(l.Unlock(context.WithoutCancel(ctx))); err != nil {
										w.Error(err)
									}
								}
							})
						}
					case 1: // one process whose goroutines hand the lock to each other, and have no tickets
						done = w.Saturate(ctx, w.Registry(), func() { <-time.After(500 * time.Microsecond) })
					default:
						done = new(sync.WaitGroup)
						w.Contend(processes, 5*time.Millisecond)
					}
					w.Cleanup(func() { cancel(); done.Wait() })
					java := w.Client()
					tries := c.tries(w)
					var all []time.Duration
					for range 5 {
						began := time.Now()
						for start, last := began, began; ; last = time.Now() {
							<-tries
							got := c.asks(java)
							if name == "polls" && time.Since(last) > barging.Window { // it may have missed a window: it waits for the next one
								start = time.Now()
							}
							if got {
								all = append(all, time.Since(start))
								break
							}
							require.Less(w, time.Since(began), c.limit+allowance, "%v", all)
						}
						const release = "redis.call('DEL', KEYS[1]) redis.call('PUBLISH', ARGV[1], KEYS[1])"
						kit.Reply(java, "EVAL", release, "1", kit.TheKey, kit.TheChannel)
						<-tries // perhaps its own message
					}
					w.Log(all)
					slices.Sort(all)
					require.LessOrEqual(w, all[1], c.limit+w.Bystander(), "on a busy machine a call may miss some windows")
				})
			})
		}
	}
}

// wide returns the time from which long windows are counted, and what has happened since.
func wide(w *kit.World) string { return w.Do("ZSCORE", kit.TheQueue, "wide") }

// takesTurns has three processes take turns with such sections until the test ends.
func takesTurns(w *kit.World, section time.Duration) (handoffs func() []time.Duration) {
	w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var mu sync.Mutex
	var released time.Time
	var took []time.Duration
	for range 3 {
		l := w.Registry(lockregistry.WithPollInterval(kit.NoPoll)).Obtain("42")
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
				err := l.Unlock(context.WithoutCancel(ctx))
				// On a busy machine the short lease of a grant may not be lengthened in time, or a reply may be late.
				if err != nil && !errors.Is(err, lockregistry.ErrLockLost) && !kit.TookLong(err) {
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

// If nobody tries without a ticket, no handoff waits for such a call, however long the sections are. One that comes later gets
// the lock in time: the server knows its script, and the releasing process has asked for that since.
func TestQueue_NobodyWaitsForWhoIsNotThere(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		handoffs := takesTurns(w, time.Second)
		w.Await("they have begun", func() bool { return len(handoffs()) >= 2 })
		// On a busy machine a question for the script may be answered late. Until the next answer windows are left, each 1.7 s.
		for since, counted := len(handoffs()), wide(w); ; <-time.After(20 * time.Millisecond) {
			n, now := len(handoffs()), wide(w)
			require.NotEqual(w, "-1", now)
			if now != counted {
				since, counted = len(handoffs()), now
			} else if n-since >= 6 { // there was no window, nor was one put off
				break
			}
			require.Less(w, n, 60, "windows are left all the time")
		}
		w.Log(handoffs())

		java := w.Client()
		var all []time.Duration
		for round := range 3 {
			start := time.Now()
			if round == 1 { // the server knows its script again after its next try
				require.False(w, triesLikeSpring(java))
				w.Do("SCRIPT", "FLUSH")
			}
			w.Await("its turn", func() bool { return triesLikeSpring(java) })
			all = append(all, time.Since(start))
			kit.Reply(java, "DEL", kit.TheKey)
			w.Await("others have it", func() bool { return strings.Contains(w.Do("GET", kit.TheKey), ":") })
		}
		w.Log(all)
		for _, d := range all { // at most 4 s, and 15 s if nothing was known about it; a machine may be busy
			require.Less(w, d, 8*time.Second)
		}
	})
}

// A client whose commands are not known waits at most 15 s. Once it has had the lock while others waited, it is noticed, and
// then waits no longer than Java does.
func TestQueue_WhoIsNotKnownWaitsLonger(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		takesTurns(w, 50*time.Millisecond)
		w.Await("they have begun", func() bool { return w.Tickets() == 2 })
		stranger := w.Client()
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
				require.Less(w, time.Since(start), 2*18*time.Second, "on a busy machine a try may miss a window of 110 ms")
			}
			w.Await("it is seen", func() bool { return strings.HasSuffix(wide(w), ".5") })
			kit.Reply(stranger, "DEL", kit.TheKey)
		}
		w.Log(all)
		require.Less(w, all[1], 6*time.Second)
		require.Less(w, all[2], 6*time.Second)
	})
}

// If the user may not ask for scripts, nobody knows that no such client is there, and windows are left.
func TestQueue_WithoutPermissionToAskForScripts(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Do("ACL", "SETUSER", "default", "-script")
		handoffs := takesTurns(w, 50*time.Millisecond)
		w.Await("they have begun", func() bool { return len(handoffs()) >= 2 })
		for counted := wide(w); counted == wide(w); <-time.After(5 * time.Millisecond) { // every 1.7 s
			require.Less(w, len(handoffs()), 100)
		}
	})
}

// Tickets are served in the order of their arrival, whichever processes have them.
func TestQueue_TicketsAreServedInOrder(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const processes, rounds = 3, 3
		holder := w.Waker(kit.WakeupAuto).Obtain("42")
		w.Lock(holder)
		queue := make([]*kit.Member, 0, processes)
		for range processes {
			queue = append(queue, w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll)))
		}
		w.Unlock(holder)
		for range rounds * processes {
			m := queue[0]
			require.NoError(w, <-m.Result)
			for _, other := range queue[1:] {
				w.Pending(other.Result)
			}
			again := w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll))
			require.NoError(w, m.Unlock(m.Lock))
			queue = append(queue[1:], again)
		}
	})
}

// owners returns a function that returns the client ids of the registries that the server has made owners of the lock of 42, in
// that order. Their calls may learn of that late, or when it is over.
func owners(w *kit.World) (all func() []string) {
	w.Helper()
	conn, err := w.Dial(w.Context())
	require.NoError(w, err)
	w.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(w, err)
	lines := bufio.NewReader(conn)
	line, err := lines.ReadString('\n')
	require.NoError(w, err)
	require.Equal(w, "+OK\r\n", line)
	sets := regexp.MustCompile(`"(?:HSET|SET)" "` + kit.TheKey + `" "([^:]*):[^"]*" "(?:PX|1)"`) // not SET with NX or XX
	return func() (all []string) {
		w.Helper()
		w.Do("ECHO", "that is all")
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

// servesInOrder has processes wait, one after another, behind a holder that crashes. It checks that the server serves them in
// this order as leases end. A process that misses its whole grant is served again, which does not count.
func servesInOrder(w *kit.World, processes []*lockregistry.Registry, wait func(r *lockregistry.Registry) error) {
	w.Helper()
	crashes := w.Registry(lockregistry.WithLease(3*time.Second), lockregistry.WithRenewal())
	w.Lock(crashes.Obtain("42"))
	owners := owners(w)
	var all sync.WaitGroup
	var first []string
	for i, r := range processes {
		all.Go(func() {
			if err := wait(r); err != nil {
				w.Error(err)
			}
		})
		w.Await("a ticket", func() bool { return w.Tickets() > i }) // a newcomer may take a lock that is free just then
		name, _, _ := strings.Cut(kit.ClientID(r), ":")             // as in owners
		first = append(first, name)
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

// The same when a lease ends, even if the first one looks later than the second one.
func TestQueue_TicketsAreServedInOrderWhenLeasesEnd(t *testing.T) {
	t.Parallel()
	for name, layout := range map[string]observe.Layout{
		"spring": observe.LayoutSpring, "redisson": observe.LayoutRedisson,
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				w.Layout = layout
				net := w.Flaky()
				net.All(netfault.Match{Name: "obtain", Asks: "check"}, kit.Fate{Delay: 180 * time.Millisecond})
				all := []*lockregistry.Registry{net.Registry(lockregistry.WithClientID("first"))}
				for _, id := range []string{"second", "third"} {
					all = append(all, w.Registry(lockregistry.WithClientID(id)))
				}
				servesInOrder(w, all, func(r *lockregistry.Registry) error {
					_, err := r.Acquire(w.Context(), "42", lockregistry.AtMost(2*time.Second))
					return err
				})
			})
		})
	}
}

// The same when many short leases end.
func TestQueue_ManyTicketsAreServedInOrderWhenLeasesEnd(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(ctx context.Context, r *lockregistry.Registry) error{
		"Lock": func(ctx context.Context, r *lockregistry.Registry) error {
			return r.Obtain("42").Lock(ctx, lockregistry.Lease(time.Second)) // nothing renews it
		},
		"Acquire": func(ctx context.Context, r *lockregistry.Registry) error {
			_, err := r.Acquire(ctx, "42", lockregistry.AtMost(time.Second))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				var all []*lockregistry.Registry
				for i := range 8 {
					all = append(all, w.Registry(lockregistry.WithClientID(strconv.Itoa(i))))
				}
				servesInOrder(w, all, func(r *lockregistry.Registry) error { return wait(w.Context(), r) })
			})
		})
	}
}

// A call that gives up leaves nothing in the queue, and is passed over.
func TestQueue_WhoGivesUpLeavesTheQueue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts   []lockregistry.LockOption
		ends   func(m *kit.Member, cancel context.CancelFunc)
		reason error
	}{
		"cancelled": {nil, func(_ *kit.Member, cancel context.CancelFunc) { cancel() }, context.Canceled},
		"timed out": { // by then it must have a ticket, with another one behind it
			[]lockregistry.LockOption{lockregistry.Wait(4 * time.Second)},
			func(*kit.Member, context.CancelFunc) {}, lockregistry.ErrTaken,
		},
		"closed": {nil, func(m *kit.Member, _ context.CancelFunc) { _ = m.Reg.Close() }, lockregistry.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				var all []time.Duration
				for range 3 {
					holder := w.Registry().Obtain("42")
					w.Lock(holder)
					ctx, cancel := context.WithCancel(w.Context())
					first := &kit.Member{Goroutine: w.Goroutine(), Net: w.Flaky()}
					first.Reg = first.Net.Registry(lockregistry.WithPollInterval(kit.NoPoll))
					first.Lock = first.Reg.Obtain("42")
					first.Waits(ctx, c.opts...)
					second := w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll))
					c.ends(first, cancel)
					require.ErrorIs(w, <-first.Result, c.reason)
					w.Await("its ticket is gone", func() bool { return w.Tickets() == 1 })
					w.Pending(second.Result)
					start := time.Now()
					w.Unlock(holder)
					all = append(all, w.Takes(start, second.Result))
					require.NoError(w, second.Unlock(second.Lock))
					w.LeftNothing()
					cancel()
				}
				w.Within(50*time.Millisecond, all)
			})
		})
	}
}

// A grant that crosses with the end of its call is passed on, whichever of the two is late.
func TestQueue_GrantThatCrossesWithTheEnd(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]string{"the grant is late": kit.Grant, "the leave is late": "release"} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				var all []time.Duration
				for range 3 {
					holder := w.Registry(kit.WithWakeup(kit.WakeupTracking)).Obtain("42") // opens no short windows
					w.Lock(holder)
					ctx, cancel := context.WithCancel(w.Context())
					ranks := w.Executed("zrank") // one for each ticket, and for each look at a ticket
					first := w.Joins(ctx, lockregistry.WithPollInterval(kit.NoPoll), kit.WithWakeup(kit.WakeupPubSub))
					second := w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll))
					tries, since := 0, time.Now()
					w.Await("the first one has looked, and sleeps", func() bool {
						looks := first.Net.Seen(netfault.Match{Name: "obtain", Asks: "check"}) // once it has subscribed
						if now := first.Net.Count("obtain"); now != tries || len(looks) == 0 || w.Executed("zrank") < ranks+3 {
							tries, since = now, time.Now()
						}
						return time.Since(since) > 30*time.Millisecond
					})
					until := make(chan struct{})
					deliver := sync.OnceFunc(func() { close(until) })
					w.Cleanup(deliver)
					first.Net.Fates(late, kit.HeldUp(until))
					owner := w.Do("GET", kit.TheKey)
					var start time.Time
					if late == kit.Grant {
						w.Unlock(holder)
						w.Await("the first one owns the key", func() bool { return w.Do("GET", kit.TheKey) != owner })
						start = time.Now()
						cancel()
						if err := <-first.Result; err == nil && first.Net.Count("obtain") > tries { // it has just looked by itself
							require.NoError(w, first.Unlock(first.Lock))
						} else {
							require.ErrorIs(w, err, context.Canceled)
						}
					} else {
						cancel()
						require.ErrorIs(w, <-first.Result, context.Canceled)
						w.Await("it is about to leave", func() bool { return first.Net.Count("release") > 0 })
						require.Equal(w, 2, w.Tickets())
						w.Unlock(holder)
						w.Await("the first one owns the key", func() bool { return w.Do("GET", kit.TheKey) != owner })
						w.Pending(second.Result)
						start = time.Now()
						deliver()
					}
					all = append(all, w.Takes(start, second.Result))
					deliver()
					require.NoError(w, second.Unlock(second.Lock))
					w.Await("nothing is left", func() bool { return w.Free(kit.TheKey) && w.Tickets() == 0 })
				}
				w.Within(100*time.Millisecond, all)
			})
		})
	}
}

// A call whose grant message is lost finds the grant by looking, before it is over.
func TestQueue_LostGrant(t *testing.T) {
	t.Parallel()
	lost := func(w *kit.World, mode kit.Wakeup) {
		holder := w.Registry(kit.WithWakeup(mode)).Obtain("42")
		w.Lock(holder)
		m := w.Joins(w.Context(), kit.WithWakeup(mode))
		m.Net.Fates(kit.Grant, kit.Fate{Lost: true})
		// A release more than 100 ms after the last window would leave the key free for a moment instead of granting it. So the last
		// window is set to just now; on a busy machine even that may be too long ago.
		for rounds := 1; ; rounds++ {
			w.Pending(m.Result)
			if !w.Fake {
				w.Do("EVAL", `local time = redis.call('TIME')
					local now = -time[1] * 1000 - math.floor(time[2] / 1000)
					redis.call('ZADD', KEYS[1], now, 'open', now, 'wide')`, "1", kit.TheQueue)
			}
			start := time.Now()
			w.Unlock(holder)
			require.NoError(w, <-m.Result)
			took, limit := time.Since(start), kit.AtOnce
			if w.Fake {
				limit = 1500 * time.Millisecond
			}
			w.Log(took)
			require.LessOrEqual(w, took, limit)
			require.NoError(w, m.Unlock(m.Lock))
			if m.Net.Count(kit.Grant) > 0 {
				break
			}
			require.Less(w, rounds, 20)
			w.Lock(holder)
			m.Waits(w.Context())
		}
		w.LeftNothing()
	}
	t.Run("miniredis", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			w.WithQueues()
			lost(w, kit.WakeupPubSub)
		})
	})
	for name, mode := range kit.Wakeups {
		t.Run(name, func(t *testing.T) { kit.RealWorlds(t, func(w *kit.World) { lost(w, mode) }) })
	}
}

// A stopped process that the server still counts as a subscriber is granted the lock in vain. It blocks those behind it for
// little longer than the short lease of a grant, and so does each of several such processes.
func TestQueue_GrantToAProcessThatStandsStill(t *testing.T) {
	t.Parallel()
	for dead, limit := range map[int]time.Duration{1: 1500 * time.Millisecond, 2: 2700 * time.Millisecond} {
		t.Run(strconv.Itoa(dead), func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				holder := w.Registry().Obtain("42")
				w.Lock(holder)
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				for range dead {
					m := w.Joins(ctx)
					m.Net.Hang()
					defer m.Net.ReconnectNow()
				}
				alive := w.Joins(w.Context())
				start := time.Now()
				w.Unlock(holder)
				took := w.Takes(start, alive.Result)
				w.Log(took)
				require.LessOrEqual(w, took, limit+30*w.Bystander())
				require.Zero(w, w.Tickets())
			})
		})
	}
}

// When the process is resumed, it has its place again, in front of those that came after it.
func TestQueue_AMissedGrantCostsNoPlace(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		holder := w.Registry().Obtain("42")
		w.Lock(holder)
		stands := w.Joins(w.Context())
		second, third := w.Joins(w.Context()), w.Joins(w.Context())
		stands.Net.Hang()
		w.Unlock(holder)
		require.NoError(w, <-second.Result)
		w.Pending(stands.Result)
		require.Equal(w, 1, w.Tickets())
		stands.Net.ReconnectNow()
		w.Await("its ticket is back", func() bool { return w.Tickets() == 2 })
		require.NoError(w, second.Unlock(second.Lock))
		require.NoError(w, <-stands.Result)
		w.Pending(third.Result)
		require.NoError(w, stands.Unlock(stands.Lock))
		require.NoError(w, <-third.Result)
		require.NoError(w, third.Unlock(third.Lock))
	})
}

// Calls keep coming and giving up, in several processes, and some messages are lost. Two never have the lock at the same time,
// there is progress, and nothing stays behind.
func TestQueue_GivingUpInTheQueue(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		losses bool
		layout observe.Layout
	}{
		"spring":                  {false, observe.LayoutSpring},
		"redisson":                {false, observe.LayoutRedisson},
		"spring, grants are lost": {true, observe.LayoutSpring},
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				const processes, goroutines, lasts = 4, 3, time.Second
				var all sync.WaitGroup
				var inside, entered, gaveUp atomic.Int32
				begin := time.Now()
				registries := make([]*lockregistry.Registry, 0, processes)
				for i := range processes {
					f := w.Flaky()
					r := f.Registry(kit.WithLayout(c.layout), lockregistry.WithHandoff(time.Duration(i%2)*5*time.Millisecond))
					registries = append(registries, r)
					l := r.Obtain("42")
					for range goroutines {
						all.Go(func() {
							// On a busy machine few of these calls have enough time for a lock.
							rare := func() bool { return min(entered.Load(), gaveUp.Load()) <= 100 && time.Since(begin) < time.Minute }
							for time.Since(begin) < lasts || rare() {
								if c.losses && rand.N(20) == 0 {
									f.Fates(kit.Grant, kit.Fate{Lost: true})
								}
								ctx, cancel := context.WithTimeout(w.Context(), rand.N(40*time.Millisecond))
								err := l.Lock(ctx)
								if err == nil {
									if inside.Add(1) != 1 {
										w.Error("two are inside")
									}
									entered.Add(1)
									inside.Add(-1)
									if err := w.UnlessBusy(l.Unlock(w.Context())); err != nil {
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
				w.Await("nothing is left", func() bool { return w.Free(kit.TheKey) && w.Tickets() == 0 })
				require.Less(w, time.Since(start), kit.AtOnce)
				for _, r := range registries { // the registry works as usual
					w.Lock(r.Obtain("42"))
					w.Unlock(r.Obtain("42"))
				}
			})
		})
	}
}

// A process whose connection is gone is skipped.
func TestQueue_DeadProcessIsSkipped(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		var all []time.Duration
		for range 3 {
			holder := w.Registry().Obtain("42")
			w.Lock(holder)
			ctx, cancel := context.WithCancel(w.Context())
			dead, channel := w.JoinsOn(ctx, lockregistry.WithPollInterval(kit.NoPoll))
			alive := w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll))
			dead.Net.Down()
			w.Await("the server has noticed", func() bool { return !slices.Contains(w.Channels(), channel) })
			start := time.Now()
			w.Unlock(holder)
			all = append(all, w.Takes(start, alive.Result))
			require.NoError(w, alive.Unlock(alive.Lock))
			cancel()
			require.ErrorIs(w, <-dead.Result, context.Canceled)
			dead.Net.Forget()
		}
		w.Within(50*time.Millisecond, all)
	})
}

// Whatever happens to the queue, a waiting call gets the lock at once, and a line is logged if there can be no queue.
func TestQueue_ThatIsGone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, while []string // commands
		lines         int
	}{
		"deleted":                  {nil, []string{"DEL", kit.TheQueue}, 0},
		"expired":                  {nil, []string{"PEXPIRE", kit.TheQueue, "1"}, 0},
		"another type":             {[]string{"SET", kit.TheQueue, "x"}, nil, 1},
		"another type in the wait": {nil, []string{"SET", kit.TheQueue, "x"}, 1},
		"not permitted":            {[]string{"ACL", "SETUSER", "app", "resetkeys", "~" + kit.TheKey}, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				app := w.Allowed()
				if c.before != nil {
					w.Do(c.before...)
				}
				var log kit.Journal
				holder := w.Waker(kit.WakeupAuto).Obtain("42")
				r := w.RegistryOn(w.ClientWith(w.Dial, app), lockregistry.WithPollInterval(kit.NoPoll), log.Option())
				l := r.Obtain("42")
				for range 3 {
					w.Lock(holder)
					g := w.Goroutine()
					result := g.Starts(l)
					w.Watched()
					w.Pending(result)
					if c.while != nil {
						w.Do(c.while...)
					}
					start := time.Now()
					w.Unlock(holder)
					w.Log(w.Takes(start, result))
					require.NoError(w, g.Unlock(l))
				}
				require.True(w, w.Free(kit.TheKey))
				log.Await(w, c.lines, "refuses the queue")
				require.Len(w, log.Lines(), c.lines, "%s", log.Lines())
			})
		})
	}
}

// A granted hold soon has its full lease, and goroutines of the process can hand it on even before that.
func TestQueue_GrantIsLengthened(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		// On a busy machine a grant of a second may be over before its renewal arrives, and it is not handed on when little of it is
		// left.
		lengthened := func() (after time.Duration, lost bool) {
			holder := w.Registry().Obtain("42")
			w.Lock(holder)
			m := w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll), lockregistry.WithHandoff(time.Minute))
			next := w.Goroutine()
			nexts := next.Starts(m.Lock)
			w.Unlock(holder)
			require.NoError(w, <-m.Result)
			start := time.Now()
			value := w.Do("GET", kit.TheKey)
			err := m.Unlock(m.Lock)
			require.NoError(w, <-nexts)
			if lost = kit.LeaseOver(err); lost {
				require.NoError(w, next.Unlock(m.Lock))
				return 0, true
			}
			require.NoError(w, err)
			handed := w.Do("GET", kit.TheKey) == value
			if ctx := next.Watch(m.Lock); handed {
				w.Await("the full lease, or its loss", func() bool { return ctx.Err() != nil || w.Pttl(kit.TheKey) > 50*time.Second })
			}
			after, err = time.Since(start), next.Unlock(m.Lock)
			if lost = kit.LeaseOver(err); !lost {
				require.NoError(w, err)
			}
			return after, lost || !handed
		}
		var all []time.Duration
		w.Await("three grants that last", func() bool {
			if after, lost := lengthened(); !lost {
				all = append(all, after)
			}
			return len(all) == 3
		})
		w.Within(600*time.Millisecond, all)
	})
}

// A window for calls without a ticket is due when tickets have kept the key from them for a while. A long hold of a lock that
// was free does not count, so the call behind it gets the lock at once. The same if nobody has waited for a while, but not
// every time.
func TestQueue_ALongHoldIsFollowedAtOnce(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		// passes makes times in the queue as old as if the server's clock had advanced.
		passes := func(d time.Duration, members ...string) {
			w.Do(append([]string{"EVAL", `for _, member in ipairs(ARGV) do
				local score = tonumber(redis.call('ZSCORE', KEYS[2], member) or 0)
				if score < -1 then redis.call('ZINCRBY', KEYS[2], KEYS[1], member) end
			end`, "2", strconv.FormatInt(d.Milliseconds(), 10), kit.TheQueue}, members...)...)
		}
		const due = 20 * time.Second // then a window is due, whether or not a process has learned in time that no such call is there
		holder := w.Registry().Obtain("42")
		told := uint64(0) // windows that the process knew of
		// follows has another process follow a long hold, and reports whether it had to wait for a window.
		follows := func() (window bool) {
			w.Lock(holder)
			since, m := time.Now(), w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll))
			w.Await("its release looks for windows", func() bool {
				return time.Since(since) > 150*time.Millisecond && w.Tickets() == 1
			})
			passes(due, "open", "wide")
			w.Unlock(holder)
			require.NoError(w, <-m.Result)
			told = m.Reg.Stats().Windows
			require.NoError(w, m.Unlock(m.Lock))
			window = w.Do("ZSCORE", kit.TheQueue, "open") == wide(w)
			passes(3*time.Second, "open", "wide")
			return window
		}
		follows() // the rush begins
		require.False(w, follows(), "it was put off")
		require.Zero(w, told)
		require.True(w, follows(), "but not twice")
		require.LessOrEqual(w, told, uint64(1)) // on a busy machine it looks only when the window is over
		require.False(w, follows())

		// Goroutines of one process get it at once, too, even after the handoff limit.
		g := w.Goroutine()
		w.Do("DEL", kit.TheQueue)
		const atOnce = 50 * time.Millisecond // a window is longer
		var all []time.Duration
		for len(all) < 2 || len(all) < 20 && slices.Min(all) > atOnce {
			w.Lock(holder)
			since, next := time.Now(), g.Starts(holder)
			w.Await("its time is over", func() bool { return time.Since(since) > 150*time.Millisecond })
			start := time.Now()
			w.Unlock(holder)
			all = append(all, w.Takes(start, next))
			require.NoError(w, g.Unlock(holder))
			passes(3*time.Second, "open", "wide")
		}
		w.Within(atOnce, all)

		// Processes that take the lock from each other leave a window when it is due, however long each has the lock.
		w.Lock(holder)
		since := time.Now()
		a := w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll))
		b := w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll))
		w.Await("its release looks for windows", func() bool {
			return time.Since(since) > 150*time.Millisecond && w.Tickets() == 2
		})
		w.Unlock(holder)
		require.NoError(w, <-a.Result)
		passes(due, "open", "wide")
		w.Do("EVAL", `return redis.call('ZINCRBY', KEYS[1], -ARGV[1], redis.call('ZRANGE', KEYS[1], '-1', '-1')[1])`,
			"1", kit.TheQueue, strconv.FormatInt(due.Microseconds(), 10))
		start := time.Now()
		require.NoError(w, a.Unlock(a.Lock))
		w.Takes(start, b.Result)
		require.GreaterOrEqual(w, time.Since(start), 100*time.Millisecond)
		require.NoError(w, b.Unlock(b.Lock))
	})
}

// A try without waiting is noticed if another one has failed just before: somebody tries again and again.
func TestQueue_WhoTriesAgainAndAgainIsSeen(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		holder := w.Registry().Obtain("42")
		w.Lock(holder)
		m := w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll))
		w.Await("the ticket", func() bool { return w.Do("ZCARD", kit.TheQueue) == "3" })
		l := w.Registry().Obtain("42")
		tries := func() {
			ok, err := l.TryLock(w.Context())
			require.NoError(w, err)
			require.False(w, ok)
		}
		tries()
		require.NotContains(w, wide(w), ".5", "once")
		tries()
		require.Contains(w, wide(w), ".5")
		w.Unlock(holder)
		require.NoError(w, <-m.Result)
		require.NoError(w, m.Unlock(m.Lock))
	})
}

// If the key goes away while tickets wait, the first call gets the lock at once.
func TestQueue_KeyThatGoesAway(t *testing.T) {
	t.Parallel()
	for name, command := range map[string][]string{
		"deleted": {"DEL", kit.TheKey},
		"renamed": {"RENAME", kit.TheKey, "elsewhere"},
		"expired": {"PEXPIRE", kit.TheKey, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				var all []time.Duration
				for range 5 {
					w.Do("SET", kit.TheKey, "somebody", "PX", "600000")
					var queue []*kit.Member
					for range 3 {
						queue = append(queue, w.Joins(w.Context(), lockregistry.WithPollInterval(kit.NoPoll)))
					}
					w.Watched()
					start := time.Now()
					w.Do(command...)
					all = append(all, w.Takes(start, queue[0].Result))
					for i, m := range queue {
						for _, later := range queue[i+1:] {
							w.Pending(later.Result)
						}
						require.NoError(w, m.Unlock(m.Lock))
						if i < len(queue)-1 {
							w.Takes(time.Now(), queue[i+1].Result)
						}
					}
					w.Do("DEL", "elsewhere")
					w.LeftNothing()
				}
				w.Within(50*time.Millisecond, all)
			})
		})
	}
}

// With WakeupPubSub nothing reports a key that goes away silently. Then the first in the queue polls, and no other call does.
func TestQueue_FirstInTheQueuePolls(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const poll = 50 * time.Millisecond
		w.Do("SET", kit.TheKey, "somebody", "PX", "600000")
		opts := []lockregistry.Option{kit.WithWakeup(kit.WakeupPubSub), lockregistry.WithPollInterval(poll)}
		first, second := w.Joins(w.Context(), opts...), w.Joins(w.Context(), opts...)
		before := second.Net.Count("obtain")
		tries := first.Net.Count("obtain")
		const polls = 20
		w.Await("it polls", func() bool { return first.Net.Count("obtain") >= tries+polls })
		// The second call looks for the first time after a second, and then every five: a busy machine may need that long for the
		// polls.
		require.LessOrEqual(w, second.Net.Count("obtain")-before, polls/4)
		w.Pending(first.Result)
		start := time.Now()
		w.Do("DEL", kit.TheKey)
		w.Log(w.Takes(start, first.Result))
		require.NoError(w, first.Unlock(first.Lock))
		w.Takes(start, second.Result)
		require.NoError(w, second.Unlock(second.Lock))
		w.LeftNothing()
	})
}

// A server before version 7 may replicate whole scripts. Then it refuses their writes once they have asked for the time, unless
// they have first switched to replicating commands. Queues, windows and grants work all the same. Newer servers do not have the
// setting.
func TestQueue_QueuesWhereScriptsAreReplicatedWhole(t *testing.T) {
	t.Parallel()
	for name, locks := range map[string]func(r *lockregistry.Registry) []*lockregistry.Lock{
		"plain": func(r *lockregistry.Registry) []*lockregistry.Lock { return []*lockregistry.Lock{r.Obtain("42")} },
		"read-write": func(r *lockregistry.Registry) []*lockregistry.Lock {
			return []*lockregistry.Lock{r.ReadWrite("42").Reader(), r.ReadWrite("42").Writer()}
		},
	} {
		for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
			t.Run(fmt.Sprint(name, ", ", layout), func(t *testing.T) {
				kit.RealWorlds(t, func(w *kit.World) {
					lasts := 200 * time.Millisecond
					if w.Do("EVAL", "return redis.REDIS_VERSION_NUM and 'yes' or 'no'", "0") == "no" {
						w.Do("CONFIG", "SET", "lua-replicate-commands", "no")
						defer w.Do("CONFIG", "SET", "lua-replicate-commands", "yes")
						lasts = 2500 * time.Millisecond // windows of both kinds
					}
					var log kit.Journal
					var all sync.WaitGroup
					var sections atomic.Int64
					end := time.Now().Add(lasts)
					for range 3 {
						r := w.Registry(log.Option(), kit.WithLayout(layout), lockregistry.WithPollInterval(kit.NoPoll))
						for _, l := range locks(r) {
							all.Go(func() {
								few := func() bool { return sections.Load() <= 100 && time.Since(end) < time.Minute }
								for time.Now().Before(end) || few() {
									if err := w.Answer(func() error { return l.Lock(w.Context()) }); err != nil {
										w.Error(err)
										return
									}
									sections.Add(1)
									if err := w.UnlessBusy(l.Unlock(w.Context())); err != nil {
										w.Error(err)
									}
								}
							})
						}
					}
					all.Wait()
					require.Empty(w, log.Lines())
					require.Greater(w, sections.Load(), int64(100))
				})
			})
		}
	}
}
