package local

import (
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
	e.Add(anna, 2, fault.LeaseOver)
	e.Add(bert, 1, fault.KeyGone)
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

// Only the last owners that were evicted are remembered.
func TestEvictions_AreForgotten(t *testing.T) {
	var e Evictions
	for o := range owner.ID(mostEvictions + 1) {
		e.Add(1000+o, 1, fault.LeaseOver)
	}
	require.Equal(t, fault.NotLost, e.Why(1000))
	require.Equal(t, NotIn, departs(e.Exit(1000)))
	for o := range owner.ID(mostEvictions) {
		require.Equal(t, Lost, departs(e.Exit(1001+o)))
	}
	require.Zero(t, e)
}
