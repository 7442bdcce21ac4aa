package protocol

import (
	"sync/atomic"
	"time"
)

// Numbers draws the numbers of the holds of a registry.
//
// The number of a hold is the time at which its call asked for it, in microseconds since 1970 by the wall clock, so that people
// who look at a key can see how old the hold is. But scripts compare the numbers of a registry: a larger number is a later
// hold. So each number is larger than the last one, also when the clock is set back, or a million holds a second are asked for;
// then the numbers run ahead of the clock for a while. The numbers of two registries are never compared, since the other part
// of their values differs.
type Numbers struct{ newest atomic.Uint64 }

// Numbers that can be times.
const (
	lastTime  = 1 << 52             // in the year 2112; Lua counts exactly up to 2^53, also the numbers of a clock that is far ahead
	firstTime = 946_684_800_000_000 // the year 2000. Older versions, and Redisson's threads, count from 1
)

// Draw draws a number at a time.
func (n *Numbers) Draw(now time.Time) uint64 {
	micros := uint64(min(max(now.UnixMicro(), 0), lastTime))
	for {
		last := n.newest.Load()
		next := max(last+1, micros)
		if n.newest.CompareAndSwap(last, next) {
			return next
		}
	}
}

// Newest returns the last number drawn.
func (n *Numbers) Newest() uint64 { return n.newest.Load() }

// Time converts microseconds since 1970 to a time; zero if this library cannot have written them.
func Time(micros int64) time.Time {
	if micros < firstTime || micros > lastTime {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}
