package lockregistry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
