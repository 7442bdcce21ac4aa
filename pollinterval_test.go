package lockregistry_test

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

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// The poll interval is the pause of a waiter that nothing else would wake. Nothing else depends on it.

func TestPollInterval_RenewalsDoNotWaitForAPollInterval(t *testing.T) {
	t.Parallel()
	const lease = 30 * time.Second
	for name, what := range map[string]fate{"cut": cut, "refused": refused(loading)} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease), lockregistry.WithPollInterval(lease))
				w.known(r)
				l := r.Obtain("42")
				w.lock(l)
				ctx := l.Context(w.Context())
				renewals := f.count("renew")
				f.next("renew", what)
				w.pass(lease/3 + time.Second)
				require.Equal(w, renewals+2, f.count("renew"), "again within a second")
				require.Greater(w, w.pttl(theKey), lease-time.Second)
				w.pass(100 * time.Second)
				require.NoError(w, context.Cause(ctx))
				w.unlock(l)
			})
		})
	}
}

func TestPollInterval_RemovalsDoNotWaitForAPollInterval(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]fate{"cut": cut, "refused": refused(loading)} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(
					lockregistry.WithLease(10*time.Minute), lockregistry.WithPollInterval(time.Minute), lockregistry.WithHandoff(0))
				w.known(r)
				l := r.Obtain("42")
				w.lock(l)
				got := lockElsewhere(l, w.Context())
				w.settle()
				f.next("release", what, what, what)
				start := time.Now()
				_ = l.Unlock(w.Context())
				require.NoError(w, <-got)
				require.LessOrEqual(w, time.Since(start), time.Second)
			})
		})
	}
}

// A waiter whose network was away tries again soon after it is back, although the message of the release was lost.
func TestPollInterval_WaitersDoNotWaitForAPollIntervalAfterAnOutage(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithPollInterval(time.Hour))
		holder := w.registry().Obtain("42")
		w.lock(holder, lockregistry.Lease(time.Hour))
		got := w.goroutine().starts(r.Obtain("42"))
		w.settle()
		f.Down()
		w.pass(time.Second)
		w.unlock(holder)
		w.pass(time.Second)
		w.pending(got)
		f.reconnect()
		start := time.Now()
		require.NoError(w, <-got)
		require.LessOrEqual(w, time.Since(start), 5*time.Second)
	})
}

// How long a process keeps a lock is the handoff limit's matter, 100 ms by default.
func TestPollInterval_DoesNotLastForAPollInterval(t *testing.T) {
	handoffs(t, func(h *handoff) {
		g := h.first()
		next, has := h.queue()
		h.world.pass(60 * time.Millisecond)
		require.True(h, h.handed(g, has))
		_, has = h.queue()
		h.world.pass(60 * time.Millisecond)
		number := h.number()
		require.NoError(h, next.unlock(h.l))
		require.NoError(h, <-has)
		require.Greater(h, h.number(), number)
	}, lockregistry.WithPollInterval(time.Hour))
}

// Durations near the longest are as long when something is added to them. If one became negative, a call would ask without
// a pause.
func TestPollInterval_NearItsEnd(t *testing.T) {
	t.Parallel()
	const mostAsked = 10
	for name, lease := range map[string]string{
		"a lease without end": "",
		"the longest lease":   strconv.FormatInt(time.Duration(math.MaxInt64).Milliseconds(), 10),
	} {
		for mode, wakeup := range map[string]lockregistry.Wakeup{"poll": lockregistry.WakeupPoll, "auto": lockregistry.WakeupAuto} {
			for _, wait := range []time.Duration{math.MaxInt64, math.MaxInt64 - 1, math.MaxInt64 / 2} {
				t.Run(name+" "+mode+" "+wait.String(), func(t *testing.T) {
					fakeWorld(t, func(w *world) {
						f := w.flaky()
						r := f.registry(lockregistry.WithWakeup(wakeup), lockregistry.WithPollInterval(wait))
						w.known(r)
						key := []string{"SET", theKey, "another's"}
						if lease != "" {
							key = append(key, "PX", lease)
						}
						require.Equal(w, "OK", w.do(key...))
						f.next("obtain", slices.Repeat([]fate{delivered}, mostAsked)...)
						f.all("obtain", silence) // time does not pass while calls ask all the time
						got := make(chan error, 1)
						go func() {
							got <- r.Do(w.Context(), "42", func(context.Context) error { return nil }, lockregistry.Wait(wait),
								lockregistry.Lease(wait))
						}()
						w.pass(time.Minute)
						w.pending(got)
						require.Less(w, f.count("obtain"), mostAsked)
						f.Forget()
						require.NoError(w, r.Close())
						require.ErrorIs(w, <-got, lockregistry.ErrClosed)
					})
				})
			}
		}
	}
}

// A process that only polls leaves others their chance for as long as they may sleep, also when that is for ever.
func TestPollInterval_NearItsEndOthersHaveTheirChance(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry(polling, lockregistry.WithPollInterval(math.MaxInt64), lockregistry.WithHandoff(0))
		l, sections := r.Obtain("42"), atomic.Int64{}
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				for l.Lock(w.Context()) == nil {
					sections.Add(1)
					<-time.After(60 * time.Millisecond)
					if err := l.Unlock(w.Context()); err != nil {
						w.Error(err)
					}
				}
			})
		}
		w.pass(time.Minute)
		require.Less(w, sections.Load(), int64(10))
		require.False(w, l.IsHeld())
		require.True(w, w.free(theKey))
		require.NoError(w, r.Close())
		all.Wait()
	})
}

// stalling is a context whose Err may take a while, as the goroutine may that asks.
type stalling struct {
	context.Context
	err func() error
}

func (c stalling) Err() error { return c.err() }

// A call whose goroutine stands still until long after the end of its wait, wherever that is, sends nothing more, and ends.
func TestPollInterval_ACallThatStandsStillBeyondItsWait(t *testing.T) {
	t.Parallel()
	for after := range int32(6) {
		t.Run(strconv.Itoa(int(after)), func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				w.lock(w.registry().Obtain("42"))
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
					_, err := w.registry(polling).Acquire(ctx, "42", lockregistry.Wait(time.Second))
					result <- err
				}()
				w.pass(550 * time.Millisecond)
				stalls.Store(after + 1)
				err := <-result
				if !errors.Is(err, lockregistry.ErrUnavailable) { // where the answer to a command came a minute late
					require.ErrorIs(w, err, lockregistry.ErrTaken)
				}
				require.NotErrorIs(w, err, context.Canceled)
				require.Less(w, asked.Load(), int32(100))
			})
		})
	}
}
