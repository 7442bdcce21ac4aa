package queue

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// nextLook returns when a call looks again that has many tickets in front of it. Each such call has its own instants, a
// refreshing apart, derived from an instant of the call. Thousands of calls may have queued at the same moment, after FLUSHALL
// for instance, and would otherwise all look at the same time: a thundering herd after half a minute in which the server has
// nothing to do.
func nextLook(now, of clock.Instant) clock.Instant {
	const golden = 0x9E3779B97F4A7C15                                     // neighbours are scattered by multiplying with it
	phase := time.Duration(uint64(of) * golden >> 1 % uint64(refreshing)) //nolint:gosec // no instant is negative
	return now.Add(refreshing - (refreshing+time.Duration(now)-phase)%refreshing)
}
