package deadlock

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/owner"
)

// A look finds every waiting call: in a shard that was never used, in one that has become empty, and in one that was empty at
// the last look.
func TestGraph_AllFindsEachWaitingCall(t *testing.T) {
	t.Parallel()
	const waiting = 100
	owners := make([]owner.ID, waiting+1)
	for i := range owners {
		owners[i] = owner.ID(i + 1)
	}
	r := newRing(owners...)
	for _, left := range [][]int{{}, {7}, {7, 64}, {0, 7, 64, 99}} {
		var waits, stay []*Call
		for i := range waiting {
			c := r.call(t.Context(), i, true)
			require.NoError(t, r.g.Enter(c))
			waits = append(waits, c)
		}
		require.ElementsMatch(t, waits, slices.Collect(r.g.All()))
		for i, c := range waits {
			if slices.Contains(left, i) {
				stay = append(stay, c)
			} else {
				r.g.Leave(c)
			}
		}
		require.ElementsMatch(t, stay, slices.Collect(r.g.All()))
		for _, c := range stay {
			r.g.Leave(c)
		}
		if len(left)%2 == 0 { // otherwise the next calls enter before a look
			require.Empty(t, slices.Collect(r.g.All()))
		}
	}
}

// The same holds while another look finds the shard empty.
func TestGraph_AllBesideAnotherLook(t *testing.T) {
	t.Parallel()
	r := newRing(1, 2)
	var ends atomic.Bool
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		for !ends.Load() {
			_, i := r.g.shards.at(1)
			r.g.shards.calls(i)
		}
	}()
	for range 5000 {
		c := r.call(t.Context(), 0, true)
		require.NoError(t, r.g.Enter(c))
		require.Equal(t, []*Call{c}, slices.Collect(r.g.All()))
		r.g.Leave(c)
	}
	ends.Store(true)
	<-looked
}
