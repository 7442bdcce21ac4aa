// Package clock has instants of a clock that goes on while the machine is suspended, arithmetic of durations that does not
// overflow, and the pauses between retries.
package clock

import (
	"context"
	"math"
	"math/rand/v2"
	"time"
)

// Instant is a moment, as the time since a clock's start, which includes the time for which the machine was suspended. It
// takes eight bytes, and has no wall clock that could jump. Instants of a clock are later than zero, so zero can mean none.
type Instant time.Duration

// Never is later than all instants of a clock.
const Never = Instant(math.MaxInt64)

// LongAgo is earlier than all instants of a clock. It stands for what has not happened yet, where the time since then counts.
const LongAgo = -Never / 2

// Clock is the clock of a transport, and of all registries that use it.
type Clock struct {
	start time.Time
	slept *sleep
}

// New returns a clock that started a second ago.
func New() Clock { return Clock{time.Now().Add(-time.Second), newSleep()} }

// Now returns the current instant.
func (c Clock) Now() Instant { return c.at(time.Now()) }

// At returns the instant of a time. A time without a monotonic reading is compared with the present wall clock, which may have
// been set since the start.
func (c Clock) At(t time.Time) Instant {
	now := time.Now()
	return c.at(now).Add(t.Sub(now))
}

// Time is the inverse of At. Once the machine was suspended, the time has no monotonic reading, which would be too late.
func (c Clock) Time(i Instant) time.Time {
	t := c.start.Add(time.Duration(i))
	if c.slept.total.Load() > 0 {
		return t.Round(0)
	}
	return t
}

func (c Clock) at(now time.Time) Instant {
	passed := now.Sub(c.start)
	return Instant(passed + c.slept.until(time.Duration(now.UnixNano()-c.start.UnixNano())-passed))
}

// Sleep is for tests: the clock goes on as if the machine had been suspended for d.
func (c Clock) Sleep(d time.Duration) { c.slept.pretend(d) }

// Add adds a duration, up to Never, so that no sum overflows.
func (i Instant) Add(d time.Duration) Instant {
	sum := i + Instant(d)
	if d > 0 && sum < i {
		return Never
	}
	return sum
}

// Longest is the longest duration. Sums and products that would be longer, from large options or a server's reply, become
// Longest.
const Longest = time.Duration(math.MaxInt64)

// Plus returns the sum of durations that are not negative.
func Plus(a, b time.Duration) time.Duration {
	if a > Longest-b {
		return Longest
	}
	return a + b
}

// Times returns n times a duration that is not negative.
func Times(n int, d time.Duration) time.Duration {
	if n > 0 && d > Longest/time.Duration(n) {
		return Longest
	}
	return time.Duration(n) * d
}

// Milliseconds converts milliseconds to a duration; negative ones to -1.
func Milliseconds(n int64) time.Duration {
	if n > Longest.Milliseconds() {
		return Longest
	}
	return time.Duration(max(n, -1)) * time.Millisecond
}

// After returns how long i is after an earlier instant; 0 if it is not.
func (i Instant) After(earlier Instant) time.Duration { return max(0, earlier.Until(i)) }

// Until returns the time from i until another instant; negative if that is earlier.
func (i Instant) Until(later Instant) time.Duration { return time.Duration(later - i) }

// Rest waits for d. It reports false if ctx ends first.
func Rest(ctx context.Context, d time.Duration) bool { return !Await(ctx.Done(), d) }

// Await waits until done is closed, for limit at most. It reports whether done was closed.
func Await(done <-chan struct{}, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

const firstPause = 50 * time.Millisecond

// MostPause is the longest pause of [Backoff].
const MostPause = time.Second

// Backoff returns the pause after this many consecutive failures: 50 ms, then twice as long each time, but at most a second and
// a tenth of the lease that is at stake. Up to a quarter of it is random, so that calls that failed together do not all try
// again together.
func Backoff(failed int, lease time.Duration) time.Duration {
	return Pause(failed, min(MostPause, lease/10))
}

// Pause is Backoff without a lease, limited by most.
func Pause(failed int, most time.Duration) time.Duration {
	pause := max(min(firstPause<<min(max(failed-1, 0), 10), most), time.Millisecond)
	return pause - rand.N(pause/4+1) //nolint:gosec // no secret
}
