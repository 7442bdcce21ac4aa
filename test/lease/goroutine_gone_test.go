package lease_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

const ended = "a goroutine ended without Unlock"

// leftBehind are the locks of a path that a goroutine can leave behind.
var leftBehind = map[string]func(r *lockregistry.Registry) *lockregistry.Lock{
	"plain":  func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") },
	"reader": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Reader() },
	"writer": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
}

// leaves has a goroutine lock and end. It returns a context that Do made within the hold.
func leaves(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock) (within context.Context) {
	w.Helper()
	require.NoError(w, kit.Elsewhere(func() error {
		if err := l.Lock(w.Context()); err != nil || l != r.Obtain("42") {
			return err
		}
		return r.Do(w.Context(), "42", func(ctx context.Context) error {
			within = ctx
			return nil
		})
	}))
	return within
}

// A hold whose goroutine has ended is logged and no longer renewed, its contexts end, and the next caller gets in when the
// lease ends.
func TestGone_AGoroutineThatIsGone(t *testing.T) {
	t.Parallel()
	// The time that it takes depends on the lease, not on the kind: one kind runs with both leases, the others with one.
	for name, leases := range map[string][]time.Duration{
		"plain": {time.Second, 70 * time.Second}, "reader": {time.Second}, "writer": {70 * time.Second},
	} {
		of := leftBehind[name]
		for _, lease := range leases {
			t.Run(name+" "+lease.String(), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					var log kit.Journal
					opts := []lockregistry.Option{lockregistry.WithRenewal(), lockregistry.WithLease(lease)}
					r := w.Registry(append(opts, log.Option())...)
					other := w.Registry(append(opts, lockregistry.WithPollInterval(time.Second/2))...)
					w.Pass(lease/2 + time.Second)
					within := leaves(w, r, of(r))
					began, limit := time.Now(), max(2*lease, time.Minute)+time.Second
					for len(log.Lines(ended, kit.TheKey, "goroutine=")) == 0 {
						require.Less(w, time.Since(began), limit)
						w.Pass(time.Second / 4)
					}
					require.GreaterOrEqual(w, time.Since(began), lease)
					if within != nil {
						w.Settle()
						require.ErrorIs(w, context.Cause(within), lockregistry.ErrLockLost)
						require.ErrorContains(w, context.Cause(within), "goroutine ended")
					}
					require.False(w, w.Free(kit.TheKey)) // its work may still be running
					next := r.ReadWrite("42").Writer()
					if name == "plain" {
						next = other.Obtain("42")
					}
					began = time.Now()
					w.Lock(next, lockregistry.Wait(2*lease))
					require.LessOrEqual(w, time.Since(began), lease+time.Second)
					w.Pass(limit)
					w.Unlock(next)
					require.Len(w, log.Lines(ended), 1)
				})
			})
		}
	}
}

// dropped has a goroutine lock, lend a context within Do, and end. Nobody can unlock any more, but the registry cannot know
// that.
func dropped(w *kit.World, r *lockregistry.Registry, lend func(l *lockregistry.Lock, within context.Context)) func() error {
	l := r.Obtain("42")
	require.NoError(w, kit.Elsewhere(func() error {
		w.Lock(l)
		return l.Do(w.Context(), func(ctx context.Context) error {
			lend(l, ctx)
			return nil
		})
	}))
	return func() error { return inspect.Of(r).ForceUnlock(w.Context(), "42") }
}

// A hold is not left behind while its owner can unlock, or another goroutine might for it.
func TestGone_AHoldThatIsNotLeftBehind(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(w *kit.World, r *lockregistry.Registry, log *kit.Journal) (unlock func() error){
		"its goroutine sleeps": func(w *kit.World, r *lockregistry.Registry, _ *kit.Journal) func() error {
			g, l := w.Goroutine(), r.Obtain("42")
			require.NoError(w, g.Lock(l))
			woken := g.Start(func() error {
				w.Pass(2 * time.Minute)
				return nil
			})
			return func() error {
				require.NoError(w, <-woken)
				return g.Unlock(l)
			}
		},
		"ContextWithOwner": func(w *kit.World, r *lockregistry.Registry, _ *kit.Journal) func() error {
			ctx, l := lockregistry.ContextWithOwner(w.Context()), r.Obtain("42")
			require.NoError(w, <-kit.LockElsewhere(l, ctx))
			return func() error { return l.Unlock(ctx) }
		},
		"Acquire": func(w *kit.World, r *lockregistry.Registry, _ *kit.Journal) func() error {
			h := kit.Elsewhere(func() *lockregistry.Hold {
				h, err := r.Acquire(w.Context(), "42")
				if err != nil {
					w.Error(err)
				}
				return h
			})
			return func() error { return h.Release(w.Context()) }
		},
		"the context of Lock.Context": func(w *kit.World, r *lockregistry.Registry, _ *kit.Journal) func() error {
			l := r.Obtain("42")
			ctx := kit.Elsewhere(func() context.Context {
				w.Lock(l)
				return l.Context(w.Context())
			})
			return func() error { return l.Unlock(ctx) }
		},
		"a child of the context of Lock.Context": func(w *kit.World, r *lockregistry.Registry, _ *kit.Journal) func() error {
			l := r.Obtain("42")
			ctx := kit.Elsewhere(func() context.Context {
				parent, cancel := context.WithCancel(w.Context())
				defer cancel()
				w.Lock(l)
				return context.WithoutCancel(l.Context(parent))
			})
			return func() error { return l.Unlock(ctx) }
		},
		"Lock.Context within Do": func(w *kit.World, r *lockregistry.Registry, _ *kit.Journal) func() error {
			l := r.Obtain("42")
			var within context.Context
			require.NoError(w, kit.Elsewhere(func() error {
				w.Lock(l)
				return r.Do(w.Context(), "42", func(ctx context.Context) error {
					within = l.Context(context.WithValue(ctx, kit.ContextKey{}, "a"))
					return nil
				})
			}))
			return func() error { return l.Unlock(within) }
		},
		"a call that nests outlives Do": func(w *kit.World, r *lockregistry.Registry, _ *kit.Journal) func() error {
			l := r.Obtain("42")
			var within context.Context
			require.NoError(w, kit.Elsewhere(func() error {
				return r.Do(w.Context(), "42", func(ctx context.Context) error {
					within = ctx
					return <-kit.LockElsewhere(l, ctx)
				})
			}))
			return func() error { return l.Unlock(within) }
		},
		"a context of Lock.Context, which is dropped": func(w *kit.World, r *lockregistry.Registry, _ *kit.Journal) func() error {
			return dropped(w, r, func(l *lockregistry.Lock, within context.Context) { l.Context(within) })
		},
		"a call that has nested from another goroutine": func(w *kit.World, r *lockregistry.Registry, _ *kit.Journal) func() error {
			return dropped(w, r, func(l *lockregistry.Lock, within context.Context) {
				require.NoError(w, kit.Elsewhere(func() error { return errors.Join(l.Lock(within), l.Unlock(within)) }))
			})
		},
		"there are too many goroutines to look at": func(w *kit.World, r *lockregistry.Registry, log *kit.Journal) func() error {
			kit.ManyGoroutines(r)
			leaves(w, r, r.Obtain("42"))
			return func() error {
				require.Len(w, log.Lines("no longer detected", "limit="), 1)
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				var log kit.Journal
				r := w.Registry(log.Option(), lockregistry.WithRenewal(), lockregistry.WithLease(10*time.Second))
				unlock := hold(w, r, &log)
				for range 2 { // a hold that is left behind is found within a minute
					runtime.GC()
					w.Pass(time.Minute + time.Second)
				}
				require.True(w, r.Obtain("42").IsHeld())
				require.Empty(w, log.Lines(ended))
				require.Empty(w, log.Lines("lock lost")) // up to now: some cases unlock by force below
				require.NoError(w, unlock())
			})
		})
	}
}

// The hold of several readers continues for those that live, and is left to its lease with the last of them.
func TestGone_AReaderWhoseGoroutineIsGone(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const lease = 3 * time.Second
		var log kit.Journal
		r := w.Registry(log.Option(), lockregistry.WithLease(lease))
		l, g := r.ReadWrite("42").Reader(), w.Goroutine()
		leaves(w, r, l)
		require.NoError(w, g.Lock(l))
		w.Pass(2 * time.Minute)
		require.Len(w, log.Lines(ended, kit.TheKey), 1)
		require.True(w, l.IsHeld())
		require.NoError(w, g.Unlock(l))
		w.Pass(2 * lease)
		require.True(w, w.Free(kit.TheKey))
		require.NotEmpty(w, log.Lines("lock lost"))
	})
}

// With a context that has outlived its Do, another goroutine can still unlock. The next owner has a hold like any other.
func TestGone_UnlockForAGoroutineThatIsGone(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const lease = 30 * time.Second
		var log kit.Journal
		r := w.Registry(log.Option(), lockregistry.WithRenewal(), lockregistry.WithLease(lease), lockregistry.WithHandoff(time.Hour))
		l, g := r.Obtain("42"), w.Goroutine()
		within := leaves(w, r, l)
		locked := g.Starts(l)
		for len(log.Lines(ended)) == 0 {
			w.Pass(time.Second / 4)
		}
		w.Pending(locked)
		w.Released(l.Unlock(within))
		require.NoError(w, <-locked)
		require.Equal(w, uint64(1), r.Stats().Handoffs)
		w.Pass(5 * time.Minute)
		require.NoError(w, g.Unlock(l))
		require.Len(w, log.Lines(ended), 1)
	})
}

// That may also happen just when the goroutine is found to have ended.
func TestGone_UnlockForAGoroutineThatIsFoundGone(t *testing.T) {
	t.Parallel()
	for kind, of := range leftBehind {
		for _, first := range []string{"found", "unlocked"} {
			t.Run(kind+", first "+first, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					const lease = 30 * time.Second
					r := w.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease), lockregistry.WithHandoff(time.Hour))
					l, g := of(r), w.Goroutine()
					ctx := kit.Elsewhere(func() context.Context {
						w.Lock(l)
						return l.Context(w.Context())
					})
					find := kit.FindGone(l)
					locked := g.Starts(l) // at once, if it shares the hold
					w.Settle()
					if first == "found" {
						find()
					}
					w.Released(l.Unlock(ctx))
					require.NoError(w, <-locked)
					if first == "unlocked" {
						find()
					}
					w.Pass(3 * lease)
					require.NoError(w, g.Unlock(l))
				})
			})
		}
	}
}

// A call that has nested within Do does not keep the hold of a goroutine that has ended, unless another goroutine made the
// call.
func TestDo_CallsThatNestAndAGoroutineThatIsGone(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context){
		"Lock and Unlock": func(w *kit.World, _ *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) {
			require.NoError(w, l.Lock(ctx))
			w.Released(l.Unlock(ctx))
		},
		"Lock": func(w *kit.World, _ *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) {
			require.NoError(w, l.Lock(ctx))
		},
		"Do": func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) {
			require.NoError(w, r.Do(ctx, "42", func(ctx context.Context) error { return l.Lock(ctx) }))
		},
		"Do with a child": func(w *kit.World, r *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			require.NoError(w, r.Do(ctx, "42", func(ctx context.Context) error { return l.Lock(ctx) }))
		},
	} {
		for _, outer := range []string{"Do", "Do after Lock"} {
			t.Run(name+" within "+outer, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					const lease = time.Second
					var log kit.Journal
					r := w.Registry(log.Option(), lockregistry.WithRenewal(), lockregistry.WithLease(lease))
					l := r.Obtain("42")
					kit.Elsewhere(func() (recovered any) {
						defer func() { recovered = recover() }()
						if outer == "Do after Lock" {
							w.Lock(l)
						}
						return r.Do(w.Context(), "42", func(ctx context.Context) error {
							work(w, r, l, ctx)
							panic("a handler's")
						})
					})
					if outer == "Do" && name == "Lock and Unlock" {
						require.True(w, w.Free(kit.TheKey))
						return
					}
					for began := time.Now(); len(log.Lines(ended, kit.TheKey)) == 0; w.Pass(10 * lease) {
						require.Less(w, time.Since(began), 2*time.Minute)
						runtime.GC()
					}
					w.Pass(2 * lease)
					require.True(w, w.Free(kit.TheKey))
				})
			})
		}
	}
}

// Counting the goroutines of the process stops the process. They are counted only while one of them has had a renewed hold for
// longer than a lease, and no more often than necessary.
func TestGone_NobodyIsCountedWithoutNeed(t *testing.T) {
	t.Parallel()
	const lease = time.Minute
	renewed := []lockregistry.Option{lockregistry.WithRenewal(), lockregistry.WithLease(lease)}
	t.Run("renewed", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			r := w.Registry(renewed...)
			uncounted := func(why string) { w.Helper(); require.Zero(w, kit.GoroutineCounts(r), why) }

			w.Pass(5 * lease)
			uncounted("nobody has a hold")

			ctx, l := lockregistry.ContextWithOwner(w.Context()), r.Obtain("a")
			require.NoError(w, l.Lock(ctx))
			w.Pass(5 * lease)
			w.Released(l.Unlock(ctx))
			uncounted("it is not a goroutine's")

			h, err := r.Acquire(w.Context(), "b")
			require.NoError(w, err)
			w.Pass(5 * lease)
			w.Released(h.Release(w.Context()))
			uncounted("it is a Hold")

			l = r.Obtain("42")
			for range 5 {
				w.Lock(l)
				w.Pass(lease - time.Second)
				w.Unlock(l)
				w.Pass(2 * time.Second)
			}
			uncounted("each hold was shorter than the lease")

			busy := r.Obtain("c")
			require.NoError(w, busy.Lock(ctx, lockregistry.Lease(5*time.Second))) // is renewed all the time
			w.Lock(l)
			w.Pass(lease - time.Second)
			uncounted("the hold is not older than the lease yet")
			w.Pass(5*lease + time.Second)
			w.Settle()
			counted := kit.GoroutineCounts(r)
			require.GreaterOrEqual(w, counted, 5)
			require.LessOrEqual(w, counted, 5*3+1, "every 20 seconds")
			w.Unlock(l)
			w.Pass(5 * lease)
			w.Released(busy.Unlock(ctx))
			require.Equal(w, counted, kit.GoroutineCounts(r), "the hold is over")
		})
	})
	t.Run("within Do", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			r := w.Registry(lockregistry.WithLease(lease))
			l := r.Obtain("42")
			long := func(context.Context) error { w.Pass(5 * lease); return nil }
			require.NoError(w, l.Do(w.Context(), long))
			w.Lock(l)
			require.NoError(w, l.Do(w.Context(), func(ctx context.Context) error { return errors.Join(long(ctx), l.Do(ctx, long)) }))
			w.Unlock(l)
			require.Zero(w, kit.GoroutineCounts(r), "it unlocks in any case")
			r = w.Registry(renewed...)
			l = r.Obtain("43")
			w.Lock(l)
			require.NoError(w, l.Do(w.Context(), kit.DoNothing))
			w.Pass(2 * lease)
			w.Settle()
			require.Positive(w, kit.GoroutineCounts(r), "it is over, and the hold is not")
			w.Unlock(l)
		})
	})
	t.Run("not renewed", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			r := w.Registry(lockregistry.WithLease(lease))
			l := r.Obtain("42")
			w.Lock(l)
			w.Pass(2 * lease)
			require.Zero(w, kit.GoroutineCounts(r))
		})
	})
	t.Run("too many goroutines", func(t *testing.T) {
		kit.FakeWorld(t, func(w *kit.World) {
			var log kit.Journal
			r := w.Registry(append(renewed, log.Option())...)
			kit.ManyGoroutines(r)
			l := r.Obtain("42")
			w.Lock(l)
			w.Pass(5 * lease)
			require.Len(w, log.Lines("no longer detected"), 1)
			require.Zero(w, kit.GoroutineCounts(r))
			w.Unlock(l)
		})
	})
}
