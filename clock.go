package lockregistry

import (
	"math"
	"time"
)

// instant is a moment on the monotonic clock, as the time since a clock's start: eight bytes, and no wall clock
// that could jump. Those that a clock tells are later than zero, which can stand for none.
type instant time.Duration

// never is later than all instants of a clock.
const never = instant(math.MaxInt64)

// clock tells the instants of one transport, and of all registries that use it.
type clock struct{ start time.Time }

func newClock() clock { return clock{time.Now().Add(-time.Second)} }

func (c clock) now() instant { return instant(time.Since(c.start)) }

func (c clock) at(t time.Time) instant { return instant(t.Sub(c.start)) }

// time is the inverse of at.
func (c clock) time(i instant) time.Time { return c.start.Add(time.Duration(i)) }

// add stops at never, so that no wait is too long to be added.
func (i instant) add(d time.Duration) instant {
	sum := i + instant(d)
	if d > 0 && sum < i {
		return never
	}
	return sum
}

// longest is the longest duration. What would be longer, by options near it or by what the server says, is as long.
const longest = time.Duration(math.MaxInt64)

// plus is the sum of durations that are not negative.
func plus(a, b time.Duration) time.Duration {
	if a > longest-b {
		return longest
	}
	return a + b
}

// times is a duration that is not negative, n times.
func times(n int, d time.Duration) time.Duration {
	if n > 0 && d > longest/time.Duration(n) {
		return longest
	}
	return time.Duration(n) * d
}

// milliseconds is how long so many are; -1 for all that are negative.
func milliseconds(n int64) time.Duration {
	if n > longest.Milliseconds() {
		return longest
	}
	return time.Duration(max(n, -1)) * time.Millisecond
}

// after is how long after another instant i is, if it is.
func (i instant) after(earlier instant) time.Duration { return max(0, earlier.until(i)) }

// tick divides the time of a clock for what is done in the background now and then. As far as it can, that falls on the same
// instants: to wake a process that sleeps wakes several of its threads, which costs more than what it does then.
const tick = 500 * time.Millisecond

// ticked is the last tick that is no later than i.
func (i instant) ticked() instant { return i - i%instant(tick) }

// untilTick is how long it is until the last tick within d from now.
func (c clock) untilTick(d time.Duration) time.Duration {
	now := c.now()
	return now.until(now.add(d).ticked())
}

func (i instant) until(later instant) time.Duration { return time.Duration(later - i) }
