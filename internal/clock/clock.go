// Package clock tells instants on the monotonic clock, adds durations that cannot overflow, and says how long to pause before
// what has failed is tried again.
package clock

import (
	"math"
	"time"
)

// Instant is a moment on the monotonic clock, as the time since a clock's start: eight bytes, and no wall clock
// that could jump. Those that a clock tells are later than zero, which can stand for none.
type Instant time.Duration

// Never is later than all instants of a clock.
const Never = Instant(math.MaxInt64)

// Clock tells the instants of one transport, and of all registries that use it.
type Clock struct{ start time.Time }

// New is a clock that starts a second before now.
func New() Clock { return Clock{time.Now().Add(-time.Second)} }

// Now is the instant that it is.
func (c Clock) Now() Instant { return Instant(time.Since(c.start)) }

// At is the instant of a time. One that has only the wall clock's is as far from now as that says now: it may have been set since
// the start.
func (c Clock) At(t time.Time) Instant {
	now := time.Now()
	return Instant(now.Sub(c.start)).Add(t.Sub(now))
}

// Time is the inverse of At.
func (c Clock) Time(i Instant) time.Time { return c.start.Add(time.Duration(i)) }

// Add stops at Never, so that no wait is too long to be added.
func (i Instant) Add(d time.Duration) Instant {
	sum := i + Instant(d)
	if d > 0 && sum < i {
		return Never
	}
	return sum
}

// Longest is the longest duration. What would be longer, by options near it or by what the server says, is as long.
const Longest = time.Duration(math.MaxInt64)

// Plus is the sum of durations that are not negative.
func Plus(a, b time.Duration) time.Duration {
	if a > Longest-b {
		return Longest
	}
	return a + b
}

// Times is a duration that is not negative, n times.
func Times(n int, d time.Duration) time.Duration {
	if n > 0 && d > Longest/time.Duration(n) {
		return Longest
	}
	return time.Duration(n) * d
}

// Milliseconds is how long so many are; -1 for all that are negative.
func Milliseconds(n int64) time.Duration {
	if n > Longest.Milliseconds() {
		return Longest
	}
	return time.Duration(max(n, -1)) * time.Millisecond
}

// After is how long after another instant i is, if it is.
func (i Instant) After(earlier Instant) time.Duration { return max(0, earlier.Until(i)) }

// Until is how long it is until another instant; negative when that is earlier.
func (i Instant) Until(later Instant) time.Duration { return time.Duration(later - i) }
