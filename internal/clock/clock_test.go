package clock

import (
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
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
	c := Clock{start, &sleep{}}
	require.Less(t, c.Now(), Instant(time.Minute))
	for _, at := range []time.Time{time.Now().Add(time.Hour), time.Now().Add(time.Hour).Round(0)} {
		require.InDelta(t, time.Hour, c.Now().Until(c.At(at)), float64(time.Minute))
	}
	require.Equal(t, Never, c.At(time.Now().Add(math.MaxInt64)))
}

// While the machine is suspended only the wall clock goes on.
func TestClock_WhileTheMachineIsSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		before, at := c.Now(), time.Now()
		c.Sleep(time.Hour)
		require.Equal(t, before.Add(time.Hour), c.Now())
		require.Equal(t, c.Now(), c.At(at), "the deadline of a context does not move")
		require.Equal(t, at.Add(time.Hour).Round(0), c.Time(c.Now()))

		<-time.After(time.Minute)
		c.Sleep(leap)
		require.Equal(t, before.Add(time.Hour+time.Minute+leap), c.Now())
		c.Sleep(leap - 1)
		require.Equal(t, before.Add(time.Hour+time.Minute+leap), c.Now(), "the clocks are read one after another")
		c.Sleep(1)
		require.Equal(t, before.Add(time.Hour+time.Minute+2*leap), c.Now())
	})
}

// No instant comes before an earlier one when the wall clock is set back, and a suspension after that is noticed.
func TestClock_WhenTheWallClockIsSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		before := c.Now()
		c.Sleep(-time.Hour)
		require.Equal(t, before, c.Now())
		c.Sleep(time.Minute)
		require.Equal(t, before.Add(time.Minute), c.Now())
	})
}

func TestClock_OfManyGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		before := c.Now()
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				last := before
				for range 1000 {
					now := c.Now()
					assert.GreaterOrEqual(t, now, last)
					last = now
				}
			})
		}
		c.Sleep(time.Hour)
		all.Wait()
		require.Equal(t, before.Add(time.Hour), c.Now(), "it counts once")
	})
}

func BenchmarkNow(b *testing.B) {
	c := New()
	for b.Loop() {
		c.Now()
	}
}
