package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// ends returns when a hold ends, according to the replica.
func ends(w *kit.ReplicatedWorld, h *lockregistry.Hold) string {
	w.Helper()
	return w.Replica.Command(w, "ZSCORE", kit.SeatKey, h.Holder())
}

// hasPermit reports whether the replica has a hold.
func hasPermit(w *kit.ReplicatedWorld, h *lockregistry.Hold) bool {
	w.Helper()
	return ends(w, h) != "(nil)"
}

// A permit that too few replicas have is not handed out, but released.
func TestSemaphore_ReplicasHaveWhatIsGranted(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		r := w.Replicated()
		s := r.Semaphore("seat", 3)
		patient := lockregistry.Wait(time.Minute)
		one, two := w.Permit(s, patient), w.Permit(s, patient, lockregistry.Permits(2))
		require.True(w, hasPermit(w, one))
		require.True(w, hasPermit(w, two))
		w.Release(two)

		w.Replica.Freeze()
		h, ok, err := kit.TryAcquire(w.Context(), s)
		w.Fails(err, lockregistry.ErrUnavailable, "acquire", kit.SeatKey)
		require.ErrorContains(w, err, "too few replicas have the lock: 0 of 1")
		require.False(w, ok)
		require.Nil(w, h)
		w.Await("it was given back", func() bool { return w.Inside() == 1 })
		_, err = s.Acquire(w.Context(), lockregistry.Wait(time.Second), lockregistry.Permits(2))
		w.Fails(err, lockregistry.ErrUnavailable, "acquire", kit.SeatKey)
		w.Await("they were given back", func() bool { return w.Inside() == 1 })
		plain := w.Permit(w.Registry().Semaphore("seat", 3))
		w.Release(plain)

		got := make(chan *lockregistry.Hold, 1)
		go func() {
			h, err := s.Acquire(w.Context(), lockregistry.Wait(time.Minute))
			assert.NoError(w, err)
			got <- h
		}()
		w.Await("it tries", func() bool { return w.Inside() == 2 })
		require.Never(w, func() bool { return len(got) > 0 }, 2*kit.ReplicaWait, time.Millisecond)
		w.Replica.Thaw()
		h = <-got
		require.True(w, hasPermit(w, h))
		w.Release(one, h)
		require.Zero(w, w.Inside())
	})
}

// A call that is granted a permit by another process's release writes something of its own, which replicas acknowledge.
func TestSemaphore_GrantsNeedReplicas(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		giver, taker := w.Registry().Semaphore("seat", 2), w.Replicated().Semaphore("seat", 2)
		for _, permits := range []int{1, 2} {
			for _, frozen := range []bool{false, true} {
				held := w.Permit(giver, lockregistry.Permits(2))
				waits := w.Asks("waits", taker, lockregistry.Permits(permits), lockregistry.Wait(time.Minute))
				if frozen {
					w.Replica.Freeze()
				}
				w.Release(held)
				if frozen {
					require.Never(w, func() bool { return len(waits.Got) > 0 }, 2*kit.ReplicaWait, time.Millisecond)
					w.Replica.Thaw()
				}
				got := waits.Comes()
				require.True(w, hasPermit(w, got))
				w.Release(got)
				w.Await("nothing is left", func() bool { return w.Inside() == 0 && w.Seats() == 0 })
			}
		}
	})
}

// A renewal that too few replicas have does not count: the hold is lost at the end of the lease that they know.
func TestSemaphore_RenewalsNeedReplicas(t *testing.T) {
	kit.ReplicatedWorlds(t, func(w *kit.ReplicatedWorld) {
		const lease = 4 * time.Second
		s := w.Replicated(lockregistry.WithRenewal(), lockregistry.WithLease(lease)).Semaphore("seat", 2)
		h := w.Permit(s, lockregistry.Wait(time.Minute))
		inside := h.Context(w.Context())
		before := ends(w, h)
		w.Await("it is renewed", func() bool { return ends(w, h) > before })
		w.Replica.Freeze()
		began := time.Now()
		w.Fails(h.Renew(w.Context(), time.Minute), lockregistry.ErrUnavailable, "renew", kit.SeatKey)
		require.Less(w, h.Remaining(), lease)
		<-inside.Done()
		require.ErrorIs(w, context.Cause(inside), lockregistry.ErrLockLost)
		require.Less(w, time.Since(began), lease+kit.AtOnce)
		w.Replica.Thaw()
		w.Fails(h.Release(w.Context()), lockregistry.ErrLockLost, "release", kit.SeatKey)
		w.Await("nothing is left", func() bool { return w.Inside() == 0 })
	})
}
