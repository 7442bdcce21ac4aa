package local

import (
	"iter"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// An evicted owner learns of the loss until it has unlocked as often as it had locked.
func TestEvictions_LastUntilUnlocked(t *testing.T) {
	var e Evictions
	require.Equal(t, fault.NotLost, e.Why(anna))
	require.Equal(t, NotIn, departs(e.Exit(anna)))
	e.Add(fault.LeaseOver, one(anna, 2))
	e.Add(fault.KeyGone, one(bert, 1))
	for range 2 {
		require.Equal(t, fault.LeaseOver, e.Why(anna))
		how, why := e.Exit(anna)
		require.Equal(t, Lost, how)
		require.Equal(t, fault.LeaseOver, why)
	}
	require.Equal(t, fault.NotLost, e.Why(anna))
	require.Equal(t, NotIn, departs(e.Exit(anna)))
	require.Equal(t, fault.KeyGone, e.Why(bert))
	require.Equal(t, Lost, departs(e.Exit(bert)))
	require.Zero(t, e)
}

// Of the owners of earlier losses only the last ones are remembered.
func TestEvictions_AreForgotten(t *testing.T) {
	var e Evictions
	const forgotten = 3
	for o := range owner.ID(mostEvictions + 1 + forgotten) {
		e.Add(fault.LeaseOver, one(1000+o, 1))
	}
	for o := range owner.ID(forgotten) {
		require.Equal(t, fault.NotLost, e.Why(1000+o))
		require.Equal(t, NotIn, departs(e.Exit(1000+o)))
	}
	for o := range owner.ID(mostEvictions + 1) {
		require.Equal(t, Lost, departs(e.Exit(1000+forgotten+o)))
	}
	require.Zero(t, e)
}

// All owners of one lost hold are remembered, in whatever order they unlock.
func TestEvictions_OfOneLoss(t *testing.T) {
	for _, n := range []int{1, 17, mostEvictions, 3 * mostEvictions} {
		var e Evictions
		readers := map[owner.ID]int32{}
		for i := range n {
			readers[1000+owner.ID(i)] = 2
		}
		e.Add(fault.KeyGone, maps.All(readers))
		e.Add(fault.LeaseOver, one(anna, 1))
		require.Equal(t, Lost, departs(e.Exit(anna)))
		left := min(n, mostEvictions)
		for o := range readers {
			if e.Why(o) == fault.NotLost {
				continue
			}
			left--
			for range 2 {
				how, why := e.Exit(o)
				require.Equal(t, Lost, how)
				require.Equal(t, fault.KeyGone, why)
			}
			require.Equal(t, NotIn, departs(e.Exit(o)))
		}
		require.Zero(t, left)
		require.Zero(t, e)
	}
}

// one iterates over a single owner.
func one(o owner.ID, times int32) iter.Seq2[owner.ID, int32] {
	return maps.All(map[owner.ID]int32{o: times})
}
