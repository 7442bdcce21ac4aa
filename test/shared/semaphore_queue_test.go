package shared_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// stoppable names a variable for a process that asks for two permits.
const stoppable = "LOCKREGISTRY_STOPPABLE"

// A process is stopped while its call is the first in the queue. A permit that is not enough for that call is soon given to
// others behind it. When the process is resumed, the call has its place again.
func TestSemaphoreQueue_FirstOneIsStopped(t *testing.T) {
	if addr := os.Getenv(stoppable); addr != "" {
		takeTwo(t, addr)
		return
	}
	kit.RealWorlds(t, func(w *kit.World) {
		one, two := w.Registry().Semaphore("seat", 2), w.Registry().Semaphore("seat", 2)
		held := w.Permit(one)
		self, err := os.Executable()
		require.NoError(w, err)
		child := exec.CommandContext(w.Context(), self, "-test.run", "^TestSemaphoreQueue_FirstOneIsStopped$")
		child.Env, child.Stderr = append(os.Environ(), stoppable+"="+w.Server.Addr()), os.Stderr
		in, err := child.StdinPipe()
		require.NoError(w, err)
		out, err := child.StdoutPipe()
		require.NoError(w, err)
		require.NoError(w, child.Start())
		says := make(chan string, 9)
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				says <- lines.Text()
			}
			close(says)
		}()
		w.Await("it waits", func() bool { return w.Seats() == 1 })
		queue := "orders:{" + kit.SeatKey + "}:waiters"
		small := w.Asks("small", two)
		w.Await("it was asked, and has looked", func() bool {
			return w.Do("ZSCORE", queue, "wide") != "-1" &&
				!strings.Contains(w.Do("ZRANGEBYSCORE", queue, "0", "+inf", "WITHSCORES", "LIMIT", "0", "1"), ".5")
		})
		require.NoError(w, kit.Stop(child.Process))

		start := time.Now()
		full(w, two)
		got := small.Comes()
		require.Less(w, time.Since(start), 2400*time.Millisecond+kit.AtOnce)
		require.Equal(w, 2, w.Inside())
		later := w.Asks("later", two)
		require.NoError(w, kit.Continue(child.Process))
		w.Await("it is the first one again", func() bool {
			return strings.Contains(w.Do("ZRANGEBYSCORE", queue, "0", "+inf", "LIMIT", "0", "1"), "p2") && w.Seats() == 2
		})
		w.Release(held)
		awaitWaiting(later)
		w.Release(got)
		require.Equal(w, "has two", <-says)
		awaitWaiting(later)
		_, err = io.WriteString(in, "go on\n")
		require.NoError(w, err)
		w.Release(later.Comes())
		for range says {
		}
		require.NoError(w, child.Wait())
		require.Zero(w, w.Inside())
	})
}

func takeTwo(t *testing.T, addr string) {
	t.Helper()
	client, err := kit.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	require.NoError(t, err)
	defer client.Close()
	r, err := lockregistry.New(client, "orders")
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	h, err := r.Semaphore("seat", 2).Acquire(t.Context(), lockregistry.Permits(2))
	require.NoError(t, err)
	fmt.Println("has two")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	require.NoError(t, kit.UnlessLate(h.Release(t.Context())))
}

// A first call whose process runs is asked now and then, and permits are kept for it, however many calls come behind it.
func TestSemaphoreQueue_FirstOneRuns(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		s, f := w.Registry().Semaphore("seat", 2), w.Flaky()
		held := w.Permit(s)
		large := w.Asks("large", f.Registry().Semaphore("seat", 2), lockregistry.Permits(2))
		var small []*kit.Waiting
		for i := range 3 {
			small = append(small, w.Asks(strconv.Itoa(i), w.Registry().Semaphore("seat", 2)))
		}
		before := f.Count("obtain_queued")
		w.Await("it was asked again and again", func() bool { return f.Count("obtain_queued") > before+3 })
		for _, c := range append(small, large) {
			awaitWaiting(c)
		}
		require.Equal(w, 4, w.Seats())
		w.Release(held)
		w.Release(large.Comes())
		for _, c := range small {
			w.Release(c.Comes())
		}
	})
}

// What semaphores promise to waiting calls, on real servers; miniredis has no queue.

// Within a process and across processes, calls are served in order.
func TestSemaphoreQueue_FirstInFirstOut(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		one, two := w.Registry(), w.Registry()
		a, b := one.Semaphore("seat", 2), two.Semaphore("seat", 2)
		holds := []*lockregistry.Hold{w.Permit(a), w.Permit(b)}
		var calls []*kit.Waiting
		for i := range 9 {
			s := a
			if i%3 == 0 {
				s = b
			}
			calls = append(calls, w.Asks(strconv.Itoa(i), s))
			full(w, a)
		}
		for i, c := range calls {
			for _, later := range calls[i:] {
				awaitWaiting(later)
			}
			w.Release(holds[0])
			holds = append(holds[1:], c.Comes())
			require.Equal(w, 2, w.Inside())
		}
		w.Release(holds...)
		require.Zero(w, w.Inside())
	})
}

// A call for several permits gets all or none, and nobody behind it gets in first, with or without waiting.
func TestSemaphoreQueue_Several(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		a, b := w.Registry().Semaphore("seat", 4), w.Registry().Semaphore("seat", 4)
		holds := []*lockregistry.Hold{w.Permit(a), w.Permit(a), w.Permit(b)}
		large := w.Asks("large", a, lockregistry.Permits(3))
		full(w, a)
		full(w, b)
		small := w.Asks("small", b)
		w.Release(holds[0])
		require.Equal(w, 2, w.Inside())
		awaitWaiting(large)
		awaitWaiting(small)
		full(w, b)
		w.Release(holds[1])
		got := large.Comes()
		require.Equal(w, 4, w.Inside())
		awaitWaiting(small)
		w.Release(holds[2])
		holds[2] = small.Comes()
		full(w, a)
		w.Release(got) // lets three in at once
		calls := []*kit.Waiting{w.Asks("large", a, lockregistry.Permits(4))}
		for i := range 3 {
			calls = append(calls, w.Asks(strconv.Itoa(i), b))
		}
		w.Release(holds[2])
		got = calls[0].Comes()
		w.Release(got)
		w.Release(calls[1].Comes(), calls[2].Comes(), calls[3].Comes())
		require.Zero(w, w.Inside())
	})
}

// Small calls that keep coming do not keep a large one out.
func TestSemaphoreQueue_LargeOneIsNotStarved(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		ctx, cancel := context.WithCancel(w.Context())
		var all sync.WaitGroup
		var entered atomic.Int32
		for range 3 {
			s := w.Registry().Semaphore("seat", 4)
			for range 4 {
				all.Go(func() {
					for ctx.Err() == nil {
						if err := w.UnlessBusy(s.Do(ctx, func(context.Context) error {
							entered.Add(1)
							<-time.After(time.Millisecond)
							return nil
						})); err != nil && ctx.Err() == nil {
							w.Error(err)
						}
					}
				})
			}
		}
		s, queue := w.Registry().Semaphore("seat", 4), "orders:{"+kit.SeatKey+"}:waiters"
		w.Await("they are at it", func() bool { return entered.Load() > 50 })
		for range 5 {
			got, failed := make(chan *lockregistry.Hold, 1), make(chan error, 1)
			go func() {
				h, err := s.Acquire(w.Context(), lockregistry.Permits(4), lockregistry.Wait(10*time.Second))
				got <- h
				failed <- err
			}()
			w.Await("its ticket", func() bool { // others keep coming until it has one
				return len(got) > 0 || strings.Contains(w.Do("ZRANGEBYSCORE", queue, "0", "+inf"), "p4")
			})
			before := entered.Load()
			h := <-got
			require.NoError(w, <-failed)
			require.Less(w, entered.Load()-before, int32(60), "they came before, or were in")
			require.Equal(w, 4, w.Inside())
			w.Release(h)
		}
		cancel()
		all.Wait()
		w.Await("all are out", func() bool { return w.Inside() == 0 })
	})
}

// Permits of a dead process go to the next call when their lease is over, and nobody waits for dead waiting calls.
func TestSemaphoreQueue_ExpiredAndDead(t *testing.T) {
	t.Parallel()
	for name, dead := range map[string]int{"the first waits": 0, "the first is dead": 1, "the first two are": 2} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				gone := w.Flaky()
				lost := gone.Registry().Semaphore("seat", 2)
				asked := time.Now()
				require.NotNil(w, w.Permit(lost, lockregistry.Lease(6*time.Second), lockregistry.Permits(2)))
				start := time.Now() // the lease began between these two moments
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				for i := range dead {
					f := w.Flaky()
					w.AsksWith(ctx, fmt.Sprint("dead ", i), f.Registry().Semaphore("seat", 2), lockregistry.Permits(2))
					f.Down()
				}
				gone.Down()
				living := []*kit.Waiting{w.Asks("one", w.Registry().Semaphore("seat", 2)), w.Asks("two", w.Registry().Semaphore("seat", 2))}
				h := living[0].Comes()
				require.Greater(w, time.Since(asked), 5900*time.Millisecond)
				require.Less(w, time.Since(start), 6*time.Second+time.Duration(dead+1)*100*time.Millisecond+kit.AtOnce)
				w.Release(h, living[1].Comes())
			})
		})
	}
}

// A stopped process has many calls in front of others, which do not wait for each of them. The same if the key would end with
// the grant, since all leases are short.
func TestSemaphoreQueue_ProcessStandsStill(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]string{"long leases": "60000", "short leases": "1000"} {
		t.Run(name, func(t *testing.T) { processStandsStill(t, left) })
	}
}

func processStandsStill(t *testing.T, left string) {
	t.Helper()
	kit.RealWorlds(t, func(w *kit.World) {
		a, f := w.Registry().Semaphore("seat", 1), w.Flaky()
		h := w.Permit(a)
		frozen := w.Client()
		ctx, cancel := context.WithCancel(w.Context())
		var heard sync.WaitGroup
		heard.Go(func() {
			_ = frozen.Receive(ctx, frozen.B().Subscribe().Channel("orders-channel@frozen").Build(), func(rueidis.PubSubMessage) {})
		})
		defer heard.Wait()
		defer cancel()
		w.Await("it listens", func() bool { return w.Do("PUBLISH", "orders-channel@frozen", "any") == "1" })
		for i := range 50 {
			w.Do("EVAL", `local time = redis.call('TIME')
				redis.call('ZADD', KEYS[1], -time[1] * 1000 + 60000, 'open', -1, 'wide')
				return redis.call('ZADD', KEYS[1], string.format('%.0f', time[1] * 1000000 - 60000000 + ARGV[1]), ARGV[2])`,
				"1", "orders:{"+kit.SeatKey+"}:waiters", strconv.Itoa(i), "frozen:179527837120411"+strconv.Itoa(i)+"|30000p1")
		}
		living := w.Asks("living", f.Registry().Semaphore("seat", 1))
		w.Await("it has looked, and does so again after half a minute", func() bool { return f.Count("obtain_queued") > 1 })
		require.Equal(w, "1", w.Do("PEXPIRE", kit.SeatKey, left))
		start := time.Now()
		w.Release(h)
		w.Release(living.Comes())
		require.Less(w, time.Since(start), 1100*time.Millisecond+kit.AtOnce)
	})
}

// A large call that is first, and gives up or dies, does not keep out calls behind it for which there is room.
func TestSemaphoreQueue_LargeOneLeaves(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		s := w.Registry().Semaphore("seat", 2)
		h := w.Permit(s)
		ctx, cancel := context.WithCancel(w.Context())
		large := w.AsksWith(ctx, "large", w.Registry().Semaphore("seat", 2), lockregistry.Permits(2))
		small := w.Asks("small", s)
		awaitWaiting(small)
		cancel()
		require.ErrorIs(w, <-large.Err, context.Canceled)
		start := time.Now()
		w.Release(small.Comes())
		require.Less(w, time.Since(start), kit.AtOnce)

		f := w.Flaky()
		ctx, cancel = context.WithCancel(w.Context())
		defer cancel()
		w.AsksWith(ctx, "dead", f.Registry().Semaphore("seat", 2), lockregistry.Permits(2))
		f.Down()
		got, ok, err := kit.TryAcquire(w.Context(), s)
		w.Await("its connection is closed", func() bool {
			if err == nil && !ok {
				got, ok, err = kit.TryAcquire(w.Context(), s)
			}
			return ok || err != nil
		})
		require.NoError(w, err)
		w.Release(h, got)
	})
}

// A call that gives up leaves neither a ticket nor a permit, even if it crosses with a grant; and no other call of its process
// loses its place.
func TestSemaphoreQueue_GivesUp(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		a, b := w.Registry().Semaphore("seat", 1), w.Registry().Semaphore("seat", 1)
		for range 20 {
			h := w.Permit(a)
			before := w.Asks("before", b)
			ctx, cancel := context.WithCancel(w.Context())
			middle := w.AsksWith(ctx, "middle", b)
			after := w.Asks("after", b)
			w.Release(h)
			got := before.Comes()
			go cancel()
			w.Release(got)
			select {
			case err := <-middle.Err:
				require.ErrorIs(w, err, context.Canceled)
			case got = <-middle.Got:
				w.Release(got)
			}
			w.Release(after.Comes())
			w.Await("nothing is left", func() bool { return w.Inside() == 0 && w.Seats() == 0 })
		}
	})
}

// Replies to waiting calls are lost, and connections break: each call still has a place, and gets in.
func TestSemaphoreQueue_LostReplies(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		f := w.Flaky()
		a, b := w.Registry().Semaphore("seat", 1), f.Registry().Semaphore("seat", 1)
		for _, what := range []kit.Fate{kit.CutAfter, kit.Cut, kit.Refused(kit.Loading)} {
			h := w.Permit(a)
			first := w.Asks("first", b)
			third := w.Asks("third", a)
			f.Fates("obtain_queued", what) // so for a while there may be one more ticket
			second := w.Asks("second", b)
			f.ReconnectNow()
			w.Await("each has a ticket", func() bool { return w.Seats() == 3 })
			w.Release(h)
			for range 3 { // in any order: a release passes over calls that no message can reach right now
				got := (*lockregistry.Hold)(nil)
				select {
				case got = <-first.Got:
				case got = <-second.Got:
				case got = <-third.Got:
				case <-time.After(10 * time.Second):
					w.Fatal("nobody gets in")
				}
				require.Equal(w, 1, w.Inside())
				w.Release(got)
			}
			w.Await("nothing is left", func() bool { return w.Inside() == 0 && w.Seats() == 0 })
		}
	})
}

// Permits that are added go to waiting calls at once. A call for more permits than there are any more fails, and keeps nobody
// out.
func TestSemaphoreQueue_SetPermits(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		s := w.Registry().Semaphore("seat", 1)
		holds := []*lockregistry.Hold{w.Permit(s)}
		one, two, three := w.Asks("one", s), w.Asks("two", s), w.Asks("three", s, lockregistry.Wait(time.Minute))
		require.NoError(w, s.SetPermits(w.Context(), 3))
		holds = append(holds, one.Comes(), two.Comes())
		awaitWaiting(three)
		w.Release(holds[0])
		holds[0] = three.Comes()
		large, small := w.Asks("large", s, lockregistry.Permits(3)), w.Asks("small", s)
		start := time.Now()
		require.NoError(w, s.SetPermits(w.Context(), 2))
		err := <-large.Err
		require.Less(w, time.Since(start), kit.AtOnce, "it does not wait for its next look")
		require.ErrorContains(w, err, "a semaphore of 2 permits never has as many as 3")
		require.Empty(w, kit.SentinelsOf(err))
		w.Release(holds[0])
		awaitWaiting(small)
		w.Release(holds[1])
		w.Release(small.Comes(), holds[2])
		require.Zero(w, w.Inside())
	})
}

func (s *holders) leave(h *lockregistry.Hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.each, h)
}

// There are never more holders, by their own count, than permits, whatever the network does and however calls end. A call with
// enough time gets in, although most give up soon.
func TestSemaphoreQueue_NeverMoreThanThereAre(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const registries, goroutines, rounds, permits = 3, 5, 40, 3
		inside := &holders{each: map[*lockregistry.Hold]int{}}
		var acquired, failed atomic.Int32
		var all sync.WaitGroup
		for i := range registries {
			f := w.Flaky()
			w.Cleanup(f.Forget)
			s := f.Registry(lockregistry.WithLease(5*time.Second)).Semaphore("seat", permits)
			for g := range goroutines {
				all.Go(func() {
					random := rand.New(rand.NewPCG(uint64(i), uint64(g)))
					upTo := func(d time.Duration) time.Duration { return 1 + time.Duration(random.Int64N(int64(d))) }
					for range rounds {
						if g == 0 && random.IntN(3) == 0 { // no more faults than other commands use up
							fates := []kit.Fate{kit.Cut, kit.CutAfter, kit.Refused(kit.Loading), kit.SlowReply(upTo(100 * time.Millisecond))}
							name := []string{"obtain", "obtain_queued", "release", "renew"}[random.IntN(4)]
							f.Fates(name, fates[random.IntN(len(fates))])
						}
						wait, patient := upTo(400*time.Millisecond), g == 1
						if patient {
							wait = 20 * time.Second
						}
						ctx, cancel := context.WithTimeout(w.Context(), wait)
						each := 1 + random.IntN(permits)
						h, err := s.Acquire(ctx, lockregistry.Permits(each))
						cancel()
						if err != nil {
							failed.Add(1)
							if patient && !errors.Is(err, lockregistry.ErrUnavailable) {
								w.Error(err)
							}
							continue
						}
						acquired.Add(1)
						if n := inside.enter(h, each); n > permits {
							w.Errorf("%d at once", n)
						}
						<-time.After(upTo(4 * time.Millisecond))
						inside.leave(h)
						ctx, cancel = context.WithTimeout(w.Context(), upTo(50*time.Millisecond))
						_ = h.Release(ctx)
						cancel()
					}
				})
			}
		}
		all.Wait()
		w.Logf("%d acquired, %d failed, %d at once", acquired.Load(), failed.Load(), inside.most)
		require.Greater(w, acquired.Load(), int32(100))
		require.Equal(w, permits, inside.most)
		w.Await("nothing is left", func() bool { return w.Inside() == 0 && w.Seats() == 0 })
	})
}

// holders are the holds that have permits, as long as they can rely on them.
type holders struct {
	mu   sync.Mutex
	each map[*lockregistry.Hold]int
	most int
}

// enter adds a hold, and returns how many permits are held then.
func (s *holders) enter(h *lockregistry.Hold, each int) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.each[h] = each
	for other, has := range s.each {
		if other.Remaining() > 0 { // a stopped process does not know yet that its lease is over
			n += has
		}
	}
	s.most = max(s.most, n)
	return n
}
