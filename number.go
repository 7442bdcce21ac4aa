package lockregistry

import "time"

// The number of a hold is the time at which its call asked for it, in microseconds since 1970 by the wall clock, so that
// people who look at a key can tell since when somebody has it. But scripts compare the numbers of a registry, and take a
// larger one for a later hold on the same path, see stray: so each is larger than the last one, also when the clock is set
// back, or when a million holds a second are asked for. Then it runs ahead of the clock until that has caught up. After a
// registry is made anew nothing compares its numbers with those before: the registry's part of the values is another one.

// lastTime keeps numbers of a clock that is far ahead within what Lua counts exactly, 2^53: it is in the year 2112.
const lastTime = 1 << 52

// number draws one.
func (r *Registry) number() uint64 { return r.numberAt(time.Now().UnixMicro()) }

func (r *Registry) numberAt(micros int64) uint64 {
	now := uint64(min(max(micros, 0), lastTime))
	for {
		last := r.holds.Load()
		next := max(last+1, now)
		if r.holds.CompareAndSwap(last, next) {
			return next
		}
	}
}
