package lockregistry_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// What semaphores promise to those who wait, on real servers; miniredis has no queue.

// Within a process and across processes.
func TestSemaphoreQueue_FirstInFirstOut(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		one, two := w.registry(), w.registry()
		a, b := one.Semaphore("seat", 2), two.Semaphore("seat", 2)
		holds := []*lockregistry.Hold{w.permit(a), w.permit(b)}
		var calls []*waiting
		for i := range 9 {
			s := a
			if i%3 == 0 {
				s = b
			}
			calls = append(calls, w.asks(strconv.Itoa(i), s))
			w.full(a)
		}
		for i, c := range calls {
			for _, later := range calls[i:] {
				later.waits()
			}
			w.release(holds[0])
			holds = append(holds[1:], c.comes())
			require.Equal(w, 2, w.inside())
		}
		w.release(holds...)
		require.Zero(w, w.inside())
	})
}

// A call for several gets all or none, and nobody behind it gets in before, waiting or not.
func TestSemaphoreQueue_Several(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		a, b := w.registry().Semaphore("seat", 4), w.registry().Semaphore("seat", 4)
		holds := []*lockregistry.Hold{w.permit(a), w.permit(a), w.permit(b)}
		large := w.asks("large", a, lockregistry.Permits(3))
		w.full(a)
		w.full(b)
		small := w.asks("small", b)
		w.release(holds[0])
		require.Equal(w, 2, w.inside())
		large.waits()
		small.waits()
		w.full(b)
		w.release(holds[1])
		got := large.comes()
		require.Equal(w, 4, w.inside())
		small.waits()
		w.release(holds[2])
		holds[2] = small.comes()
		w.full(a)
		w.release(got) // which lets three in at once
		calls := []*waiting{w.asks("large", a, lockregistry.Permits(4))}
		for i := range 3 {
			calls = append(calls, w.asks(strconv.Itoa(i), b))
		}
		w.release(holds[2])
		got = calls[0].comes()
		w.release(got)
		w.release(calls[1].comes(), calls[2].comes(), calls[3].comes())
		require.Zero(w, w.inside())
	})
}

// Small calls that come all the time do not keep a large one out.
func TestSemaphoreQueue_LargeOneIsNotStarved(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		ctx, cancel := context.WithCancel(w.Context())
		var all sync.WaitGroup
		var entered atomic.Int32
		for range 3 {
			s := w.registry().Semaphore("seat", 4)
			for range 4 {
				all.Go(func() {
					for ctx.Err() == nil {
						if err := s.Do(ctx, func(context.Context) error {
							entered.Add(1)
							<-time.After(time.Millisecond)
							return nil
						}); err != nil && ctx.Err() == nil {
							w.Error(err)
						}
					}
				})
			}
		}
		s := w.registry().Semaphore("seat", 4)
		w.await("they are at it", func() bool { return entered.Load() > 50 })
		for range 5 {
			before := entered.Load()
			h, err := s.Acquire(w.Context(), lockregistry.Permits(4), lockregistry.Wait(10*time.Second))
			require.NoError(w, err)
			require.Less(w, entered.Load()-before, int32(60), "they came before, or were in")
			require.Equal(w, 4, w.inside())
			w.release(h)
		}
		cancel()
		all.Wait()
		w.await("all are out", func() bool { return w.inside() == 0 })
	})
}

// Permits of a process that is gone are the next one's when their lease is over, and of waiting calls that are gone nobody waits.
func TestSemaphoreQueue_ExpiredAndDead(t *testing.T) {
	t.Parallel()
	for name, dead := range map[string]int{"the first waits": 0, "the first is dead": 1, "the first two are": 2} {
		t.Run(name, func(t *testing.T) {
			eachLayout(t, realWorlds, func(w *world) {
				gone := w.flaky()
				lost := gone.registry().Semaphore("seat", 2)
				require.NotNil(w, w.permit(lost, lockregistry.Lease(3*time.Second), lockregistry.Permits(2)))
				start := time.Now()
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				for i := range dead {
					f := w.flaky()
					w.asksWith(ctx, fmt.Sprint("dead ", i), f.registry().Semaphore("seat", 2), lockregistry.Permits(2))
					f.Down()
				}
				gone.Down()
				living := []*waiting{w.asks("one", w.registry().Semaphore("seat", 2)), w.asks("two", w.registry().Semaphore("seat", 2))}
				h := living[0].comes()
				took := time.Since(start)
				over := 3 * time.Second
				if w.redissons() { // whose clock may be ahead
					over = 4 * time.Second
				}
				require.Greater(w, took, over-100*time.Millisecond)
				require.Less(w, took, over+time.Duration(dead+1)*100*time.Millisecond+atOnce)
				w.release(h, living[1].comes())
			})
		})
	}
}

// A process stands still in front of others, with many calls: they do not wait for each of them, nor where the key would end with
// the grant, since all leases are short or are never lengthened.
func TestSemaphoreQueue_ProcessStandsStill(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]string{"long leases": "60000", "short leases": "1000"} {
		t.Run(name, func(t *testing.T) { processStandsStill(t, left) })
	}
}

func processStandsStill(t *testing.T, left string) {
	t.Helper()
	realWorlds(t, func(w *world) {
		a, f := w.registry().Semaphore("seat", 1), w.flaky()
		h := w.permit(a)
		frozen := w.client()
		ctx, cancel := context.WithCancel(w.Context())
		var heard sync.WaitGroup
		heard.Go(func() {
			_ = frozen.Receive(ctx, frozen.B().Subscribe().Channel("orders-channel@frozen").Build(), func(rueidis.PubSubMessage) {})
		})
		defer heard.Wait()
		defer cancel()
		w.await("it listens", func() bool { return w.do("PUBLISH", "orders-channel@frozen", "any") == "1" })
		for i := range 50 {
			w.do("EVAL", `local time = redis.call('TIME')
				redis.call('ZADD', KEYS[1], -time[1] * 1000 + 60000, 'open', -1, 'wide')
				return redis.call('ZADD', KEYS[1], string.format('%.0f', time[1] * 1000000 - 60000000 + ARGV[1]), ARGV[2])`,
				"1", "orders:{"+seat+"}:waiters", strconv.Itoa(i), "frozen:179527837120411"+strconv.Itoa(i)+"|30000p1")
		}
		living := w.asks("living", f.registry().Semaphore("seat", 1))
		w.await("it has looked, and does so again after half a minute", func() bool { return f.count("obtain_queued") > 1 })
		require.Equal(w, "1", w.do("PEXPIRE", seat, left))
		start := time.Now()
		w.release(h)
		w.release(living.comes())
		require.Less(w, time.Since(start), 1100*time.Millisecond+atOnce)
	})
}

// A large one that is first, and gives up or dies, does not keep out those behind it for whom there is room.
func TestSemaphoreQueue_LargeOneLeaves(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		s := w.registry().Semaphore("seat", 2)
		h := w.permit(s)
		ctx, cancel := context.WithCancel(w.Context())
		large := w.asksWith(ctx, "large", w.registry().Semaphore("seat", 2), lockregistry.Permits(2))
		small := w.asks("small", s)
		small.waits()
		cancel()
		require.ErrorIs(w, <-large.err, context.Canceled)
		start := time.Now()
		w.release(small.comes())
		require.Less(w, time.Since(start), atOnce)

		f := w.flaky()
		ctx, cancel = context.WithCancel(w.Context())
		defer cancel()
		w.asksWith(ctx, "dead", f.registry().Semaphore("seat", 2), lockregistry.Permits(2))
		f.Down()
		got, ok, err := s.TryAcquire(w.Context())
		w.await("its connection is closed", func() bool {
			if err == nil && !ok {
				got, ok, err = s.TryAcquire(w.Context())
			}
			return ok || err != nil
		})
		require.NoError(w, err)
		w.release(h, got)
	})
}

// A call that gives up leaves neither a ticket nor a permit, also when a grant crosses with it; and no other call of its process
// loses its place.
func TestSemaphoreQueue_GivesUp(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		a, b := w.registry().Semaphore("seat", 1), w.registry().Semaphore("seat", 1)
		for range 20 {
			h := w.permit(a)
			before := w.asks("before", b)
			ctx, cancel := context.WithCancel(w.Context())
			middle := w.asksWith(ctx, "middle", b)
			after := w.asks("after", b)
			w.release(h)
			got := before.comes()
			go cancel()
			w.release(got)
			select {
			case err := <-middle.err:
				require.ErrorIs(w, err, context.Canceled)
			case got = <-middle.got:
				w.release(got)
			}
			w.release(after.comes())
			w.await("nothing is left", func() bool { return w.inside() == 0 && w.seats() == 0 })
		}
	})
}

// Replies to calls that wait are lost, and connections break: each call has a place, and gets in.
func TestSemaphoreQueue_LostReplies(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		f := w.flaky()
		a, b := w.registry().Semaphore("seat", 1), f.registry().Semaphore("seat", 1)
		for _, what := range []fate{cutAfter, cut, refused(loading)} {
			h := w.permit(a)
			first := w.asks("first", b)
			third := w.asks("third", a)
			f.next("obtain_queued", what) // so a ticket more may be there for a while
			second := w.asks("second", b)
			f.reconnectNow()
			w.await("each has a ticket", func() bool { return w.seats() == 3 })
			w.release(h)
			for range 3 { // in any order: a release passes over those that nothing reaches at this moment
				got := (*lockregistry.Hold)(nil)
				select {
				case got = <-first.got:
				case got = <-second.got:
				case got = <-third.got:
				case <-time.After(10 * time.Second):
					w.Fatal("nobody gets in")
				}
				require.Equal(w, 1, w.inside())
				w.release(got)
			}
			w.await("nothing is left", func() bool { return w.inside() == 0 && w.seats() == 0 })
		}
	})
}

// Permits that are added are given to those who wait at once. One that asks for more than there are any more fails, and keeps out
// nobody.
func TestSemaphoreQueue_SetPermits(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		s := w.registry().Semaphore("seat", 1)
		holds := []*lockregistry.Hold{w.permit(s)}
		one, two, three := w.asks("one", s), w.asks("two", s), w.asks("three", s, lockregistry.Wait(time.Minute))
		require.NoError(w, s.SetPermits(w.Context(), 3))
		holds = append(holds, one.comes(), two.comes())
		three.waits()
		w.release(holds[0])
		holds[0] = three.comes()
		large, small := w.asks("large", s, lockregistry.Permits(3)), w.asks("small", s)
		start := time.Now()
		require.NoError(w, s.SetPermits(w.Context(), 2))
		err := <-large.err
		require.Less(w, time.Since(start), atOnce, "it does not wait for its next look")
		require.ErrorContains(w, err, "a semaphore of 2 permits never has as many as 3")
		require.Empty(w, about(err))
		w.release(holds[0])
		small.waits()
		w.release(holds[1])
		w.release(small.comes(), holds[2])
		require.Zero(w, w.inside())
	})
}

// holders are those who have permits, as long as they can rely on that.
type holders struct {
	mu   sync.Mutex
	each map[*lockregistry.Hold]int
	most int
}

// enter adds one, and returns how many permits are held then.
func (s *holders) enter(h *lockregistry.Hold, each int) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.each[h] = each
	for other, has := range s.each {
		if other.Remaining() > 0 { // a process that stands still does not know yet that its lease is over
			n += has
		}
	}
	s.most = max(s.most, n)
	return n
}

func (s *holders) leave(h *lockregistry.Hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.each, h)
}

// Holders, counted by their own word, are never more than there are permits, whatever the network does and however calls end. And
// a call that has time gets in, although most give up soon.
func TestSemaphoreQueue_NeverMoreThanThereAre(t *testing.T) {
	eachLayout(t, realWorlds, func(w *world) {
		const registries, goroutines, rounds, permits = 3, 5, 40, 3
		inside := &holders{each: map[*lockregistry.Hold]int{}}
		var acquired, failed atomic.Int32
		var all sync.WaitGroup
		for i := range registries {
			f := w.flaky()
			w.Cleanup(f.Forget)
			s := f.registry(lockregistry.WithLease(5*time.Second)).Semaphore("seat", permits)
			for g := range goroutines {
				all.Go(func() {
					random := rand.New(rand.NewPCG(uint64(i), uint64(g)))
					upTo := func(d time.Duration) time.Duration { return 1 + time.Duration(random.Int64N(int64(d))) }
					for range rounds {
						if g == 0 && random.IntN(3) == 0 { // no more than the others' commands use up
							fates := []fate{cut, cutAfter, refused(loading), slow(upTo(100 * time.Millisecond))}
							name := []string{"obtain", "obtain_queued", "release", "renew"}[random.IntN(4)]
							f.next(name, fates[random.IntN(len(fates))])
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
		w.await("nothing is left", func() bool { return w.inside() == 0 && w.seats() == 0 })
	})
}
