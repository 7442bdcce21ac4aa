package lock_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestDoValue(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		double := func(ctx context.Context) (int, error) {
			require.True(w, r.Obtain("42").IsHeld())
			nested, err := lockregistry.DoValue(ctx, r.Obtain("42"), func(context.Context) (int, error) { return 21, nil })
			return 2 * nested, err
		}
		value, err := lockregistry.DoValue(w.Context(), r.Obtain("42"), double, lockregistry.NoWait())
		require.NoError(w, err)
		require.Equal(w, 42, value)

		enough := errors.New("enough")
		text, err := lockregistry.DoValue(w.Context(), r.Obtain("42"), func(context.Context) (string, error) { return "half", enough })
		require.Equal(w, enough, err)
		require.Equal(w, "half", text)
		require.PanicsWithValue(w, "fn", func() {
			_, _ = lockregistry.DoValue(w.Context(), r.Obtain("42"), func(context.Context) (any, error) { panic("fn") })
		})
		w.LeftNothing()
	})
}

// DoValue works on readers, writers and semaphores as on a lock.
func TestDoValue_OnAnyKind(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		pair, seats := r.ReadWrite("42"), r.Semaphore("seat", 1)
		for name, lock := range map[string]*lockregistry.Lock{"reader": pair.Reader(), "writer": pair.Writer()} {
			value, err := lockregistry.DoValue(w.Context(), lock, func(context.Context) (bool, error) { return lock.IsHeld(), nil })
			require.NoError(w, err, name)
			require.True(w, value, name)
			require.False(w, lock.IsHeld(), name)
		}
		value, err := lockregistry.DoValue(w.Context(), seats, func(ctx context.Context) (int, error) {
			_, err := lockregistry.DoValue(w.Context(), seats, func(context.Context) (int, error) { return 1, nil }, lockregistry.NoWait())
			w.Fails(err, lockregistry.ErrTaken, "do", kit.SeatKey)
			return 42, ctx.Err()
		}, lockregistry.Lease(time.Minute))
		require.NoError(w, err)
		require.Equal(w, 42, value)
		w.Release(w.Permit(seats, lockregistry.NoWait()))
	})
}

// The work was done, so its value is returned, although the lock was lost in the meantime.
func TestDoValue_WhenUnlockingFails(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		value, err := lockregistry.DoValue(w.Context(), w.Registry().Obtain("42"), func(context.Context) (int, error) {
			w.Pass(time.Second)
			return 42, nil
		}, lockregistry.AtMost(time.Second))
		w.Fails(err, lockregistry.ErrLockLost, "unlock", kit.TheKey)
		require.Equal(w, 42, value)
	})
}

func TestDoValue_ThatDoesNotRun(t *testing.T) {
	r := kit.UnusedRegistry(t)
	runs := func(context.Context) (int, error) { return 42, nil }
	value, err := lockregistry.DoValue(t.Context(), r.Obtain("42"), runs, lockregistry.Lease(-1))
	kit.Refuses(t, err, "do", "orders:42", "Lease(-1ns)")
	require.Zero(t, value)
	_, err = lockregistry.DoValue[int](t.Context(), r.Obtain("42"), nil)
	kit.Refuses(t, err, "do", "orders:42", "the function is nil")
	_, err = lockregistry.DoValue[int](t.Context(), r.Semaphore("seat", 1), nil)
	kit.Refuses(t, err, "do", "orders:seat", "the function is nil")
	h := r.Obtain("42").IsHeld()
	require.False(t, h)
}

// fn may pass its context to other goroutines, which then nest in the hold; without it they are other owners.
func TestDo_AsAnOwner(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		require.NoError(w, w.Answer(func() error {
			return r.Do(lockregistry.ContextWithOwner(w.Context()), "42", func(ctx context.Context) error {
				return kit.Elsewhere(func() error { return errors.Join(l.Lock(ctx), l.Unlock(ctx), l.Context(ctx).Err()) })
			})
		}))
		require.NoError(w, w.Answer(func() error {
			return r.Do(w.Context(), "42", func(ctx context.Context) error {
				assert.True(w, tries(ctx, w, l))
				assert.False(w, tries(w.Context(), w, l))
				return nil
			})
		}))
	})
}

func TestDo(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		type key struct{}
		failed := errors.New("out of paper")
		var inside context.Context
		err := r.Do(context.WithValue(w.Context(), key{}, "value"), "42", func(ctx context.Context) error {
			inside = ctx
			require.NoError(w, ctx.Err())
			require.Equal(w, "value", ctx.Value(key{}))
			require.True(w, l.IsHeld())
			require.False(w, w.Free("orders:42"))
			require.False(w, w.TryElsewhere(l))
			require.NoError(w, r.Do(ctx, "42", kit.DoNothing), "nests")
			require.NoError(w, ctx.Err())
			require.True(w, l.IsHeld())
			return failed
		})
		require.Equal(w, failed, err)
		require.Error(w, inside.Err())
		require.True(w, w.Free("orders:42"))
		require.NoError(w, w.Answer(func() error { return r.Do(w.Context(), "42", kit.DoNothing) }))
		require.True(w, w.TryElsewhere(l))
	})
}

func TestDo_JoinsTheLoss(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		failed := errors.New("out of paper")
		err := r.Do(w.Context(), "42", func(context.Context) error {
			w.Do("DEL", "orders:42")
			return failed
		})
		require.ErrorIs(w, err, failed)
		w.Fails(err, lockregistry.ErrLockLost, "unlock", "orders:42")
		require.ErrorIs(w, r.Do(w.Context(), "42", func(context.Context) error {
			w.Do("DEL", "orders:42")
			return nil
		}), lockregistry.ErrLockLost, "although fn succeeded")
		require.True(w, w.TryElsewhere(r.Obtain("42")))
	})
}

func TestDo_TellsFnOfTheLoss(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithRenewal())
		err := r.Do(w.Context(), "42", func(ctx context.Context) error {
			w.Do("DEL", "orders:42")
			<-ctx.Done() // the next renewal finds out
			return context.Cause(ctx)
		}, lockregistry.Lease(3*time.Second))
		require.ErrorIs(w, err, lockregistry.ErrLockLost)
	})
}

func TestDo_UnlocksWhenItsContextEnds(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		ctx, cancel := context.WithCancel(w.Context())
		require.ErrorIs(w, r.Do(ctx, "42", func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}), context.Canceled)
		require.True(w, w.Free("orders:42"), "before Do returns")
		require.True(w, w.TryElsewhere(r.Obtain("42")))
	})
}

func TestDo_UnlocksWhenFnPanics(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		require.PanicsWithValue(w, "oops", func() {
			_ = r.Do(w.Context(), "42", func(context.Context) error { panic("oops") })
		})
		require.True(w, w.Free("orders:42"))
		require.True(w, w.TryElsewhere(r.Obtain("42")))
	})
}

func TestDo_UnlocksWhenFnEndsItsGoroutine(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = r.Do(w.Context(), "42", func(context.Context) error {
				runtime.Goexit()
				return nil
			})
		}()
		<-ended
		require.True(w, w.Free("orders:42"))
		require.True(w, w.TryElsewhere(r.Obtain("42")))
	})
}

// On a read-write lock readers share, and a writer excludes them. With a writer's context a call may also nest as a reader.
func TestDo_OfAReadWriteLock(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		rw, other := w.Registry().ReadWrite("42"), w.Registry().ReadWrite("42")
		failed := errors.New("out of paper")
		require.Equal(w, failed, rw.Reader().Do(w.Context(), func(ctx context.Context) error {
			require.NoError(w, other.Reader().Do(ctx, kit.DoNothing, lockregistry.NoWait()))
			require.ErrorIs(w, other.Writer().Do(ctx, kit.DoNothing, lockregistry.NoWait()), lockregistry.ErrTaken)
			require.NoError(w, rw.Reader().Do(ctx, kit.DoNothing), "nests")
			w.Fails(rw.Writer().Do(ctx, kit.DoNothing), lockregistry.ErrDeadlock, "do", kit.TheKey)
			return failed
		}))
		var inside context.Context
		require.NoError(w, w.Answer(func() error {
			return rw.Writer().Do(w.Context(), func(ctx context.Context) error {
				inside = ctx
				require.ErrorIs(w, other.Reader().Do(ctx, kit.DoNothing, lockregistry.NoWait()), lockregistry.ErrTaken)
				require.NoError(w, rw.Reader().Do(ctx, kit.DoNothing))
				require.NoError(w, rw.Writer().Do(ctx, kit.DoNothing))
				return nil
			})
		}))
		require.ErrorIs(w, inside.Err(), context.Canceled)
		w.LeftNothing()
		require.ErrorContains(w, rw.Writer().Do(w.Context(), nil), "do orders:42: the function is nil")
	})
}
