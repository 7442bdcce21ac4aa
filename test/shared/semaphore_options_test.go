package shared_test

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// What the options of a registry and of a call mean for a semaphore.

func TestSemaphore_FailFast(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(f *kit.Flaky){
		"refused": func(f *kit.Flaky) {
			f.Fate("obtain", kit.Refused(kit.Loading))
			f.ReconnectNow()
			f.Fate("obtain", kit.Refused(kit.Loading))
		},
		"frozen": func(f *kit.Flaky) { f.Stall() },
	} {
		for how, opts := range map[string][]lockregistry.Option{"polls": {kit.Polling}, "queues": nil} {
			t.Run(name+"/"+how, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					w.WithQueues()
					f := w.Flaky()
					r := f.Registry(opts...)
					w.Known(r)
					held := w.Permit(w.Registry().Semaphore("seat", 1), lockregistry.Lease(time.Hour))
					waits := make(chan error, 1)
					go func() {
						_, err := r.Semaphore("seat", 1).Acquire(w.Context(), kit.As[lockregistry.SemaphoreOption](kit.FailFastOptions)...)
						waits <- err
					}()
					w.Pass(3 * time.Second)
					w.Pending(waits)
					happens(f)
					start := time.Now()
					w.Fails(<-waits, lockregistry.ErrUnavailable, "acquire", kit.SeatKey)
					require.LessOrEqual(w, time.Since(start), 1500*time.Millisecond)
					f.ReconnectNow()
					w.Release(held)
					w.Pass(time.Minute)
					require.Zero(w, w.Inside())
					require.Zero(w, w.Seats())

					f.Fate("obtain", kit.Refused(kit.Loading))
					start = time.Now()
					_, err := r.Semaphore("seat", 1).Acquire(w.Context(), kit.As[lockregistry.SemaphoreOption](kit.FailFastOptions)...)
					w.Fails(err, lockregistry.ErrUnavailable, "acquire", kit.SeatKey)
					require.Zero(w, time.Since(start))
				})
			})
		}
	}
}

// The name of a hold is what others need to release it.
func TestSemaphore_Holder(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		s := w.Registry().Semaphore("seat", 3)
		one, two := w.Permit(s), w.Permit(s, lockregistry.Permits(2))
		ctx := one.Context(w.Context())
		require.Equal(w, []string{"seat"}, one.Paths())
		require.NoError(w, inspect.Of(w.Registry()).ForceUnlockHolder(w.Context(), "seat", two.Holder()))
		require.Equal(w, 1, w.Inside())
		w.Fails(two.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
		w.Release(one)
		require.ErrorIs(w, context.Cause(ctx), context.Canceled)
	})
}

// A call for permits is in no cycle while only one of two holders waits: the other one may release its permit.
func TestSemaphore_NoDeadlock(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2} {
		t.Run(strconv.Itoa(processes), func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				w.WithQueues()
				registries, all := w.Processes(processes)
				one, two := registries[0], registries[processes-1]
				free, held := w.Permit(two.Semaphore("seat", 2)), w.Permit(one.Semaphore("seat", 2))
				door, err := two.Obtain("door").Acquire(w.Context())
				require.NoError(w, err)

				// Each waits for what the other one has.
				waits := make(chan error, 1)
				go func() {
					waits <- one.Do(held.Context(w.Context()), "door", func(context.Context) error { return nil })
				}()
				w.Settle()
				seats := w.AsksWith(door.Context(w.Context()), "the call", two.Semaphore("seat", 2))
				for _, a := range all {
					a.None(w)
				}
				found, err := inspect.Of(one).Deadlocks(w.Context())
				require.NoError(w, err)
				require.Empty(w, found)
				awaitWaiting(seats)
				w.Pending(waits)

				w.Release(free)
				w.Release(seats.Comes(), door)
				require.NoError(w, <-waits)
				w.Release(held)
			})
		})
	}
}

// When all holders wait, there is a deadlock: none can release a permit.
func TestSemaphore_Deadlock(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 2} {
		t.Run(strconv.Itoa(processes), func(t *testing.T) {
			kit.Worlds(t, func(w *kit.World) {
				if w.Mini != nil {
					w.WithQueues()
				}
				registries, all := w.Processes(processes)
				one, two := registries[0], registries[processes-1]
				first, second := w.Permit(two.Semaphore("seat", 2)), w.Permit(one.Semaphore("seat", 2))
				door, err := two.Obtain("door").Acquire(w.Context())
				require.NoError(w, err)

				ctx, cancel := context.WithCancel(w.Context())
				waits := make(chan error, 2)
				wait := func(r *lockregistry.Registry, h *lockregistry.Hold) {
					waits <- r.Do(h.Context(ctx), "door", func(context.Context) error { return nil })
				}
				go wait(two, first)
				go wait(one, second)
				seats := w.AsksWith(door.Context(w.Context()), "the call", two.Semaphore("seat", 2))
				for _, a := range all {
					w.Await("an alarm", func() bool { return len(a.List()) > 0 })
				}
				found, err := inspect.Of(one).Deadlocks(w.Context())
				require.NoError(w, err)
				require.NotEmpty(w, found)
				for _, d := range slices.Concat(found, all[0].List()) {
					require.Len(w, d.Waits, 2)
					require.ElementsMatch(w, []string{"door", "seat"}, []string{d.Waits[0].Path, d.Waits[1].Path})
				}
				awaitWaiting(seats)
				cancel()
				for range 2 {
					require.ErrorIs(w, <-waits, context.Canceled)
				}
				w.Release(first)
				w.Release(seats.Comes(), door, second)
			})
		})
	}
}

// One goroutine acquires permits for others, which release them: it is in no cycle with itself.
func TestSemaphore_NoDeadlockOfWorkers(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		w.WithQueues()
		registries, all := w.Processes(1)
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
		all[0].None(w)
		found, err := inspect.Of(registries[0]).Deadlocks(w.Context())
		require.NoError(w, err)
		require.Empty(w, found)
		require.Len(w, held, 2)
		for range 3 {
			w.Release(<-held)
		}
	})
}
