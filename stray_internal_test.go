package lockregistry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// What was left first needs one removal, a ticket for instance; a grant that is abandoned before that is answered may arrive
// later. So it is looked out for after the answer, too.
func TestAGrantIsAbandonedDuringARemoval(t *testing.T) {
	r := embedded(t)
	l := r.newLock("42")
	abandoned := func(late bool) *stray {
		s := l.newHold(&request{lease: protocol.NewLease(time.Minute)}).abandoned()
		s.late = late
		return s
	}
	for _, c := range []struct{ older, newer bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		s := abandoned(c.older)
		s.merge(abandoned(c.newer))
		all := &r.background.strays
		all.mu.Lock()
		all.all[s.at] = s
		all.swept(sweeping{s, s.value, s.leaving, s.lease, s.kept, false}, nil)
		_, goesOn := all.all[s.at]
		if goesOn {
			delete(all.all, s.at)
			all.sweeps.Clear()
		}
		all.mu.Unlock()
		require.Equal(t, c.older || c.newer, goesOn, "%+v", c)
	}
}

// What a hold leaves behind may have the longest lease that was asked for, unless a shorter one was confirmed and no command of
// another one can have come after it.
func TestTheLongestLeaseOfAHold(t *testing.T) {
	r := embedded(t)
	short := protocol.NewLease(2 * time.Second)
	confirmed := func(h *hold) {
		renewal := h.takeOff(short)
		renewal.chosen = true
		require.NoError(t, h.answered(renewal, 1, nil, false))
	}
	cases := map[string]struct {
		happens func(h *hold)
		longest time.Duration
	}{
		"granted":   {func(*hold) {}, time.Minute},
		"shortened": {confirmed, 2 * time.Second},
		"lengthened": {func(h *hold) {
			confirmed(h)
			_ = h.takeOff(protocol.NewLease(time.Hour))
		}, time.Hour},
		"shortened for the next owner only": {func(h *hold) {
			require.True(t, h.adopt(&request{lease: short}, false))
		}, time.Minute},
		"shortened while the longer one was under way": {func(h *hold) {
			renewal := h.takeOff(h.lease)
			other := h.takeOff(short)
			other.chosen = true
			require.NoError(t, h.answered(renewal, 1, nil, false))
			require.NoError(t, h.answered(other, 1, nil, false))
		}, time.Minute},
		"shortened while the longer one is in doubt": {func(h *hold) {
			require.Error(t, h.answered(h.takeOff(h.lease), 0, fault.NoAnswer, false))
			confirmed(h)
		}, time.Minute},
		"shortened, as a late answer says": {func(h *hold) {
			renewal := h.takeOff(short)
			renewal.chosen = true
			require.ErrorIs(t, h.answered(renewal, 1, nil, true), fault.Late)
		}, time.Minute},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := r.newLock("42").newHold(&request{lease: protocol.NewLease(time.Minute)})
			now := r.clock.Now()
			require.True(t, h.grant(now, now))
			c.happens(h)
			require.Equal(t, c.longest, h.abandoned().lease)
		})
	}
}
