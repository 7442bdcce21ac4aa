package lock_test

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// The context of a hold that is over, released or handed on, does not count for a later hold.
func TestNesting_ContextOfAnEarlierHold(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithHandoff(time.Hour))
		l := r.Obtain("a")
		w.Lock(l)
		first := context.WithoutCancel(l.Context(w.Context()))
		require.True(w, tries(first, w, l))
		w.Unlock(l)
		w.Lock(l)
		require.False(w, tries(first, w, l), "the same goroutine has it again, for another time")

		second := context.WithoutCancel(l.Context(w.Context()))
		value := w.Do("GET", "orders:a")
		next := w.Goroutine()
		handed := next.Starts(l)
		w.Await("it waits", func() bool { return w.Queued(l) })
		w.Unlock(l)
		require.NoError(w, <-handed)
		require.Equal(w, value, w.Do("GET", "orders:a"), "it was handed over")
		require.False(w, tries(second, w, l))
		w.Fails(l.Unlock(second), lockregistry.ErrNotOwner, "unlock", "orders:a")
		var third context.Context
		require.NoError(w, next.Do(func() error {
			third = l.Context(second)
			return third.Err()
		}))
		require.True(w, tries(third, w, l))
		require.NoError(w, next.Unlock(l))
		require.True(w, tries(second, w, l), "as its own owner")
	})
}

// tries reports whether a goroutine gets a lock with a context; it unlocks it with the same context.
func tries(ctx context.Context, w *kit.World, l *lockregistry.Lock) bool {
	w.Helper()
	return kit.Elsewhere(func() bool {
		ok, err := l.TryLock(ctx)
		if err == nil && ok {
			err = w.UnlessLate(l.Unlock(ctx))
		}
		if err != nil {
			w.Error(err)
		}
		return ok
	})
}

func TestNesting_NestedDoInOtherGoroutines(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		nothing := func(context.Context) error { return nil }
		err := r.Do(w.Context(), "a", func(ctx context.Context) error {
			require.False(w, tries(w.Context(), w, r.Obtain("a")), "without the context it is another owner")
			var all sync.WaitGroup
			inside := make(chan struct{})
			for i := range 4 { // all of them at the same time
				all.Go(func() {
					err := r.Do(ctx, "a", func(ctx context.Context) error {
						if inside <- struct{}{}; i == 0 {
							return r.Do(ctx, "a", nothing)
						}
						return nil
					})
					if err != nil {
						w.Error(err)
					}
				})
			}
			for range 4 {
				<-inside
			}
			all.Wait()
			require.NoError(w, kit.Elsewhere(func() error { return r.Obtain("a").Renew(ctx, time.Minute) }))
			require.NoError(w, kit.Elsewhere(func() context.Context { return r.Obtain("a").Context(ctx) }).Err())
			require.True(w, r.Obtain("a").IsHeld())
			return r.Do(w.Context(), "a", nothing) // this goroutine needs no context
		})
		w.Released(err)
		w.AwaitGone("orders:a")
	})
}

// Goroutines within one hold are separate owners of every other path.
func TestNesting_ChildrenOfAHoldExcludeEachOther(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		err := r.Do(w.Context(), "a", func(ctx context.Context) error {
			var all sync.WaitGroup
			var inside atomic.Int32
			for range 4 {
				all.Go(func() {
					err := r.Do(ctx, "b", func(ctx context.Context) error {
						if inside.Add(1) > 1 {
							w.Error("two are inside b")
						}
						defer inside.Add(-1)
						// The context of this hold carries both.
						if !tries(ctx, w, r.Obtain("a")) || !tries(ctx, w, r.Obtain("b")) {
							w.Error("it does not nest")
						}
						return nil
					})
					if err != nil {
						w.Error(err)
					}
				})
			}
			all.Wait()
			return nil
		})
		require.NoError(w, err)
	})
}

// The hold continues until all calls that nested in it have left, even after the one that began it.
func TestNesting_DoEndsBeforeItsChildren(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("a")
		child := w.Goroutine()
		var ctx context.Context
		require.NoError(w, r.Do(w.Context(), "a", func(inner context.Context) error {
			ctx = inner // for use after Do
			return child.Do(func() error { return l.Lock(ctx) })
		}))
		require.False(w, w.Free("orders:a"))
		require.NoError(w, ctx.Err())
		waits := w.Goroutine().Starts(l)
		if w.Fake {
			w.Settle()
		}
		w.Pending(waits)
		w.Released(child.Do(func() error { return l.Unlock(ctx) }))
		require.Error(w, ctx.Err())
		require.NoError(w, <-waits)
		w.Fails(child.Do(func() error { return l.Unlock(ctx) }), lockregistry.ErrNotOwner, "unlock", "orders:a")
	})
}

// Contexts of readers that share a hold each last as long as their reader.
func TestNesting_ContextsOfReaders(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry().ReadWrite("a").Reader()
		other := w.Goroutine()
		w.Lock(l)
		mine := context.WithoutCancel(l.Context(w.Context()))
		require.NoError(w, other.Lock(l))
		require.True(w, tries(mine, w, l))
		w.Unlock(l)
		require.True(w, l.IsHeld(), "the other reads still")
		w.Fails(kit.Elsewhere(func() error { return l.Unlock(mine) }), lockregistry.ErrNotOwner, "unlock", "orders:a")
		require.True(w, tries(mine, w, l), "it joins as its own owner")
		require.NoError(w, other.Unlock(l))
		w.IsFree("orders:a")
	})
}

// A new owner within a hold does not hold the lock, and its own hold is carried in turn.
func TestNesting_ContextWithOwnerWithinAHold(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		r := w.Registry()
		require.NoError(w, w.Answer(func() error {
			return r.Do(w.Context(), "a", func(ctx context.Context) error {
				fresh := lockregistry.ContextWithOwner(ctx)
				require.False(w, tries(fresh, w, r.Obtain("a")))
				return r.Do(fresh, "b", func(ctx context.Context) error {
					require.True(w, tries(ctx, w, r.Obtain("b")))
					require.True(w, tries(fresh, w, r.Obtain("b")), "it is the same owner")
					require.False(w, tries(ctx, w, r.Obtain("a")))
					require.False(w, tries(w.Context(), w, r.Obtain("b")))
					return nil
				})
			})
		}))
	})
}

// A nested call does not take a lost lock anew.
func TestNesting_InALostHold(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("a")
		w.Lock(l, lockregistry.Lease(time.Second))
		ctx := context.WithoutCancel(l.Context(w.Context()))
		w.Pass(time.Second)
		require.ErrorIs(w, kit.Elsewhere(func() error { return l.Lock(ctx) }), lockregistry.ErrLockLost)
		err := kit.Elsewhere(func() error { return l.Lock(ctx, lockregistry.Lease(time.Minute)) })
		require.ErrorIs(w, err, lockregistry.ErrLockLost)
		w.Fails(l.Unlock(w.Context()), lockregistry.ErrLockLost, "unlock", "orders:a")
		require.True(w, tries(ctx, w, l))
	})
}

// A context that is derived from the previous one, in a loop, is the same one: it already ends with the hold.
func TestLock_ContextInALoopDoesNotGrow(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		w.Lock(l)
		parent, cancel := context.WithCancel(w.Context())
		defer cancel()
		first := l.Context(parent)
		require.Same(w, first, l.Context(first))
		value := context.WithValue(first, kit.ContextKey{}, "a")
		require.Same(w, value, l.Context(value))
		other := l.Context(w.Context())
		require.NotSame(w, first, other)
		require.Same(w, first, l.Context(first), "also when another one is newer")
		child, stop := context.WithCancel(first)
		stop()
		require.Error(w, l.Context(child).Err(), "a child that ends sooner is another one")
		w.Unlock(l)
		require.Equal(w, context.Canceled, context.Cause(first))
		require.Equal(w, lockregistry.ErrNotOwner, context.Cause(l.Context(w.Context())))
		w.Lock(l)
		require.NotSame(w, first, l.Context(first), "of a hold that is over")
		w.Unlock(l)
	})
}

// A program that asks for the contexts of a few parents in turn gets the same ones each time, from a lock and from a hold on
// several paths.
func TestLock_ContextsOfAFewParentsDoNotGrow(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		w.Lock(l)
		h, err := r.AcquireAll(w.Context(), []string{"a", "b"})
		require.NoError(w, err)
		for of, within := range map[string]func(context.Context) context.Context{"lock": l.Context, "holds": h.Context} {
			var parents, first []context.Context
			var stop context.CancelFunc
			for range 8 {
				parent, cancel := context.WithCancel(w.Context())
				defer cancel()
				parents, first, stop = append(parents, parent), append(first, within(parent)), cancel
			}
			for range 3 {
				for i, parent := range parents {
					require.Same(w, first[i], within(parent), of)
				}
			}
			stop()
			w.Settle()
			require.Error(w, within(parents[7]).Err())
			require.Same(w, first[0], within(parents[0]), of)
			parent, cancel := context.WithCancel(w.Context())
			defer cancel()
			require.NotSame(w, first[0], within(parent), of)
		}
		w.Unlock(l)
		w.Release(h)
	})
}

// asked is a context that counts how often this library asks it for a value.
type asked struct {
	context.Context
	times *atomic.Int32
}

func (a asked) Value(key any) any {
	if strings.Contains(reflect.TypeOf(key).PkgPath(), "lockregistry") {
		a.times.Add(1)
	}
	return a.Context.Value(key)
}

// Each call finds its owner once, however many links the context has: each link costs time.
func TestContext_IsAskedOnce(t *testing.T) {
	t.Parallel()
	for name, carries := range map[string]func(l *lockregistry.Lock, h *lockregistry.Hold, parent context.Context) context.Context{
		"nobody": func(_ *lockregistry.Lock, _ *lockregistry.Hold, parent context.Context) context.Context {
			return parent
		},
		"an owner": func(_ *lockregistry.Lock, _ *lockregistry.Hold, parent context.Context) context.Context {
			return lockregistry.ContextWithOwner(parent)
		},
		"the lock's hold": func(l *lockregistry.Lock, _ *lockregistry.Hold, parent context.Context) context.Context {
			return l.Context(parent)
		},
		"another hold": func(_ *lockregistry.Lock, h *lockregistry.Hold, parent context.Context) context.Context {
			return h.Context(parent)
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				r := w.Registry()
				l, other, permits := r.Obtain("42"), r.Obtain("another"), r.Semaphore("permits", 1)
				w.Lock(l)
				ctx := asked{carries(l, w.Acquires(r.Obtain("a third")), w.Context()), new(atomic.Int32)}
				for _, call := range []struct {
					what string
					call func() error
				}{
					{"Do", func() error { return other.Do(ctx, kit.DoNothing) }},
					{"Do of a semaphore", func() error { return permits.Do(ctx, kit.DoNothing) }},
					{"Once", func() error {
						_, err := r.Once(ctx, "once", time.Second, kit.DoNothing)
						return err
					}},
					{"Lock", func() error { return other.Lock(ctx) }},
					{"Renew", func() error { return other.Renew(ctx, time.Minute) }},
					{"Context", func() error { return other.Context(ctx).Err() }},
					{"Unlock", func() error { return other.Unlock(ctx) }},
				} {
					ctx.times.Store(0)
					require.NoError(w, call.call(), call.what)
					require.EqualValues(w, 1, ctx.times.Load(), call.what)
				}
				if name == "the lock's hold" {
					ctx.times.Store(0)
					require.NoError(w, l.Do(ctx, kit.DoNothing), "it nests")
					require.EqualValues(w, 1, ctx.times.Load())
				}
				elsewhere := w.Registry().Obtain("another")
				for whose, first := range map[string]*lockregistry.Lock{"a goroutine's": other, "a process's": elsewhere} {
					holder, waits := w.Goroutine(), make(chan error, 1)
					require.NoError(w, holder.Lock(first))
					ctx.times.Store(0)
					go func() { waits <- other.Do(ctx, kit.DoNothing) }()
					w.Settle()
					w.Pending(waits)
					require.NoError(w, holder.Unlock(first))
					require.NoError(w, <-waits)
					require.EqualValues(w, 1, ctx.times.Load(), whose)
				}
				w.Unlock(l)
			})
		})
	}
}
