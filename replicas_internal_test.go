package lockregistry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A shorter lease that the master has, and too few replicas, counts whatever becomes of a renewal that was under way with it.
func TestRenewalsUnderWayThatTooFewReplicasHave(t *testing.T) {
	r := embedded(t)
	h := r.newLock("42").newHold(&request{lease: leaseOf(time.Minute)})
	now := r.clock.now()
	require.True(t, h.grant(now, now))

	short := h.takeOff(leaseOf(time.Second))
	long := h.takeOff(leaseOf(time.Minute))
	require.Error(t, h.answered(short, true, fewReplicasError{0, replicas{1, time.Second}}, false))
	require.Error(t, h.answered(long, false, errNotSent, false))
	require.LessOrEqual(t, r.clock.now().until(h.until), time.Second)

	long = h.takeOff(leaseOf(time.Minute))
	require.NoError(t, h.answered(long, true, nil, false))
	require.Greater(t, r.clock.now().until(h.until), 50*time.Second, "the next one counts")
	require.ErrorIs(t, classified(fewReplicasError{}), ErrUnavailable)
}
