package lock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestContext_ThatIsDoneBefore(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		f := w.Flaky()
		r := f.Registry()
		l := r.Obtain("42")
		ctx, cancel := context.WithCancel(w.Context())
		cancel()
		_, tried := l.TryLock(ctx)
		w.Fails(tried, context.Canceled, "trylock", "orders:42")
		w.Fails(l.Lock(ctx), context.Canceled, "lock", "orders:42")
		w.Fails(r.Do(ctx, "42", func(context.Context) error {
			w.Error("fn runs without the lock")
			return nil
		}), context.Canceled, "do", "orders:42")
		require.Zero(w, f.LockCommands())
		require.False(w, l.IsHeld())
		require.True(w, w.TryElsewhere(l))

		w.Lock(l)
		w.Fails(l.Lock(ctx), context.Canceled, "lock", "orders:42")
		w.Unlock(l)
		w.IsFree("orders:42") // the failed one does not count
	})
}

// The same when the context ends while Unlock waits for Redis.
func TestContext_EndsDuringUnlock(t *testing.T) {
	t.Parallel()
	for _, deadline := range []bool{false, true} {
		t.Run(map[bool]string{false: "cancelled", true: "deadline"}[deadline], func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				f := w.Flaky()
				l := f.Registry().Obtain("42")
				w.Lock(l)
				w.Unlock(l) // the registry knows everything about the server from now on
				w.Lock(l)
				delivery := make(chan struct{})
				f.Fate("release", kit.HeldUp(delivery))
				ctx, cancel := context.WithCancel(w.Context())
				defer cancel()
				if deadline {
					ctx, cancel = context.WithTimeout(w.Context(), 300*time.Millisecond)
					defer cancel()
				} else {
					time.AfterFunc(300*time.Millisecond, cancel)
				}
				start := time.Now()
				err := l.Unlock(ctx)
				require.ErrorIs(w, err, lockregistry.ErrUnavailable)
				require.NotErrorIs(w, err, ctx.Err())
				require.Equal(w, 400*time.Millisecond, time.Since(start))
				require.False(w, l.IsHeld())
				close(delivery)
				w.AwaitGone("orders:42")
				w.Settle()
				require.True(w, w.TryElsewhere(l))
			})
		})
	}
}

func TestContext_EndsWithTheHold(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Lock(l)
		outer := l.Context(w.Context())
		w.Lock(l)
		inner := l.Context(w.Context())
		w.Unlock(l)
		require.NoError(w, outer.Err())
		require.NoError(w, inner.Err())
		w.Unlock(l)
		for _, ctx := range []context.Context{outer, inner} {
			require.ErrorIs(w, ctx.Err(), context.Canceled)
			require.Equal(w, context.Canceled, context.Cause(ctx))
		}
		w.Lock(l)
		require.NoError(w, l.Context(w.Context()).Err())
		require.Error(w, outer.Err())
		w.Unlock(l)
	})
}

func TestContext_IsAChild(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Lock(l)
		type key struct{}
		why := errors.New("enough")
		parent, cancel := context.WithCancelCause(context.WithValue(w.Context(), key{}, "value"))
		ctx := l.Context(parent)
		require.Equal(w, "value", ctx.Value(key{}))
		cancel(why)
		require.ErrorIs(w, ctx.Err(), context.Canceled)
		require.Equal(w, why, context.Cause(ctx))
		require.True(w, l.IsHeld())
		w.Unlock(l)
	})
}

func TestContext_WithoutAHold(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		ctx := l.Context(w.Context())
		require.ErrorIs(w, ctx.Err(), context.Canceled)
		require.Equal(w, lockregistry.ErrNotOwner, context.Cause(ctx))
		w.Lock(l)
		require.Equal(w, lockregistry.ErrNotOwner, kit.Elsewhere(func() error { return context.Cause(l.Context(w.Context())) }))
		w.Do("DEL", "orders:42")
		require.Error(w, l.Renew(w.Context(), time.Minute))
		require.ErrorIs(w, context.Cause(l.Context(w.Context())), lockregistry.ErrLockLost)
	})
}

// Whatever call finds out that the hold is lost, all its contexts end.
func TestContext_ContextsLearnOfALoss(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		for name, findOut := range map[string]func() error{
			"lock":  func() error { return l.Lock(w.Context()) },
			"renew": func() error { return l.Renew(w.Context(), time.Minute) },
		} {
			w.Lock(l)
			ctx := l.Context(w.Context())
			another := l.Context(w.Context())
			w.Do("DEL", "orders:42")
			require.ErrorIs(w, findOut(), lockregistry.ErrLockLost)
			require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost, name)
			require.ErrorIs(w, context.Cause(another), lockregistry.ErrLockLost, name)
			require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
		}
	})
}

// hooked is a context whose first Done calls a function, at which moment a context is being derived from it.
type hooked struct {
	context.Context
	first func()
	once  sync.Once
}

func (h *hooked) Done() <-chan struct{} {
	h.once.Do(h.first)
	return h.Context.Done()
}

// A goroutine asks for the context of its owner's hold while another goroutine of the owner unlocks, and the next owner gets
// the lock: the same hold by handoff, a share in it as a reader, or another hold.
func TestContext_IsNotTheNextOwners(t *testing.T) {
	t.Parallel()
	for name, lock := range kit.LockKinds {
		for _, handoff := range []time.Duration{0, time.Hour} {
			t.Run(name+" "+handoff.String(), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					l := lock(w.Registry(lockregistry.WithHandoff(handoff)))
					owner := lockregistry.ContextWithOwner(w.Context())
					require.NoError(w, l.Lock(owner))
					next := lockregistry.ContextWithOwner(w.Context())
					got := kit.LockElsewhere(l, next)
					w.Settle()
					ctx := l.Context(&hooked{Context: owner, first: func() {
						require.NoError(w, kit.Elsewhere(func() error { return l.Unlock(owner) }))
						require.NoError(w, <-got)
					}})
					require.ErrorIs(w, ctx.Err(), context.Canceled)
					require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrNotOwner)
					require.NotErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
					w.Fails(l.Unlock(ctx), lockregistry.ErrNotOwner, "unlock", "orders:42")
					require.NoError(w, l.Context(next).Err())
					require.NoError(w, l.Unlock(next))
				})
			})
		}
	}
}
