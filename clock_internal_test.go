package lockregistry

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTicks(t *testing.T) {
	for i, want := range map[instant]instant{
		1: 0, instant(tick - 1): 0, instant(tick): instant(tick), instant(tick + 1): instant(tick),
		instant(7*tick - 1): instant(6 * tick),
	} {
		require.Equal(t, want, i.ticked(), i)
	}
}

func TestDurationsStopAtTheLongest(t *testing.T) {
	require.Equal(t, 3*time.Second, plus(time.Second, 2*time.Second))
	require.Equal(t, longest, plus(longest-time.Second, 2*time.Second))
	require.Equal(t, longest, plus(2*time.Second, longest-time.Second))
	require.Equal(t, 3*time.Second, times(3, time.Second))
	require.Zero(t, times(0, longest))
	require.Equal(t, longest, times(2, longest-1))
	require.Equal(t, time.Second, milliseconds(1000))
	require.Equal(t, -time.Millisecond, milliseconds(math.MinInt64))
	require.Equal(t, longest, milliseconds(math.MaxInt64))
	require.Equal(t, never, instant(1).add(longest))
}
