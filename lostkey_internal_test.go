package lockregistry

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
)

// Only where the key of a lost hold may still be there it is to be removed, and at a time that no earlier look of the scheduler
// takes for now.
func TestLock_WhichLossMayLeaveTheKey(t *testing.T) {
	r := embedded(t)
	for _, c := range []struct {
		why   fault.Loss
		keeps bool
	}{
		{fault.LeaseOver, true},
		{fault.RenewedTooLate, true},
		{fault.GrantedTwice, true},
		{fault.KeyGone, false},
		{fault.KeyTaken, false},
		{fault.Forced, false},
	} {
		h := r.newLock("42").newHold(&request{lease: lease.NewTerm(time.Hour)})
		now := r.clock.Now()
		require.True(t, h.grant(now, now))
		h.mu.Lock()
		h.unlockLose(c.why)
		planned := slices.Contains(r.background.holds.all(), h)
		require.Equal(t, c.keeps, planned, c.why)
		require.Nil(t, h.tick()) // it was due before, and another call has found the loss
		require.Zero(t, r.Stats().Strays, c.why)
		h.end(now)
		require.NotContains(t, r.background.holds.all(), h)
	}
}
