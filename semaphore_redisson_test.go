package lockregistry_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

// What is special about semaphores that Redisson shares. The two are side by side in interop.

// The clock of this machine is compared with the server's, and told of, once, when the difference may matter to a lease that is
// in use.
func TestSemaphoreRedisson_Clocks(t *testing.T) {
	t.Parallel()
	type opts = []lockregistry.LockOption
	for i, c := range []struct {
		ahead, lease time.Duration
		told         bool
		shorter      opts
	}{
		{ahead: 0, lease: 3 * time.Second},
		{ahead: 9 * time.Second, lease: 30 * time.Second},
		{ahead: -9 * time.Second, lease: 30 * time.Second},
		{ahead: 11 * time.Second, lease: 30 * time.Second, told: true},
		{ahead: -11 * time.Second, lease: 30 * time.Second, told: true},
		{ahead: 1100 * time.Millisecond, lease: 3 * time.Second, told: true},
		{ahead: 2 * time.Second, lease: 30 * time.Second, told: true, shorter: opts{lockregistry.Lease(5 * time.Second)}},
		{ahead: 2 * time.Second, lease: 30 * time.Second, told: true, shorter: opts{lockregistry.AtMost(5 * time.Second)}},
		{ahead: 2 * time.Second, lease: 30 * time.Second, shorter: opts{lockregistry.Lease(9 * time.Second)}},
	} {
		t.Run(fmt.Sprint(c.ahead, " of ", c.lease, " ", i), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				w.layout = lockregistry.LayoutRedisson
				w.mini.SetTime(time.Now().Add(c.ahead))
				var log strings.Builder
				lines := lockregistry.WithLogger(slog.New(slog.NewTextHandler(&locked{to: &log}, nil)))
				r := w.registry(lockregistry.WithLease(c.lease), lines)
				for _, path := range []string{"seat", "other", "seat"} {
					w.release(w.permit(r.Semaphore(path, 1)))
					w.settle()
					w.release(w.permit(r.Semaphore(path, 1), c.shorter...))
					w.settle()
				}
				require.NoError(w, r.Close())
				require.Equal(w, c.told, strings.Contains(log.String(), "the clocks of the server and of this machine differ"), log.String())
				if c.told {
					require.Equal(w, 1, strings.Count(log.String(), "ahead="+c.ahead.String()), log.String())
				} else {
					require.Empty(w, log.String())
				}
			})
		})
	}
}

// That the clock cannot be had is the matter of nobody; it is asked for again.
func TestSemaphoreRedisson_ClockIsNotTold(t *testing.T) {
	fakeWorld(t, func(w *world) {
		w.layout = lockregistry.LayoutRedisson
		f := w.flaky()
		s := f.registry().Semaphore("seat", 1)
		f.next("clock", refused(loading))
		for range 3 {
			w.release(w.permit(s))
			w.settle()
		}
		w.release(w.permit(f.registry().Semaphore("other", 1)))
		w.settle()
		require.Equal(w, 4, f.count("clock"), "refused, by its digest, by its source, and of the other registry")
	})
}

// No call waits for the clock: beside a server that is silent it ends when it must.
func TestSemaphoreRedisson_NobodyWaitsForTheClock(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.LockOption{
		"waits": {lockregistry.Wait(100 * time.Millisecond)}, "does not": nil,
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				w.layout = lockregistry.LayoutRedisson
				f := w.flaky()
				spring, redisson := f.registry(lockregistry.WithLayout(lockregistry.LayoutSpring)), f.registry()
				f.all(anything, silence)
				took := [2]time.Duration{}
				for i, r := range []*lockregistry.Registry{spring, redisson} {
					start := time.Now()
					_, ok, err := r.Semaphore("seat", 1).TryAcquire(w.Context(), opts...)
					require.ErrorIs(w, err, lockregistry.ErrUnavailable)
					require.False(w, ok)
					took[i] = time.Since(start)
				}
				require.InDelta(w, took[0], took[1], float64(100*time.Millisecond), "as where no clock matters")
				require.Zero(w, f.count("clock"))
				f.reconnect()
			})
		})
	}
}

// The end of a hold is a third of its lease later than the hold relies on, also where the lease ends at a bound.
func TestSemaphoreRedisson_MarginAtTheBound(t *testing.T) {
	t.Parallel()
	const length, most = 3 * time.Second, 7300 * time.Millisecond
	for name, fails := range map[string]bool{"renewed": false, "renewed late": true} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				w.layout = lockregistry.LayoutRedisson
				f := w.flaky()
				h := w.permit(f.registry(lockregistry.WithLease(length)).Semaphore("seat", 1), lockregistry.AtMost(most))
				start, looks := time.Now(), 0
				for until := start.Add(most); time.Now().Before(until) && h.Remaining() > 0; looks++ {
					switch since := time.Since(start); {
					case !fails:
					case since > 6*time.Second:
						f.all("renew", delivered)
					case since > 5*time.Second:
						f.all("renew", cut)
					}
					relies := h.Remaining()
					ends, err := strconv.ParseFloat(w.do("ZSCORE", "{"+seat+"}:timeout", h.Holder()), 64)
					require.NoError(w, err)
					left := time.Until(time.UnixMilli(int64(ends)))
					require.GreaterOrEqual(w, left, relies+length/3, "after %v", time.Since(start))
					w.pass(50 * time.Millisecond)
				}
				require.Greater(w, looks, 100)
			})
		})
	}
}

// The first in line looks whenever the counter has changed, also soon after it has looked: the counter's expiry does not tell.
func TestSemaphoreRedisson_ChangesSoonAfterEachOther(t *testing.T) {
	t.Parallel()
	for _, gap := range []int{2, 15, 40, 70, 300} {
		t.Run(strconv.Itoa(gap), func(t *testing.T) {
			realWorlds(t, func(w *world) {
				w.layout = lockregistry.LayoutRedisson
				s, set := w.registry().Semaphore("seat", 2), "{"+seat+"}:timeout"
				const one, two = "0123456789abcdef", "0123456789abcdeg"
				w.do("SET", seat, "0")
				w.do("ZADD", set, "922337203685477", one, "922337203685477", two)
				large := w.asks("large", s, lockregistry.Permits(2))
				free := func(id string) {
					w.do("EVAL", `redis.call('ZREM', KEYS[2], ARGV[1])
						local n = redis.call('INCRBY', KEYS[1], 1)
						redis.call('PUBLISH', 'redisson_sc:{' .. KEYS[1] .. '}', n)`, "2", seat, set, id)
				}
				<-time.After(400 * time.Millisecond)
				free(one)
				<-time.After(time.Duration(gap) * time.Millisecond)
				free(two)
				freed := time.Now()
				h := large.comes()
				require.Less(w, time.Since(freed), time.Second)
				w.release(h)
			})
		})
	}
}

// Whoever has become the first in line looks for permits that Java releases, whichever process the one before it was of, and
// however that one got in.
func TestSemaphoreRedisson_TheNextOneWatches(t *testing.T) {
	t.Parallel()
	for name, large := range map[string]bool{"one after the other": false, "a large one is next": true} {
		for _, same := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", of the same process ", same), func(t *testing.T) {
				realWorlds(t, func(w *world) {
					w.layout = lockregistry.LayoutRedisson
					set, r := "{"+seat+"}:timeout", w.registry()
					other := r
					if !same {
						other = w.registry()
					}
					frees := func(members ...string) { // as Java does
						w.do(append([]string{"EVAL", `for _, member in ipairs(ARGV) do
							redis.call('ZREM', KEYS[2], member)
						end
						return redis.call('INCRBY', KEYS[1], #ARGV)`, "2", seat, set}, members...)...)
					}
					const one, two = "0123456789abcdef", "0123456789abcdeg"
					w.do("SET", seat, "1")
					w.do("ZADD", set, "922337203685477", one, "922337203685477", two)
					h, wants := w.permit(r.Semaphore("seat", 3)), 1
					if large {
						wants = 2
					}
					first := w.asks("first", r.Semaphore("seat", 3))
					next := w.asks("next", other.Semaphore("seat", 3), lockregistry.Permits(wants))
					last := w.asks("last", r.Semaphore("seat", 3))
					<-time.After(3 * time.Second) // they have looked for the first time
					if large {
						frees(one, two) // one of them stays free
						first.comes()
						next.waits()
						frees(h.Holder())
					} else {
						w.release(h)
						first.comes()
						frees(one)
					}
					freed := time.Now()
					w.release(next.comes())
					require.Less(w, time.Since(freed), time.Second)
					w.release(last.comes())
				})
			})
		}
	}
}

// The process of the first in line dies, and Java releases a permit: the second gets in at once.
func TestSemaphoreRedisson_TheFirstOneDies(t *testing.T) {
	realWorlds(t, func(w *world) {
		w.layout = lockregistry.LayoutRedisson
		w.do("SET", seat, "0")
		w.do("ZADD", "{"+seat+"}:timeout", "922337203685477", "0123456789abcdef")
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		f := w.flaky()
		w.asksWith(ctx, "dead", f.registry().Semaphore("seat", 1))
		second := w.asks("second", w.registry().Semaphore("seat", 1))
		<-time.After(2 * time.Second) // it has looked for the first time
		f.Down()
		<-time.After(500 * time.Millisecond)
		w.do("EVAL", "redis.call('DEL', KEYS[2]) redis.call('SET', KEYS[1], 1)", "2", seat, "{"+seat+"}:timeout")
		freed := time.Now()
		w.release(second.comes())
		require.Less(w, time.Since(freed), time.Second)
	})
}

// Wake-ups of a counter that changes all the time are bounded.
func TestSemaphoreRedisson_ChangesAllTheTime(t *testing.T) {
	realWorlds(t, func(w *world) {
		w.layout = lockregistry.LayoutRedisson
		s, set := w.registry().Semaphore("seat", 1), "{"+seat+"}:timeout"
		w.do("SET", seat, "0")
		w.do("ZADD", set, "922337203685477", "0123456789abcdef")
		first := w.asks("first", s)
		w.do("CONFIG", "RESETSTAT")
		start, changes := time.Now(), 0
		for ; time.Since(start) < time.Second; changes++ {
			w.do("SET", seat, "0")
		}
		looks := w.calls("pttl")
		w.Logf("%d changes, %d looks", changes, looks)
		require.Less(w, looks, 75, "of the listener")
		w.do("EVAL", "redis.call('DEL', KEYS[2]) redis.call('SET', KEYS[1], 1)", "2", seat, set)
		w.release(first.comes())
	})
}

// Java pauses a semaphore by a number of 0: Go's calls wait, as Java's do.
func TestSemaphoreRedisson_NumberOfNone(t *testing.T) {
	realWorlds(t, func(w *world) {
		w.layout = lockregistry.LayoutRedisson
		s := w.registry().Semaphore("seat", 1)
		for _, none := range []string{"0", "-2"} {
			w.do("SET", seat, none)
			w.full(s)
			first := w.asks("first", s)
			second := w.asks("second", s)
			first.waits()
			w.do("SET", seat, "1")
			w.release(first.comes())
			w.release(second.comes())
		}
	})
}

// A permit that only Java has is found, and can be released, as Go's.
func TestSemaphoreRedisson_LocksOfJava(t *testing.T) {
	worlds(t, func(w *world) {
		w.layout = lockregistry.LayoutRedisson
		r := w.registry()
		const id = "\x00\xff23456789abcdef"
		w.do("SET", seat, "2")
		w.do("ZADD", "{"+seat+"}:timeout", "922337203685477", id)
		w.do("SET", "orders:idle", "7")
		w.do("SET", "orders:42", "30313233343536373839616263646566", "PX", "60000") // somebody's
		for _, goes := range []bool{false, true} {
			if goes {
				w.permit(r.Semaphore("seat", 3))
			}
			var paths []string
			for info, err := range r.Locks(w.Context()) {
				require.NoError(w, err)
				paths = append(paths, info.Path)
			}
			require.Equal(w, []string{"seat"}, paths)
		}
		require.NoError(w, r.ForceUnlockHolder(w.Context(), "seat", "00ff3233343536373839616263646566"))
		require.Equal(w, 1, w.inside())
	})
}

// A registry of the other layout sees what it is, and changes nothing.
func TestSemaphoreRedisson_OfTheOtherLayout(t *testing.T) {
	worlds(t, func(w *world) {
		spring := w.registry()
		w.layout = lockregistry.LayoutRedisson
		s := w.registry().Semaphore("seat", 3)
		h := w.permit(s)
		for range 2 {
			info, err := spring.Inspect(w.Context(), "seat")
			require.NoError(w, err)
			require.Equal(w, observe.KindSemaphore, info.Kind)
			require.Equal(w, lockregistry.LayoutRedisson, info.Layout)
			require.Equal(w, 3, info.Permits)
			require.Len(w, info.Holders, 1)
			require.Equal(w, w.inside(), info.Holders[0].Permits)
			before := w.do("GET", seat)
			w.fails(spring.ForceUnlock(w.Context(), "seat"), lockregistry.ErrWrongType, "forceunlock", seat)
			w.fails(spring.ForceUnlockHolder(w.Context(), "seat", before), lockregistry.ErrWrongType, "forceunlock", seat)
			_, err = spring.Semaphore("seat", 3).Acquire(w.Context())
			w.fails(err, lockregistry.ErrWrongType, "acquire", seat)
			require.Equal(w, before, w.do("GET", seat))
			w.release(h)
			h = w.permit(s, lockregistry.Permits(2))
		}
		w.release(h)
		w.do("SET", "orders:other", "1", "PX", "60000") // somebody's lock
		info, err := spring.Inspect(w.Context(), "other")
		require.NoError(w, err)
		require.Equal(w, observe.KindLock, info.Kind)
		require.NoError(w, spring.ForceUnlock(w.Context(), "other"))
		require.True(w, w.free("orders:other"))
	})
}

// On a cluster the two keys are in one slot. Where they are not, because of the braces in the path, each call says so.
func TestSemaphoreRedisson_OnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	for _, path := range []string{"a", "b", "c", "{tag}d"} {
		t.Run(path, func(t *testing.T) {
			const processes, turns, permits = 3, 40, 2
			var all sync.WaitGroup
			var inside atomic.Int32
			for range processes {
				s := onCluster(t, nodes, lockregistry.WithLayout(lockregistry.LayoutRedisson)).Semaphore(path, permits)
				for i := range 2 {
					all.Go(func() {
						for turn := range turns {
							n := 1 + (i+turn)%permits
							if err := s.Do(t.Context(), func(context.Context) error {
								if got := inside.Add(int32(n)); got > permits {
									t.Errorf("%d are inside", got)
								}
								inside.Add(int32(-n))
								return nil
							}, lockregistry.Permits(n), lockregistry.Wait(20*time.Second)); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
			}
			all.Wait()
		})
	}
	for _, n := range nodes {
		_, _ = n.Do("SET", "orders:e{f", "1") // one has it
	}
	r := onCluster(t, nodes, lockregistry.WithLayout(lockregistry.LayoutRedisson))
	for _, err := range []error{
		r.ForceUnlock(t.Context(), "e{f"), r.ForceUnlockHolder(t.Context(), "e{f", "30313233343536373839616263646566"),
	} {
		require.ErrorContains(t, err, "a cluster keeps the keys of this semaphore in different slots")
	}
	for _, n := range nodes {
		_, _ = n.Do("DEL", "orders:e{f")
	}
	for _, layout := range []lockregistry.Layout{lockregistry.LayoutRedisson, lockregistry.LayoutSpring} {
		s := onCluster(t, nodes, lockregistry.WithLayout(layout)).Semaphore("e{f", 1)
		h, err := s.Acquire(t.Context())
		if layout == lockregistry.LayoutRedisson {
			require.ErrorContains(t, err, "a cluster keeps the keys of this semaphore in different slots")
			require.ErrorContains(t, s.SetPermits(t.Context(), 2), "a cluster keeps the keys of this semaphore in different slots")
			continue
		}
		require.NoError(t, err)
		require.NoError(t, h.Release(t.Context()))
	}
}

// Redis's number counts. A registry that names another one logs that, once for each that it finds.
func TestSemaphoreRedisson_AnotherNumber(t *testing.T) {
	fakeWorld(t, func(w *world) {
		w.layout = lockregistry.LayoutRedisson
		var log strings.Builder
		a := w.registry().Semaphore("seat", 1)
		r := w.registry(lockregistry.WithLogger(slog.New(slog.NewTextHandler(&locked{to: &log}, nil))))
		b := r.Semaphore("seat", 2)
		w.release(w.permit(a))
		for range 2 {
			h := w.permit(b)
			w.full(b)
			w.release(h)
		}
		require.NoError(w, a.SetPermits(w.Context(), 3))
		holds := []*lockregistry.Hold{w.permit(b), w.permit(b), w.permit(a)}
		w.full(b)
		w.release(holds...)
		require.NoError(w, r.Close())
		require.Equal(w, 1, strings.Count(log.String(), "permits=1 named=2"), log.String())
		require.Equal(w, 1, strings.Count(log.String(), "permits=3 named=2"), log.String())
		require.NotContains(w, log.String(), "named=1")
	})
}
