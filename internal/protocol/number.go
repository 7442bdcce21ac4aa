package protocol

import (
	"sync/atomic"
	"time"
)

// Numbers draws the numbers of the holds of a registry.
//
// The number of a hold is the time at which its call asked for it, in microseconds since 1970 by the wall clock, so that
// people who look at a key can tell since when somebody has it. But scripts compare the numbers of a registry, and take a
// larger one for a later hold on the same path: so each is larger than the last one, also when the clock is set
// back, or when a million holds a second are asked for. Then it runs ahead of the clock until that has caught up. After a
// registry is made anew nothing compares its numbers with those before: the registry's part of the values is another one.
type Numbers struct{ newest atomic.Uint64 }

// Numbers that can be times.
const (
	lastTime  = 1 << 52             // in the year 2112; those of a clock that is far ahead are within what Lua counts exactly, 2^53
	firstTime = 946_684_800_000_000 // the year 2000. Older versions count from 1, Redisson's threads too
)

// Draw draws one.
func (n *Numbers) Draw() uint64 { return n.at(time.Now().UnixMicro()) }

func (n *Numbers) at(micros int64) uint64 {
	now := uint64(min(max(micros, 0), lastTime))
	for {
		last := n.newest.Load()
		next := max(last+1, now)
		if n.newest.CompareAndSwap(last, next) {
			return next
		}
	}
}

// Newest is the last one that was drawn.
func (n *Numbers) Newest() uint64 { return n.newest.Load() }

// Time is when some microseconds since 1970 had passed: zero if this library cannot have written anything then.
func Time(micros int64) time.Time {
	if micros < firstTime || micros > lastTime {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}
