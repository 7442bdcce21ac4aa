package clock

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDurationsStopAtTheLongest(t *testing.T) {
	require.Equal(t, 3*time.Second, Plus(time.Second, 2*time.Second))
	require.Equal(t, Longest, Plus(Longest-time.Second, 2*time.Second))
	require.Equal(t, Longest, Plus(2*time.Second, Longest-time.Second))
	require.Equal(t, 3*time.Second, Times(3, time.Second))
	require.Zero(t, Times(0, Longest))
	require.Equal(t, Longest, Times(2, Longest-1))
	require.Equal(t, time.Second, Milliseconds(1000))
	require.Equal(t, -time.Millisecond, Milliseconds(math.MinInt64))
	require.Equal(t, Longest, Milliseconds(math.MaxInt64))
	require.Equal(t, Never, Instant(1).Add(Longest))
}
