package lockregistry

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
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
		h := r.newLock("42").newHold(&request{lease: protocol.NewLease(time.Hour)})
		now := r.clock.Now()
		require.True(t, h.grant(now, now))
		h.mu.Lock()
		h.unlockLose(c.why)
		planned := slices.Contains(r.background.holds.all(), h)
		require.Equal(t, c.keeps, planned, losses[c.why])
		require.Nil(t, h.tick()) // it was due before, and another call has found the loss
		require.Zero(t, r.Stats().Strays, losses[c.why])
		h.end(now)
		require.NotContains(t, r.background.holds.all(), h)
	}
}

// The removal of a lost hold is under way when its owner has it removed, too. The first answer ends both, and the second one is
// not about what a later hold leaves.
func TestLock_TwoRemovalsOfALostHold(t *testing.T) {
	r := embedded(t)
	l, s := r.newLock("42"), &r.background.strays
	left := func() *stray {
		t := l.newHold(&request{lease: protocol.NewLease(time.Minute)}).abandoned()
		t.late = false
		return t
	}
	first, later := left(), left()
	e := sweeping{first, first.value, first.leaving, first.lease, first.kept, false}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer clear(s.all)
	s.all[first.at] = first
	s.sweeps.Put(first, clock.Never)
	s.swept(e, nil)
	require.Empty(t, s.all)
	require.Zero(t, s.sweeps.Len())
	s.all[later.at] = later
	for _, err := range []error{nil, fault.NoAnswer} {
		s.swept(e, err)
		require.Same(t, later, s.all[later.at])
		require.Zero(t, s.sweeps.Len())
	}
}
