package lockregistry_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

// followedLayouts runs a test of semaphores beside a replica, with either layout.
func followedLayouts(t *testing.T, test func(w *followed)) {
	t.Helper()
	eachLayout(t, realWorlds, func(w *world) { test(w.followed()) })
}

// ends is when a hold ends, by the replica.
func (w *followed) ends(h *lockregistry.Hold) string {
	w.Helper()
	if w.redissons() {
		return w.replica.Command(w, "ZSCORE", "{"+seat+"}:timeout", h.Holder())
	}
	return w.replica.Command(w, "ZSCORE", seat, h.Holder())
}

// hasPermit reports whether the replica has a hold.
func (w *followed) hasPermit(h *lockregistry.Hold) bool {
	w.Helper()
	return w.ends(h) != "(nil)"
}

// A permit that too few replicas have is not handed out, and given back.
func TestSemaphore_ReplicasHaveWhatIsGranted(t *testing.T) {
	followedLayouts(t, func(w *followed) {
		r := w.replicated()
		s := r.Semaphore("seat", 3)
		one, two := w.permit(s), w.permit(s, lockregistry.Permits(2))
		require.True(w, w.hasPermit(one))
		require.True(w, w.hasPermit(two))
		w.release(two)

		w.replica.Freeze()
		h, ok, err := s.TryAcquire(w.Context())
		w.fails(err, lockregistry.ErrUnavailable, "tryacquire", seat)
		require.ErrorContains(w, err, "too few replicas have it: 0 of 1")
		require.False(w, ok)
		require.Nil(w, h)
		w.await("it was given back", func() bool { return w.inside() == 1 })
		_, err = s.Acquire(w.Context(), lockregistry.Wait(time.Second), lockregistry.Permits(2))
		w.fails(err, lockregistry.ErrUnavailable, "acquire", seat)
		w.await("they were given back", func() bool { return w.inside() == 1 })
		plain := w.permit(w.registry().Semaphore("seat", 3))
		w.release(plain)

		got := make(chan *lockregistry.Hold, 1)
		go func() {
			h, err := s.Acquire(w.Context(), lockregistry.Wait(time.Minute))
			assert.NoError(w, err)
			got <- h
		}()
		w.await("it tries", func() bool { return w.inside() == 2 })
		require.Never(w, func() bool { return len(got) > 0 }, 2*acknowledging, time.Millisecond)
		w.replica.Thaw()
		h = <-got
		require.True(w, w.hasPermit(h))
		w.release(one, h)
		require.Zero(w, w.inside())
	})
}

// Who is granted a permit by another process's release writes something of its own, which replicas acknowledge.
func TestSemaphore_GrantsNeedReplicas(t *testing.T) {
	followedLayouts(t, func(w *followed) {
		giver, taker := w.registry().Semaphore("seat", 2), w.replicated().Semaphore("seat", 2)
		for _, permits := range []int{1, 2} {
			for _, frozen := range []bool{false, true} {
				held := w.permit(giver, lockregistry.Permits(2))
				waits := w.asks("waits", taker, lockregistry.Permits(permits), lockregistry.Wait(time.Minute))
				if frozen {
					w.replica.Freeze()
				}
				w.release(held)
				if frozen {
					require.Never(w, func() bool { return len(waits.got) > 0 }, 2*acknowledging, time.Millisecond)
					w.replica.Thaw()
				}
				got := waits.comes()
				require.True(w, w.hasPermit(got))
				w.release(got)
				w.await("nothing is left", func() bool { return w.inside() == 0 && w.seats() == 0 })
			}
		}
	})
}

// A renewal that too few have is none: the hold is lost when the lease is over that they know of.
func TestSemaphore_RenewalsNeedReplicas(t *testing.T) {
	followedLayouts(t, func(w *followed) {
		const lease = 2 * time.Second
		s := w.replicated(lockregistry.WithRenewal(), lockregistry.WithLease(lease)).Semaphore("seat", 2)
		h := w.permit(s)
		inside := h.Context(w.Context())
		before := w.ends(h)
		w.await("it is renewed", func() bool { return w.ends(h) > before })
		w.replica.Freeze()
		began := time.Now()
		w.fails(h.Renew(w.Context(), time.Minute), lockregistry.ErrUnavailable, "renew", seat)
		require.Less(w, h.Remaining(), lease)
		<-inside.Done()
		require.ErrorIs(w, context.Cause(inside), lockregistry.ErrLockLost)
		require.Less(w, time.Since(began), lease+atOnce)
		w.replica.Thaw()
		w.fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", seat)
		w.await("nothing is left", func() bool { return w.inside() == 0 })
	})
}
