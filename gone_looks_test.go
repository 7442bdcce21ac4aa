package lockregistry_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// The goroutines of the process are counted, which stops it, only while one of them has had a renewed hold for longer than a
// lease, and no more often than that needs.
func TestGone_NobodyIsCountedWithoutNeed(t *testing.T) {
	t.Parallel()
	const lease = time.Minute
	renewed := []lockregistry.Option{lockregistry.WithRenewal(), lockregistry.WithLease(lease)}
	t.Run("renewed", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			r := w.registry(renewed...)
			uncounted := func(why string) { w.Helper(); require.Zero(w, lockregistry.Counts(r), why) }

			w.pass(5 * lease)
			uncounted("nobody has a hold")

			ctx, l := lockregistry.NewOwner(w.Context()), r.Obtain("a")
			require.NoError(w, l.Lock(ctx))
			w.pass(5 * lease)
			require.NoError(w, l.Unlock(ctx))
			uncounted("it is not a goroutine's")

			h, err := r.Acquire(w.Context(), "b")
			require.NoError(w, err)
			w.pass(5 * lease)
			require.NoError(w, h.Release(w.Context()))
			uncounted("it is a Hold")

			l = r.Obtain("42")
			for range 5 {
				w.lock(l)
				w.pass(lease - time.Second)
				w.unlock(l)
				w.pass(2 * time.Second)
			}
			uncounted("each hold was shorter than the lease")

			busy := r.Obtain("c")
			require.NoError(w, busy.Lock(ctx, lockregistry.Lease(time.Second))) // is renewed all the time
			w.lock(l)
			w.pass(lease - time.Second)
			uncounted("the hold is not older than the lease yet")
			w.pass(5*lease + time.Second)
			w.settle()
			counted := lockregistry.Counts(r)
			require.GreaterOrEqual(w, counted, 5)
			require.LessOrEqual(w, counted, 5*3+1, "every 20 seconds")
			w.unlock(l)
			w.pass(5 * lease)
			require.NoError(w, busy.Unlock(ctx))
			require.Equal(w, counted, lockregistry.Counts(r), "the hold is over")
		})
	})
	t.Run("within Do", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			r := w.registry(lockregistry.WithLease(lease))
			l := r.Obtain("42")
			long := func(context.Context) error { w.pass(5 * lease); return nil }
			require.NoError(w, l.Do(w.Context(), long))
			w.lock(l)
			require.NoError(w, l.Do(w.Context(), func(ctx context.Context) error { return errors.Join(long(ctx), l.Do(ctx, long)) }))
			w.unlock(l)
			require.Zero(w, lockregistry.Counts(r), "it unlocks in any case")
			r = w.registry(renewed...)
			l = r.Obtain("43")
			w.lock(l)
			require.NoError(w, l.Do(w.Context(), nothing))
			w.pass(2 * lease)
			w.settle()
			require.Positive(w, lockregistry.Counts(r), "it is over, and the hold is not")
			w.unlock(l)
		})
	})
	t.Run("not renewed", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			r := w.registry(lockregistry.WithLease(lease))
			l := r.Obtain("42")
			w.lock(l)
			w.pass(2 * lease)
			require.Zero(w, lockregistry.Counts(r))
		})
	})
	t.Run("too many goroutines", func(t *testing.T) {
		fakeWorld(t, func(w *world) {
			var log journal
			r := w.registry(append(renewed, log.option())...)
			lockregistry.ManyGoroutines(r)
			l := r.Obtain("42")
			w.lock(l)
			w.pass(5 * lease)
			require.Len(w, log.lines("are not looked for"), 1)
			require.Zero(w, lockregistry.Counts(r))
			w.unlock(l)
		})
	})
}
