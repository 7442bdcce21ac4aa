package scheduler

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

type thing struct {
	due   clock.Instant
	index int32
	asked int
}

func (t *thing) Timing() (*clock.Instant, *int32) {
	t.asked++
	return &t.due, &t.index
}

// A heap finds the same first item as a list that is searched each time.
func TestHeap_FirstIsWhatIsDueFirst(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var h Heap[*thing]
	there := map[*thing]bool{}
	things := make([]*thing, 40)
	for i := range things {
		things[i] = &thing{}
	}
	for range 5000 {
		one := things[random.IntN(len(things))]
		switch random.IntN(5) {
		case 0:
			h.Remove(one)
			delete(there, one)
		case 1:
			if h.Len() == 0 {
				break
			}
			next := h.Next()
			first := h.Pop()
			require.Equal(t, next, first.due)
			require.True(t, there[first])
			delete(there, first)
		case 2:
			if random.IntN(10) == 0 {
				h.Reset(func(one *thing, was clock.Instant) clock.Instant {
					require.Equal(t, one.due, was)
					return clock.Instant(random.IntN(100))
				})
			}
		default:
			h.Put(one, clock.Instant(random.IntN(100)))
			there[one] = true
		}
		first := clock.Never
		for _, one := range things {
			require.Equal(t, there[one], one.index != 0)
			if there[one] {
				require.Same(t, one, h.all[one.index-1])
				first = min(first, one.due)
			}
		}
		require.Equal(t, len(there), h.Len())
		require.Equal(t, first, h.Next())
	}
	all := h.All()
	require.Len(t, all, len(there))
	require.ElementsMatch(t, all, h.Clear())
	require.Zero(t, h.Len())
	require.Equal(t, clock.Never, h.Next())
	for _, one := range things {
		require.Zero(t, one.index)
	}
}

// However many items become due first, and however many do not, Reset takes one pass.
func TestHeap_ResetIsOnePass(t *testing.T) {
	const many = 1 << 14
	var h Heap[*thing]
	for i := range many {
		h.Put(&thing{}, clock.Instant(i))
	}
	for _, one := range h.all {
		one.asked = 0
	}
	h.Reset(func(one *thing, was clock.Instant) clock.Instant {
		if one.index%2 == 0 {
			return -was
		}
		return was
	})
	asked := 0
	for _, one := range h.all {
		asked += one.asked
	}
	require.LessOrEqual(t, asked, 10*many)
	require.Equal(t, clock.Instant(-many+1), h.Next())
}
