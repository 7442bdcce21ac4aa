package clock

import (
	"math/rand/v2"
	"time"
)

const firstPause = 50 * time.Millisecond

// MostPause is the longest that [Backoff] is.
const MostPause = time.Second

// Backoff is the pause before something that has failed so often in a row is tried again: 50 ms, then twice as long each
// time, but never longer than a second nor than a tenth of the lease that is at stake. Up to a quarter of it is left to
// chance, so that many calls that failed together do not come back together.
func Backoff(failed int, lease time.Duration) time.Duration {
	return Pause(failed, min(MostPause, lease/10))
}

// Pause is the same where no lease is at stake, and no longer than most.
func Pause(failed int, most time.Duration) time.Duration {
	pause := firstPause << min(max(failed-1, 0), 10)
	pause = max(min(pause, most), time.Millisecond)
	return pause - rand.N(pause/4+1) //nolint:gosec // no secret
}
