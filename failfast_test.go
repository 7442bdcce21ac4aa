package lockregistry_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// eachWait runs a test in fake time for each call that waits, by polling and in a queue.
func eachWait(t *testing.T, test func(w *world, op string, r func(f *flaky) *lockregistry.Registry)) {
	t.Helper()
	t.Parallel()
	for op := range waitingCalls {
		for name, opts := range map[string][]lockregistry.Option{"polls": {polling}, "queues": nil} {
			t.Run(op+"/"+name, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					w.withQueues()
					test(w, op, func(f *flaky) *lockregistry.Registry {
						r := f.registry(opts...)
						w.known(r)
						return r
					})
				})
			})
		}
	}
}

// waitingCalls are locking, and those that return a Hold.
var waitingCalls = func() map[string]func(context.Context, *lockregistry.Registry, ...lockregistry.LockOption) error {
	calls := maps.Clone(locking)
	calls["acquire"] = func(ctx context.Context, r *lockregistry.Registry, opts ...lockregistry.LockOption) error {
		_, err := r.Acquire(ctx, "42", opts...)
		return err
	}
	calls["several"] = func(ctx context.Context, r *lockregistry.Registry, opts ...lockregistry.LockOption) error {
		_, err := r.AcquireAll(ctx, []string{"42"}, opts...)
		return err
	}
	return calls
}()

// opOf is what errors call the operation.
func opOf(call string) string {
	if call == "several" {
		return "acquire"
	}
	return call
}

// fast are the options of the calls here.
var fast = []lockregistry.LockOption{lockregistry.Wait(time.Hour), lockregistry.FailFast()}

func TestFailFast_FirstTry(t *testing.T) {
	eachWait(t, func(w *world, op string, registry func(f *flaky) *lockregistry.Registry) {
		f := w.flaky()
		r := registry(f)
		for _, what := range []fate{refused(loading), cut} {
			f.all("obtain", what)
			start := time.Now()
			err := waitingCalls[op](w.Context(), r, fast...)
			w.unavailable(err, opOf(op))
			require.Zero(w, time.Since(start))
			f.Forget()
			w.pass(time.Minute)
		}
		f.freeze()
		start := time.Now()
		w.unavailable(waitingCalls[op](w.Context(), r, fast...), opOf(op))
		require.LessOrEqual(w, time.Since(start), 600*time.Millisecond)
	})
}

// A server that is there is none that fails, however long the lock is taken.
func TestFailFast_WhileItWaits(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(f *flaky){
		"refused": func(f *flaky) { f.all("obtain", refused(loading)); f.reconnectNow(); f.all("obtain", refused(loading)) },
		"frozen":  func(f *flaky) { f.freeze() },
		"silent":  func(f *flaky) { f.all(anything, silence) },
	} {
		t.Run(name, func(t *testing.T) {
			eachWait(t, func(w *world, op string, registry func(f *flaky) *lockregistry.Registry) {
				f := w.flaky()
				r := registry(f)
				held := w.registry()
				w.lock(held.Obtain("42"), lockregistry.Lease(time.Hour))
				waits := make(chan error, 1)
				go func() { waits <- waitingCalls[op](w.Context(), r, fast...) }()
				w.pass(3 * time.Second)
				w.pending(waits)
				happens(f)
				start := time.Now()
				w.unavailable(<-waits, opOf(op))
				require.LessOrEqual(w, time.Since(start), 1500*time.Millisecond)
				f.reconnectNow()
				w.unlock(held.Obtain("42"))
				w.pass(time.Minute)
				w.leftNothing()
			})
		})
	}
}

// A goroutine that waits behind another one of its process fails with it, or when the server is silent although that one holds
// the lock. One that does not ask for it waits on.
func TestFailFast_BehindAnotherGoroutine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		what fate
		held bool // by a goroutine of this process
	}{
		"that is refused":    {refused(loading), false},
		"that hears nothing": {silence, false},
		"that has it":        {silence, true},
	} {
		t.Run(name, func(t *testing.T) {
			eachWait(t, func(w *world, op string, registry func(f *flaky) *lockregistry.Registry) {
				f := w.flaky()
				r := registry(f)
				first := w.goroutine()
				if !c.held {
					w.lock(w.registry().Obtain("42"), lockregistry.Lease(time.Hour))
				}
				asks := first.starts(r.Obtain("42"), lockregistry.Lease(time.Hour))
				w.settle()
				waits, patient := make(chan error, 1), make(chan error, 1)
				go func() { waits <- waitingCalls[op](w.Context(), r, fast...) }()
				ctx, cancel := context.WithCancel(w.Context())
				go func() { patient <- waitingCalls[op](ctx, r, lockregistry.Wait(time.Hour)) }()
				w.pass(2 * time.Second)
				w.pending(waits)
				f.all(anything, c.what)
				if name == "that is refused" {
					f.reconnectNow()
					f.all("obtain", c.what)
				}
				start := time.Now()
				err := <-waits
				require.LessOrEqual(w, time.Since(start), 2*time.Second)
				w.unavailable(err, opOf(op))
				if c.held || c.what.Mute {
					start = time.Now()
					w.unavailable(waitingCalls[op](w.Context(), r, fast...), opOf(op))
					require.LessOrEqual(w, time.Since(start), 2*time.Second, "one that comes later, too")
				}
				w.pending(patient)
				cancel()
				require.ErrorIs(w, <-patient, context.Canceled)
				f.reconnectNow()
				if c.held {
					require.NoError(w, <-asks)
				} else {
					w.pending(asks)
				}
			})
		})
	}
}

// The call behind does not ask the silent server for as long once more when the one in front has failed, whichever notices the
// silence first.
func TestFailFast_BehindAnotherGoroutineThatFails(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 10 * time.Millisecond, 50 * time.Millisecond, 90 * time.Millisecond} {
		for op := range waitingCalls {
			t.Run(op+"/"+after.String(), func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					w.withQueues()
					f := w.flaky()
					w.lock(w.registry().Obtain("42"), lockregistry.Lease(time.Hour))
					r := f.registry()
					one := w.goroutine().starts(r.Obtain("42"), fast...)
					w.pass(after)
					two := make(chan error, 1)
					go func() { two <- waitingCalls[op](w.Context(), r, fast...) }()
					w.settle()
					f.freeze()
					start := time.Now()
					w.unavailable(<-one, "lock")
					failed := time.Since(start)
					require.LessOrEqual(w, failed, 1300*time.Millisecond)
					w.unavailable(<-two, opOf(op))
					require.LessOrEqual(w, time.Since(start)-failed, 100*time.Millisecond)
				})
			})
		}
	}
}

// A way that is long is no silence.
func TestFailFast_OnASlowLink(t *testing.T) {
	t.Parallel()
	eachTrip(t, func(w *world, _ time.Duration, registry func(...lockregistry.Option) *lockregistry.Registry) {
		w.withQueues()
		here, there := registry(), registry()
		held := w.goroutine()
		require.NoError(w, held.lock(there.Obtain("42"), lockregistry.Lease(time.Hour)))
		one, two := w.goroutine(), w.goroutine()
		asks := one.starts(here.Obtain("42"), fast...)
		w.settle()
		waits := two.starts(here.Obtain("42"), fast...)
		w.pass(20 * time.Second)
		w.pending(asks)
		w.pending(waits)
		require.NoError(w, held.unlock(there.Obtain("42")))
		require.NoError(w, <-asks)
		require.NoError(w, one.unlock(here.Obtain("42")))
		require.NoError(w, <-waits)
		require.NoError(w, two.unlock(here.Obtain("42")))

		require.NoError(w, held.lock(there.Obtain("42"), lockregistry.Lease(time.Hour)))
		err := one.lock(here.Obtain("42"), lockregistry.Wait(time.Minute), lockregistry.FailFast())
		w.fails(err, lockregistry.ErrTaken, "lock", theKey)
	})
}

func TestFailFast_TooFewReplicas(t *testing.T) {
	realWorlds(t, func(w *world) {
		r := w.registry(lockregistry.WithReplicas(1, 50*time.Millisecond))
		start := time.Now()
		w.unavailable(r.Obtain("42").Lock(w.Context(), fast...), "lock")
		require.Less(w, time.Since(start), time.Minute)
		w.awaitGone(theKey)
	})
}

// A call that waits for replicas ends when the master falls silent, and not when the time of the replicas is over.
func TestFailFast_SilentMasterWithReplicas(t *testing.T) {
	followedWorlds(t, func(w *followed) {
		r := w.registry(lockregistry.WithReplicas(1, 15*time.Second), lockregistry.WithCommandTimeout(15*time.Second))
		for range 40 { // so that the round trip is known
			w.known(r)
		}
		w.server.Freeze()
		start := time.Now()
		w.unavailable(r.Obtain("42").Lock(w.Context(), fast...), "lock")
		require.Less(w, time.Since(start), 5*time.Second)
		w.server.Thaw()
		w.awaitGone(theKey)
	})
}

func TestFailFast_RealServers(t *testing.T) {
	realWorlds(t, func(w *world) {
		w.lock(w.registry().Obtain("42"), lockregistry.Lease(time.Hour))
		r := w.registry()
		one, two := w.goroutine().starts(r.Obtain("42"), fast...), w.goroutine().starts(r.Obtain("42"), fast...)
		w.await("it is waited for", func() bool { return w.waiting("42") })
		w.server.Freeze()
		limit := time.After(8 * time.Second) // the connections break after 12 s
		for _, waits := range []<-chan error{one, two} {
			select {
			case err := <-waits:
				w.unavailable(err, "lock")
			case <-limit:
				require.NoError(w, errors.New("it waits on"))
			}
		}
		w.server.Thaw()
	})
}

// Without a queue a call sends nothing from one try to the next, however long that takes.
func TestFailFast_BetweenTriesThatAreFarApart(t *testing.T) {
	t.Parallel()
	for op := range waitingCalls {
		t.Run(op, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(polling, lockregistry.WithPollInterval(10*time.Second))
				w.known(r)
				held := w.registry()
				w.lock(held.Obtain("42"), lockregistry.Lease(time.Hour))
				waits, patient := make(chan error, 1), w.goroutine()
				go func() { waits <- waitingCalls[op](w.Context(), r, fast...) }()
				w.pass(21 * time.Second)
				w.pending(waits)
				f.all(anything, silence)
				start := time.Now()
				w.unavailable(<-waits, opOf(op))
				require.LessOrEqual(w, time.Since(start), 1500*time.Millisecond)

				still := patient.starts(r.Obtain("42"), lockregistry.Wait(time.Hour))
				w.pass(time.Minute)
				w.pending(still)
				f.reconnectNow()
				w.unlock(held.Obtain("42"))
				require.NoError(w, <-still)
				require.NoError(w, patient.unlock(r.Obtain("42")))
			})
		})
	}
}

// An owner that goes on while the registry shuts down is told of an outage as at any time.
func TestFailFast_WhileTheRegistryShutsDown(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		w.known(r)
		one, two := w.goroutine(), w.goroutine()
		require.NoError(w, one.lock(r.Obtain("a"), lockregistry.Lease(time.Hour)))
		require.NoError(w, two.lock(r.Obtain("b"), lockregistry.Lease(time.Hour)))
		stranger := w.goroutine().starts(r.Obtain("b"), fast...)
		w.settle()
		done, _ := shutdown(w, r)
		w.fails(<-stranger, lockregistry.ErrClosed, "lock", "orders:b")
		waits := one.starts(r.Obtain("b"), fast...)
		w.pass(2 * time.Second)
		w.pending(waits)
		f.all(anything, silence)
		err := <-waits
		f.reconnectNow()
		require.NoError(w, one.unlock(r.Obtain("a")))
		require.NoError(w, two.unlock(r.Obtain("b")))
		require.NoError(w, <-done)
		w.fails(err, lockregistry.ErrUnavailable, "lock", "orders:b")
	})
}

// An outage that is over is none for a call that comes behind another goroutine later, although nothing was sent since.
func TestFailFast_AfterAnOutage(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry()
		w.known(r)
		holder := w.goroutine()
		require.NoError(w, holder.lock(r.Obtain("42"), lockregistry.Lease(time.Hour)))
		f.freeze()
		w.fails(r.Obtain("other").Lock(w.Context(), fast...), lockregistry.ErrUnavailable, "lock", "orders:other")
		w.pass(10 * time.Second)
		f.reconnectNow()
		w.settle() // the client has seen that its connections are gone
		waits := w.goroutine().starts(r.Obtain("42"), fast...)
		w.pass(5 * time.Second)
		w.pending(waits)
		require.NoError(w, holder.unlock(r.Obtain("42")))
		require.NoError(w, <-waits)
	})
}

// A registry that is closed says so, whatever the command that is under way meets.
func TestFailFast_WhileTheRegistryIsClosed(t *testing.T) {
	for name, opts := range map[string][]lockregistry.LockOption{"fails fast": fast, "waits": {lockregistry.Wait(time.Hour)}} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				f := w.flaky()
				r := f.registry(polling, lockregistry.WithPollInterval(time.Second))
				w.known(r)
				w.lock(w.registry().Obtain("42"), lockregistry.Lease(time.Hour))
				waits := w.goroutine().starts(r.Obtain("42"), opts...)
				w.settle()
				answer := make(chan struct{})
				f.all("obtain", refusedAfter(answer, loading))
				w.pass(1100 * time.Millisecond)
				w.pending(waits)
				closed := make(chan error, 1)
				go func() { closed <- r.Close() }()
				w.settle()
				close(answer)
				w.fails(<-waits, lockregistry.ErrClosed, "lock", theKey)
				require.NoError(w, <-closed)
			})
		})
	}
}
