package clock

import (
	"math/rand/v2"
	"time"
)

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
	pause := firstPause << min(max(failed-1, 0), 10)
	pause = max(min(pause, most), time.Millisecond)
	return pause - rand.N(pause/4+1) //nolint:gosec // no secret
}
