package lockregistry_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// However long the lease is, and whatever renews it, the key does not live beyond the bound, and contexts end before it does.
func TestAtMost_BoundsWhatIsRenewed(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts {
		for kind, works := range working {
			if kind == "reader" || kind == "reader's hold" {
				continue
			}
			for _, most := range []time.Duration{time.Second, 2900 * time.Millisecond, 10 * time.Second, 61 * time.Second} {
				t.Run(name+"/"+kind+"/"+most.String(), func(t *testing.T) {
					fakeWorld(t, func(w *world) {
						r := w.registry(lockregistry.WithLayout(layout), lockregistry.WithLease(3*time.Second))
						w.known(r)
						start := time.Now()
						err := works(w.Context(), r, func(ctx context.Context) error {
							for ctx.Err() == nil {
								require.LessOrEqual(w, w.pttl(theKey), most-time.Since(start))
								w.pass(max((most-time.Since(start))/20, 10*time.Millisecond))
							}
							require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
							require.False(w, w.free(theKey), "the context ends first")
							return nil
						}, lockregistry.AtMost(most))
						require.ErrorIs(w, err, lockregistry.ErrLockLost)
						require.LessOrEqual(w, time.Since(start), most)
						require.GreaterOrEqual(w, time.Since(start), most-margin(min(most, 3*time.Second))-20*time.Millisecond)
					})
				})
			}
		}
	}
}

// It counts anew for the next owner, whose bound may be another one, or none.
func TestAtMost_AfterAHandOver(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][2][]lockregistry.LockOption{
		"bounded twice": {{lockregistry.AtMost(10 * time.Second)}, {lockregistry.AtMost(10 * time.Second)}},
		"then not":      {{lockregistry.AtMost(10 * time.Second)}, {lockregistry.Lease(10 * time.Second)}},
		"only then":     {{lockregistry.Lease(12 * time.Second)}, {lockregistry.AtMost(10 * time.Second)}},
	} {
		t.Run(name, func(t *testing.T) {
			fakeWorld(t, func(w *world) {
				r := w.registry(lockregistry.WithHandoff(time.Hour))
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
				w.pass(3 * time.Second)
				w.released(first)
				h := <-next
				start := time.Now()
				require.EqualValues(w, 1, r.Stats().HandOvers)
				ctx := h.Context(w.Context())
				if name == "then not" {
					w.pass(2 * time.Minute)
					require.NoError(w, ctx.Err())
					w.released(h)
					return
				}
				require.LessOrEqual(w, w.pttl(theKey), 10*time.Second)
				<-ctx.Done()
				require.InDelta(w, 10*time.Second, time.Since(start), float64(150*time.Millisecond))
				require.LessOrEqual(w, time.Since(start), 10*time.Second)
			})
		})
	}
}

// A hold that was given a longer lease before is shortened for an owner that wants it for no longer, as soon as Redis answers.
// The owner counts on no more from the beginning.
func TestAtMost_AfterALongerLease(t *testing.T) {
	const most = 10 * time.Second
	terms(t, 14*time.Second, false, func(w *world, f *flaky, l *lockregistry.Lock) {
		w.lock(l)
		g, kept := f.handTo(l, lockregistry.AtMost(most))
		require.True(w, kept)
		w.settle()
		require.LessOrEqual(w, w.pttl(theKey), most)
		renewals := f.scripts("renew")
		w.pass(5 * time.Second)
		require.Equal(w, renewals, f.scripts("renew"), "once")
		require.NoError(w, g.unlock(l))

		w.lock(l)
		f.all(anything, silence)
		g, kept = f.handTo(l, lockregistry.AtMost(most))
		start := time.Now()
		require.True(w, kept)
		w.pass(2 * time.Second)
		f.reconnect()
		w.pass(2 * time.Second)
		w.settle()
		require.Less(w, w.pttl(theKey), most-time.Since(start)+2*time.Second, "what it took to arrive")
		ctx := g.watch(l)
		<-ctx.Done()
		require.LessOrEqual(w, time.Since(start), most)
		require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
		require.ErrorIs(w, g.unlock(l), lockregistry.ErrLockLost)
	})
	fakeWorld(t, func(w *world) {
		r := w.registry(lockregistry.WithHandoff(time.Hour))
		w.lock(r.Obtain("43"), lockregistry.Lease(14*time.Second))
		got, _ := w.allOf(w.Context(), r, []string{"42", "43"}, lockregistry.AtMost(most))
		w.settle()
		w.unlock(r.Obtain("43"))
		h := <-got
		w.settle()
		require.EqualValues(w, 1, r.Stats().HandOvers)
		require.LessOrEqual(w, w.pttl("orders:43"), most)
		w.released(h)
	})
}

// A longer lease before is shortened once, not for each owner that comes after.
func TestAtMost_ShortensOnce(t *testing.T) {
	t.Parallel()
	opts := []lockregistry.LockOption{lockregistry.AtMost(10 * time.Second)}
	terms(t, 14*time.Second, false, func(w *world, f *flaky, l *lockregistry.Lock) {
		w.lock(l)
		renewals := f.scripts("renew")
		g, _ := f.handTo(l, opts...)
		w.settle()
		require.Greater(w, f.scripts("renew"), renewals)
		renewals, releases := f.scripts("renew"), f.scripts("release")
		for range 3 {
			next := w.goroutine()
			got := next.starts(l, opts...)
			w.settle()
			require.NoError(w, g.unlock(l))
			require.NoError(w, <-got)
			g = next
		}
		w.settle()
		require.Equal(w, renewals, f.scripts("renew"))
		require.Equal(w, releases, f.scripts("release"), "it was handed over")
		require.NoError(w, g.unlock(l))
	})
}

func TestAtMost_OfALock(t *testing.T) {
	fakeWorld(t, func(w *world) {
		l := w.registry(lockregistry.WithRenewal()).Obtain("42")
		w.lock(l, lockregistry.AtMost(10*time.Second))
		require.NoError(w, l.Renew(w.Context(), time.Minute))
		require.LessOrEqual(w, w.pttl(theKey), 10*time.Second)
		require.NoError(w, l.Do(w.Context(), func(context.Context) error { w.pass(9 * time.Second); return nil }))
		require.LessOrEqual(w, w.pttl(theKey), time.Second)
		w.pass(time.Second)
		require.ErrorIs(w, l.Unlock(w.Context()), lockregistry.ErrLockLost)
	})
}

func TestAtMost_BadInput(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		l := r.Obtain("42")
		for text, err := range map[string]error{
			"must be positive":                  l.Lock(w.Context(), lockregistry.AtMost(0)),
			"at least 2ms":                      l.Lock(w.Context(), lockregistry.AtMost(time.Millisecond)),
			"it is shorter than AtLeast":        l.Lock(w.Context(), lockregistry.AtMost(time.Second), lockregistry.AtLeast(time.Hour)),
			"it is for plain locks and writers": r.ReadWrite("42").Reader().Lock(w.Context(), lockregistry.AtMost(time.Second)),
			"the owner holds the lock already": r.Do(w.Context(), "42", func(ctx context.Context) error {
				return l.Do(ctx, nothing, lockregistry.AtMost(time.Second))
			}),
		} {
			require.ErrorContains(w, err, text)
			require.Empty(w, about(err))
		}
		w.leftNothing()
	})
}
