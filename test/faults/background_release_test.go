package faults_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/seam"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A section costs a round trip instead of two, on one path, but once in a handoff limit, and on many.
func TestBackgroundRelease_HalvesASection(t *testing.T) {
	t.Parallel()
	for _, trip := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 200 * time.Millisecond} {
		for _, rotate := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, rotate %v", trip, rotate), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					limit := lockregistry.WithHandoff(20 * trip)
					normal := w.RegistryOn(w.FlakyFar(trip).Client(), limit)
					background := w.RegistryOn(w.FlakyFar(trip).Client(), limit, lockregistry.WithBackgroundRelease())
					w.Known(normal)
					w.Known(background)
					w.Sections(normal, rotate) // makes the connections
					w.Sections(background, rotate)
					before, after := sum(w.Sections(normal, rotate)), sum(w.Sections(background, rotate))
					require.LessOrEqual(w, float64(after)/float64(before), 0.55)
				})
			})
		}
	}
}

func sum(all []time.Duration) (total time.Duration) {
	for _, d := range all {
		total += d
	}
	return total
}

// The next call of the process asks at once, whatever it is, and has the lock. Afterwards nothing is left.
func TestBackgroundRelease_TheNextCallIsNotRefused(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(context.Context, *lockregistry.Lock) error{
		"Lock":    func(ctx context.Context, l *lockregistry.Lock) error { return l.Lock(ctx) },
		"NoWait":  func(ctx context.Context, l *lockregistry.Lock) error { return l.Lock(ctx, lockregistry.NoWait()) },
		"TryLock": func(ctx context.Context, l *lockregistry.Lock) error { return tried(l.TryLock(ctx)) },
	} {
		for _, layout := range []lockregistry.Layout{lockregistry.LayoutSpring, lockregistry.LayoutRedisson} {
			t.Run(fmt.Sprint(name, layout), func(t *testing.T) {
				kit.Behind(t, func(w *kit.World, _ *kit.Flaky, r *lockregistry.Registry) {
					l := r.Obtain("42")
					w.Lock(l)
					w.Took(0, "unlock", func() { w.Unlock(l) })
					w.Took(1, "the next call", func() { require.NoError(w, next(w.Context(), l)) })
					w.Took(0, "unlock", func() { w.Unlock(l) })
					w.Pass(kit.RoundTrip)
					w.LeftNothing()
				}, lockregistry.WithLayout(layout))
			})
		}
	}
}

func tried(got bool, err error) error {
	if err == nil && !got {
		return lockregistry.ErrTaken
	}
	return err
}

// A removal that comes after the next grant finds the key of that, and leaves it alone. Nobody is told of a loss.
func TestBackgroundRelease_TheNextHoldTakesTheKeyOver(t *testing.T) {
	t.Parallel()
	for _, layout := range []lockregistry.Layout{lockregistry.LayoutSpring, lockregistry.LayoutRedisson} {
		t.Run(fmt.Sprint(layout), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				seen := w.Witness()
				f := w.FlakyFar(kit.RoundTrip)
				r := f.Registry(lockregistry.WithLayout(layout), lockregistry.WithBackgroundRelease(), seen.Option())
				w.Warm(r)
				l := r.Obtain("42")
				w.Lock(l)
				first := w.Holder(kit.TheKey)
				until := make(chan struct{})
				f.Fates("release", kit.HeldUp(until))
				w.Unlock(l)
				w.Took(1, "the next call", func() { w.Lock(l) })
				second := w.Holder(kit.TheKey)
				require.NotEqual(w, first, second)
				close(until)
				w.Pass(10 * kit.RoundTrip)
				require.Equal(w, second, w.Holder(kit.TheKey))
				require.True(w, l.IsHeld())
				require.Empty(w, seen.Lost)
				w.Unlock(l)
				w.Pass(10 * kit.RoundTrip)
				w.LeftNothing()
				require.Empty(w, seen.Lost)
			})
		})
	}
}

// When the process has had the key for the handoff limit, the next call waits for the removal, so that others have their chance.
// With a limit of 0 each does.
func TestBackgroundRelease_WaitsForTheRemovalAfterTheHandoffLimit(t *testing.T) {
	t.Parallel()
	t.Run("a limit", func(t *testing.T) {
		kit.Behind(t, func(w *kit.World, _ *kit.Flaky, r *lockregistry.Registry) {
			l := r.Obtain("42")
			w.Lock(l)
			w.Pass(3 * kit.RoundTrip)
			w.Unlock(l)
			w.Took(1, "within the limit", func() { w.Lock(l) })
			w.Pass(kit.RoundTrip) // with the hold before it is longer
			w.Unlock(l)
			w.Took(2, "behind it", func() { require.NoError(w, tried(l.TryLock(w.Context()))) })
			w.Unlock(l)
			w.Took(1, "within the limit", func() { w.Lock(l) })
			w.Unlock(l)
		}, lockregistry.WithHandoff(5*kit.RoundTrip))
	})
	t.Run("none", func(t *testing.T) {
		kit.Behind(t, func(w *kit.World, _ *kit.Flaky, r *lockregistry.Registry) {
			l := r.Obtain("42")
			w.Lock(l)
			w.Took(0, "unlock", func() { w.Unlock(l) })
			w.Took(2, "lock", func() { w.Lock(l) })
			w.Unlock(l)
		}, lockregistry.WithHandoff(0))
	})
}

// Another process that waits gets the lock, although this one locks and unlocks all the time.
func TestBackgroundRelease_OthersHaveTheirTurn(t *testing.T) {
	kit.Behind(t, func(w *kit.World, _ *kit.Flaky, r *lockregistry.Registry) {
		l, other := r.Obtain("42"), w.Registry().Obtain("42")
		w.Lock(l)
		waits := w.Goroutine().Start(func() error {
			if err := other.Lock(w.Context()); err != nil {
				return err
			}
			return other.Unlock(w.Context())
		})
		w.Settle()
		for begun := time.Now(); len(waits) == 0; {
			w.Unlock(l)
			w.Lock(l)
			require.Less(w, time.Since(begun), 12*kit.RoundTrip, "the other process waits still")
		}
		require.NoError(w, <-waits)
		w.Unlock(l)
	}, lockregistry.WithHandoff(4*kit.RoundTrip))
}

// A removal under way does not take the room of another lock.
func TestBackgroundRelease_TakesNoRoom(t *testing.T) {
	kit.Behind(t, func(w *kit.World, _ *kit.Flaky, r *lockregistry.Registry) {
		for i := range 10 {
			l := r.Obtain(strconv.Itoa(i))
			w.Lock(l)
			w.Took(0, "unlock", func() { w.Unlock(l) })
		}
		w.Pass(2 * kit.RoundTrip)
		w.LeftNothing()
	}, lockregistry.WithCapacity(1))
}

// A loss is told, too, when the next call has not waited: Redis says that the key was free, or the next call finds another owner.
func TestBackgroundRelease_ALossIsToldBehindTheNextCall(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose []string
		free bool // when the removal has come
		got  bool
		why  observe.Loss
	}{
		"gone":                 {[]string{"DEL", kit.TheKey}, false, true, observe.LossKeyGone},
		"taken":                {[]string{"SET", kit.TheKey, "java"}, false, false, observe.LossKeyTaken},
		"taken, and free then": {[]string{"SET", kit.TheKey, "java"}, true, true, observe.LossKeyTaken},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				seen := w.Witness()
				r := w.FlakyFar(kit.RoundTrip).Registry(lockregistry.WithBackgroundRelease(), seen.Option(), lockregistry.WithHandoff(time.Minute))
				w.Warm(r)
				l := r.Obtain("42")
				w.Lock(l)
				w.Do(c.lose...)
				w.Unlock(l)
				w.Pass(kit.RoundTrip / 10) // the removal is sent before
				if c.free {
					w.Pass(kit.RoundTrip / 2)
					w.Do("DEL", kit.TheKey)
				}
				got, err := l.TryLock(w.Context())
				require.NoError(w, err)
				require.Equal(w, c.got, got)
				w.Pass(2 * kit.RoundTrip)
				require.Len(w, seen.Lost, 1)
				require.Equal(w, c.why, (<-seen.Lost).Why)
			})
		})
	}
}

// Others that ask for the path wait for its removal: they would take the key over unnoticed, or find another type.
func TestBackgroundRelease_OtherCallsWaitForTheRemoval(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(ctx context.Context, r *lockregistry.Registry) error{
		"writer": func(ctx context.Context, r *lockregistry.Registry) error { return r.ReadWrite("42").Writer().Lock(ctx) },
		"reader": func(ctx context.Context, r *lockregistry.Registry) error { return r.ReadWrite("42").Reader().Lock(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				seen := w.Witness()
				f := w.FlakyFar(kit.RoundTrip)
				r := f.Registry(lockregistry.WithBackgroundRelease(), seen.Option(), lockregistry.WithHandoff(time.Minute))
				w.Warm(r)
				l := r.Obtain("42")
				w.Lock(l)
				f.Fates("release", kit.Fate{Delay: 20 * kit.RoundTrip})
				begun := time.Now()
				w.Unlock(l)
				require.NoError(w, lock(w.Context(), r))
				require.GreaterOrEqual(w, time.Since(begun), 20*kit.RoundTrip)
				w.Pass(5 * kit.RoundTrip)
				require.Empty(w, seen.Lost)
			})
		})
	}
}

// A poller has its turn although this process locks again at once, each time before others could. Without windows it takes
// several times as long.
func TestBackgroundRelease_PollersHaveTheirTurn(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		var lost atomic.Int32
		dial, _ := w.Far(2 * time.Millisecond)
		r := w.RegistryOn(w.ClientWith(dial), lockregistry.WithBackgroundRelease(), lockregistry.WithObserver(observe.Observer{
			Lost: func(observe.Lost) { lost.Add(1) },
		}))
		w.Warm(r)
		poller := w.Registry(kit.WithWakeup(kit.WakeupPoll))
		l, stop, done := r.Obtain("42"), make(chan struct{}), make(chan error)
		go func() {
			var failed error
			for failed == nil {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				if failed = l.Lock(w.Context()); failed == nil {
					<-time.After(time.Millisecond)
					failed = l.Unlock(w.Context())
				}
			}
			done <- failed
		}()
		var waits time.Duration
		for range 5 {
			<-time.After(300 * time.Millisecond) // nobody has waited for a while
			begun := time.Now()
			w.Lock(poller.Obtain("42"))
			waits += time.Since(begun)
			w.Unlock(poller.Obtain("42"))
		}
		close(stop)
		require.NoError(w, <-done)
		require.Less(w, waits, 10*time.Second)
		require.Zero(w, lost.Load())
	})
}

// A call does not wait for a removal for longer than it may. It says so when the server seems to be gone.
func TestBackgroundRelease_WaitingForARemovalEnds(t *testing.T) {
	t.Parallel()
	within := func(d time.Duration, opts ...lockregistry.LockOption) func(ctx context.Context, l *lockregistry.Lock) error {
		return func(ctx context.Context, l *lockregistry.Lock) error {
			ctx, cancel := context.WithTimeout(ctx, d)
			defer cancel()
			return l.Lock(ctx, opts...)
		}
	}
	for name, c := range map[string]struct {
		within time.Duration
		call   func(ctx context.Context, l *lockregistry.Lock) error
		about  error
		also   []error
	}{
		"the context": {kit.RoundTrip, within(kit.RoundTrip), context.DeadlineExceeded, nil},
		"the context, without an answer": {
			300 * time.Millisecond, within(300 * time.Millisecond), context.DeadlineExceeded, []error{lockregistry.ErrUnavailable},
		},
		"the context before the wait, without an answer": {
			300 * time.Millisecond, within(300*time.Millisecond, lockregistry.Wait(time.Second)), context.DeadlineExceeded,
			[]error{lockregistry.ErrUnavailable},
		},
		"behind another call": {300 * time.Millisecond, func(ctx context.Context, l *lockregistry.Lock) error {
			_ = kit.LockElsewhere(l, ctx)
			synctest.Wait()
			return within(300*time.Millisecond)(ctx, l)
		}, context.DeadlineExceeded, []error{lockregistry.ErrUnavailable}},
		"the command's limit": {500 * time.Millisecond, func(ctx context.Context, l *lockregistry.Lock) error {
			return l.Lock(ctx)
		}, lockregistry.ErrUnavailable, nil},
		"the command's limit, NoWait": {500 * time.Millisecond, func(ctx context.Context, l *lockregistry.Lock) error {
			return l.Lock(ctx, lockregistry.NoWait())
		}, lockregistry.ErrUnavailable, nil},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Behind(t, func(w *kit.World, f *kit.Flaky, r *lockregistry.Registry) {
				l := r.Obtain("42")
				w.Lock(l)
				f.Fate("release", kit.Silence)
				w.Unlock(l)
				begun := time.Now()
				err := c.call(w.Context(), l)
				w.Fails(err, c.about, "lock", kit.TheKey, c.also...)
				require.Less(w, time.Since(begun), c.within+250*time.Millisecond)
				f.Reconnect()
				w.Pass(time.Minute)
			}, lockregistry.WithHandoff(0), lockregistry.WithLease(10*time.Second), lockregistry.WithCommandTimeout(500*time.Millisecond))
		})
	}
}

// Where releases go to the background, and what that leaves to others.

// returnsEarly tells whether an Unlock has not waited for its removal.
func returnsEarly(w *kit.World, l *lockregistry.Lock) bool {
	w.Helper()
	w.Lock(l)
	begun := time.Now()
	w.Unlock(l)
	return time.Since(begun) == 0
}

// A service that always has several commands under way shows how far away its server is, too.
func TestBackgroundRelease_WithManyFromTheStart(t *testing.T) {
	t.Parallel()
	for _, goroutines := range []int{1, 2, 16} {
		t.Run(strconv.Itoa(goroutines), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				r := w.FlakyFar(4 * time.Millisecond).Registry(lockregistry.WithBackgroundRelease())
				var early atomic.Int32
				done := make([]<-chan error, goroutines)
				for i := range goroutines {
					done[i] = w.Goroutine().Start(func() error {
						for n := range 50 {
							if returnsEarly(w, r.Obtain(strconv.Itoa(i*1000+n))) {
								early.Add(1)
							}
						}
						return nil
					})
				}
				for _, ended := range done {
					require.NoError(w, <-ended)
				}
				require.Greater(w, int(early.Load()), goroutines*50/2)
			})
		})
	}
}

// Another master may be further away, or nearer, than the one before.
func TestBackgroundRelease_FollowsTheWay(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		dial, away := w.Far(100 * time.Microsecond)
		r := w.RegistryOn(w.ClientWith(dial), lockregistry.WithBackgroundRelease())
		w.Warm(r)
		l := r.Obtain("42")
		for _, far := range []bool{false, true, false} {
			if away.Set(100 * time.Microsecond); far {
				away.Set(2 * time.Millisecond)
			}
			for range 5 {
				_ = returnsEarly(w, l)
				w.Pass(500 * time.Millisecond)
			}
			require.Equal(w, far, returnsEarly(w, l))
		}
	})
}

// Without a queue nothing keeps this process from having the lock for ever but the time between two of its holds: so each call
// waits for the removal. None waits for longer.
func TestBackgroundRelease_WithoutAQueue(t *testing.T) {
	kit.Behind(t, func(w *kit.World, _ *kit.Flaky, r *lockregistry.Registry) {
		l := r.Obtain("42")
		w.Lock(l)
		for range 100 {
			w.Took(0, "unlock", func() { w.Unlock(l) })
			w.Took(2, "lock", func() { w.Lock(l) })
		}
		w.Unlock(l)
	}, kit.WithWakeup(kit.WakeupPoll))
}

// The windows in which this process leaves the key to those without a ticket are no sign that others wait: but for the time of
// the windows a section takes one round trip.
func TestBackgroundRelease_OwnWindows(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const trip, within = 5 * time.Millisecond, 5 * time.Second
		listener := w.Client()
		listening, stop := context.WithCancel(w.Context())
		done := make(chan error, 1)
		go func() {
			channel := listener.B().Subscribe().Channel("orders-channel:" + kit.TheKey).Build()
			done <- listener.Receive(listening, channel, func(rueidis.PubSubMessage) {})
		}()
		w.Settle()
		r := w.FlakyFar(trip).Registry(lockregistry.WithBackgroundRelease())
		w.Warm(r)
		sections, l := 0, r.Obtain("42")
		for begun := time.Now(); time.Since(begun) < within; sections++ {
			w.Lock(l)
			w.Unlock(l)
		}
		stop()
		require.ErrorIs(w, <-done, context.Canceled)
		require.Greater(w, sections, int(within/trip)*6/10)
	})
}

// A wait that ends before the removal is answered is no outage: the call asks all the same.
func TestBackgroundRelease_AWaitThatEndsBeforeTheRemoval(t *testing.T) {
	kit.Behind(t, func(w *kit.World, _ *kit.Flaky, r *lockregistry.Registry) {
		l := r.Obtain("42")
		for _, wait := range []time.Duration{kit.RoundTrip / 2, time.Nanosecond} {
			w.Lock(l)
			w.Unlock(l)
			require.NoError(w, l.Lock(w.Context(), lockregistry.Wait(wait), lockregistry.FailFast()))
			w.Unlock(l)
		}
	}, lockregistry.WithHandoff(0))
}

// Behind a removal that is lost a call asks, once its time is over.
func TestBackgroundRelease_AsksBehindALostRemoval(t *testing.T) {
	kit.Behind(t, func(w *kit.World, f *kit.Flaky, r *lockregistry.Registry) {
		l := r.Obtain("42")
		w.Lock(l)
		f.Fates("release", kit.Silence)
		w.Unlock(l)
		before := f.Count("obtain")
		err := l.Lock(w.Context(), lockregistry.Wait(300*time.Millisecond))
		require.Greater(w, f.Count("obtain"), before)
		if err == nil {
			w.Unlock(l)
		}
		f.Reconnect()
		w.Pass(5 * time.Second)
		w.LeftNothing()
	}, lockregistry.WithHandoff(0))
}

// A hold that was not this process's any more is reported when Redis says so: Unlock has returned nil.
func TestBackgroundRelease_ALossIsToldToObserverAndLog(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose []string
		why  observe.Loss
	}{
		"gone":  {[]string{"DEL", kit.TheKey}, observe.LossKeyGone},
		"taken": {[]string{"SET", kit.TheKey, "java"}, observe.LossKeyTaken},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				seen, log := w.Witness(), &kit.Journal{}
				r := w.FlakyFar(kit.RoundTrip).Registry(lockregistry.WithBackgroundRelease(), seen.Option(), log.Option())
				w.Warm(r)
				l := r.Obtain("42")
				w.Lock(l)
				w.Pass(time.Second)
				w.Do(c.lose...)
				w.Unlock(l)
				require.Empty(w, seen.Lost)
				w.Pass(2 * kit.RoundTrip)
				require.Len(w, seen.Lost, 1)
				lost := <-seen.Lost
				require.Equal(w, c.why, lost.Why)
				require.Equal(w, kit.TheKey, lost.Key)
				require.Equal(w, time.Second, lost.Held.Round(kit.RoundTrip))
				require.Len(w, log.Lines("lock lost before it was released", kit.TheKey), 1)
			})
		})
	}
}

// A removal that comes when the lease would be over finds no key, or another's: that is no loss.
func TestBackgroundRelease_ALateRemovalIsNoLoss(t *testing.T) {
	t.Parallel()
	for name, taken := range map[string]bool{"gone": false, "taken": true} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				seen := w.Witness()
				f := w.FlakyFar(kit.RoundTrip)
				r := f.Registry(lockregistry.WithBackgroundRelease(), seen.Option(), lockregistry.WithLease(time.Second))
				w.Warm(r)
				l := r.Obtain("42")
				w.Lock(l)
				w.Pass(800 * time.Millisecond)
				f.Fates("release", kit.Fate{Delay: 250 * time.Millisecond})
				w.Unlock(l)
				w.Pass(230 * time.Millisecond)
				require.Equal(w, "(nil)", w.Do("GET", kit.TheKey))
				if taken {
					w.Do("SET", kit.TheKey, "java")
				}
				w.Pass(time.Second)
				require.Empty(w, seen.Lost)
			})
		})
	}
}

// A removal that is lost is tried again. A call of another process need not wait for the lease.
func TestBackgroundRelease_ALostRemovalIsRepeated(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]kit.Fate{"before": kit.Cut, "after": kit.CutAfter, "silence": kit.Silence} {
		t.Run(name, func(t *testing.T) {
			kit.Behind(t, func(w *kit.World, f *kit.Flaky, r *lockregistry.Registry) {
				l := r.Obtain("42")
				w.Lock(l)
				f.Fates("release", lost)
				w.Unlock(l)
				other := w.Registry().Obtain("42")
				w.Lock(other, lockregistry.Wait(5*time.Second))
				w.Unlock(other)
				w.Lock(l, lockregistry.Wait(5*time.Second))
				w.Unlock(l)
				w.Pass(time.Second)
				w.LeftNothing()
			})
		})
	}
}

// Removals may fail in another order than that of their holds. None is left out.
func TestBackgroundRelease_RemovalsFailInAnyOrder(t *testing.T) {
	kit.Behind(t, func(w *kit.World, f *kit.Flaky, r *lockregistry.Registry) {
		l := r.Obtain("42")
		w.Lock(l)
		until := make(chan struct{})
		f.Fates("release", kit.Fate{Held: netfault.HoldUntil(until), Cut: netfault.CutRequest(0)}, kit.Refused("OOM no room"))
		w.Unlock(l)
		w.Lock(l)
		f.Fate("release", kit.Refused("OOM no room"))
		w.Unlock(l)
		w.Pass(kit.RoundTrip * 3 / 2)
		close(until)
		w.Pass(kit.RoundTrip)
		f.Forget()
		w.Pass(3 * time.Second)
		w.LeftNothing()
	})
}

// Close waits for the removals. Unlock after it waits itself.
func TestBackgroundRelease_CloseWaits(t *testing.T) {
	t.Parallel()
	t.Run("many", func(t *testing.T) {
		kit.Behind(t, func(w *kit.World, _ *kit.Flaky, r *lockregistry.Registry) {
			held := r.Obtain("held")
			w.Lock(held)
			for i := range 5 {
				l := r.Obtain(strconv.Itoa(i))
				w.Lock(l)
				w.Unlock(l)
			}
			require.NoError(w, r.Close())
			require.Equal(w, "[orders:held]", "["+w.Left()+"]")
			w.Took(1, "unlock", func() { w.Unlock(held) })
			w.LeftNothing()
		})
	})
	// What was not answered has a last try: a silent server must not use up the time for that.
	for name, what := range map[string]kit.Fate{"one that fails": kit.Cut, "one that is not answered": kit.Silence} {
		t.Run(name, func(t *testing.T) {
			kit.Behind(t, func(w *kit.World, f *kit.Flaky, r *lockregistry.Registry) {
				l := r.Obtain("42")
				w.Lock(l)
				f.Fates("release", what)
				w.Unlock(l)
				require.NoError(w, r.Close())
				w.LeftNothing()
			})
		})
	}
}

// So does Shutdown.
func TestBackgroundRelease_ShutdownWaits(t *testing.T) {
	kit.Behind(t, func(w *kit.World, _ *kit.Flaky, r *lockregistry.Registry) {
		for i := range 5 {
			l := r.Obtain(strconv.Itoa(i))
			w.Lock(l)
			w.Unlock(l)
		}
		require.NoError(w, r.Shutdown(w.Context()))
		w.LeftNothing()
	})
}

// The rest waits for its removal.
func TestBackgroundRelease_WhereUnlockWaits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trips int
		hold  func(w *kit.World, r *lockregistry.Registry) (release func() error)
	}{
		"Hold": {0, func(w *kit.World, r *lockregistry.Registry) func() error {
			h := w.Acquires(r.Obtain("42"))
			return func() error { return h.Release(w.Context()) }
		}},
		"Do": {1, func(w *kit.World, r *lockregistry.Registry) func() error {
			return func() error { return r.Do(w.Context(), "42", func(context.Context) error { return nil }) } // to obtain takes a trip
		}},
		"leader": {1, func(w *kit.World, r *lockregistry.Registry) func() error {
			leads, _ := seam.Lockregistry.Leads.(lockregistry.LockOption)
			h := w.Acquires(r.Obtain("42"), leads)
			return func() error { return h.Release(w.Context()) }
		}},
		"AtLeast": {1, func(w *kit.World, r *lockregistry.Registry) func() error {
			h := w.Acquires(r.Obtain("42"), lockregistry.AtLeast(time.Second))
			return func() error { return h.Release(w.Context()) }
		}},
		"AcquireAll": {1, func(w *kit.World, r *lockregistry.Registry) func() error {
			h, err := r.AcquireAll(w.Context(), []string{"42", "43"})
			require.NoError(w, err)
			return func() error { return h.Release(w.Context()) }
		}},
		"reader": {1, func(w *kit.World, r *lockregistry.Registry) func() error {
			w.Lock(r.ReadWrite("42").Reader())
			return func() error { return r.ReadWrite("42").Reader().Unlock(w.Context()) }
		}},
		"writer": {1, func(w *kit.World, r *lockregistry.Registry) func() error {
			w.Lock(r.ReadWrite("42").Writer())
			return func() error { return r.ReadWrite("42").Writer().Unlock(w.Context()) }
		}},
		"many": {1, func(w *kit.World, r *lockregistry.Registry) func() error {
			for i := range 65 {
				w.Lock(r.Obtain(strconv.Itoa(i)))
			}
			for i := range 64 {
				w.Unlock(r.Obtain(strconv.Itoa(i)))
			}
			return func() error { return r.Obtain("64").Unlock(w.Context()) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Behind(t, func(w *kit.World, _ *kit.Flaky, r *lockregistry.Registry) {
				release := c.hold(w, r)
				w.Took(c.trips, name, func() { require.NoError(w, release()) })
			}, lockregistry.WithLease(time.Minute))
		})
	}
	t.Run("Once", func(t *testing.T) {
		kit.Behind(t, func(w *kit.World, _ *kit.Flaky, r *lockregistry.Registry) {
			w.Took(2, "Once", func() {
				_, err := r.Once(w.Context(), "42", time.Minute, func(context.Context) error { return context.Canceled },
					lockregistry.RetryOnError())
				require.ErrorIs(w, err, context.Canceled)
			})
		})
	})
	t.Run("nearby", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			for _, trip := range []time.Duration{190 * time.Microsecond, 210 * time.Microsecond} {
				f := w.FlakyFar(trip)
				r := f.Registry(lockregistry.WithBackgroundRelease())
				w.Warm(r)
				w.Lock(r.Obtain("42"))
				begun := time.Now()
				w.Unlock(r.Obtain("42"))
				require.Equal(w, trip < 200*time.Microsecond, time.Since(begun) >= trip, trip)
			}
		})
	})
	t.Run("a suspect server", func(t *testing.T) {
		kit.Behind(t, func(w *kit.World, f *kit.Flaky, r *lockregistry.Registry) {
			l := r.Obtain("42")
			w.Lock(l)
			f.Fates("obtain", kit.SlowReply(2*time.Second))
			_ = kit.LockElsewhere(r.Obtain("43"), w.Context())
			w.Pass(time.Second)
			begun := time.Now()
			w.Unlock(l)
			require.GreaterOrEqual(w, time.Since(begun), kit.RoundTrip)
		})
	})
}
