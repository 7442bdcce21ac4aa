package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// nesting calls a function within a nested call of a lock.
var nesting = map[string]func(
	w *kit.World, ctx context.Context, l *lockregistry.Lock, work func(), opts ...lockregistry.LockOption,
) error{
	"Do": func(_ *kit.World, ctx context.Context, l *lockregistry.Lock, work func(), opts ...lockregistry.LockOption) error {
		return l.Do(ctx, func(context.Context) error {
			work()
			return nil
		}, opts...)
	},
	"Lock": func(_ *kit.World, ctx context.Context, l *lockregistry.Lock, work func(), opts ...lockregistry.LockOption) error {
		if err := l.Lock(ctx, opts...); err != nil {
			return err
		}
		work()
		return l.Unlock(ctx)
	},
	"Lock by another goroutine": func(
		w *kit.World, ctx context.Context, l *lockregistry.Lock, work func(), opts ...lockregistry.LockOption,
	) error {
		g := w.Goroutine()
		if err := g.Do(func() error { return l.Lock(ctx, opts...) }); err != nil {
			return err
		}
		work()
		return g.Do(func() error { return l.Unlock(ctx) })
	},
}

// A nested call never shortens the lease that the outer calls rely on, neither while it runs nor afterwards. A longer lease
// counts while it runs, and then the outer one counts again.
func TestNested_KeepsTheLeaseOfTheOuterOne(t *testing.T) {
	t.Parallel()
	const outer, shorter, longer = 20 * time.Second, 600 * time.Millisecond, time.Minute
	for i, kind := range kit.InOrder(kit.LockKinds) {
		of := kit.LockKinds[kind]
		for j, how := range kit.InOrder(nesting) {
			nest := nesting[how]
			for k, renewed := range []bool{false, true} {
				_, layout := kit.Turn(kit.Layouts, i+j+k) // each kind, each call and renewal runs with both
				t.Run(fmt.Sprint(kind, " ", layout, " ", how, " ", renewed), func(t *testing.T) {
					kit.FakeWorld(t, func(w *kit.World) {
						opts := []lockregistry.Option{kit.WithLayout(layout)}
						if renewed {
							opts = append(opts, lockregistry.WithRenewal())
						}
						l := of(w.Registry(opts...))
						w.Lock(l, lockregistry.Lease(outer))
						ctx := l.Context(w.Context())
						has := func(lease time.Duration) {
							w.Helper()
							require.InDelta(w, lease, w.Pttl(kit.TheKey), float64(lease/100))
						}
						in := func(work func(), opts ...lockregistry.LockOption) {
							w.Helper()
							require.NoError(w, nest(w, ctx, l, work, opts...))
						}
						has(outer)
						in(func() { has(outer) }, lockregistry.Lease(shorter))
						has(outer)
						in(func() { has(outer) })
						in(func() {
							has(longer)
							in(func() { has(longer) }, lockregistry.Lease(shorter))
							in(func() { has(2 * longer) }, lockregistry.Lease(2*longer))
							w.Await("the lease of the level above", func() bool { return w.Pttl(kit.TheKey) <= longer })
							has(longer)
						}, lockregistry.Lease(longer))
						w.Await("the outer lease", func() bool { return w.Pttl(kit.TheKey) <= outer })
						has(outer)
						if renewed {
							w.Pass(3 * longer)
							require.NoError(w, ctx.Err())
							require.LessOrEqual(w, w.Pttl(kit.TheKey), outer)
							require.GreaterOrEqual(w, w.Pttl(kit.TheKey), outer/2)
						} else {
							w.Pass(outer)
							require.Error(w, ctx.Err())
							return
						}
						w.Unlock(l)
						require.True(w, w.Free(kit.TheKey))
					})
				})
			}
		}
	}
}

// The outer hold survives a silence that a nested call's lease would not have survived.
func TestNested_ASilenceIsOutlasted(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const lease = 20 * time.Second
		f := w.Flaky()
		r := f.Registry(lockregistry.WithLease(lease))
		require.NoError(w, r.Do(w.Context(), "42", func(ctx context.Context) error {
			err := r.Do(ctx, "42", kit.DoNothing, lockregistry.Lease(600*time.Millisecond))
			silent := make(chan struct{})
			f.Fates("renew", kit.HeldUp(silent))
			w.Pass(lease / 2)
			close(silent)
			return errors.Join(err, ctx.Err())
		}))
	})
}

// Renew may shorten the lease of all calls, even within a nested one.
func TestNested_RenewMayShorten(t *testing.T) {
	kit.Worlds(t, func(w *kit.World) {
		l := w.Registry(lockregistry.WithLease(time.Hour)).Obtain("42")
		w.Lock(l)
		require.NoError(w, l.Lock(w.Context(), lockregistry.Lease(2*time.Hour)))
		require.NoError(w, l.Renew(w.Context(), time.Minute))
		require.LessOrEqual(w, w.Pttl(kit.TheKey), time.Minute)
		w.Unlock(l)
		require.LessOrEqual(w, w.Pttl(kit.TheKey), time.Minute)
		w.Unlock(l)
	})
}

// What a nested call has asked for does not count for the next owner.
func TestNested_OfTheNextOwner(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const lease = 20 * time.Second
		r := w.Registry(lockregistry.WithLease(lease), lockregistry.WithRenewal(), lockregistry.WithHandoff(time.Hour))
		l, g := r.Obtain("42"), w.Goroutine()
		w.Lock(l)
		ctx := l.Context(w.Context())
		locked := g.Starts(l)
		w.Settle()
		require.NoError(w, <-kit.LockElsewhere(l, ctx, lockregistry.Lease(25*time.Second))) // this goroutine undoes it
		w.Unlock(l)
		w.Unlock(l)
		require.NoError(w, <-locked)
		require.Equal(w, uint64(1), r.Stats().Handoffs)
		w.Pass(2 * lease)
		require.LessOrEqual(w, w.Pttl(kit.TheKey), lease)
		require.NoError(w, g.Unlock(l))
	})
}

// A nested call that fails leaves the outer lease, even if the server has set the nested one's.
func TestNested_ACallThatFails(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const lease = 20 * time.Second
		f := w.Flaky()
		l := f.Registry(lockregistry.WithLease(lease)).Obtain("42")
		w.Lock(l)
		f.Fate("renew", kit.CutAfter)
		require.ErrorIs(w, l.Lock(w.Context(), lockregistry.Lease(time.Hour)), lockregistry.ErrUnavailable)
		w.Pass(time.Second)
		require.LessOrEqual(w, w.Pttl(kit.TheKey), lease)
		require.True(w, l.IsHeld())
		w.Unlock(l)
	})
}

// A nested call that is refused changes nothing for the outer one.
func TestNested_ACallThatIsRefused(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry(lockregistry.WithLease(20*time.Second), lockregistry.WithRenewal()).Obtain("42")
		w.Lock(l)
		w.Lock(l, lockregistry.Lease(time.Hour))
		require.Error(w, l.Lock(w.Context(), lockregistry.AtMost(time.Minute)))
		require.Error(w, l.Lock(w.Context(), lockregistry.AtLeast(time.Minute)))
		w.Pass(time.Second)
		require.Greater(w, w.Pttl(kit.TheKey), 59*time.Minute)
		w.Unlock(l)
		w.Unlock(l)
	})
}

// Readers that share a hold each keep the lease that they asked for until they leave.
func TestNested_ReadersThatShareAHold(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const lease, joins, longer = 20 * time.Second, time.Minute, time.Hour
		l, g := w.Registry(lockregistry.WithLease(lease)).ReadWrite("42").Reader(), w.Goroutine()
		w.Lock(l)
		w.Lock(l, lockregistry.Lease(longer))
		require.NoError(w, g.Lock(l, lockregistry.Lease(joins)))
		w.Unlock(l)
		w.Settle()
		w.Pass(5 * time.Second)
		require.InDelta(w, joins, w.Pttl(kit.TheKey), float64(6*time.Second))
		require.NoError(w, g.Lock(l, lockregistry.Lease(longer)))
		require.NoError(w, g.Unlock(l))
		require.NoError(w, g.Unlock(l))
		w.Pass(5 * time.Second)
		require.LessOrEqual(w, w.Pttl(kit.TheKey), joins)
		w.Unlock(l)
		require.True(w, w.Free(kit.TheKey))
	})
}

// A lone reader chooses a shorter lease. Before the reply arrives another reader joins, with a longer lease.
func TestNested_AReaderThatComesDuringARenewal(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.LockOption{
		"renewed":             nil,
		"with a lease":        {lockregistry.Lease(30 * time.Second)},
		"with a longer lease": {lockregistry.Lease(2 * time.Minute)},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				const least, slow = 30 * time.Second, 300 * time.Millisecond
				f := w.Flaky()
				r := f.Registry(lockregistry.WithLease(least))
				l, g := r.ReadWrite("42").Reader(), w.Goroutine()
				require.NoError(w, g.Lock(l, lockregistry.Lease(time.Minute)))
				w.Loaded("")
				f.Fates("read_renew", kit.SlowReply(slow))
				renewed := g.Start(func() error { return l.Renew(w.Context(), 2*time.Second) })
				w.Settle()
				w.Lock(l, opts...)
				require.NoError(w, <-renewed)
				w.Pass(2 * time.Second)
				require.Greater(w, w.Pttl(kit.TheKey), least*2/3-time.Second)
				require.NoError(w, g.Unlock(l))
				for range 4 {
					w.Pass(5 * time.Second)
					require.True(w, l.IsHeld())
				}
				w.Unlock(l)
			})
		})
	}
}
