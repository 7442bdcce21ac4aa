package queue

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// nextLook returns when a call looks again that has many tickets in front of it. Each such call has instants of its own, a
// refreshing apart, and which ones says an instant of the call. Thousands of calls may have queued at the same moment, after
// FLUSHALL for instance, and each would else look exactly as long after its last look as all others do: the server would have
// nothing to do for half a minute, and then look for all of them.
func nextLook(now, of clock.Instant) clock.Instant {
	const golden = 0x9E3779B97F4A7C15                                     // neighbours are scattered by multiplying with it
	phase := time.Duration(uint64(of) * golden >> 1 % uint64(refreshing)) //nolint:gosec // no instant is negative
	return now.Add(refreshing - (refreshing+time.Duration(now)-phase)%refreshing)
}
