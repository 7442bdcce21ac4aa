package wake

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

const (
	longestPause = 3 * time.Second

	// lasting is how long a connection must have worked for the next one to be made without a long pause. A peer that
	// accepts connections and breaks them soon is no better than one that refuses them.
	lasting = 10 * time.Second
)

// backoff is the pause between two connections. It doubles each time, and varies, so that the processes that lost a server
// together do not come back together.
type backoff struct{ failed int }

// after is the pause after a connection that has worked for a while, or not at all.
func (b *backoff) after(worked time.Duration) time.Duration {
	if worked >= lasting {
		b.failed = 0
	}
	b.failed++
	return clock.Pause(b.failed, longestPause)
}
