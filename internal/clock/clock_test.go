package clock

import (
	"math"
	"testing"
	"time"
	"unsafe"

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

// The deadline of a context may be a time without a monotonic part, and the wall clock may have been set back since the start.
func TestClock_AtWhenTheWallClockWasSetBack(t *testing.T) {
	const nanoseconds = 30 // bits below the seconds of the wall clock in a Time that has a monotonic part
	start := time.Now()
	*(*uint64)(unsafe.Pointer(&start)) += 3600 << nanoseconds // nothing sets the one without the other
	require.InDelta(t, time.Hour, start.Round(0).Sub(time.Now().Round(0)), float64(time.Minute))
	c := Clock{start}
	require.Less(t, c.Now(), Instant(time.Minute))
	for _, at := range []time.Time{time.Now().Add(time.Hour), time.Now().Add(time.Hour).Round(0)} {
		require.InDelta(t, time.Hour, c.Now().Until(c.At(at)), float64(time.Minute))
	}
	require.Equal(t, Never, c.At(time.Now().Add(math.MaxInt64)))
}
