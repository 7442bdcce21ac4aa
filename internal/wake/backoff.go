package wake

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

const (
	longestPause = 3 * time.Second

	// lasting is how long a connection must have worked for the next one to be made without a long pause. A peer that soon breaks
	// connections is treated like one that refuses them.
	lasting = 10 * time.Second
)

// backoff computes the pause between two connections. It doubles each time, with jitter, so that processes that lost a server
// together do not all reconnect together.
type backoff struct{ failed int }

// after returns the pause after a connection that worked for this long, or not at all.
func (b *backoff) after(worked time.Duration) time.Duration {
	if worked >= lasting {
		b.failed = 0
	}
	b.failed++
	return clock.Pause(b.failed, longestPause)
}
