package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// everyKind runs a test on every kind of lock, in both layouts.
func everyKind(
	t *testing.T, test func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock), opts ...lockregistry.Option,
) {
	t.Helper()
	t.Parallel()
	for name, layout := range kit.Layouts {
		for side, of := range kit.LockKinds {
			t.Run(name+"/"+side, func(t *testing.T) {
				kit.Worlds(t, func(w *kit.World) {
					r := w.Registry(append(slices.Clone(opts), kit.WithLayout(layout))...)
					test(w, r, of(r))
				})
			})
		}
	}
}

func isReader(l *lockregistry.Lock) bool { return strings.HasPrefix(l.String(), "Reader") }

func TestAcquire_AHoldIsReleasedFromAnyGoroutineOnce(t *testing.T) {
	everyKind(t, func(w *kit.World, _ *lockregistry.Registry, l *lockregistry.Lock) {
		h := w.Acquires(l)
		require.Equal(w, []string{"42"}, h.Paths())
		require.Equal(w, "Hold(orders:42, held)", fmt.Sprint(h))
		require.True(w, l.IsHeld())
		require.False(w, w.Free(kit.TheKey))
		require.Positive(w, h.Remaining())
		held := h.Context(w.Context())
		require.NoError(w, held.Err())

		w.Released(kit.Elsewhere(func() error { return h.Release(w.Context()) }))
		w.IsFree(kit.TheKey)
		require.Equal(w, context.Canceled, context.Cause(held))
		require.False(w, l.IsHeld())
		require.Zero(w, h.Remaining())
		require.Equal(w, "Hold(orders:42, over)", fmt.Sprint(h))
		w.Fails(h.Release(w.Context()), lockregistry.ErrNotOwner, "release", kit.TheKey)
		w.Fails(h.Renew(w.Context(), time.Second), lockregistry.ErrNotOwner, "renew", kit.TheKey)
		require.ErrorIs(w, context.Cause(h.Context(w.Context())), lockregistry.ErrNotOwner)
		w.LeftNothing()
	})
}

func TestAcquire_ByPath(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		h, err := r.Acquire(w.Context(), "42", lockregistry.Lease(10*time.Second))
		require.NoError(w, err)
		require.LessOrEqual(w, w.Pttl(kit.TheKey), 10*time.Second)
		_, err = r.Acquire(w.Context(), "42", lockregistry.NoWait())
		w.Fails(err, lockregistry.ErrTaken, "acquire", kit.TheKey)
		_, err = r.Acquire(w.Context(), "42", lockregistry.Wait(time.Millisecond))
		w.Fails(err, lockregistry.ErrTaken, "acquire", kit.TheKey)
		w.Release(h)
	})
}

// An acquired hold excludes its own goroutine, too, even if that has locked before, and any other process; readers share.
func TestAcquire_AHoldExcludesEverybodyElse(t *testing.T) {
	everyKind(t, func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock) {
		h := w.Acquires(l)
		ok, err := l.TryLock(w.Context())
		require.NoError(w, err)
		require.Equal(w, isReader(l), ok)
		if ok {
			w.Unlock(l)
			second := w.Acquires(l)
			w.Release(h)
			require.False(w, w.Free(kit.TheKey), "the second one reads on")
			require.Positive(w, second.Remaining())
			h = second
			_, err = r.ReadWrite("42").Writer().Acquire(w.Context(), lockregistry.NoWait())
			w.Fails(err, lockregistry.ErrTaken, "acquire", kit.TheKey)
		} else {
			w.Fails(l.Unlock(w.Context()), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
			_, err = l.Acquire(w.Context(), lockregistry.NoWait())
			w.Fails(err, lockregistry.ErrTaken, "acquire", kit.TheKey)
		}
		waits := w.Acquiring(l)
		w.Release(h)
		w.Release(w.Got(waits))

		w.Lock(l)
		_, err = l.Acquire(w.Context(), lockregistry.NoWait())
		require.Equal(w, isReader(l), err == nil)
		w.Unlock(l)
	})
}

func TestAcquire_WithBadInput(t *testing.T) {
	r := kit.UnusedRegistry(t)
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
		kit.Refuses(t, err, "acquire", "orders:"+c.path, c.why)
	}
}

func TestAcquire_CallsOfAHoldWithBadInput(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		var none context.Context
		h := w.Acquires(w.Registry().Obtain("42"))
		kit.Refuses(w.T, h.Release(none), "release", kit.TheKey, "the context is nil")
		kit.Refuses(w.T, h.Renew(none, time.Second), "renew", kit.TheKey, "the context is nil")
		kit.Refuses(w.T, h.Renew(w.Context(), time.Millisecond), "renew", kit.TheKey, "Renew(1ms): a lease must be at least 2ms")
		require.NoError(w, h.Context(none).Err())
		require.Positive(w, h.Remaining(), "nothing has changed")
		w.Release(h)
	})
}

// A call that acquires with the context of a hold on the same path would wait for itself, and is refused.
func TestAcquire_ErrDeadlock(t *testing.T) {
	everyKind(t, func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock) {
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
				w.Fails(err, lockregistry.ErrDeadlock, "acquire", kit.TheKey)
				w.Fails(side.Lock(mine), lockregistry.ErrDeadlock, "lock", kit.TheKey)
				_, err = side.TryLock(mine)
				w.Fails(err, lockregistry.ErrDeadlock, "trylock", kit.TheKey)
				w.Fails(side.Lock(mine, lockregistry.Wait(time.Hour)), lockregistry.ErrDeadlock, "lock", kit.TheKey)
				w.Fails(side.Unlock(mine), lockregistry.ErrNotOwner, "unlock", kit.TheKey)
				w.Fails(side.Renew(mine, time.Minute), lockregistry.ErrNotOwner, "renew", kit.TheKey)
				require.ErrorIs(w, context.Cause(side.Context(mine)), lockregistry.ErrNotOwner)
			}
			if l == r.Obtain("42") {
				w.Fails(r.Do(mine, "42", kit.DoNothing), lockregistry.ErrDeadlock, "do", kit.TheKey)
			}
			require.NoError(w, r.Do(mine, "43", kit.DoNothing), "another path")
		}
		detached := context.WithoutCancel(held)
		w.Release(h)
		require.ErrorIs(w, l.Lock(held), context.Canceled)
		w.Lock(l)
		w.Unlock(l)
		next, err := l.Acquire(detached)
		require.NoError(w, err, "it is over")
		w.Release(next)
	})
}

func TestAcquire_AcquiringWithinDoAndLock(t *testing.T) {
	everyKind(t, func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock) {
		w.Lock(l)
		ctx := l.Context(w.Context())
		_, err := l.Acquire(ctx)
		w.Fails(err, lockregistry.ErrDeadlock, "acquire", kit.TheKey)
		if l == r.Obtain("42") {
			require.NoError(w, r.Do(ctx, "42", func(inner context.Context) error {
				_, err := r.Acquire(inner, "42")
				w.Fails(err, lockregistry.ErrDeadlock, "acquire", kit.TheKey)
				return r.Do(inner, "42", kit.DoNothing)
			}))
		}
		h, err := r.Acquire(ctx, "43")
		require.NoError(w, err)
		both := h.Context(ctx)
		_, err = r.Acquire(both, "43")
		w.Fails(err, lockregistry.ErrDeadlock, "acquire", "orders:43")
		_, err = l.Acquire(both)
		w.Fails(err, lockregistry.ErrDeadlock, "acquire", kit.TheKey)
		require.NoError(w, kit.Elsewhere(func() error { return l.Lock(both) }), "Lock nests in Lock")
		require.NoError(w, kit.Elsewhere(func() error { return l.Unlock(both) }))
		w.Release(h)
		w.Unlock(l)
	})
}

// A new owner within a hold does not hold the lock, and waits like anybody else; so do other registries.
func TestAcquire_ContextWithOwnerWithinAnAcquiredHold(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r, other := w.Registry(), w.Registry()
		h := w.Acquires(r.Obtain("42"))
		ctx := lockregistry.ContextWithOwner(h.Context(w.Context()))
		_, err := r.Acquire(ctx, "42", lockregistry.NoWait())
		w.Fails(err, lockregistry.ErrTaken, "acquire", kit.TheKey)
		_, err = other.Acquire(h.Context(w.Context()), "42", lockregistry.NoWait())
		w.Fails(err, lockregistry.ErrTaken, "acquire", kit.TheKey)
		w.Release(h)
	})
}

// A lost hold keeps nobody waiting, not even a call with a context that outlives it.
func TestAcquire_NoDeadlockWithALostHold(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		h := w.Acquires(r.Obtain("42"), lockregistry.AtMost(time.Second))
		ctx := context.WithoutCancel(h.Context(w.Context()))
		w.Pass(time.Second)
		next, err := r.Acquire(ctx, "42")
		require.NoError(w, err)
		w.Release(next)
		w.Fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.TheKey)
	})
}

// The same for a hold of Lock or Do: an acquisition does not nest in it.
func TestAcquire_AcquiringWithTheContextOfALostLock(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		for _, acquire := range []func(ctx context.Context) (*lockregistry.Hold, error){
			func(ctx context.Context) (*lockregistry.Hold, error) { return r.Acquire(ctx, "42") },
			func(ctx context.Context) (*lockregistry.Hold, error) { return r.AcquireAll(ctx, []string{"a", "42"}) },
		} {
			w.Lock(l, lockregistry.Lease(time.Second))
			ctx := context.WithoutCancel(l.Context(w.Context()))
			w.Pass(time.Second)
			next, err := acquire(ctx)
			require.NoError(w, err)
			w.Release(next)
			w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", kit.TheKey)
		}
	})
}

// Of many calls of Release only one releases.
func TestAcquire_ReleasingAtTheSameTime(t *testing.T) {
	everyKind(t, func(w *kit.World, _ *lockregistry.Registry, l *lockregistry.Lock) {
		for range 10 {
			h := w.Acquires(l)
			var all sync.WaitGroup
			var released, refused atomic.Int32
			for range 8 {
				all.Go(func() {
					err := w.UnlessLate(h.Release(w.Context()))
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
		w.LeftNothing()
	})
}

// A hold that was handed over is the next owner's; the previous owner's value no longer affects it.
func TestAcquire_AHoldThatWasHandedOver(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithHandoff(time.Hour))
		l := r.Obtain("42")
		first := w.Acquires(l)
		ctx := first.Context(w.Context())
		value := w.Do("GET", kit.TheKey)
		waits := w.Acquiring(l)
		w.Await("it waits", func() bool { return w.Queued(l) })
		w.Release(first)
		second := w.Got(waits)
		require.Equal(w, value, w.Do("GET", kit.TheKey), "it was handed over")
		require.Equal(w, context.Canceled, context.Cause(ctx))
		require.Zero(w, first.Remaining())
		require.Positive(w, second.Remaining())
		held := second.Context(w.Context())
		w.Fails(first.Release(w.Context()), lockregistry.ErrNotOwner, "release", kit.TheKey)
		w.Fails(first.Renew(w.Context(), 10*time.Millisecond), lockregistry.ErrNotOwner, "renew", kit.TheKey)
		require.ErrorIs(w, context.Cause(first.Context(w.Context())), lockregistry.ErrNotOwner)
		require.NoError(w, held.Err())
		require.Greater(w, w.Pttl(kit.TheKey), 30*time.Second)
		require.Equal(w, "Hold(orders:42, over) Hold(orders:42, held)", fmt.Sprint(first, " ", second))

		lock := w.Goroutine()
		locking := lock.Starts(l)
		w.Await("it waits", func() bool { return w.Queued(l) })
		w.Release(second)
		require.NoError(w, <-locking)
		require.Equal(w, value, w.Do("GET", kit.TheKey), "and to a goroutine")
		require.NoError(w, lock.Unlock(l))
	})
}

// A renewal that is under way when its owner releases sets no lease for the next owner.
func TestAcquire_ReleaseWhileRenewing(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry(lockregistry.WithHandoff(time.Hour))
		w.Known(r)
		l := r.Obtain("42")
		h := w.Acquires(l)
		value := w.Do("GET", kit.TheKey)
		arrives := make(chan struct{})
		f.Fates("renew", kit.HeldUp(arrives))
		renewing := make(chan error, 1)
		go func() { renewing <- h.Renew(w.Context(), 80*time.Second) }()
		waits := w.Acquiring(l)
		w.Settle()
		releasing := make(chan error, 1)
		go func() { releasing <- h.Release(w.Context()) }()
		w.Settle()
		close(arrives)
		require.NoError(w, <-releasing)
		w.Fails(<-renewing, lockregistry.ErrNotOwner, "renew", kit.TheKey)
		next := w.Got(waits)
		require.NotEqual(w, value, w.Do("GET", kit.TheKey))
		require.Equal(w, time.Minute, w.Pttl(kit.TheKey))
		w.Release(next)
	})
}

func TestAcquire_Remaining(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		h := w.Acquires(w.Registry().Obtain("42"), lockregistry.AtMost(10*time.Second))
		require.Equal(w, 9899*time.Millisecond, h.Remaining())
		w.Pass(9 * time.Second)
		require.Equal(w, 899*time.Millisecond, h.Remaining())
		require.NoError(w, h.Renew(w.Context(), 20*time.Second))
		require.Equal(w, 899*time.Millisecond, h.Remaining(), "no longer than at most")
		require.Equal(w, time.Second, w.Pttl(kit.TheKey))
		w.Pass(899 * time.Millisecond)
		require.Zero(w, h.Remaining())
		w.Fails(h.Renew(w.Context(), time.Second), lockregistry.ErrLockLost, "renew", kit.TheKey)
		w.Fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.TheKey)
		w.Fails(h.Release(w.Context()), lockregistry.ErrNotOwner, "release", kit.TheKey)
	})
}

func TestAcquire_AHoldIsRenewed(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(time.Second))
		h := w.Acquires(r.Obtain("42"))
		ctx := h.Context(w.Context())
		w.Pass(time.Minute)
		require.NoError(w, ctx.Err())
		require.Greater(w, h.Remaining(), time.Second/2)
		w.Release(h)
		w.Pass(time.Minute)
		require.True(w, w.Free(kit.TheKey))
	})
}

// A lost hold is reported by its contexts, and by the first Release, even if the next owner is already in, and if so many holds
// were lost that the lock does not remember this one.
func TestAcquire_AHoldThatIsLost(t *testing.T) {
	everyKind(t, func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock) {
		lease, rounds := 50*time.Millisecond, 20
		if !w.Fake { // the lease must be at least six round trips, which take long on a busy machine
			lease, rounds = time.Second, 3
		}
		exclusive, opts := l, []lockregistry.LockOption{lockregistry.Wait(time.Minute), lockregistry.AtMost(lease)}
		if isReader(l) {
			exclusive, opts = r.ReadWrite("42").Writer(), opts[:1]
		}
		var lost []*lockregistry.Hold
		for range rounds {
			h := w.Acquires(l, opts...)
			ctx := h.Context(w.Context())
			if isReader(l) { // it is renewed without end
				w.Released(inspect.Of(r).ForceUnlock(w.Context(), "42"))
			}
			w.Release(w.Acquires(exclusive)) // once it is lost
			require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
			require.ErrorIs(w, context.Cause(h.Context(w.Context())), lockregistry.ErrLockLost)
			require.Zero(w, h.Remaining())
			lost = append(lost, h)
		}
		next := w.Acquires(l)
		for _, h := range lost {
			w.Fails(h.Renew(w.Context(), time.Second), lockregistry.ErrLockLost, "renew", kit.TheKey)
			w.Fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.TheKey)
			w.Fails(h.Release(w.Context()), lockregistry.ErrNotOwner, "release", kit.TheKey)
		}
		require.Positive(w, next.Remaining())
		w.Release(next)
		w.LeftNothing()
	})
}

// The context of a hold is a child of its parent in every respect, also of one that never ends.
func TestAcquire_ContextsOfAHold(t *testing.T) {
	type key struct{}
	kit.Worlds(t, func(w *kit.World) {
		h := w.Acquires(w.Registry().Obtain("42"))
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
		w.Release(h)
		require.Equal(w, context.Canceled, child.Err(), "at once")
	})
}

func TestAcquire_AHoldOutlivesClose(t *testing.T) {
	everyKind(t, func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock) {
		h := w.Acquires(l)
		ctx := h.Context(w.Context())
		require.NoError(w, r.Close())
		require.Equal(w, lockregistry.ErrClosed, context.Cause(ctx))
		require.ErrorIs(w, context.Cause(h.Context(w.Context())), lockregistry.ErrClosed)
		_, err := l.Acquire(w.Context())
		w.Fails(err, lockregistry.ErrClosed, "acquire", kit.TheKey)
		w.Release(h)
		w.LeftNothing()
	})
}
