package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// A function that has unlocked too often, and ends late, affects no later owner.
func TestRenewal_OfTheNextOwner(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const lease = 3 * time.Second
		l, g := w.Registry(lockregistry.WithHandoff(time.Hour)).Obtain("42"), w.Goroutine()
		within := make(chan struct{})
		next := make(chan error)
		require.ErrorIs(w, l.Do(w.Context(), func(context.Context) error {
			go func() {
				next <- l.Do(lockregistry.ContextWithOwner(w.Context()), func(ctx context.Context) error {
					close(within)
					w.Pass(10 * lease)
					return ctx.Err()
				}, lockregistry.Lease(lease))
			}()
			w.Settle()
			w.Unlock(l)
			<-within
			return nil
		}, lockregistry.Lease(lease)), lockregistry.ErrNotOwner)
		require.NoError(w, <-next)
		require.NoError(w, g.Lock(l))
		require.NoError(w, g.Unlock(l))
	})
}

// job is the work under a lock.
type job = func(context.Context) error

// working are the calls in which the library knows when the work under the lock ends. Each does a job under the lock 42.
var working = map[string]func(ctx context.Context, r *lockregistry.Registry, do job, opts ...lockregistry.LockOption) error{
	"do": func(ctx context.Context, r *lockregistry.Registry, do job, opts ...lockregistry.LockOption) error {
		return r.Do(ctx, "42", do, opts...)
	},
	"reader": func(ctx context.Context, r *lockregistry.Registry, do job, opts ...lockregistry.LockOption) error {
		return r.ReadWrite("42").Reader().Do(ctx, do, opts...)
	},
	"writer": func(ctx context.Context, r *lockregistry.Registry, do job, opts ...lockregistry.LockOption) error {
		return r.ReadWrite("42").Writer().Do(ctx, do, opts...)
	},
	"value": func(ctx context.Context, r *lockregistry.Registry, do job, opts ...lockregistry.LockOption) error {
		_, err := lockregistry.DoValue(ctx, r.Obtain("42"), func(ctx context.Context) (int, error) { return 0, do(ctx) },
			kit.As[lockregistry.AcquireOption](opts)...)
		return err
	},
	"acquire": func(ctx context.Context, r *lockregistry.Registry, do job, opts ...lockregistry.LockOption) error {
		h, err := r.Acquire(ctx, "42", opts...)
		return underHold(ctx, h, err, do)
	},
	"reader's hold": func(ctx context.Context, r *lockregistry.Registry, do job, opts ...lockregistry.LockOption) error {
		h, err := r.ReadWrite("42").Reader().Acquire(ctx, opts...)
		return underHold(ctx, h, err, do)
	},
	"several": func(ctx context.Context, r *lockregistry.Registry, do job, opts ...lockregistry.LockOption) error {
		h, err := r.AcquireAll(ctx, []string{"42", "43"}, kit.As[lockregistry.AcquireOption](opts)...)
		return underHold(ctx, h, err, do)
	},
}

func underHold(ctx context.Context, h *lockregistry.Hold, err error, do job) error {
	if err != nil {
		return err
	}
	err = do(h.Context(ctx))
	return errors.Join(err, h.Release(ctx))
}

// A lease, even one that the call has set, is renewed until the work is done. That holds for a hold that Redis has granted, for
// one that another goroutine hands over, and for one that several readers share.
func TestRenewal_UntilTheWorkIsDone(t *testing.T) {
	t.Parallel()
	leases := map[string][]lockregistry.LockOption{"a": nil, "its own": {lockregistry.Lease(time.Second)}}
	for i, kind := range kit.InOrder(working) {
		works := working[kind]
		// All pairs of the conditions, not all combinations.
		for j, second := range []bool{false, true} {
			how, opts := kit.Turn(leases, i+j)
			name, layout := kit.Turn(kit.Layouts, i/2+j)
			t.Run(name+"/"+kind+"/"+how, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					r := w.Registry(kit.WithLayout(layout), lockregistry.WithLease(1500*time.Millisecond))
					first := make(chan error, 1)
					if second {
						go func() {
							short := func(context.Context) error { w.Pass(50 * time.Millisecond); return nil }
							first <- works(w.Context(), r, short, lockregistry.Lease(1200*time.Millisecond))
						}()
						w.Pass(10 * time.Millisecond)
					} else {
						first <- nil
					}
					require.NoError(w, works(w.Context(), r, func(ctx context.Context) error {
						w.Pass(5 * time.Second) // more than three leases
						require.False(w, w.Free(kit.TheKey))
						return ctx.Err()
					}, opts...))
					require.NoError(w, <-first)
					w.LeftNothing()
				})
			})
		}
	}
}

// A Do nested in a Lock renews while it runs, and no longer. A short one costs nothing but the renewal that every nested call
// makes.
func TestRenewal_OfANestedDo(t *testing.T) {
	t.Parallel()
	locks := map[string]func(r *lockregistry.Registry) *lockregistry.Lock{
		"plain":  func(r *lockregistry.Registry) *lockregistry.Lock { return r.Obtain("42") },
		"reader": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Reader() },
		"writer": func(r *lockregistry.Registry) *lockregistry.Lock { return r.ReadWrite("42").Writer() },
	}
	for kind, of := range locks {
		for _, carried := range []bool{false, true} {
			t.Run(kind, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					const lease = 3 * time.Second
					renews := map[string]string{"plain": "renew", "reader": "read_renew", "writer": "write_renew"}[kind]
					f := w.Flaky()
					l := of(f.Registry())
					w.Lock(l, lockregistry.Lease(lease))
					alive := l.Context(w.Context())
					ctx := w.Context()
					if carried {
						ctx = alive
					}
					w.Lock(l) // the server knows the script then
					w.Unlock(l)
					before := f.Count(renews)
					require.NoError(w, l.Do(ctx, kit.DoNothing))
					require.Equal(w, before+1, f.Count(renews))
					require.Panics(w, func() { _ = l.Do(ctx, func(context.Context) error { panic("out of paper") }) })
					require.NoError(w, l.Do(ctx, func(within context.Context) error {
						w.Pass(3 * lease)
						require.NoError(w, l.Do(within, func(context.Context) error { w.Pass(3 * lease); return nil }))
						w.Pass(3 * lease)
						return within.Err()
					}))
					require.GreaterOrEqual(w, f.Count(renews), 27)
					require.NoError(w, alive.Err())
					w.Settle()
					renewed := f.Count(renews)
					w.Pass(lease)
					require.Equal(w, renewed, f.Count(renews))
					require.ErrorIs(w, context.Cause(alive), lockregistry.ErrLockLost)
					require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
				})
			})
		}
	}
}

// A reader that joins meanwhile relies on renewals, whatever the first reader has asked for.
func TestRenewal_OfANestedDoThatIsShared(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().ReadWrite("42").Reader()
		w.Lock(l, lockregistry.Lease(3*time.Second))
		other := w.Goroutine()
		require.NoError(w, l.Do(w.Context(), func(context.Context) error { return other.Lock(l) }))
		w.Pass(time.Minute)
		w.Unlock(l)
		require.NoError(w, other.Unlock(l))
	})
}

// Lock and TryLock do not renew by default, as in Spring.
func TestRenewal_NotOfALock(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		require.NoError(w, l.Do(w.Context(), kit.DoNothing))
		w.Lock(l, lockregistry.Lease(time.Second))
		w.Pass(2 * time.Second)
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
	})
}

// A lock that is taken within a Do, and outlasts it, is renewed only during the Do: unless the registry renews, its lease then
// ends.
func TestRenewal_OfALockThatOutlastsDo(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	for name, opts := range map[string][]lockregistry.Option{"not renewed": nil, "renewed": {lockregistry.WithRenewal()}} {
		for kind, pick := range kit.LockKinds {
			t.Run(name+"/"+kind, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					l := pick(w.Registry(append(opts, lockregistry.WithLease(lease))...))
					ctx := lockregistry.ContextWithOwner(w.Context())
					require.NoError(w, l.Do(ctx, func(ctx context.Context) error {
						w.Pass(3 * lease)
						return l.Lock(ctx)
					}, lockregistry.Lease(lease)))
					require.True(w, l.IsHeld())
					w.Pass(lease)
					require.Equal(w, name == "renewed", l.IsHeld())
				})
			})
		}
	}
}

// A reader that has asked for a lease does not keep a longer one after sharing the hold with readers that are renewed.
func TestRenewal_OfReadersThatLeave(t *testing.T) {
	t.Parallel()
	const lease = 3 * time.Second
	for _, first := range []bool{false, true} { // which of them has got the hold
		for name, works := range map[string]func(l *lockregistry.Lock, do job) error{
			"do": func(l *lockregistry.Lock, do job) error {
				return l.Do(context.Background(), do, lockregistry.Lease(lease))
			},
			"acquire": func(l *lockregistry.Lock, do job) error {
				h, err := l.Acquire(context.Background(), lockregistry.Lease(lease))
				return underHold(context.Background(), h, err, do)
			},
		} {
			t.Run(name, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					l, other := w.Registry().ReadWrite("42").Reader(), w.Goroutine()
					if !first {
						require.NoError(w, other.Lock(l, lockregistry.Lease(lease)))
					}
					require.NoError(w, works(l, func(ctx context.Context) error {
						if first {
							require.NoError(w, other.Lock(l, lockregistry.Lease(lease)))
						}
						w.Pass(10 * lease)
						return ctx.Err()
					}))
					require.True(w, l.IsHeld())
					w.Pass(lease)
					require.False(w, l.IsHeld())
					require.ErrorIs(w, other.Unlock(l), lockregistry.ErrLockLost)
				})
			})
		}
	}
}
