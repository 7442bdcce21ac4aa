package lockregistry_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// Holds as values.

// acquires gets a hold for the test.
func (w *world) acquires(l *lockregistry.Lock, opts ...lockregistry.LockOption) *lockregistry.Hold {
	w.Helper()
	h, err := l.Acquire(w.Context(), opts...)
	require.NoError(w, err)
	return h
}

func (w *world) releases(h *lockregistry.Hold) {
	w.Helper()
	require.NoError(w, h.Release(w.Context()))
}

// acquiring is a call of Acquire in a goroutine of its own.
type acquiring struct {
	err  chan error
	hold *lockregistry.Hold // once err was sent
}

func (w *world) acquiring(l *lockregistry.Lock, opts ...lockregistry.LockOption) *acquiring {
	a := &acquiring{err: make(chan error, 1)}
	ctx := w.Context()
	go func() {
		var err error
		a.hold, err = l.Acquire(ctx, opts...)
		a.err <- err
	}()
	return a
}

// got waits for the hold.
func (w *world) got(a *acquiring) *lockregistry.Hold {
	w.Helper()
	require.NoError(w, <-a.err)
	return a.hold
}

// everyKind runs a test on every kind of lock, in both layouts.
func everyKind(t *testing.T, test func(w *world, r *lockregistry.Registry, l *lockregistry.Lock), opts ...lockregistry.Option) {
	t.Helper()
	t.Parallel()
	for name, layout := range layouts {
		for side, of := range kinds {
			t.Run(name+"/"+side, func(t *testing.T) {
				worlds(t, func(w *world) {
					r := w.registry(append(slices.Clone(opts), lockregistry.WithLayout(layout))...)
					test(w, r, of(r))
				})
			})
		}
	}
}

func isReader(l *lockregistry.Lock) bool { return strings.HasPrefix(l.String(), "Reader") }

func TestAcquire_AHoldIsReleasedFromAnyGoroutineOnce(t *testing.T) {
	everyKind(t, func(w *world, _ *lockregistry.Registry, l *lockregistry.Lock) {
		h := w.acquires(l)
		require.Equal(w, "42", h.Path())
		require.Equal(w, theKey, h.Key())
		require.Equal(w, "Hold(orders:42, held)", fmt.Sprint(h))
		require.True(w, l.IsHeld())
		require.False(w, w.free(theKey))
		require.Positive(w, h.Remaining())
		held := h.Context(w.Context())
		require.NoError(w, held.Err())

		require.NoError(w, elsewhere(func() error { return h.Release(w.Context()) }))
		require.True(w, w.free(theKey))
		require.Equal(w, context.Canceled, context.Cause(held))
		require.False(w, l.IsHeld())
		require.Zero(w, h.Remaining())
		require.Equal(w, "Hold(orders:42, over)", fmt.Sprint(h))
		w.fails(h.Release(w.Context()), lockregistry.ErrNotOwner, "release", theKey)
		w.fails(h.Renew(w.Context(), time.Second), lockregistry.ErrNotOwner, "renew", theKey)
		require.ErrorIs(w, context.Cause(h.Context(w.Context())), lockregistry.ErrNotOwner)
		w.leftNothing()
	})
}

func TestAcquire_ByPath(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry()
		h, err := r.Acquire(w.Context(), "42", lockregistry.Lease(10*time.Second))
		require.NoError(w, err)
		require.LessOrEqual(w, w.pttl(theKey), 10*time.Second)
		_, err = r.Acquire(w.Context(), "42", lockregistry.NoWait())
		w.fails(err, lockregistry.ErrTaken, "acquire", theKey)
		_, err = r.Acquire(w.Context(), "42", lockregistry.Wait(time.Millisecond))
		w.fails(err, lockregistry.ErrTaken, "acquire", theKey)
		w.releases(h)
	})
}

// It keeps out its own goroutine too, which may have locked before, and any other process; readers share.
func TestAcquire_AHoldExcludesEverybodyElse(t *testing.T) {
	everyKind(t, func(w *world, r *lockregistry.Registry, l *lockregistry.Lock) {
		h := w.acquires(l)
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err)
		require.Equal(w, isReader(l), ok)
		if ok {
			w.unlock(l)
			second := w.acquires(l)
			w.releases(h)
			require.False(w, w.free(theKey), "the second one reads on")
			require.Positive(w, second.Remaining())
			h = second
			_, err = r.ReadWrite("42").Writer().Acquire(w.Context(), lockregistry.NoWait())
			w.fails(err, lockregistry.ErrTaken, "acquire", theKey)
		} else {
			w.fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", theKey)
			_, err = l.Acquire(w.Context(), lockregistry.NoWait())
			w.fails(err, lockregistry.ErrTaken, "acquire", theKey)
		}
		waits := w.acquiring(l)
		w.releases(h)
		w.releases(w.got(waits))

		w.lock(l)
		_, err = l.Acquire(w.Context(), lockregistry.NoWait())
		require.Equal(w, isReader(l), err == nil)
		w.unlock(l)
	})
}

func TestAcquire_WithBadInput(t *testing.T) {
	r := unusedRegistry(t)
	var none context.Context
	for _, c := range []struct {
		ctx  context.Context
		path string
		opts []lockregistry.LockOption
		why  string
	}{
		{none, "42", nil, "the context is nil"},
		{t.Context(), "", nil, "the path is empty"},
		{t.Context(), "42", []lockregistry.LockOption{lockregistry.Lease(1)}, "Lease(1ns)"},
		{t.Context(), "42", []lockregistry.LockOption{lockregistry.NoWait(), lockregistry.Wait(1)}, "cannot have both"},
	} {
		h, err := r.Acquire(c.ctx, c.path, c.opts...)
		require.Nil(t, h)
		refuses(t, err, "acquire", "orders:"+c.path, c.why)
	}
}

func TestAcquire_CallsOfAHoldWithBadInput(t *testing.T) {
	fakeWorld(t, func(w *world) {
		var none context.Context
		h := w.acquires(w.registry().Obtain("42"))
		refuses(w.T, h.Release(none), "release", theKey, "the context is nil")
		refuses(w.T, h.Renew(none, time.Second), "renew", theKey, "the context is nil")
		refuses(w.T, h.Renew(w.Context(), time.Millisecond), "renew", theKey, "Renew(1ms): a lease must be at least 2ms")
		require.NoError(w, h.Context(none).Err())
		require.Positive(w, h.Remaining(), "nothing has changed")
		w.releases(h)
	})
}

// Whoever acquires with the context of a hold on the same path would wait for itself.
func TestAcquire_ErrDeadlock(t *testing.T) {
	everyKind(t, func(w *world, r *lockregistry.Registry, l *lockregistry.Lock) {
		ctx, cancel := context.WithCancel(w.Context())
		defer cancel()
		h, err := l.Acquire(ctx)
		require.NoError(w, err)
		sides := []*lockregistry.Lock{l}
		if l != r.Obtain("42") {
			sides = []*lockregistry.Lock{r.ReadWrite("42").Reader(), r.ReadWrite("42").Writer()}
		}
		held, cancel := context.WithCancel(context.WithValue(h.Context(ctx), "key", "value")) //nolint:revive,staticcheck // any key
		defer cancel()
		for _, mine := range []context.Context{
			h.Context(ctx), held, h.Context(held), context.WithoutCancel(held), h.Context(context.WithoutCancel(held)),
		} {
			for _, side := range sides {
				_, err := side.Acquire(mine)
				w.fails(err, lockregistry.ErrDeadlock, "acquire", theKey)
				w.fails(side.Lock(mine), lockregistry.ErrDeadlock, "lock", theKey)
				_, err = side.TryLock(mine)
				w.fails(err, lockregistry.ErrDeadlock, "trylock", theKey)
				w.fails(side.Lock(mine, lockregistry.Wait(time.Hour)), lockregistry.ErrDeadlock, "lock", theKey)
				w.fails(side.Unlock(mine), lockregistry.ErrNotOwner, "unlock", theKey)
				w.fails(side.Renew(mine, time.Minute), lockregistry.ErrNotOwner, "renew", theKey)
				require.ErrorIs(w, context.Cause(side.Context(mine)), lockregistry.ErrNotOwner)
			}
			if l == r.Obtain("42") {
				w.fails(r.Do(mine, "42", nothing), lockregistry.ErrDeadlock, "do", theKey)
			}
			require.NoError(w, r.Do(mine, "43", nothing), "another path")
		}
		detached := context.WithoutCancel(held)
		w.releases(h)
		require.ErrorIs(w, l.Lock(held), context.Canceled)
		w.lock(l)
		w.unlock(l)
		next, err := l.Acquire(detached)
		require.NoError(w, err, "it is over")
		w.releases(next)
	})
}

func TestAcquire_AcquiringWithinDoAndLock(t *testing.T) {
	everyKind(t, func(w *world, r *lockregistry.Registry, l *lockregistry.Lock) {
		w.lock(l)
		ctx := l.Context(w.Context())
		_, err := l.Acquire(ctx)
		w.fails(err, lockregistry.ErrDeadlock, "acquire", theKey)
		if l == r.Obtain("42") {
			require.NoError(w, r.Do(ctx, "42", func(inner context.Context) error {
				_, err := r.Acquire(inner, "42")
				w.fails(err, lockregistry.ErrDeadlock, "acquire", theKey)
				return r.Do(inner, "42", nothing)
			}))
		}
		h, err := r.Acquire(ctx, "43")
		require.NoError(w, err)
		both := h.Context(ctx)
		_, err = r.Acquire(both, "43")
		w.fails(err, lockregistry.ErrDeadlock, "acquire", "orders:43")
		_, err = l.Acquire(both)
		w.fails(err, lockregistry.ErrDeadlock, "acquire", theKey)
		require.NoError(w, elsewhere(func() error { return l.Lock(both) }), "Lock nests in Lock")
		require.NoError(w, elsewhere(func() error { return l.Unlock(both) }))
		w.releases(h)
		w.unlock(l)
	})
}

// A new owner wants to be one that does not hold the lock, and waits as anybody else; so do other registries.
func TestAcquire_NewOwnerWithinAnAcquiredHold(t *testing.T) {
	worlds(t, func(w *world) {
		r, other := w.registry(), w.registry()
		h := w.acquires(r.Obtain("42"))
		ctx := lockregistry.NewOwner(h.Context(w.Context()))
		_, err := r.Acquire(ctx, "42", lockregistry.NoWait())
		w.fails(err, lockregistry.ErrTaken, "acquire", theKey)
		_, err = other.Acquire(h.Context(w.Context()), "42", lockregistry.NoWait())
		w.fails(err, lockregistry.ErrTaken, "acquire", theKey)
		w.releases(h)
	})
}

// A hold that is lost keeps nobody waiting, not even with a context that outlives it.
func TestAcquire_NoDeadlockWithALostHold(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		h := w.acquires(r.Obtain("42"), lockregistry.AtMost(time.Second))
		ctx := context.WithoutCancel(h.Context(w.Context()))
		w.pass(time.Second)
		next, err := r.Acquire(ctx, "42")
		require.NoError(w, err)
		w.releases(next)
		w.fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", theKey)
	})
}

// Neither does one that was locked by Lock or Do: an acquisition does not nest in it.
func TestAcquire_AcquiringWithTheContextOfALostLock(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		for _, acquire := range []func(ctx context.Context) (*lockregistry.Hold, error){
			func(ctx context.Context) (*lockregistry.Hold, error) { return r.Acquire(ctx, "42") },
			func(ctx context.Context) (*lockregistry.Hold, error) { return r.AcquireAll(ctx, []string{"a", "42"}) },
		} {
			w.lock(l, lockregistry.Lease(time.Second))
			ctx := context.WithoutCancel(l.Context(w.Context()))
			w.pass(time.Second)
			next, err := acquire(ctx)
			require.NoError(w, err)
			w.releases(next)
			w.fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", theKey)
		}
	})
}

// Of many calls of Release one releases.
func TestAcquire_ReleasingAtTheSameTime(t *testing.T) {
	everyKind(t, func(w *world, _ *lockregistry.Registry, l *lockregistry.Lock) {
		for range 10 {
			h := w.acquires(l)
			var all sync.WaitGroup
			var released, refused atomic.Int32
			for range 8 {
				all.Go(func() {
					err := h.Release(w.Context())
					switch {
					case err == nil:
						released.Add(1)
					case errors.Is(err, lockregistry.ErrNotOwner):
						refused.Add(1)
					default:
						w.Error(err)
					}
				})
			}
			all.Wait()
			require.Equal(w, int32(1), released.Load())
			require.Equal(w, int32(7), refused.Load())
		}
		w.leftNothing()
	})
}

// What was handed over is the next owner's; the one before has no part in it any more.
func TestAcquire_AHoldThatWasHandedOver(t *testing.T) {
	worlds(t, func(w *world) {
		r := w.registry(lockregistry.WithHandoff(time.Hour))
		l := r.Obtain("42")
		first := w.acquires(l)
		ctx := first.Context(w.Context())
		value := w.do("GET", theKey)
		waits := w.acquiring(l)
		w.await("it waits", func() bool { return w.queued(l) })
		w.releases(first)
		second := w.got(waits)
		require.Equal(w, value, w.do("GET", theKey), "it was handed over")
		require.Equal(w, context.Canceled, context.Cause(ctx))
		require.Zero(w, first.Remaining())
		require.Positive(w, second.Remaining())
		held := second.Context(w.Context())
		w.fails(first.Release(w.Context()), lockregistry.ErrNotOwner, "release", theKey)
		w.fails(first.Renew(w.Context(), 10*time.Millisecond), lockregistry.ErrNotOwner, "renew", theKey)
		require.ErrorIs(w, context.Cause(first.Context(w.Context())), lockregistry.ErrNotOwner)
		require.NoError(w, held.Err())
		require.Greater(w, w.pttl(theKey), 30*time.Second)
		require.Equal(w, "Hold(orders:42, over) Hold(orders:42, held)", fmt.Sprint(first, " ", second))

		lock := w.goroutine()
		locking := lock.starts(l)
		w.await("it waits", func() bool { return w.queued(l) })
		w.releases(second)
		require.NoError(w, <-locking)
		require.Equal(w, value, w.do("GET", theKey), "and to a goroutine")
		require.NoError(w, lock.unlock(l))
	})
}

// Nobody misses the value of a hold that was handed over.
func TestAcquire_TheValueOfAHoldThatWasHandedOverIsCollected(t *testing.T) {
	worlds(t, func(w *world) {
		const lease = 600 * time.Millisecond
		var log journal
		r := w.registry(log.option(), lockregistry.WithHandoff(time.Hour), lockregistry.WithRenewal(), lockregistry.WithLease(lease))
		l := r.Obtain("42")
		waits := forgets(w, l, func(h *lockregistry.Hold) *acquiring {
			waits := w.acquiring(l)
			w.await("it waits", func() bool { return w.queued(l) })
			w.releases(h)
			return waits
		})
		next := w.got(waits)
		for range 5 {
			runtime.GC()
			w.awaitRenewal(theKey, lease)
		}
		require.Positive(w, next.Remaining())
		require.Empty(w, log.lines(forgotten))
		w.releases(next)
	})
}

// A renewal that is under way when its owner releases is about a lease that the next owner did not ask for.
func TestAcquire_ReleaseWhileRenewing(t *testing.T) {
	fakeWorld(t, func(w *world) {
		f := w.flaky()
		r := f.registry(lockregistry.WithHandoff(time.Hour))
		w.known(r)
		l := r.Obtain("42")
		h := w.acquires(l)
		value := w.do("GET", theKey)
		arrives := make(chan struct{})
		f.next("renew", heldUp(arrives))
		renewing := make(chan error, 1)
		go func() { renewing <- h.Renew(w.Context(), 80*time.Second) }()
		waits := w.acquiring(l)
		w.settle()
		releasing := make(chan error, 1)
		go func() { releasing <- h.Release(w.Context()) }()
		w.settle()
		close(arrives)
		require.NoError(w, <-releasing)
		w.fails(<-renewing, lockregistry.ErrLockLost, "renew", theKey)
		next := w.got(waits)
		require.NotEqual(w, value, w.do("GET", theKey))
		require.Equal(w, time.Minute, w.pttl(theKey))
		w.releases(next)
	})
}

func TestAcquire_Remaining(t *testing.T) {
	fakeWorld(t, func(w *world) {
		h := w.acquires(w.registry().Obtain("42"), lockregistry.AtMost(10*time.Second))
		require.Equal(w, 9899*time.Millisecond, h.Remaining())
		w.pass(9 * time.Second)
		require.Equal(w, 899*time.Millisecond, h.Remaining())
		require.NoError(w, h.Renew(w.Context(), 20*time.Second))
		require.Equal(w, 899*time.Millisecond, h.Remaining(), "no longer than at most")
		require.Equal(w, time.Second, w.pttl(theKey))
		w.pass(899 * time.Millisecond)
		require.Zero(w, h.Remaining())
		w.fails(h.Renew(w.Context(), time.Second), lockregistry.ErrLockLost, "renew", theKey)
		w.fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", theKey)
		w.fails(h.Release(w.Context()), lockregistry.ErrNotOwner, "release", theKey)
	})
}

func TestAcquire_AHoldIsRenewed(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry(lockregistry.WithRenewal(), lockregistry.WithLease(time.Second))
		h := w.acquires(r.Obtain("42"))
		ctx := h.Context(w.Context())
		w.pass(time.Minute)
		require.NoError(w, ctx.Err())
		require.Greater(w, h.Remaining(), time.Second/2)
		w.releases(h)
		w.pass(time.Minute)
		require.True(w, w.free(theKey))
	})
}

// A hold that is lost is told by its contexts, and by the first Release; also when the next owner is in already, and when so
// many were lost that the lock does not remember.
func TestAcquire_AHoldThatIsLost(t *testing.T) {
	everyKind(t, func(w *world, r *lockregistry.Registry, l *lockregistry.Lock) {
		lease := 50 * time.Millisecond
		if !w.fake {
			lease *= 8 // it must be six round trips at least, which take their time on a busy machine
		}
		exclusive, opts := l, []lockregistry.LockOption{lockregistry.Wait(time.Minute), lockregistry.AtMost(lease)}
		if isReader(l) {
			exclusive, opts = r.ReadWrite("42").Writer(), opts[:1]
		}
		var lost []*lockregistry.Hold
		for range 20 {
			h := w.acquires(l, opts...)
			ctx := h.Context(w.Context())
			if isReader(l) { // it is renewed without end
				require.NoError(w, r.ForceUnlock(w.Context(), "42"))
			}
			w.releases(w.acquires(exclusive)) // once it is lost
			require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
			require.ErrorIs(w, context.Cause(h.Context(w.Context())), lockregistry.ErrLockLost)
			require.Zero(w, h.Remaining())
			lost = append(lost, h)
		}
		next := w.acquires(l)
		for _, h := range lost {
			w.fails(h.Renew(w.Context(), time.Second), lockregistry.ErrLockLost, "renew", theKey)
			w.fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", theKey)
			w.fails(h.Release(w.Context()), lockregistry.ErrNotOwner, "release", theKey)
		}
		require.Positive(w, next.Remaining())
		w.releases(next)
		w.leftNothing()
	})
}

// The context of a hold is a child of its parent in every respect, also of one that never ends.
func TestAcquire_ContextsOfAHold(t *testing.T) {
	type key struct{}
	worlds(t, func(w *world) {
		h := w.acquires(w.registry().Obtain("42"))
		named := context.WithValue(context.Background(), key{}, "value")
		timed, cancel := context.WithTimeoutCause(named, 20*time.Millisecond, errors.New("too slow"))
		defer cancel()
		deadline, _ := timed.Deadline()
		short, long := h.Context(timed), h.Context(named)
		require.Equal(w, "value", short.Value(key{}))
		require.Equal(w, "value", long.Value(key{}))
		require.Nil(w, long.Value("no such key"))
		got, ok := short.Deadline()
		require.True(w, ok)
		require.Equal(w, deadline, got)
		_, ok = long.Deadline()
		require.False(w, ok)
		child, cancelChild := context.WithCancel(long)
		defer cancelChild()
		<-short.Done()
		require.Equal(w, context.DeadlineExceeded, short.Err())
		require.EqualError(w, context.Cause(short), "too slow")
		require.NoError(w, long.Err())
		cancelled, enough := context.WithCancelCause(named)
		other := h.Context(cancelled)
		enough(errors.New("enough"))
		require.EqualError(w, context.Cause(other), "enough", "at once")
		require.Equal(w, "Hold(orders:42, held).Context", fmt.Sprint(long))
		require.NoError(w, child.Err())
		w.releases(h)
		require.Equal(w, context.Canceled, child.Err(), "at once")
	})
}

func TestAcquire_AHoldOutlivesClose(t *testing.T) {
	everyKind(t, func(w *world, r *lockregistry.Registry, l *lockregistry.Lock) {
		h := w.acquires(l)
		ctx := h.Context(w.Context())
		require.NoError(w, r.Close())
		require.Equal(w, lockregistry.ErrClosed, context.Cause(ctx))
		require.ErrorIs(w, context.Cause(h.Context(w.Context())), lockregistry.ErrClosed)
		_, err := l.Acquire(w.Context())
		w.fails(err, lockregistry.ErrClosed, "acquire", theKey)
		w.releases(h)
		w.leftNothing()
	})
}

// Of what a program has forgotten.

// forgets acquires a lock and keeps no more of the hold than what keep makes of it.
//
//go:noinline
func forgets[T any](w *world, l *lockregistry.Lock, keep func(*lockregistry.Hold) T, opts ...lockregistry.LockOption) T {
	return keep(w.acquires(l, opts...))
}

func doneOf(w *world) func(h *lockregistry.Hold) <-chan struct{} {
	return func(h *lockregistry.Hold) <-chan struct{} { return h.Context(w.Context()).Done() }
}

// withContext makes a context of a hold, and keeps nothing of either.
func withContext(w *world) func(h *lockregistry.Hold) any {
	return func(h *lockregistry.Hold) any {
		select {
		case <-h.Context(w.Context()).Done():
		default:
		}
		return nil
	}
}

// collect collects garbage, waits for what follows from it, and lets some time pass where that is fake: it is only then that
// the registry hears of it.
func (w *world) collect() {
	var collected atomic.Bool
	runtime.AddCleanup(new(*int), func(collected *atomic.Bool) { collected.Store(true) }, &collected)
	for runtime.GC(); !collected.Load(); {
		runtime.Gosched()
	}
	if w.fake {
		w.pass(100 * time.Millisecond)
	}
}

// noticed tells whether it has been logged of a hold that nobody can reach it, after a garbage collection.
func (w *world) noticed(log *journal) bool {
	w.collect()
	return len(log.lines(forgotten, theKey)) == 1
}

// forgotten is what the log says of it.
const forgotten = "a hold was not released, and nobody can reach it"

// It is logged, it is renewed no more, and its key is left to its lease: until then nobody gets in, here or
// elsewhere, and then at once.
func TestAcquire_AHoldThatNobodyCanReach(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	for name, of := range kinds {
		t.Run(name, func(t *testing.T) {
			worlds(t, func(w *world) {
				var log journal
				f := w.flaky()
				opts := []lockregistry.Option{lockregistry.WithRenewal(), lockregistry.WithLease(lease)}
				r, other := f.registry(append(opts, log.option())...), w.registry(opts...)
				forgets(w, of(r), withContext(w))
				w.await("it is noticed", func() bool { return w.noticed(&log) })
				renewed := f.count("renew")
				here, there := r.Obtain("42"), other.Obtain("42")
				if name != "plain" {
					here, there = r.ReadWrite("42").Writer(), other.ReadWrite("42").Writer()
				}
				require.True(w, here.IsHeld() || name == "reader")
				began := time.Now() // before the lease is read, which ends that much later
				left := w.pttl(theKey)
				require.Positive(w, left)
				for _, l := range []*lockregistry.Lock{here, there} {
					_, err := l.Acquire(w.Context(), lockregistry.NoWait())
					w.fails(err, lockregistry.ErrTaken, "acquire", theKey)
				}
				h := w.acquires(here, lockregistry.Wait(2*lease))
				// This process counts the lease from before the last renewal was sent, which may have been a while on its way.
				require.GreaterOrEqual(w, time.Since(began), left-lease/4)
				require.Less(w, time.Since(began), left+atOnce)
				require.Equal(w, renewed, f.count("renew"))
				w.releases(h)
				w.releases(w.acquires(there))
				require.Len(w, log.lines(forgotten), 1)
			})
		})
	}
}

// What was released, or is being released, is not forgotten; nor is what a context can reach, or the stack of a call.
func TestAcquire_AHoldThatIsReachable(t *testing.T) {
	type key struct{}
	worlds(t, func(w *world) {
		var log journal
		f := w.flaky()
		const lease = 1800 * time.Millisecond // longer than a busy machine keeps a renewal waiting
		r := f.registry(log.option(), lockregistry.WithRenewal(), lockregistry.WithLease(lease))
		w.known(r)
		forgets(w, r.Obtain("released"), func(h *lockregistry.Hold) any {
			w.releases(h)
			return nil
		})
		direct := forgets(w, r.Obtain("direct"), func(h *lockregistry.Hold) context.Context {
			return h.Context(context.Background())
		})
		derived := forgets(w, r.Obtain("derived"), func(h *lockregistry.Hold) context.Context {
			return context.WithoutCancel(context.WithValue(h.Context(w.Context()), key{}, "value"))
		})
		ctx, cancel := forgets2(w, r.Obtain("child"))
		var releasing chan error
		if w.fake {
			arrives := make(chan struct{})
			f.next("release", heldUp(arrives))
			releasing = make(chan error, 1)
			forgets(w, r.Obtain("releasing"), func(h *lockregistry.Hold) any {
				go func() { releasing <- h.Release(w.Context()) }()
				return nil
			})
			w.settle()
			for range 20 {
				runtime.GC()
			}
			close(arrives)
			require.NoError(w, <-releasing)
		}
		for range 5 {
			w.awaitRenewal("orders:child", lease)
			runtime.GC()
		}
		for _, path := range []string{"direct", "derived", "child"} {
			require.True(w, r.Obtain(path).IsHeld(), path)
		}
		require.Empty(w, log.lines(forgotten))
		require.NoError(w, direct.Err())
		require.NoError(w, derived.Err())
		require.NoError(w, ctx.Err())
		runtime.KeepAlive(direct)
		runtime.KeepAlive(derived)
		cancel()
		w.await("all are noticed", func() bool {
			w.collect()
			return len(log.lines(forgotten)) == 3
		})
	})
}

func forgets2(w *world, l *lockregistry.Lock) (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.acquires(l).Context(w.Context()), time.Hour)
}

// Nothing that a hold is asked for makes it reachable for ever.
func TestAcquire_AHoldDoesNotKeepItselfReachable(t *testing.T) {
	t.Parallel()
	type key struct{}
	for name, keep := range map[string]func(w *world, h *lockregistry.Hold){
		"several contexts": func(w *world, h *lockregistry.Hold) {
			for range 3 {
				h.Context(w.Context())
				h.Context(context.Background())
			}
		},
		"a context of its own context": func(w *world, h *lockregistry.Hold) { h.Context(h.Context(w.Context())) },
		"a context of its own, which never ends": func(_ *world, h *lockregistry.Hold) {
			h.Context(h.Context(context.Background()))
		},
		"its own, detached": func(w *world, h *lockregistry.Hold) {
			h.Context(context.WithoutCancel(h.Context(w.Context())))
		},
		"a context that the hold itself is within": func(_ *world, h *lockregistry.Hold) {
			h.Context(context.WithValue(context.Background(), key{}, h))
		},
		"a child that was cancelled": func(w *world, h *lockregistry.Hold) {
			ctx, cancel := context.WithCancel(h.Context(w.Context()))
			h.Context(ctx)
			cancel()
		},
		"a lock of its context": func(w *world, h *lockregistry.Hold) {
			ctx := h.Context(w.Context())
			_, _ = w.registry().Obtain("other").TryLock(ctx)
		},
		"a renewal": func(w *world, h *lockregistry.Hold) { require.NoError(w, h.Renew(w.Context(), time.Minute)) },
		"a string":  func(_ *world, h *lockregistry.Hold) { _ = h.String() },
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				var log journal
				r := w.registry(log.option())
				forgets(w, r.Obtain("42"), func(h *lockregistry.Hold) any {
					keep(w, h)
					return nil
				})
				w.await("it is noticed", func() bool {
					runtime.GC()
					return len(log.lines(forgotten)) == 1
				})
			})
		})
	}
}

// Where readers share a hold, one that is forgotten leaves it to the others for as long as they read.
func TestAcquire_AReaderThatNobodyCanReach(t *testing.T) {
	const lease = time.Second
	fakeWorld(t, func(w *world) {
		var log journal
		r := w.registry(log.option(), lockregistry.WithLease(lease), lockregistry.WithRenewal())
		l, writer := r.ReadWrite("42").Reader(), w.registry().ReadWrite("42").Writer()
		reader := w.acquires(l)
		ctx := reader.Context(w.Context())
		forgets(w, l, withContext(w))
		w.await("it is noticed", func() bool { return w.noticed(&log) })
		w.pass(10 * lease)
		require.NoError(w, ctx.Err(), "the other one is renewed")
		w.releases(reader)
		require.False(w, w.free(theKey), "who is forgotten may read still")
		w.pass(lease / 2)
		next := w.acquires(l, lockregistry.Lease(lease/10)) // which needs no renewal at once
		w.pass(10 * lease)
		require.Positive(w, next.Remaining(), "who comes meanwhile is renewed")
		w.releases(next)
		require.False(w, w.free(theKey))
		began := time.Now()
		w.releases(w.acquires(writer))
		require.LessOrEqual(w, time.Since(began), lease+150*time.Millisecond)
	})
}

// After Close there is nobody to tell.
func TestAcquire_AHoldThatNobodyCanReachAfterClose(t *testing.T) {
	realWorlds(t, func(w *world) {
		r := w.registry()
		done := forgets(w, r.Obtain("42"), doneOf(w))
		require.NoError(w, r.Close())
		<-done
		for range 5 {
			runtime.GC()
		}
	})
}

// Acquire and Release allocate little more than Lock and Unlock.
func TestAcquire_AllocationsOfAHold(t *testing.T) {
	realWorldsAlone(t, func(w *world) {
		l := w.registry().Obtain("42")
		ctx := context.Background()
		once := func(err error) {
			if err != nil {
				w.Error(err)
			}
		}
		// The race detector empties pools at random, so averages, not whole numbers.
		var of runtime.MemStats
		allocations := func(f func()) float64 {
			runtime.ReadMemStats(&of)
			before := of.Mallocs
			for range 100 {
				f()
			}
			runtime.ReadMemStats(&of)
			return float64(of.Mallocs-before) / 100
		}
		least := func(f func()) float64 {
			f()
			var all []float64
			for range 10 {
				all = append(all, allocations(f))
			}
			return slices.Min(all)
		}
		locking := least(func() {
			once(l.Lock(ctx))
			once(l.Unlock(ctx))
		})
		acquiring := least(func() {
			h, err := l.Acquire(ctx)
			once(err)
			once(h.Release(ctx))
		})
		w.Log(locking, acquiring)
		require.Less(w, acquiring, locking+3.5)
	})
}

// Holds, paths that stay taken and jobs work on a cluster as they do on one server, wherever the key is.
func TestAcquire_HoldsOnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	one, two := onCluster(t, nodes), onCluster(t, nodes)
	const least = 150 * time.Millisecond
	for _, path := range []string{"a", "b", "c", "{tag}d"} {
		t.Run(path, func(t *testing.T) {
			ctx := t.Context()
			hold, err := one.Acquire(ctx, path)
			require.NoError(t, err)
			require.Positive(t, hold.Remaining())
			_, err = two.Acquire(ctx, path, lockregistry.NoWait())
			require.ErrorIs(t, err, lockregistry.ErrTaken)
			_, err = one.Acquire(hold.Context(ctx), path)
			require.ErrorIs(t, err, lockregistry.ErrDeadlock)
			next := make(chan *lockregistry.Hold, 1)
			obtained := time.Now() // or later
			go func() {
				h, err := two.Acquire(ctx, path, lockregistry.AtLeast(least))
				if err != nil {
					t.Error(err)
				}
				next <- h
			}()
			released := make(chan error, 1)
			go func() { released <- hold.Release(ctx) }()
			require.NoError(t, <-released)
			require.ErrorIs(t, hold.Release(ctx), lockregistry.ErrNotOwner)

			hold = <-next
			require.NotNil(t, hold)
			require.NoError(t, hold.Renew(ctx, time.Minute))
			require.NoError(t, hold.Release(ctx))
			if free, err := one.Obtain(path).TryLock(ctx); free {
				require.GreaterOrEqual(t, time.Since(obtained), least, "the path stays taken")
				require.NoError(t, one.Obtain(path).Unlock(ctx))
			} else {
				require.NoError(t, err)
			}
			value, err := lockregistry.DoValue(ctx, one, path, func(context.Context) (string, error) { return "done", nil })
			require.NoError(t, err)
			require.Equal(t, "done", value)
			ran, err := two.Once(ctx, path, time.Hour, func(context.Context) error { return nil })
			require.NoError(t, err)
			require.True(t, ran)
			ran, err = one.Once(ctx, path, time.Hour, func(context.Context) error { return nil })
			require.NoError(t, err)
			require.False(t, ran, "it ran this hour")
		})
	}
}
