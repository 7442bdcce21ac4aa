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
	c := Clock{start, newSleep()}
	require.Less(t, c.Now(), Instant(time.Minute))
	for _, at := range []time.Time{time.Now().Add(time.Hour), time.Now().Add(time.Hour).Round(0)} {
		require.InDelta(t, time.Hour, c.Now().Until(c.At(at)), float64(time.Minute))
	}
	require.Equal(t, Never, c.At(time.Now().Add(math.MaxInt64)))
}

// A machine is a clock, and what its system says.
type machine struct {
	Clock

	wall, asleep time.Duration // how far the wall clock was set forward, and for how long the machine was suspended
}

func newMachine() *machine {
	m := &machine{Clock: New()}
	m.slept.asleep, m.slept.before = func(time.Duration) time.Duration { return m.asleep }, 0
	return m
}

// now is the present instant.
func (m *machine) now() Instant {
	now := time.Now()
	passed := now.Sub(m.start)
	return Instant(passed + m.slept.until(m.wall+m.asleep))
}

// While the machine is suspended, only the wall clock goes on. The system tells that from a wall clock that is set.
func TestClock_WhileTheMachineIsSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine()
		before := m.now()
		m.asleep = time.Hour
		require.Equal(t, before.Add(time.Hour), m.now())

		<-time.After(time.Minute)
		at := before.Add(time.Hour + time.Minute)
		m.wall = 24 * time.Hour
		require.Equal(t, at, m.now(), "it is set forward")
		m.wall = -24 * time.Hour
		require.Equal(t, at, m.now(), "it is set back")
		m.asleep += leap
		require.Equal(t, at.Add(leap), m.now())
		m.asleep += leap - 1
		require.Equal(t, at.Add(leap), m.now(), "the clocks are read one after another")
		m.asleep++
		require.Equal(t, at.Add(2*leap), m.now())
		require.Equal(t, at.Add(2*leap), m.Now(), "and with what it reads itself")
	})
}

// A clock counts no suspension from before its start.
func TestClock_OfAProcessThatStartsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.Equal(t, Instant(time.Second), New().Now())
		c := New()
		c.slept.ask(time.Hour)
		require.Less(t, c.Now(), Instant(time.Minute), "this machine is not suspended")
	})
}

func TestClock_Sleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		before, at := c.Now(), time.Now()
		c.Sleep(time.Hour)
		require.Equal(t, before.Add(time.Hour), c.Now())
		require.Equal(t, c.Now(), c.At(at), "the deadline of a context does not move")
		require.Equal(t, at.Add(time.Hour).Round(0), c.Time(c.Now()))
	})
}

func TestClock_OfManyGoroutines(t *testing.T) {
	c := New()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			last := c.Now()
			for range 1000 {
				c.slept.until(time.Duration(i) * time.Hour) // they read the wall clock at different times
				now := c.Now()
				assert.GreaterOrEqual(t, now, last)
				last = now
			}
		})
	}
	c.Sleep(time.Hour)
	all.Wait()
	require.InDelta(t, time.Hour, time.Duration(c.Now()), float64(time.Minute), "it counts once")
}

func BenchmarkNow(b *testing.B) {
	c := New()
	for b.Loop() {
		c.Now()
	}
}
