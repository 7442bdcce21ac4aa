package lock_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

var waysToWait = map[string][]lockregistry.Option{"polls": {kit.Polling}, "queues": nil}

// eachWaitInTurn runs a test in fake time for each call that waits, in one of the two ways, picked by the number. Together
// several tests run both.
func eachWaitInTurn(
	t *testing.T, number int, test func(w *kit.World, op string, r func(f *kit.Flaky) *lockregistry.Registry),
) {
	t.Helper()
	t.Parallel()
	for i, op := range kit.InOrder(waitingCalls) {
		name, _ := kit.Turn(waysToWait, i+number)
		oneWait(t, op, name, test)
	}
}

func oneWait(t *testing.T, op, way string, test func(w *kit.World, op string, r func(f *kit.Flaky) *lockregistry.Registry)) {
	t.Helper()
	t.Run(op+"/"+way, func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			w.WithQueues()
			test(w, op, func(f *kit.Flaky) *lockregistry.Registry {
				r := f.Registry(waysToWait[way]...)
				w.Known(r)
				return r
			})
		})
	})
}

// waitingCalls are the calls that lock, and those that return a Hold.
var waitingCalls = func() map[string]func(context.Context, *lockregistry.Registry, ...lockregistry.LockOption) error {
	calls := maps.Clone(kit.LockingCalls)
	calls["acquire"] = func(ctx context.Context, r *lockregistry.Registry, opts ...lockregistry.LockOption) error {
		_, err := r.Acquire(ctx, "42", opts...)
		return err
	}
	calls["several"] = func(ctx context.Context, r *lockregistry.Registry, opts ...lockregistry.LockOption) error {
		_, err := r.AcquireAll(ctx, []string{"42"}, kit.As[lockregistry.AcquireOption](opts)...)
		return err
	}
	return calls
}()

// opOf returns the operation's name in errors.
func opOf(call string) string {
	if call == "several" {
		return "acquire"
	}
	return call
}

func TestFailFast_FirstTry(t *testing.T) {
	eachWaitInTurn(t, 0, func(w *kit.World, op string, registry func(f *kit.Flaky) *lockregistry.Registry) {
		f := w.Flaky()
		r := registry(f)
		for _, what := range []kit.Fate{kit.Refused(kit.Loading), kit.Cut} {
			f.Fate("obtain", what)
			start := time.Now()
			err := waitingCalls[op](w.Context(), r, kit.FailFastOptions...)
			w.Unavailable(err, opOf(op))
			require.Zero(w, time.Since(start))
			f.Forget()
			w.Pass(time.Minute)
		}
		f.Stall()
		start := time.Now()
		w.Unavailable(waitingCalls[op](w.Context(), r, kit.FailFastOptions...), opOf(op))
		require.LessOrEqual(w, time.Since(start), 600*time.Millisecond)
	})
}

// A server that answers has not failed, however long the lock is taken.
func TestFailFast_WhileItWaits(t *testing.T) {
	t.Parallel()
	faults := map[string]func(f *kit.Flaky){
		"refused": func(f *kit.Flaky) {
			f.Fate("obtain", kit.Refused(kit.Loading))
			f.ReconnectNow()
			f.Fate("obtain", kit.Refused(kit.Loading))
		},
		"frozen": func(f *kit.Flaky) { f.Stall() },
		"silent": func(f *kit.Flaky) { f.Fate(kit.Anything, kit.Silence) },
	}
	for i, name := range kit.InOrder(faults) {
		happens := faults[name]
		t.Run(name, func(t *testing.T) {
			eachWaitInTurn(t, i, func(w *kit.World, op string, registry func(f *kit.Flaky) *lockregistry.Registry) {
				f := w.Flaky()
				r := registry(f)
				held := w.Registry()
				w.Lock(held.Obtain("42"), lockregistry.Lease(time.Hour))
				waits := make(chan error, 1)
				go func() { waits <- waitingCalls[op](w.Context(), r, kit.FailFastOptions...) }()
				w.Pass(3 * time.Second)
				w.Pending(waits)
				happens(f)
				start := time.Now()
				w.Unavailable(<-waits, opOf(op))
				require.LessOrEqual(w, time.Since(start), 1500*time.Millisecond)
				f.ReconnectNow()
				w.Unlock(held.Obtain("42"))
				w.Pass(10 * time.Second)
				w.LeftNothing()
			})
		})
	}
}

// A goroutine that waits behind another one of its process fails with it, or, if that one holds the lock, when the server is
// silent. One without FailFast keeps waiting.
func TestFailFast_BehindAnotherGoroutine(t *testing.T) {
	t.Parallel()
	others := map[string]struct {
		what kit.Fate
		held bool // by a goroutine of this process
	}{
		"that is refused":    {kit.Refused(kit.Loading), false},
		"that hears nothing": {kit.Silence, false},
		"that has it":        {kit.Silence, true},
	}
	for i, name := range kit.InOrder(others) {
		c := others[name]
		t.Run(name, func(t *testing.T) {
			eachWaitInTurn(t, i, func(w *kit.World, op string, registry func(f *kit.Flaky) *lockregistry.Registry) {
				f := w.Flaky()
				r := registry(f)
				first := w.Goroutine()
				if !c.held {
					w.Lock(w.Registry().Obtain("42"), lockregistry.Lease(time.Hour))
				}
				asks := first.Starts(r.Obtain("42"), lockregistry.Lease(time.Hour))
				w.Settle()
				waits, patient := make(chan error, 1), make(chan error, 1)
				go func() { waits <- waitingCalls[op](w.Context(), r, kit.FailFastOptions...) }()
				ctx, cancel := context.WithCancel(w.Context())
				go func() { patient <- waitingCalls[op](ctx, r, lockregistry.Wait(time.Hour)) }()
				w.Pass(2 * time.Second)
				w.Pending(waits)
				f.Fate(kit.Anything, c.what)
				if name == "that is refused" {
					f.ReconnectNow()
					f.Fate("obtain", c.what)
				}
				start := time.Now()
				err := <-waits
				require.LessOrEqual(w, time.Since(start), 2*time.Second)
				w.Unavailable(err, opOf(op))
				if c.held || c.what.Mute {
					start = time.Now()
					w.Unavailable(waitingCalls[op](w.Context(), r, kit.FailFastOptions...), opOf(op))
					require.LessOrEqual(w, time.Since(start), 2*time.Second, "one that comes later, too")
				}
				w.Pending(patient)
				cancel()
				require.ErrorIs(w, <-patient, context.Canceled)
				f.ReconnectNow()
				if c.held {
					require.NoError(w, <-asks)
				} else {
					w.Pending(asks)
				}
			})
		})
	}
}

// When the call in front has failed, the call behind does not ask the silent server for as long again, whichever notices the
// silence first.
func TestFailFast_BehindAnotherGoroutineThatFails(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 10 * time.Millisecond, 50 * time.Millisecond, 90 * time.Millisecond} {
		for op := range waitingCalls {
			t.Run(op+"/"+after.String(), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					w.WithQueues()
					f := w.Flaky()
					w.Lock(w.Registry().Obtain("42"), lockregistry.Lease(time.Hour))
					r := f.Registry()
					one := w.Goroutine().Starts(r.Obtain("42"), kit.FailFastOptions...)
					w.Pass(after)
					two := make(chan error, 1)
					go func() { two <- waitingCalls[op](w.Context(), r, kit.FailFastOptions...) }()
					w.Settle()
					f.Stall()
					start := time.Now()
					w.Unavailable(<-one, "lock")
					failed := time.Since(start)
					require.LessOrEqual(w, failed, 1300*time.Millisecond)
					w.Unavailable(<-two, opOf(op))
					require.LessOrEqual(w, time.Since(start)-failed, 100*time.Millisecond)
				})
			})
		}
	}
}

// A long round trip is no silence.
func TestFailFast_OnASlowLink(t *testing.T) {
	t.Parallel()
	for _, trip := range []time.Duration{time.Millisecond, 150 * time.Millisecond, 900 * time.Millisecond} {
		t.Run(trip.String(), func(t *testing.T) {
			kit.AtRoundTrip(t, trip, failsFastOnASlowLink)
		})
	}
}

func failsFastOnASlowLink(w *kit.World, registry func(...lockregistry.Option) *lockregistry.Registry) {
	w.WithQueues()
	here, there := registry(), registry()
	held := w.Goroutine()
	require.NoError(w, held.Lock(there.Obtain("42"), lockregistry.Lease(time.Hour)))
	one, two := w.Goroutine(), w.Goroutine()
	asks := one.Starts(here.Obtain("42"), kit.FailFastOptions...)
	w.Settle()
	waits := two.Starts(here.Obtain("42"), kit.FailFastOptions...)
	w.Pass(6 * time.Second) // a silence is noticed in less than two seconds
	w.Pending(asks)
	w.Pending(waits)
	require.NoError(w, held.Unlock(there.Obtain("42")))
	require.NoError(w, <-asks)
	require.NoError(w, one.Unlock(here.Obtain("42")))
	require.NoError(w, <-waits)
	require.NoError(w, two.Unlock(here.Obtain("42")))

	require.NoError(w, held.Lock(there.Obtain("42"), lockregistry.Lease(time.Hour)))
	err := one.Lock(here.Obtain("42"), lockregistry.Wait(10*time.Second), lockregistry.FailFast())
	w.Fails(err, lockregistry.ErrTaken, "lock", kit.TheKey)
}

func TestFailFast_TooFewReplicas(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithReplicas(1, 50*time.Millisecond))
		start := time.Now()
		w.Unavailable(r.Obtain("42").Lock(w.Context(), kit.FailFastOptions...), "lock")
		require.Less(w, time.Since(start), time.Minute)
		w.AwaitGone(kit.TheKey)
	})
}

// A call that waits for replicas fails when the master falls silent, not when the time for the replicas is over.
func TestFailFast_SilentMasterWithReplicas(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		r := w.Registry(lockregistry.WithReplicas(1, 15*time.Second), lockregistry.WithCommandTimeout(15*time.Second))
		for range 40 { // so that the round trip is known
			w.Known(r)
		}
		w.Server.Freeze()
		start := time.Now()
		w.Unavailable(r.Obtain("42").Lock(w.Context(), kit.FailFastOptions...), "lock")
		require.Less(w, time.Since(start), 5*time.Second)
		w.Server.Thaw()
		w.AwaitGone(kit.TheKey)
	})
}

func TestFailFast_RealServers(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		w.Lock(w.Registry().Obtain("42"), lockregistry.Lease(time.Hour))
		r := w.Registry()
		one := w.Goroutine().Starts(r.Obtain("42"), kit.FailFastOptions...)
		two := w.Goroutine().Starts(r.Obtain("42"), kit.FailFastOptions...)
		w.Await("it is waited for", func() bool { return w.Waiting("42") })
		w.Server.Freeze()
		limit := time.After(8 * time.Second) // the connections break after 12 s
		for _, waits := range []<-chan error{one, two} {
			select {
			case err := <-waits:
				w.Unavailable(err, "lock")
			case <-limit:
				require.NoError(w, errors.New("it waits on"))
			}
		}
		w.Server.Thaw()
	})
}

// Without a queue a call sends nothing between two tries, however far apart they are.
func TestFailFast_BetweenTriesThatAreFarApart(t *testing.T) {
	t.Parallel()
	for op := range waitingCalls {
		t.Run(op, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(kit.Polling, lockregistry.WithPollInterval(10*time.Second))
				w.Known(r)
				held := w.Registry()
				w.Lock(held.Obtain("42"), lockregistry.Lease(time.Hour))
				waits, patient := make(chan error, 1), w.Goroutine()
				go func() { waits <- waitingCalls[op](w.Context(), r, kit.FailFastOptions...) }()
				w.Pass(21 * time.Second)
				w.Pending(waits)
				f.Fate(kit.Anything, kit.Silence)
				start := time.Now()
				w.Unavailable(<-waits, opOf(op))
				require.LessOrEqual(w, time.Since(start), 1500*time.Millisecond)

				still := patient.Starts(r.Obtain("42"), lockregistry.Wait(time.Hour))
				w.Pass(time.Minute)
				w.Pending(still)
				f.ReconnectNow()
				w.Unlock(held.Obtain("42"))
				require.NoError(w, <-still)
				require.NoError(w, patient.Unlock(r.Obtain("42")))
			})
		})
	}
}

// An owner that continues while the registry shuts down learns of an outage as usual.
func TestFailFast_WhileTheRegistryShutsDown(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		one, two := w.Goroutine(), w.Goroutine()
		require.NoError(w, one.Lock(r.Obtain("a"), lockregistry.Lease(time.Hour)))
		require.NoError(w, two.Lock(r.Obtain("b"), lockregistry.Lease(time.Hour)))
		stranger := w.Goroutine().Starts(r.Obtain("b"), kit.FailFastOptions...)
		w.Settle()
		done, _ := kit.Shutdown(w, r)
		w.Fails(<-stranger, lockregistry.ErrClosed, "lock", "orders:b")
		waits := one.Starts(r.Obtain("b"), kit.FailFastOptions...)
		w.Pass(2 * time.Second)
		w.Pending(waits)
		f.Fate(kit.Anything, kit.Silence)
		err := <-waits
		f.ReconnectNow()
		require.NoError(w, one.Unlock(r.Obtain("a")))
		require.NoError(w, two.Unlock(r.Obtain("b")))
		require.NoError(w, <-done)
		w.Fails(err, lockregistry.ErrUnavailable, "lock", "orders:b")
	})
}

// An outage that is over does not count for a later call behind another goroutine, even if nothing was sent since.
func TestFailFast_AfterAnOutage(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		w.Known(r)
		holder := w.Goroutine()
		require.NoError(w, holder.Lock(r.Obtain("42"), lockregistry.Lease(time.Hour)))
		f.Stall()
		w.Fails(r.Obtain("other").Lock(w.Context(), kit.FailFastOptions...), lockregistry.ErrUnavailable, "lock", "orders:other")
		w.Pass(10 * time.Second)
		f.ReconnectNow()
		w.Settle() // the client has seen that its connections are gone
		waits := w.Goroutine().Starts(r.Obtain("42"), kit.FailFastOptions...)
		w.Pass(5 * time.Second)
		w.Pending(waits)
		require.NoError(w, holder.Unlock(r.Obtain("42")))
		require.NoError(w, <-waits)
	})
}

// A closed registry says so, whatever happens to the command under way.
func TestFailFast_WhileTheRegistryIsClosed(t *testing.T) {
	for name, opts := range map[string][]lockregistry.LockOption{
		"fails fast": kit.FailFastOptions, "waits": {lockregistry.Wait(time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				r := f.Registry(kit.Polling, lockregistry.WithPollInterval(time.Second))
				w.Known(r)
				w.Lock(w.Registry().Obtain("42"), lockregistry.Lease(time.Hour))
				waits := w.Goroutine().Starts(r.Obtain("42"), opts...)
				w.Settle()
				answer := make(chan struct{})
				f.Fate("obtain", kit.RefusedAfter(answer, kit.Loading))
				w.Pass(1100 * time.Millisecond)
				w.Pending(waits)
				closed := make(chan error, 1)
				go func() { closed <- r.Close() }()
				w.Settle()
				close(answer)
				w.Fails(<-waits, lockregistry.ErrClosed, "lock", kit.TheKey)
				require.NoError(w, <-closed)
			})
		})
	}
}
