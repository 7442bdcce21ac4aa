package shared_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
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
			kit.FakeWorld(t, func(w *kit.World) {
				w.Layout = lockregistry.LayoutRedisson
				w.Mini.SetTime(time.Now().Add(c.ahead))
				var log strings.Builder
				lines := lockregistry.WithLogger(slog.New(slog.NewTextHandler(&locked{to: &log}, nil)))
				r := w.Registry(lockregistry.WithLease(c.lease), lines)
				for _, path := range []string{"seat", "other", "seat"} {
					w.Release(w.Permit(r.Semaphore(path, 1)))
					w.Settle()
					w.Release(w.Permit(r.Semaphore(path, 1), c.shorter...))
					w.Settle()
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
	kit.FakeWorld(t, func(w *kit.World) {
		w.Layout = lockregistry.LayoutRedisson
		f := w.Flaky()
		s := f.Registry().Semaphore("seat", 1)
		f.Fates("clock", kit.Refused(kit.Loading))
		for range 3 {
			w.Release(w.Permit(s))
			w.Settle()
		}
		w.Release(w.Permit(f.Registry().Semaphore("other", 1)))
		w.Settle()
		require.Equal(w, 4, f.Count("clock"), "refused, by its digest, by its source, and of the other registry")
	})
}

// No call waits for the clock: beside a server that is silent it ends when it must.
func TestSemaphoreRedisson_NobodyWaitsForTheClock(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.LockOption{
		"waits": {lockregistry.Wait(100 * time.Millisecond)}, "does not": nil,
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				w.Layout = lockregistry.LayoutRedisson
				f := w.Flaky()
				spring, redisson := f.Registry(lockregistry.WithLayout(lockregistry.LayoutSpring)), f.Registry()
				f.Fate(kit.Anything, kit.Silence)
				took := [2]time.Duration{}
				for i, r := range []*lockregistry.Registry{spring, redisson} {
					start := time.Now()
					_, ok, err := r.Semaphore("seat", 1).TryAcquire(w.Context(), opts...)
					require.ErrorIs(w, err, lockregistry.ErrUnavailable)
					require.False(w, ok)
					took[i] = time.Since(start)
				}
				require.InDelta(w, took[0], took[1], float64(100*time.Millisecond), "as where no clock matters")
				require.Zero(w, f.Count("clock"))
				f.Reconnect()
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
			kit.FakeWorld(t, func(w *kit.World) {
				w.Layout = lockregistry.LayoutRedisson
				f := w.Flaky()
				h := w.Permit(f.Registry(lockregistry.WithLease(length)).Semaphore("seat", 1), lockregistry.AtMost(most))
				start, looks := time.Now(), 0
				for until := start.Add(most); time.Now().Before(until) && h.Remaining() > 0; looks++ {
					switch since := time.Since(start); {
					case !fails:
					case since > 6*time.Second:
						f.Fate("renew", kit.Delivered)
					case since > 5*time.Second:
						f.Fate("renew", kit.Cut)
					}
					relies := h.Remaining()
					ends, err := strconv.ParseFloat(w.Do("ZSCORE", "{"+kit.SeatKey+"}:timeout", h.Holder()), 64)
					require.NoError(w, err)
					left := time.Until(time.UnixMilli(int64(ends)))
					require.GreaterOrEqual(w, left, relies+length/3, "after %v", time.Since(start))
					w.Pass(50 * time.Millisecond)
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
			kit.RealWorlds(t, func(w *kit.World) {
				w.Layout = lockregistry.LayoutRedisson
				s, set := w.Registry().Semaphore("seat", 2), "{"+kit.SeatKey+"}:timeout"
				const one, two = "0123456789abcdef", "0123456789abcdeg"
				w.Do("SET", kit.SeatKey, "0")
				w.Do("ZADD", set, "922337203685477", one, "922337203685477", two)
				large := w.Asks("large", s, lockregistry.Permits(2))
				free := func(id string) {
					w.Do("EVAL", `redis.call('ZREM', KEYS[2], ARGV[1])
						local n = redis.call('INCRBY', KEYS[1], 1)
						redis.call('PUBLISH', 'redisson_sc:{' .. KEYS[1] .. '}', n)`, "2", kit.SeatKey, set, id)
				}
				<-time.After(400 * time.Millisecond)
				free(one)
				<-time.After(time.Duration(gap) * time.Millisecond)
				free(two)
				freed := time.Now()
				h := large.Comes()
				require.Less(w, time.Since(freed), time.Second)
				w.Release(h)
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
				kit.RealWorlds(t, func(w *kit.World) {
					w.Layout = lockregistry.LayoutRedisson
					set, r := "{"+kit.SeatKey+"}:timeout", w.Registry()
					other := r
					if !same {
						other = w.Registry()
					}
					frees := func(members ...string) { // as Java does
						w.Do(append([]string{"EVAL", `for _, member in ipairs(ARGV) do
							redis.call('ZREM', KEYS[2], member)
						end
						return redis.call('INCRBY', KEYS[1], #ARGV)`, "2", kit.SeatKey, set}, members...)...)
					}
					const one, two = "0123456789abcdef", "0123456789abcdeg"
					w.Do("SET", kit.SeatKey, "1")
					w.Do("ZADD", set, "922337203685477", one, "922337203685477", two)
					h, wants := w.Permit(r.Semaphore("seat", 3)), 1
					if large {
						wants = 2
					}
					first := w.Asks("first", r.Semaphore("seat", 3))
					next := w.Asks("next", other.Semaphore("seat", 3), lockregistry.Permits(wants))
					last := w.Asks("last", r.Semaphore("seat", 3))
					<-time.After(3 * time.Second) // they have looked for the first time
					if large {
						frees(one, two) // one of them stays free
						first.Comes()
						awaitWaiting(next)
						frees(h.Holder())
					} else {
						w.Release(h)
						first.Comes()
						frees(one)
					}
					freed := time.Now()
					w.Release(next.Comes())
					require.Less(w, time.Since(freed), time.Second)
					w.Release(last.Comes())
				})
			})
		}
	}
}

// The process of the first in line dies, and Java releases a permit: the second gets in at once.
func TestSemaphoreRedisson_TheFirstOneDies(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Layout = lockregistry.LayoutRedisson
		w.Do("SET", kit.SeatKey, "0")
		w.Do("ZADD", "{"+kit.SeatKey+"}:timeout", "922337203685477", "0123456789abcdef")
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		f := w.Flaky()
		w.AsksWith(ctx, "dead", f.Registry().Semaphore("seat", 1))
		second := w.Asks("second", w.Registry().Semaphore("seat", 1))
		<-time.After(2 * time.Second) // it has looked for the first time
		f.Down()
		<-time.After(500 * time.Millisecond)
		w.Do("EVAL", "redis.call('DEL', KEYS[2]) redis.call('SET', KEYS[1], 1)", "2", kit.SeatKey, "{"+kit.SeatKey+"}:timeout")
		freed := time.Now()
		w.Release(second.Comes())
		require.Less(w, time.Since(freed), time.Second)
	})
}

// Wake-ups of a counter that changes all the time are bounded.
func TestSemaphoreRedisson_ChangesAllTheTime(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Layout = lockregistry.LayoutRedisson
		s, set := w.Registry().Semaphore("seat", 1), "{"+kit.SeatKey+"}:timeout"
		w.Do("SET", kit.SeatKey, "0")
		w.Do("ZADD", set, "922337203685477", "0123456789abcdef")
		first := w.Asks("first", s)
		w.Do("CONFIG", "RESETSTAT")
		start, changes := time.Now(), 0
		for ; time.Since(start) < time.Second; changes++ {
			w.Do("SET", kit.SeatKey, "0")
		}
		looks := calls(w, "pttl")
		w.Logf("%d changes, %d looks", changes, looks)
		require.Less(w, looks, 75, "of the listener")
		w.Do("EVAL", "redis.call('DEL', KEYS[2]) redis.call('SET', KEYS[1], 1)", "2", kit.SeatKey, set)
		w.Release(first.Comes())
	})
}

// Java pauses a semaphore by a number of 0: Go's calls wait, as Java's do.
func TestSemaphoreRedisson_NumberOfNone(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Layout = lockregistry.LayoutRedisson
		s := w.Registry().Semaphore("seat", 1)
		for _, none := range []string{"0", "-2"} {
			w.Do("SET", kit.SeatKey, none)
			full(w, s)
			first := w.Asks("first", s)
			second := w.Asks("second", s)
			awaitWaiting(first)
			w.Do("SET", kit.SeatKey, "1")
			w.Release(first.Comes())
			w.Release(second.Comes())
		}
	})
}

// A permit that only Java has is found, and can be released, as Go's.
func TestSemaphoreRedisson_LocksOfJava(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		w.Layout = lockregistry.LayoutRedisson
		r := w.Registry()
		const id = "\x00\xff23456789abcdef"
		w.Do("SET", kit.SeatKey, "2")
		w.Do("ZADD", "{"+kit.SeatKey+"}:timeout", "922337203685477", id)
		w.Do("SET", "orders:idle", "7")
		w.Do("SET", "orders:42", "30313233343536373839616263646566", "PX", "60000") // somebody's
		for _, goes := range []bool{false, true} {
			if goes {
				w.Permit(r.Semaphore("seat", 3))
			}
			var paths []string
			for info, err := range r.Locks(w.Context()) {
				require.NoError(w, err)
				paths = append(paths, info.Path)
			}
			require.Equal(w, []string{"seat"}, paths)
		}
		require.NoError(w, r.ForceUnlockHolder(w.Context(), "seat", "00ff3233343536373839616263646566"))
		require.Equal(w, 1, w.Inside())
	})
}

// A registry of the other layout sees what it is, and changes nothing.
func TestSemaphoreRedisson_OfTheOtherLayout(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		spring := w.Registry()
		w.Layout = lockregistry.LayoutRedisson
		s := w.Registry().Semaphore("seat", 3)
		h := w.Permit(s)
		for range 2 {
			info, err := spring.Inspect(w.Context(), "seat")
			require.NoError(w, err)
			require.Equal(w, observe.KindSemaphore, info.Kind)
			require.Equal(w, lockregistry.LayoutRedisson, info.Layout)
			require.Equal(w, 3, info.Permits)
			require.Len(w, info.Holders, 1)
			require.Equal(w, w.Inside(), info.Holders[0].Permits)
			before := w.Do("GET", kit.SeatKey)
			w.Fails(spring.ForceUnlock(w.Context(), "seat"), lockregistry.ErrWrongType, "forceunlock", kit.SeatKey)
			w.Fails(spring.ForceUnlockHolder(w.Context(), "seat", before), lockregistry.ErrWrongType, "forceunlock", kit.SeatKey)
			_, err = spring.Semaphore("seat", 3).Acquire(w.Context())
			w.Fails(err, lockregistry.ErrWrongType, "acquire", kit.SeatKey)
			require.Equal(w, before, w.Do("GET", kit.SeatKey))
			w.Release(h)
			h = w.Permit(s, lockregistry.Permits(2))
		}
		w.Release(h)
		w.Do("SET", "orders:other", "1", "PX", "60000") // somebody's lock
		info, err := spring.Inspect(w.Context(), "other")
		require.NoError(w, err)
		require.Equal(w, observe.KindLock, info.Kind)
		require.NoError(w, spring.ForceUnlock(w.Context(), "other"))
		require.True(w, w.Free("orders:other"))
	})
}

// Redis's number counts. A registry that names another one logs that, once for each that it finds.
func TestSemaphoreRedisson_AnotherNumber(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		w.Layout = lockregistry.LayoutRedisson
		var log strings.Builder
		a := w.Registry().Semaphore("seat", 1)
		r := w.Registry(lockregistry.WithLogger(slog.New(slog.NewTextHandler(&locked{to: &log}, nil))))
		b := r.Semaphore("seat", 2)
		w.Release(w.Permit(a))
		for range 2 {
			h := w.Permit(b)
			full(w, b)
			w.Release(h)
		}
		require.NoError(w, a.SetPermits(w.Context(), 3))
		holds := []*lockregistry.Hold{w.Permit(b), w.Permit(b), w.Permit(a)}
		full(w, b)
		w.Release(holds...)
		require.NoError(w, r.Close())
		require.Equal(w, 1, strings.Count(log.String(), "permits=1 named=2"), log.String())
		require.Equal(w, 1, strings.Count(log.String(), "permits=3 named=2"), log.String())
		require.NotContains(w, log.String(), "named=1")
	})
}
