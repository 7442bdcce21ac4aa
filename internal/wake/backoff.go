package wake

import (
	"math/rand/v2"
	"time"
)

const (
	shortestPause = 50 * time.Millisecond
	longestPause  = 3 * time.Second

	// lasting is how long a connection must have worked for the next one to be made without a long pause. A peer that
	// accepts connections and breaks them soon is no better than one that refuses them.
	lasting = 10 * time.Second
)

// backoff is the pause between two connections. It doubles each time, and varies by a quarter, so that the processes that
// lost a server together do not come back together.
type backoff struct{ pause time.Duration }

// after is the pause after a connection that has worked for a while, or not at all.
func (b *backoff) after(worked time.Duration) time.Duration {
	if worked >= lasting {
		b.pause = 0
	}
	b.pause = min(max(2*b.pause, shortestPause), longestPause)
	return b.pause*3/4 + rand.N(b.pause/2) //nolint:gosec // no secret: it only spreads processes
}
