package lockregistry_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

const ended = "a goroutine has ended without Unlock"

// leftBehind are the locks of a path that a goroutine can leave behind.
var leftBehind = map[string]func(r *lockregistry.Registry) *lockregistry.Lock{
	"plain":  func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") },
	"reader": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Reader() },
	"writer": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
}

// leaves has a goroutine lock and end. It returns a context that was made in Do, within the hold.
func leaves(w *world, r *lockregistry.Registry, l *lockregistry.Lock) (within context.Context) {
	w.Helper()
	require.NoError(w, elsewhere(func() error {
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

// It is logged and renewed no more, its contexts end, and the next caller gets in with the end of the lease.
func TestGone_AGoroutineThatIsGone(t *testing.T) {
	t.Parallel()
	for name, of := range leftBehind {
		for _, lease := range []time.Duration{time.Second, 30 * time.Second, 70 * time.Second} {
			t.Run(name+" "+lease.String(), func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					var log journal
					opts := []lockregistry.Option{lockregistry.WithRenewal(), lockregistry.WithLease(lease)}
					r, other := w.registry(append(opts, log.option())...), w.registry(opts...)
					w.pass(lease/2 + time.Second)
					within := leaves(w, r, of(r))
					began, limit := time.Now(), max(2*lease, time.Minute)+time.Second
					for len(log.lines(ended, theKey, "goroutine=")) == 0 {
						require.Less(w, time.Since(began), limit)
						w.pass(time.Second / 4)
					}
					require.GreaterOrEqual(w, time.Since(began), lease)
					if within != nil {
						w.settle()
						require.ErrorIs(w, context.Cause(within), lockregistry.ErrLockLost)
						require.ErrorContains(w, context.Cause(within), "goroutine has ended")
					}
					require.False(w, w.free(theKey)) // its work may still be running
					next := r.ReadWrite("42").Writer()
					if name == "plain" {
						next = other.Obtain("42")
					}
					began = time.Now()
					w.lock(next, lockregistry.Wait(2*lease))
					require.LessOrEqual(w, time.Since(began), lease+time.Second)
					w.pass(limit)
					w.unlock(next)
					require.Len(w, log.lines(ended), 1)
				})
			})
		}
	}
}

// A hold is not left behind while its owner can unlock, or another goroutine can for it.
func TestGone_AHoldThatIsNotLeftBehind(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(w *world, r *lockregistry.Registry, log *journal) (unlock func() error){
		"its goroutine sleeps": func(w *world, r *lockregistry.Registry, _ *journal) func() error {
			g, l := w.goroutine(), r.Obtain("42")
			require.NoError(w, g.lock(l))
			woken := g.start(func() error {
				w.pass(5 * time.Minute)
				return nil
			})
			return func() error {
				require.NoError(w, <-woken)
				return g.unlock(l)
			}
		},
		"NewOwner": func(w *world, r *lockregistry.Registry, _ *journal) func() error {
			ctx, l := lockregistry.NewOwner(w.Context()), r.Obtain("42")
			require.NoError(w, <-lockElsewhere(l, ctx))
			return func() error { return l.Unlock(ctx) }
		},
		"Acquire": func(w *world, r *lockregistry.Registry, _ *journal) func() error {
			h := elsewhere(func() *lockregistry.Hold {
				h, err := r.Acquire(w.Context(), "42")
				if err != nil {
					w.Error(err)
				}
				return h
			})
			return func() error { return h.Release(w.Context()) }
		},
		"the context of Lock.Context": func(w *world, r *lockregistry.Registry, _ *journal) func() error {
			l := r.Obtain("42")
			ctx := elsewhere(func() context.Context {
				w.lock(l)
				return l.Context(w.Context())
			})
			return func() error { return l.Unlock(ctx) }
		},
		"a child of the context of Lock.Context": func(w *world, r *lockregistry.Registry, _ *journal) func() error {
			l := r.Obtain("42")
			ctx := elsewhere(func() context.Context {
				parent, cancel := context.WithCancel(w.Context())
				defer cancel()
				w.lock(l)
				return context.WithoutCancel(l.Context(parent))
			})
			return func() error { return l.Unlock(ctx) }
		},
		"Lock.Context within Do": func(w *world, r *lockregistry.Registry, _ *journal) func() error {
			l := r.Obtain("42")
			var within context.Context
			require.NoError(w, elsewhere(func() error {
				w.lock(l)
				return r.Do(w.Context(), "42", func(ctx context.Context) error {
					within = l.Context(context.WithValue(ctx, valueKey{}, "a"))
					return nil
				})
			}))
			return func() error { return l.Unlock(within) }
		},
		"a call that nests outlives Do": func(w *world, r *lockregistry.Registry, _ *journal) func() error {
			l := r.Obtain("42")
			var within context.Context
			require.NoError(w, elsewhere(func() error {
				return r.Do(w.Context(), "42", func(ctx context.Context) error {
					within = ctx
					return <-lockElsewhere(l, ctx)
				})
			}))
			return func() error { return l.Unlock(within) }
		},
		"there are too many goroutines to look at": func(w *world, r *lockregistry.Registry, log *journal) func() error {
			lockregistry.ManyGoroutines(r)
			leaves(w, r, r.Obtain("42"))
			return func() error {
				require.Len(w, log.lines("are not looked for", "limit="), 1)
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				var log journal
				r := w.registry(log.option(), lockregistry.WithRenewal(), lockregistry.WithLease(10*time.Second))
				unlock := hold(w, r, &log)
				for range 5 {
					runtime.GC()
					w.pass(time.Minute)
				}
				require.True(w, r.Obtain("42").IsHeld())
				require.NoError(w, unlock())
				require.Empty(w, log.lines(ended))
				require.Empty(w, log.lines("lock lost"))
			})
		})
	}
}

// A goroutine that has made contexts of its hold is gone when nobody can unlock with one of them any more.
func TestLock_ContextsOfAGoroutineThatIsGone(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]func(w *world, l *lockregistry.Lock, ctx context.Context){
		"one": func(*world, *lockregistry.Lock, context.Context) {},
		"several": func(w *world, l *lockregistry.Lock, _ context.Context) {
			l.Context(context.WithValue(context.Background(), valueKey{}, "a"))
			l.Context(w.Context())
		},
		"a call that has nested": func(w *world, l *lockregistry.Lock, ctx context.Context) {
			require.NoError(w, l.Lock(ctx))
			require.NoError(w, l.Unlock(ctx))
		},
		"another goroutine has nested": func(w *world, l *lockregistry.Lock, ctx context.Context) {
			require.NoError(w, <-lockElsewhere(l, ctx))
			require.NoError(w, l.Unlock(ctx))
		},
		"another one's": func(w *world, _ *lockregistry.Lock, ctx context.Context) {
			other := w.registry().Obtain("another")
			require.NoError(w, other.Lock(ctx))
			other.Context(ctx)
			require.NoError(w, other.Unlock(ctx))
		},
	} {
		for kind, of := range leftBehind {
			t.Run(name+" "+kind, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					const lease = time.Second
					var log journal
					r := w.registry(log.option(), lockregistry.WithRenewal(), lockregistry.WithLease(lease))
					elsewhere(func() (recovered any) { // as a handler of net/http does
						defer func() { recovered = recover() }()
						request, end := context.WithCancel(w.Context())
						defer end()
						l := of(r)
						w.lock(l)
						work(w, l, l.Context(request))
						panic("a handler's")
					})
					for began := time.Now(); len(log.lines(ended, theKey)) == 0; w.pass(lease) {
						require.Less(w, time.Since(began), 2*time.Minute)
						runtime.GC()
					}
					w.pass(2 * lease)
					require.True(w, w.free(theKey))
				})
			})
		}
	}
}

// The hold of several readers goes on for those that live, and is left to its lease with the last of them.
func TestGone_AReaderWhoseGoroutineIsGone(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const lease = 3 * time.Second
		var log journal
		r := w.registry(log.option(), lockregistry.WithLease(lease))
		l, g := r.ReadWrite("42").Reader(), w.goroutine()
		leaves(w, r, l)
		require.NoError(w, g.lock(l))
		w.pass(5 * time.Minute)
		require.Len(w, log.lines(ended, theKey), 1)
		require.True(w, l.IsHeld())
		require.NoError(w, g.unlock(l))
		w.pass(2 * lease)
		require.True(w, w.free(theKey))
		require.NotEmpty(w, log.lines("lock lost"))
	})
}

// With a context of Do that has outlived it another goroutine can unlock after all. The next owner has a hold like any other.
func TestGone_UnlockForAGoroutineThatIsGone(t *testing.T) {
	fakeWorld(t, func(w *world) {
		const lease = 30 * time.Second
		var log journal
		r := w.registry(log.option(), lockregistry.WithRenewal(), lockregistry.WithLease(lease), lockregistry.WithHandoff(time.Hour))
		l, g := r.Obtain("42"), w.goroutine()
		within := leaves(w, r, l)
		locked := g.starts(l)
		for len(log.lines(ended)) == 0 {
			w.pass(time.Second / 4)
		}
		w.pending(locked)
		require.NoError(w, l.Unlock(within))
		require.NoError(w, <-locked)
		require.Equal(w, uint64(1), r.Stats().HandOvers)
		w.pass(5 * time.Minute)
		require.NoError(w, g.unlock(l))
		require.Len(w, log.lines(ended), 1)
	})
}

// That may also happen at the moment at which the goroutine is found to be gone.
func TestGone_UnlockForAGoroutineThatIsFoundGone(t *testing.T) {
	t.Parallel()
	for kind, of := range leftBehind {
		for _, first := range []string{"found", "unlocked"} {
			t.Run(kind+", first "+first, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					const lease = 30 * time.Second
					r := w.registry(lockregistry.WithRenewal(), lockregistry.WithLease(lease), lockregistry.WithHandoff(time.Hour))
					l, g := of(r), w.goroutine()
					ctx := elsewhere(func() context.Context {
						w.lock(l)
						return l.Context(w.Context())
					})
					find := lockregistry.FindsGone(l)
					locked := g.starts(l) // at once, if it shares the hold
					w.settle()
					if first == "found" {
						find()
					}
					require.NoError(w, l.Unlock(ctx))
					require.NoError(w, <-locked)
					if first == "unlocked" {
						find()
					}
					w.pass(5 * time.Minute)
					require.NoError(w, g.unlock(l))
				})
			})
		}
	}
}

// A context of Do, with which a call has nested, keeps a hold for as long as it can be reached.
func TestDo_CallsThatNestAndAGoroutineThatIsGone(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]func(w *world, r *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context){
		"Lock and Unlock": func(w *world, _ *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) {
			require.NoError(w, l.Lock(ctx))
			require.NoError(w, l.Unlock(ctx))
		},
		"Lock": func(w *world, _ *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) {
			require.NoError(w, l.Lock(ctx))
		},
		"Lock by another goroutine": func(w *world, _ *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) {
			require.NoError(w, <-lockElsewhere(l, ctx))
		},
		"Do": func(w *world, r *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) {
			require.NoError(w, r.Do(ctx, "42", func(ctx context.Context) error { return l.Lock(ctx) }))
		},
		"Do with a child": func(w *world, r *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			require.NoError(w, r.Do(ctx, "42", func(ctx context.Context) error { return l.Lock(ctx) }))
		},
		"Lock.Context": func(w *world, _ *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) {
			require.NoError(w, l.Lock(w.Context()))
			l.Context(context.WithValue(ctx, valueKey{}, "a"))
		},
		"Lock.Context of a child": func(w *world, _ *lockregistry.Registry, l *lockregistry.Lock, ctx context.Context) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			require.NoError(w, l.Lock(l.Context(ctx)))
		},
	} {
		for _, outer := range []string{"Do", "Do after Lock"} {
			t.Run(name+" within "+outer, func(t *testing.T) {
				fakeWorld(t, func(w *world) {
					const lease = time.Second
					var log journal
					r := w.registry(log.option(), lockregistry.WithRenewal(), lockregistry.WithLease(lease))
					l := r.Obtain("42")
					elsewhere(func() (recovered any) {
						defer func() { recovered = recover() }()
						if outer == "Do after Lock" {
							w.lock(l)
						}
						return r.Do(w.Context(), "42", func(ctx context.Context) error {
							work(w, r, l, ctx)
							panic("a handler's")
						})
					})
					if outer == "Do" && name == "Lock and Unlock" {
						require.True(w, w.free(theKey))
						return
					}
					for began := time.Now(); len(log.lines(ended, theKey)) == 0; w.pass(lease) {
						require.Less(w, time.Since(began), 2*time.Minute)
						runtime.GC()
					}
					w.pass(2 * lease)
					require.True(w, w.free(theKey))
				})
			})
		}
	}
}
