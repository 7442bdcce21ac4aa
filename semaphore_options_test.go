package lockregistry_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// What options of a registry and of a call mean for a semaphore.

func TestSemaphore_FailFast(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(f *flaky){
		"refused": func(f *flaky) { f.all("obtain", refused(loading)); f.reconnectNow(); f.all("obtain", refused(loading)) },
		"frozen":  func(f *flaky) { f.freeze() },
	} {
		for how, opts := range map[string][]lockregistry.Option{"polls": {polling}, "queues": nil} {
			t.Run(name+"/"+how, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					w.withQueues()
					f := w.flaky()
					r := f.registry(opts...)
					w.known(r)
					held := w.permit(w.registry().Semaphore("seat", 1), lockregistry.Lease(time.Hour))
					waits := make(chan error, 1)
					go func() {
						_, err := r.Semaphore("seat", 1).Acquire(w.Context(), fast...)
						waits <- err
					}()
					w.pass(3 * time.Second)
					w.pending(waits)
					happens(f)
					start := time.Now()
					w.fails(<-waits, lockregistry.ErrUnavailable, "acquire", seat)
					require.LessOrEqual(w, time.Since(start), 1500*time.Millisecond)
					f.reconnectNow()
					w.release(held)
					w.pass(time.Minute)
					require.Zero(w, w.inside())
					require.Zero(w, w.seats())

					f.all("obtain", refused(loading))
					start = time.Now()
					_, err := r.Semaphore("seat", 1).Acquire(w.Context(), fast...)
					w.fails(err, lockregistry.ErrUnavailable, "acquire", seat)
					require.Zero(w, time.Since(start))
				})
			})
		}
	}
}

// A release of permits waits for its removal, so that nobody is told of room that is not there yet.
func TestSemaphore_BackgroundRelease(t *testing.T) {
	behind(t, func(w *world, _ *flaky, r *lockregistry.Registry) {
		s := r.Semaphore("seat", 1)
		w.release(w.permit(s)) // so that the server knows the scripts
		for range 3 {
			var h *lockregistry.Hold
			w.took(1, "acquire", func() { h = w.permit(s) })
			w.took(1, "release", func() { w.release(h) })
			require.Zero(w, w.inside())
		}
	})
}

// The name of a hold is that with which others can release it.
func TestSemaphore_Holder(t *testing.T) {
	worlds(t, func(w *world) {
		s := w.registry().Semaphore("seat", 3)
		one, two := w.permit(s), w.permit(s, lockregistry.Permits(2))
		ctx := one.Context(w.Context())
		require.Equal(w, []string{"seat"}, one.Paths())
		require.NoError(w, w.registry().ForceUnlockHolder(w.Context(), "seat", two.Holder()))
		require.Equal(w, 1, w.inside())
		w.fails(two.Release(w.Context()), lockregistry.ErrLockLost, "release", seat)
		w.release(one)
		require.ErrorIs(w, context.Cause(ctx), context.Canceled)
	})
}

// A call for permits is in no cycle of waiting calls while one holder of two waits: the other one may give its permit back.
func TestSemaphore_NoDeadlock(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2} {
		t.Run(strconv.Itoa(processes), func(t *testing.T) {
			eachLayout(t, fakeWorld, func(w *world) {
				w.withQueues()
				registries, all := w.processes(processes)
				one, two := registries[0], registries[processes-1]
				free, held := w.permit(two.Semaphore("seat", 2)), w.permit(one.Semaphore("seat", 2))
				door, err := two.Obtain("door").Acquire(w.Context())
				require.NoError(w, err)

				// Each waits for what the other one has.
				waits := make(chan error, 1)
				go func() {
					waits <- one.Do(held.Context(w.Context()), "door", func(context.Context) error { return nil })
				}()
				w.settle()
				seats := w.asksWith(door.Context(w.Context()), "the call", two.Semaphore("seat", 2))
				for _, a := range all {
					a.none(w)
				}
				found, err := one.Deadlocks(w.Context())
				require.NoError(w, err)
				require.Empty(w, found)
				seats.waits()
				w.pending(waits)

				w.release(free)
				w.release(seats.comes(), door)
				require.NoError(w, <-waits)
				w.release(held)
			})
		})
	}
}

// When all holders wait, nobody gives a permit back.
func TestSemaphore_Deadlock(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2} {
		t.Run(strconv.Itoa(processes), func(t *testing.T) {
			eachLayout(t, worlds, func(w *world) {
				if w.mini != nil {
					w.withQueues()
				}
				registries, all := w.processes(processes)
				one, two := registries[0], registries[processes-1]
				first, second := w.permit(two.Semaphore("seat", 2)), w.permit(one.Semaphore("seat", 2))
				door, err := two.Obtain("door").Acquire(w.Context())
				require.NoError(w, err)

				ctx, cancel := context.WithCancel(w.Context())
				waits := make(chan error, 2)
				wait := func(r *lockregistry.Registry, h *lockregistry.Hold) {
					waits <- r.Do(h.Context(ctx), "door", func(context.Context) error { return nil })
				}
				go wait(two, first)
				go wait(one, second)
				seats := w.asksWith(door.Context(w.Context()), "the call", two.Semaphore("seat", 2))
				for _, a := range all {
					w.await("an alarm", func() bool { return len(a.list()) > 0 })
				}
				found, err := one.Deadlocks(w.Context())
				require.NoError(w, err)
				require.NotEmpty(w, found)
				for _, d := range slices.Concat(found, all[0].list()) {
					require.Len(w, d.Waits, 2)
					require.ElementsMatch(w, []string{"door", "seat"}, []string{d.Waits[0].Path, d.Waits[1].Path})
				}
				seats.waits()
				cancel()
				for range 2 {
					require.ErrorIs(w, <-waits, context.Canceled)
				}
				w.release(first)
				w.release(seats.comes(), door, second)
			})
		})
	}
}

// One goroutine takes permits for others, which give them back: it waits for nobody who waits.
func TestSemaphore_NoDeadlockOfWorkers(t *testing.T) {
	eachLayout(t, fakeWorld, func(w *world) {
		w.withQueues()
		registries, all := w.processes(1)
		workers := registries[0].Semaphore("seat", 2)
		held := make(chan *lockregistry.Hold, 3)
		go func() {
			for range 3 {
				h, err := workers.Acquire(w.Context())
				if err == nil {
					held <- h
				}
			}
		}()
		all[0].none(w)
		found, err := registries[0].Deadlocks(w.Context())
		require.NoError(w, err)
		require.Empty(w, found)
		require.Len(w, held, 2)
		for range 3 {
			w.release(<-held)
		}
	})
}
