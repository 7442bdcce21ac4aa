package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// However long the lease is, and whatever renews it, the key does not live longer than the bound, and contexts end before it
// does.
func TestAtMost_BoundsWhatIsRenewed(t *testing.T) {
	t.Parallel()
	for i, kind := range kit.InOrder(working) {
		works := working[kind]
		if kind == "reader" || kind == "reader's hold" {
			continue
		}
		for j, most := range []time.Duration{time.Second, 2900 * time.Millisecond, 10 * time.Second, 61 * time.Second} {
			name, layout := kit.Turn(kit.Layouts, i+j) // each kind and each time runs with both
			t.Run(name+"/"+kind+"/"+most.String(), func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					r := w.Registry(kit.WithLayout(layout), lockregistry.WithLease(3*time.Second))
					w.Known(r)
					start := time.Now()
					err := works(w.Context(), r, func(ctx context.Context) error {
						for ctx.Err() == nil {
							require.LessOrEqual(w, w.Pttl(kit.TheKey), most-time.Since(start))
							w.Pass(max((most-time.Since(start))/20, 10*time.Millisecond))
						}
						require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
						require.False(w, w.Free(kit.TheKey), "the context ends first")
						return nil
					}, lockregistry.AtMost(most))
					require.ErrorIs(w, err, lockregistry.ErrLockLost)
					require.LessOrEqual(w, time.Since(start), most)
					require.GreaterOrEqual(w, time.Since(start), most-kit.DriftMargin(min(most, 3*time.Second))-20*time.Millisecond)
				})
			})
		}
	}
}

// After a handoff the bound counts anew for the next owner, who may have another bound, or none.
func TestAtMost_AfterAHandoff(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][2][]lockregistry.LockOption{
		"bounded twice": {{lockregistry.AtMost(10 * time.Second)}, {lockregistry.AtMost(10 * time.Second)}},
		"then not":      {{lockregistry.AtMost(10 * time.Second)}, {lockregistry.Lease(10 * time.Second)}},
		"only then":     {{lockregistry.Lease(12 * time.Second)}, {lockregistry.AtMost(10 * time.Second)}},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				r := w.Registry(lockregistry.WithHandoff(time.Hour))
				first, err := r.Acquire(w.Context(), "42", opts[0]...)
				require.NoError(w, err)
				next := make(chan *lockregistry.Hold)
				go func() {
					h, err := r.Acquire(w.Context(), "42", opts[1]...)
					if err != nil {
						w.Error(err)
					}
					next <- h
				}()
				w.Pass(3 * time.Second)
				w.Release(first)
				h := <-next
				start := time.Now()
				require.EqualValues(w, 1, r.Stats().Handoffs)
				ctx := h.Context(w.Context())
				if name == "then not" {
					w.Pass(2 * time.Minute)
					require.NoError(w, ctx.Err())
					w.Release(h)
					return
				}
				require.LessOrEqual(w, w.Pttl(kit.TheKey), 10*time.Second)
				<-ctx.Done()
				require.InDelta(w, 10*time.Second, time.Since(start), float64(150*time.Millisecond))
				require.LessOrEqual(w, time.Since(start), 10*time.Second)
			})
		})
	}
}

// A hold with a longer lease from before is shortened for an owner with AtMost as soon as Redis answers. From the start the
// owner counts on no more than its bound.
func TestAtMost_AfterALongerLease(t *testing.T) {
	const most = 10 * time.Second
	kit.ExclusiveLocks(t, 14*time.Second, false, func(w *kit.World, f *kit.Flaky, l *lockregistry.Lock) {
		w.Lock(l)
		g, kept := f.HandTo(l, lockregistry.AtMost(most))
		require.True(w, kept)
		w.Settle()
		require.LessOrEqual(w, w.Pttl(kit.TheKey), most)
		renewals := f.Scripts("renew")
		w.Pass(5 * time.Second)
		require.Equal(w, renewals, f.Scripts("renew"), "once")
		require.NoError(w, g.Unlock(l))

		w.Lock(l)
		f.Fate(kit.Anything, kit.Silence)
		g, kept = f.HandTo(l, lockregistry.AtMost(most))
		start := time.Now()
		require.True(w, kept)
		w.Pass(2 * time.Second)
		f.Reconnect()
		w.Pass(2 * time.Second)
		w.Settle()
		require.Less(w, w.Pttl(kit.TheKey), most-time.Since(start)+2*time.Second, "what it took to arrive")
		ctx := g.Watch(l)
		<-ctx.Done()
		require.LessOrEqual(w, time.Since(start), most)
		require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
		require.ErrorIs(w, g.Unlock(l), lockregistry.ErrLockLost)
	})
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithHandoff(time.Hour))
		w.Lock(r.Obtain("43"), lockregistry.Lease(14*time.Second))
		got, _ := w.AllOf(w.Context(), r, []string{"42", "43"}, lockregistry.AtMost(most))
		w.Settle()
		w.Unlock(r.Obtain("43"))
		h := <-got
		w.Settle()
		require.EqualValues(w, 1, r.Stats().Handoffs)
		require.LessOrEqual(w, w.Pttl("orders:43"), most)
		w.Release(h)
	})
}

// A longer lease from before is shortened once, not for each owner that follows.
func TestAtMost_ShortensOnce(t *testing.T) {
	t.Parallel()
	opts := []lockregistry.LockOption{lockregistry.AtMost(10 * time.Second)}
	kit.ExclusiveLocks(t, 14*time.Second, false, func(w *kit.World, f *kit.Flaky, l *lockregistry.Lock) {
		w.Lock(l)
		renewals := f.Scripts("renew")
		g, _ := f.HandTo(l, opts...)
		w.Settle()
		require.Greater(w, f.Scripts("renew"), renewals)
		renewals, releases := f.Scripts("renew"), f.Scripts("release")
		for range 3 {
			next := w.Goroutine()
			got := next.Starts(l, opts...)
			w.Settle()
			require.NoError(w, g.Unlock(l))
			require.NoError(w, <-got)
			g = next
		}
		w.Settle()
		require.Equal(w, renewals, f.Scripts("renew"))
		require.Equal(w, releases, f.Scripts("release"), "it was handed over")
		require.NoError(w, g.Unlock(l))
	})
}

func TestAtMost_OfALock(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		l := w.Registry(lockregistry.WithRenewal()).Obtain("42")
		w.Lock(l, lockregistry.AtMost(10*time.Second))
		require.NoError(w, l.Renew(w.Context(), time.Minute))
		require.LessOrEqual(w, w.Pttl(kit.TheKey), 10*time.Second)
		require.NoError(w, l.Do(w.Context(), func(context.Context) error { w.Pass(9 * time.Second); return nil }))
		require.LessOrEqual(w, w.Pttl(kit.TheKey), time.Second)
		w.Pass(time.Second)
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
	})
}

func TestAtMost_BadInput(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		l := r.Obtain("42")
		for text, err := range map[string]error{
			"must be positive":                  l.Lock(w.Context(), lockregistry.AtMost(0)),
			"at least 2ms":                      l.Lock(w.Context(), lockregistry.AtMost(time.Millisecond)),
			"it is shorter than AtLeast":        l.Lock(w.Context(), lockregistry.AtMost(time.Second), lockregistry.AtLeast(time.Hour)),
			"it is for plain locks and writers": r.ReadWrite("42").Reader().Lock(w.Context(), lockregistry.AtMost(time.Second)),
			"the owner already holds the lock": r.Do(w.Context(), "42", func(ctx context.Context) error {
				return l.Do(ctx, kit.DoNothing, lockregistry.AtMost(time.Second))
			}),
		} {
			require.ErrorContains(w, err, text)
			require.Empty(w, kit.SentinelsOf(err))
		}
		w.LeftNothing()
	})
}
