package lockregistry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What was left first needs one removal, a ticket for instance; a grant that is abandoned before that is answered may arrive
// later. So it is looked out for after the answer, too.
func TestAGrantIsAbandonedDuringARemoval(t *testing.T) {
	r := embedded(t)
	l := r.newLock("42")
	abandoned := func(late bool) *stray {
		s := l.newHold(&request{lease: leaseOf(time.Minute)}).abandoned()
		s.late = late
		return s
	}
	for _, c := range []struct{ older, newer bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		s := abandoned(c.older)
		s.merge(abandoned(c.newer))
		r.scheduler.mu.Lock()
		r.scheduler.strays[s.place] = s
		r.scheduler.swept(sweeping{s, s.value, s.ticket, s.lease, s.kept, false}, nil)
		_, goesOn := r.scheduler.strays[s.place]
		if goesOn {
			delete(r.scheduler.strays, s.place)
			r.scheduler.sweeps = nil
		}
		r.scheduler.mu.Unlock()
		require.Equal(t, c.older || c.newer, goesOn, "%+v", c)
	}
}
