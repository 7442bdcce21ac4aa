package lockregistry_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/netfault"
	"github.com/lockregistry/lockregistry/internal/seam"
	"github.com/lockregistry/lockregistry/observe"
)

// Releases in the background: Unlock returns before the key is removed.

const aTrip = 50 * time.Millisecond

// behind is a registry far away that knows how far, in fake time, and the network to it.
func behind(
	t *testing.T, test func(w *world, f *flaky, r *lockregistry.Registry), opts ...lockregistry.Option,
) {
	t.Helper()
	fakeWorld(t, func(w *world) {
		f := w.flakyFar(aTrip)
		r := f.registry(append(opts, lockregistry.WithBackgroundRelease())...)
		w.warm(r)
		test(w, f, r)
	})
}

// warm has a registry know the way to its server, with all connections made, and the server know the scripts.
func (w *world) warm(r *lockregistry.Registry) {
	w.Helper()
	w.known(r)
	for _, l := range []*lockregistry.Lock{r.Obtain("warm"), r.ReadWrite("warm rw").Writer(), r.ReadWrite("warm rw").Reader()} {
		for range 10 {
			w.lock(l)
			w.unlock(l)
		}
	}
	if w.fake {
		w.pass(aTrip)
	}
}

// flakyFar is the network to a server that is so far away.
func (w *world) flakyFar(trip time.Duration) *flaky {
	dial, _ := w.far(trip)
	f := &flaky{netfault.New(dial, nameOf), w}
	w.Cleanup(f.Close)
	return f
}

// took checks how many round trips something takes, to within a tenth of one.
func (w *world) took(trips int, what string, do func()) {
	w.Helper()
	begun := time.Now()
	do()
	require.InDelta(w, float64(trips), float64(time.Since(begun))/float64(aTrip), 0.1, what)
}

// sections locks and unlocks a few times, on one path or on another one each time, and returns how long each took.
func (w *world) sections(r *lockregistry.Registry, rotate bool) (took []time.Duration) {
	w.Helper()
	for i := range 40 {
		path := "42"
		if rotate {
			path = strconv.Itoa(i)
		}
		begun := time.Now()
		l := r.Obtain(path)
		w.lock(l)
		w.unlock(l)
		took = append(took, time.Since(begun))
	}
	return took
}

// A section costs a round trip instead of two, on one path, but once in a handoff limit, and on many.
func TestBackgroundRelease_HalvesASection(t *testing.T) {
	t.Parallel()
	for _, trip := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 200 * time.Millisecond} {
		for _, rotate := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, rotate %v", trip, rotate), func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					limit := lockregistry.WithHandoff(20 * trip)
					normal := w.registryOn(w.flakyFar(trip).client(), limit)
					background := w.registryOn(w.flakyFar(trip).client(), limit, lockregistry.WithBackgroundRelease())
					w.known(normal)
					w.known(background)
					w.sections(normal, rotate) // makes the connections
					w.sections(background, rotate)
					before, after := sum(w.sections(normal, rotate)), sum(w.sections(background, rotate))
					require.LessOrEqual(w, float64(after)/float64(before), 0.55)
				})
			})
		}
	}
}

// So it is with a real server.
func TestBackgroundRelease_HalvesASectionInRealTime(t *testing.T) {
	realWorldsAlone(t, func(w *world) {
		const trip = 4 * time.Millisecond
		for _, rotate := range []bool{false, true} {
			dial, _ := w.far(trip)
			normal := w.registryOn(w.clientWith(dial))
			background := w.registryOn(w.clientWith(dial), lockregistry.WithBackgroundRelease())
			w.known(normal)
			w.known(background)
			w.await("half of the time", func() bool { // other processes use the machine, too
				before, after := w.sections(normal, rotate), w.sections(background, rotate)
				return float64(median(after))/float64(median(before)) <= 0.55
			})
		}
	})
}

func sum(all []time.Duration) (total time.Duration) {
	for _, d := range all {
		total += d
	}
	return total
}

func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
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
				behind(t, func(w *world, _ *flaky, r *lockregistry.Registry) {
					l := r.Obtain("42")
					w.lock(l)
					w.took(0, "unlock", func() { w.unlock(l) })
					w.took(1, "the next call", func() { require.NoError(w, next(w.Context(), l)) })
					w.took(0, "unlock", func() { w.unlock(l) })
					w.pass(aTrip)
					w.leftNothing()
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
			fakeWorld(t, func(w *world) {
				seen := w.witness()
				f := w.flakyFar(aTrip)
				r := f.registry(lockregistry.WithLayout(layout), lockregistry.WithBackgroundRelease(), seen.option())
				w.warm(r)
				l := r.Obtain("42")
				w.lock(l)
				first := w.holder(theKey)
				until := make(chan struct{})
				f.next("release", heldUp(until))
				w.unlock(l)
				w.took(1, "the next call", func() { w.lock(l) })
				second := w.holder(theKey)
				require.NotEqual(w, first, second)
				close(until)
				w.pass(10 * aTrip)
				require.Equal(w, second, w.holder(theKey))
				require.True(w, l.IsHeld())
				require.Empty(w, seen.lost)
				w.unlock(l)
				w.pass(10 * aTrip)
				w.leftNothing()
				require.Empty(w, seen.lost)
			})
		})
	}
}

// When the process has had the key for the handoff limit, the next call waits for the removal, so that others have their chance.
// With a limit of 0 each does.
func TestBackgroundRelease_WaitsForTheRemovalAfterTheHandoffLimit(t *testing.T) {
	t.Parallel()
	t.Run("a limit", func(t *testing.T) {
		behind(t, func(w *world, _ *flaky, r *lockregistry.Registry) {
			l := r.Obtain("42")
			w.lock(l)
			w.pass(3 * aTrip)
			w.unlock(l)
			w.took(1, "within the limit", func() { w.lock(l) })
			w.pass(aTrip) // with the hold before it is longer
			w.unlock(l)
			w.took(2, "behind it", func() { require.NoError(w, tried(l.TryLock(w.Context()))) })
			w.unlock(l)
			w.took(1, "within the limit", func() { w.lock(l) })
			w.unlock(l)
		}, lockregistry.WithHandoff(5*aTrip))
	})
	t.Run("none", func(t *testing.T) {
		behind(t, func(w *world, _ *flaky, r *lockregistry.Registry) {
			l := r.Obtain("42")
			w.lock(l)
			w.took(0, "unlock", func() { w.unlock(l) })
			w.took(2, "lock", func() { w.lock(l) })
			w.unlock(l)
		}, lockregistry.WithHandoff(0))
	})
}

// Another process that waits gets the lock, although this one locks and unlocks all the time.
func TestBackgroundRelease_OthersHaveTheirTurn(t *testing.T) {
	behind(t, func(w *world, _ *flaky, r *lockregistry.Registry) {
		l, other := r.Obtain("42"), w.registry().Obtain("42")
		w.lock(l)
		waits := w.goroutine().start(func() error {
			if err := other.Lock(w.Context()); err != nil {
				return err
			}
			return other.Unlock(w.Context())
		})
		w.settle()
		for begun := time.Now(); len(waits) == 0; {
			w.unlock(l)
			w.lock(l)
			require.Less(w, time.Since(begun), 12*aTrip, "the other process waits still")
		}
		require.NoError(w, <-waits)
		w.unlock(l)
	}, lockregistry.WithHandoff(4*aTrip))
}

// A removal under way does not take the room of another lock.
func TestBackgroundRelease_TakesNoRoom(t *testing.T) {
	behind(t, func(w *world, _ *flaky, r *lockregistry.Registry) {
		for i := range 10 {
			l := r.Obtain(strconv.Itoa(i))
			w.lock(l)
			w.took(0, "unlock", func() { w.unlock(l) })
		}
		w.pass(2 * aTrip)
		w.leftNothing()
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
		"gone":                 {[]string{"DEL", theKey}, false, true, observe.LossKeyGone},
		"taken":                {[]string{"SET", theKey, "java"}, false, false, observe.LossKeyTaken},
		"taken, and free then": {[]string{"SET", theKey, "java"}, true, true, observe.LossKeyTaken},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				seen := w.witness()
				r := w.flakyFar(aTrip).registry(lockregistry.WithBackgroundRelease(), seen.option(), lockregistry.WithHandoff(time.Minute))
				w.warm(r)
				l := r.Obtain("42")
				w.lock(l)
				w.do(c.lose...)
				w.unlock(l)
				w.pass(aTrip / 10) // the removal is sent before
				if c.free {
					w.pass(aTrip / 2)
					w.do("DEL", theKey)
				}
				got, err := l.TryLock(w.Context())
				require.NoError(w, err)
				require.Equal(w, c.got, got)
				w.pass(2 * aTrip)
				require.Len(w, seen.lost, 1)
				require.Equal(w, c.why, (<-seen.lost).Why)
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
			fakeWorld(t, func(w *world) {
				seen := w.witness()
				f := w.flakyFar(aTrip)
				r := f.registry(lockregistry.WithBackgroundRelease(), seen.option(), lockregistry.WithHandoff(time.Minute))
				w.warm(r)
				l := r.Obtain("42")
				w.lock(l)
				f.next("release", fate{Delay: 20 * aTrip})
				begun := time.Now()
				w.unlock(l)
				require.NoError(w, lock(w.Context(), r))
				require.GreaterOrEqual(w, time.Since(begun), 20*aTrip)
				w.pass(5 * aTrip)
				require.Empty(w, seen.lost)
			})
		})
	}
}

// A poller has its turn although this process locks again at once, each time before others could. Without windows it takes
// several times as long.
func TestBackgroundRelease_PollersHaveTheirTurn(t *testing.T) {
	realWorlds(t, func(w *world) {
		var lost atomic.Int32
		dial, _ := w.far(2 * time.Millisecond)
		r := w.registryOn(w.clientWith(dial), lockregistry.WithBackgroundRelease(), lockregistry.WithObserver(observe.Observer{
			Lost: func(observe.Lost) { lost.Add(1) },
		}))
		w.warm(r)
		poller := w.registry(lockregistry.WithWakeup(lockregistry.WakeupPoll))
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
			w.lock(poller.Obtain("42"))
			waits += time.Since(begun)
			w.unlock(poller.Obtain("42"))
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
		"the context": {aTrip, within(aTrip), context.DeadlineExceeded, nil},
		"the context, without an answer": {
			300 * time.Millisecond, within(300 * time.Millisecond), context.DeadlineExceeded, []error{lockregistry.ErrUnavailable},
		},
		"the context before the wait, without an answer": {
			300 * time.Millisecond, within(300*time.Millisecond, lockregistry.Wait(time.Second)), context.DeadlineExceeded,
			[]error{lockregistry.ErrUnavailable},
		},
		"behind another call": {300 * time.Millisecond, func(ctx context.Context, l *lockregistry.Lock) error {
			_ = lockElsewhere(l, ctx)
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
			behind(t, func(w *world, f *flaky, r *lockregistry.Registry) {
				l := r.Obtain("42")
				w.lock(l)
				f.all("release", silence)
				w.unlock(l)
				begun := time.Now()
				err := c.call(w.Context(), l)
				w.fails(err, c.about, "lock", theKey, c.also...)
				require.Less(w, time.Since(begun), c.within+250*time.Millisecond)
				f.reconnect()
				w.pass(time.Minute)
			}, lockregistry.WithHandoff(0), lockregistry.WithLease(10*time.Second), lockregistry.WithCommandTimeout(500*time.Millisecond))
		})
	}
}

// A wait that ends before the removal is answered is no outage: the call asks all the same.
func TestBackgroundRelease_AWaitThatEndsBeforeTheRemoval(t *testing.T) {
	behind(t, func(w *world, _ *flaky, r *lockregistry.Registry) {
		l := r.Obtain("42")
		for _, wait := range []time.Duration{aTrip / 2, time.Nanosecond} {
			w.lock(l)
			w.unlock(l)
			require.NoError(w, l.Lock(w.Context(), lockregistry.Wait(wait), lockregistry.FailFast()))
			w.unlock(l)
		}
	}, lockregistry.WithHandoff(0))
}

// Behind a removal that is lost a call asks, once its time is over.
func TestBackgroundRelease_AsksBehindALostRemoval(t *testing.T) {
	behind(t, func(w *world, f *flaky, r *lockregistry.Registry) {
		l := r.Obtain("42")
		w.lock(l)
		f.next("release", silence)
		w.unlock(l)
		before := f.count("obtain")
		err := l.Lock(w.Context(), lockregistry.Wait(300*time.Millisecond))
		require.Greater(w, f.count("obtain"), before)
		if err == nil {
			w.unlock(l)
		}
		f.reconnect()
		w.pass(5 * time.Second)
		w.leftNothing()
	}, lockregistry.WithHandoff(0))
}

// A hold that was not this process's any more is reported when Redis says so: Unlock has returned nil.
func TestBackgroundRelease_ALossIsToldToObserverAndLog(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lose []string
		why  observe.Loss
	}{
		"gone":  {[]string{"DEL", theKey}, observe.LossKeyGone},
		"taken": {[]string{"SET", theKey, "java"}, observe.LossKeyTaken},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				seen, log := w.witness(), &journal{}
				r := w.flakyFar(aTrip).registry(lockregistry.WithBackgroundRelease(), seen.option(), log.option())
				w.warm(r)
				l := r.Obtain("42")
				w.lock(l)
				w.pass(time.Second)
				w.do(c.lose...)
				w.unlock(l)
				require.Empty(w, seen.lost)
				w.pass(2 * aTrip)
				require.Len(w, seen.lost, 1)
				lost := <-seen.lost
				require.Equal(w, c.why, lost.Why)
				require.Equal(w, theKey, lost.Key)
				require.Equal(w, time.Second, lost.Held.Round(aTrip))
				require.Len(w, log.lines("lock lost before it was released", theKey), 1)
			})
		})
	}
}

// A removal that comes when the lease would be over finds no key, or another's: that is no loss.
func TestBackgroundRelease_ALateRemovalIsNoLoss(t *testing.T) {
	t.Parallel()
	for name, taken := range map[string]bool{"gone": false, "taken": true} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				seen := w.witness()
				f := w.flakyFar(aTrip)
				r := f.registry(lockregistry.WithBackgroundRelease(), seen.option(), lockregistry.WithLease(time.Second))
				w.warm(r)
				l := r.Obtain("42")
				w.lock(l)
				w.pass(800 * time.Millisecond)
				f.next("release", fate{Delay: 250 * time.Millisecond})
				w.unlock(l)
				w.pass(230 * time.Millisecond)
				require.Equal(w, "(nil)", w.do("GET", theKey))
				if taken {
					w.do("SET", theKey, "java")
				}
				w.pass(time.Second)
				require.Empty(w, seen.lost)
			})
		})
	}
}

// A removal that is lost is tried again. A call of another process need not wait for the lease.
func TestBackgroundRelease_ALostRemovalIsRepeated(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]fate{"before": cut, "after": cutAfter, "silence": silence} {
		t.Run(name, func(t *testing.T) {
			behind(t, func(w *world, f *flaky, r *lockregistry.Registry) {
				l := r.Obtain("42")
				w.lock(l)
				f.next("release", lost)
				w.unlock(l)
				other := w.registry().Obtain("42")
				w.lock(other, lockregistry.Wait(5*time.Second))
				w.unlock(other)
				w.lock(l, lockregistry.Wait(5*time.Second))
				w.unlock(l)
				w.pass(time.Second)
				w.leftNothing()
			})
		})
	}
}

// Removals may fail in another order than that of their holds. None is left out.
func TestBackgroundRelease_RemovalsFailInAnyOrder(t *testing.T) {
	behind(t, func(w *world, f *flaky, r *lockregistry.Registry) {
		l := r.Obtain("42")
		w.lock(l)
		until := make(chan struct{})
		f.next("release", fate{Held: netfault.HoldUntil(until), Cut: netfault.CutRequest(0)}, refused("OOM no room"))
		w.unlock(l)
		w.lock(l)
		f.all("release", refused("OOM no room"))
		w.unlock(l)
		w.pass(aTrip * 3 / 2)
		close(until)
		w.pass(aTrip)
		f.Forget()
		w.pass(3 * time.Second)
		w.leftNothing()
	})
}

// Close waits for the removals. Unlock after it waits itself.
func TestBackgroundRelease_CloseWaits(t *testing.T) {
	t.Parallel()
	t.Run("many", func(t *testing.T) {
		behind(t, func(w *world, _ *flaky, r *lockregistry.Registry) {
			held := r.Obtain("held")
			w.lock(held)
			for i := range 5 {
				l := r.Obtain(strconv.Itoa(i))
				w.lock(l)
				w.unlock(l)
			}
			require.NoError(w, r.Close())
			require.Equal(w, "[orders:held]", "["+w.left()+"]")
			w.took(1, "unlock", func() { w.unlock(held) })
			w.leftNothing()
		})
	})
	// What was not answered has a last try: a silent server must not use up the time for that.
	for name, what := range map[string]fate{"one that fails": cut, "one that is not answered": silence} {
		t.Run(name, func(t *testing.T) {
			behind(t, func(w *world, f *flaky, r *lockregistry.Registry) {
				l := r.Obtain("42")
				w.lock(l)
				f.next("release", what)
				w.unlock(l)
				require.NoError(w, r.Close())
				w.leftNothing()
			})
		})
	}
}

// So does Shutdown.
func TestBackgroundRelease_ShutdownWaits(t *testing.T) {
	behind(t, func(w *world, _ *flaky, r *lockregistry.Registry) {
		for i := range 5 {
			l := r.Obtain(strconv.Itoa(i))
			w.lock(l)
			w.unlock(l)
		}
		require.NoError(w, r.Shutdown(w.Context()))
		w.leftNothing()
	})
}

// The rest waits for its removal.
func TestBackgroundRelease_WhereUnlockWaits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		trips int
		hold  func(w *world, r *lockregistry.Registry) (release func() error)
	}{
		"Hold": {0, func(w *world, r *lockregistry.Registry) func() error {
			h := w.acquires(r.Obtain("42"))
			return func() error { return h.Release(w.Context()) }
		}},
		"Do": {1, func(w *world, r *lockregistry.Registry) func() error {
			return func() error { return r.Do(w.Context(), "42", func(context.Context) error { return nil }) } // to obtain takes a trip
		}},
		"leader": {1, func(w *world, r *lockregistry.Registry) func() error {
			leads, _ := seam.Lockregistry.Leads.(lockregistry.LockOption)
			h := w.acquires(r.Obtain("42"), leads)
			return func() error { return h.Release(w.Context()) }
		}},
		"AtLeast": {1, func(w *world, r *lockregistry.Registry) func() error {
			h := w.acquires(r.Obtain("42"), lockregistry.AtLeast(time.Second))
			return func() error { return h.Release(w.Context()) }
		}},
		"AcquireAll": {1, func(w *world, r *lockregistry.Registry) func() error {
			h, err := r.AcquireAll(w.Context(), []string{"42", "43"})
			require.NoError(w, err)
			return func() error { return h.Release(w.Context()) }
		}},
		"reader": {1, func(w *world, r *lockregistry.Registry) func() error {
			w.lock(r.ReadWrite("42").Reader())
			return func() error { return r.ReadWrite("42").Reader().Unlock(w.Context()) }
		}},
		"writer": {1, func(w *world, r *lockregistry.Registry) func() error {
			w.lock(r.ReadWrite("42").Writer())
			return func() error { return r.ReadWrite("42").Writer().Unlock(w.Context()) }
		}},
		"many": {1, func(w *world, r *lockregistry.Registry) func() error {
			for i := range 65 {
				w.lock(r.Obtain(strconv.Itoa(i)))
			}
			for i := range 64 {
				w.unlock(r.Obtain(strconv.Itoa(i)))
			}
			return func() error { return r.Obtain("64").Unlock(w.Context()) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			behind(t, func(w *world, _ *flaky, r *lockregistry.Registry) {
				release := c.hold(w, r)
				w.took(c.trips, name, func() { require.NoError(w, release()) })
			}, lockregistry.WithLease(time.Minute))
		})
	}
	t.Run("Once", func(t *testing.T) {
		behind(t, func(w *world, _ *flaky, r *lockregistry.Registry) {
			w.took(2, "Once", func() {
				_, err := r.Once(w.Context(), "42", time.Minute, func(context.Context) error { return context.Canceled },
					lockregistry.RetryOnError())
				require.ErrorIs(w, err, context.Canceled)
			})
		})
	})
	t.Run("nearby", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			for _, trip := range []time.Duration{190 * time.Microsecond, 210 * time.Microsecond} {
				f := w.flakyFar(trip)
				r := f.registry(lockregistry.WithBackgroundRelease())
				w.warm(r)
				w.lock(r.Obtain("42"))
				begun := time.Now()
				w.unlock(r.Obtain("42"))
				require.Equal(w, trip < 200*time.Microsecond, time.Since(begun) >= trip, trip)
			}
		})
	})
	t.Run("a suspect server", func(t *testing.T) {
		behind(t, func(w *world, f *flaky, r *lockregistry.Registry) {
			l := r.Obtain("42")
			w.lock(l)
			f.next("obtain", slow(2*time.Second))
			_ = lockElsewhere(r.Obtain("43"), w.Context())
			w.pass(time.Second)
			begun := time.Now()
			w.unlock(l)
			require.GreaterOrEqual(w, time.Since(begun), aTrip)
		})
	})
}
