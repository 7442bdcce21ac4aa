package waiting_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Waiting, without wake-ups: at every poll interval, and when the holder's lease ends.

func TestPollInterval_PollingTakesAReleasedLock(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		poll := []lockregistry.Option{kit.Polling, lockregistry.WithPollInterval(time.Second)}
		mine, theirs := w.Registry(poll...).Obtain("42"), w.Registry(poll...).Obtain("42")
		w.Lock(mine)
		locked := w.Goroutine().Starts(theirs)
		w.Settle()
		w.Pass(2300 * time.Millisecond)
		w.Pending(locked)
		w.Unlock(mine)
		start := time.Now()
		require.NoError(w, <-locked)
		require.Equal(w, 700*time.Millisecond, time.Since(start), "at the next poll")
	})
}

func TestPollInterval_AReleasedLockIsTakenWithinAPollInterval(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		mine, theirs := w.Registry().Obtain("42"), w.Registry().Obtain("42")
		w.Lock(mine)
		locked := w.Goroutine().Starts(theirs)
		w.Pending(locked)
		w.Unlock(mine)
		start := time.Now()
		require.NoError(w, <-locked)
		if w.Fake {
			require.LessOrEqual(w, time.Since(start), 100*time.Millisecond)
		}
	})
}

func TestPollInterval_PollingWakesAtTheEndOfTheLease(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry(kit.Polling, lockregistry.WithPollInterval(time.Minute)).Obtain("42")
		w.Do("SET", "orders:42", uuid.NewString(), "PX", "3000")
		start := time.Now()
		w.Lock(l)
		require.GreaterOrEqual(w, time.Since(start), 3*time.Second)
		require.LessOrEqual(w, time.Since(start), 3*time.Second+10*time.Millisecond)
	})
}

// When the lease ends the waiter must not rely on what it read earlier: the holder may have renewed.
func TestPollInterval_PollingAfterARenewal(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		opts := []lockregistry.Option{kit.Polling, lockregistry.WithPollInterval(time.Minute)}
		mine, theirs := w.Registry(opts...).Obtain("42"), w.Registry(opts...).Obtain("42")
		w.Lock(mine, lockregistry.Lease(3*time.Second))
		start := time.Now()
		locked := w.Goroutine().Starts(theirs)
		w.Settle()
		w.Pass(2 * time.Second)
		require.NoError(w, mine.Renew(w.Context(), 10*time.Second))
		require.NoError(w, <-locked)
		require.GreaterOrEqual(w, time.Since(start), 12*time.Second)
		require.LessOrEqual(w, time.Since(start), 12*time.Second+10*time.Millisecond)
	})
}

func TestPollInterval(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		l := f.Registry(kit.Polling, lockregistry.WithPollInterval(250*time.Millisecond)).Obtain("42")
		w.Do("SET", "orders:42", "for ever")
		start := time.Now()
		ok, err := l.TryLock(w.Context(), lockregistry.Wait(time.Second-time.Millisecond))
		require.NoError(w, err)
		require.False(w, ok)
		sent := f.Sent("obtain")
		after := make([]time.Duration, 0, len(sent))
		for _, c := range sent {
			after = append(after, c.Sent.Sub(start))
		}
		// An attempt may need more than one command. The last attempt is made when the wait ends.
		require.Equal(w, []time.Duration{
			0, 250 * time.Millisecond, 500 * time.Millisecond, 750 * time.Millisecond, 999 * time.Millisecond,
		}, slices.Compact(after))
	})
}

// The poll interval is the pause of a waiter that nothing else would wake. Nothing else depends on it.

func TestPollInterval_RenewalsDoNotWaitForAPollInterval(t *testing.T) {
	t.Parallel()
	const lease = 30 * time.Second
	for name, what := range map[string]kit.Fate{"cut": kit.Cut, "refused": kit.Refused(kit.Loading)} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease), lockregistry.WithPollInterval(lease))
				w.Known(r)
				l := r.Obtain("42")
				w.Lock(l)
				ctx := l.Context(w.Context())
				renewals := f.Count("renew")
				f.Fates("renew", what)
				w.Pass(lease/3 + time.Second)
				require.Equal(w, renewals+2, f.Count("renew"), "again within a second")
				require.Greater(w, w.Pttl(kit.TheKey), lease-time.Second)
				w.Pass(100 * time.Second)
				require.NoError(w, context.Cause(ctx))
				w.Unlock(l)
			})
		})
	}
}

func TestPollInterval_RemovalsDoNotWaitForAPollInterval(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]kit.Fate{"cut": kit.Cut, "refused": kit.Refused(kit.Loading)} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(
					lockregistry.WithLease(10*time.Minute), lockregistry.WithPollInterval(time.Minute), lockregistry.WithHandoff(0))
				w.Known(r)
				l := r.Obtain("42")
				w.Lock(l)
				got := kit.LockElsewhere(l, w.Context())
				w.Settle()
				f.Fates("release", what, what, what)
				start := time.Now()
				_ = l.Unlock(w.Context())
				require.NoError(w, <-got)
				require.LessOrEqual(w, time.Since(start), time.Second)
			})
		})
	}
}

// A waiter tries again soon after a network outage, although the message about the release was lost.
func TestPollInterval_WaitersDoNotWaitForAPollIntervalAfterAnOutage(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithPollInterval(time.Hour))
		holder := w.Registry().Obtain("42")
		w.Lock(holder, lockregistry.Lease(time.Hour))
		got := w.Goroutine().Starts(r.Obtain("42"))
		w.Settle()
		f.Down()
		w.Pass(time.Second)
		w.Unlock(holder)
		w.Pass(time.Second)
		w.Pending(got)
		f.Reconnect()
		start := time.Now()
		require.NoError(w, <-got)
		require.LessOrEqual(w, time.Since(start), 5*time.Second)
	})
}

// How long a process keeps a lock depends on the handoff limit, 100 ms by default, not on the poll interval.
func TestPollInterval_DoesNotLastForAPollInterval(t *testing.T) {
	handoffs(t, func(h *handoff) {
		g := h.first()
		next, has := h.queue()
		h.Pass(60 * time.Millisecond)
		require.True(h, h.handed(g, has))
		_, has = h.queue()
		h.Pass(60 * time.Millisecond)
		number := h.number()
		require.NoError(h, next.Unlock(h.l))
		require.NoError(h, <-has)
		require.Greater(h, h.number(), number)
	}, lockregistry.WithPollInterval(time.Hour))
}

// Durations near the maximum do not overflow when something is added to them. A negative one would make a call ask without a
// pause.
func TestPollInterval_NearItsEnd(t *testing.T) {
	t.Parallel()
	const mostAsked = 10
	for name, lease := range map[string]string{
		"a lease without end": "",
		"the longest lease":   strconv.FormatInt(time.Duration(math.MaxInt64).Milliseconds(), 10),
	} {
		for mode, wakeup := range map[string]kit.Wakeup{"poll": kit.WakeupPoll, "auto": kit.WakeupAuto} {
			for _, wait := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 / 2} {
				t.Run(name+" "+mode+" "+wait.String(), func(t *testing.T) {
					kit.FakeWorld(t, func(w *kit.World) {
						f := w.Flaky()
						r := f.Registry(kit.WithWakeup(wakeup), lockregistry.WithPollInterval(wait))
						w.Known(r)
						key := []string{"SET", kit.TheKey, "another's"}
						if lease != "" {
							key = append(key, "PX", lease)
						}
						require.Equal(w, "OK", w.Do(key...))
						f.Fates("obtain", slices.Repeat([]kit.Fate{kit.Delivered}, mostAsked)...)
						f.Fate("obtain", kit.Silence) // time would not pass if calls asked all the time
						got := make(chan error, 1)
						go func() {
							got <- r.Do(w.Context(), "42", func(context.Context) error { return nil }, lockregistry.Wait(wait),
								lockregistry.Lease(30*24*time.Hour))
						}()
						w.Pass(time.Minute)
						w.Pending(got)
						require.Less(w, f.Count("obtain"), mostAsked)
						f.Forget()
						require.NoError(w, r.Close())
						require.ErrorIs(w, <-got, lockregistry.ErrClosed)
					})
				})
			}
		}
	}
}

// A process that only polls leaves others their chance for as long as they may sleep, even if that is forever.
func TestPollInterval_NearItsEndOthersHaveTheirChance(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry(kit.Polling, lockregistry.WithPollInterval(math.MaxInt64), lockregistry.WithHandoff(0))
		l, sections := r.Obtain("42"), atomic.Int64{}
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				for l.Lock(w.Context()) == nil {
					sections.Add(1)
					<-time.After(60 * time.Millisecond)
					if err := w.UnlessLate(l.Unlock(w.Context())); err != nil {
						w.Error(err)
					}
				}
			})
		}
		w.Pass(time.Minute)
		require.Less(w, sections.Load(), int64(10))
		require.False(w, l.IsHeld())
		require.True(w, w.Free(kit.TheKey))
		require.NoError(w, r.Close())
		all.Wait()
	})
}

// stalling is a context whose Err may take a while, as if the goroutine that asks were stopped.
type stalling struct {
	context.Context
	err func() error
}

func (c stalling) Err() error { return c.err() }

// A call whose goroutine is stopped until long after its wait, at whatever point, sends nothing more, and ends.
func TestPollInterval_ACallThatStandsStillBeyondItsWait(t *testing.T) {
	t.Parallel()
	for after := range int32(6) {
		t.Run(strconv.Itoa(int(after)), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				w.Lock(w.Registry().Obtain("42"))
				var stalls, asked atomic.Int32
				ctx := stalling{w.Context(), func() error {
					if asked.Add(1) > 1000 {
						return context.Canceled
					}
					if stalls.Add(-1) == 0 {
						<-time.After(time.Minute)
					}
					return nil
				}}
				result := make(chan error, 1)
				go func() {
					_, err := w.Registry(kit.Polling).Acquire(ctx, "42", lockregistry.Wait(time.Second))
					result <- err
				}()
				w.Pass(550 * time.Millisecond)
				stalls.Store(after + 1)
				err := <-result
				if !errors.Is(err, lockregistry.ErrUnavailable) { // if the reply to a command came a minute late
					require.ErrorIs(w, err, lockregistry.ErrTaken)
				}
				require.NotErrorIs(w, err, context.Canceled)
				require.Less(w, asked.Load(), int32(100))
			})
		})
	}
}
