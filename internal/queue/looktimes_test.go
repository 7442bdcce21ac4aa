package queue

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// The calls of a queue look one after another, however long leases and poll intervals are: none before the lease is over, nor
// before the one in front of it.
func TestLookTimes_NearTheLongest(t *testing.T) {
	l := newLock(t)
	for _, poll := range []time.Duration{1, time.Second, math.MaxInt64 / 3, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64} {
		for _, left := range []time.Duration{1, time.Minute, math.MaxInt64 / 2, math.MaxInt64 - 1, math.MaxInt64} {
			a := &acquisition{attempt: attempt{path: &l.path}}
			a.path.all.Poll, a.at.Left, a.ticket.base = poll, left, a.path.Clock.Now()
			over := a.ticket.base.Add(left)
			before := lookTimes{due: over}
			for a.at.Rank = range 12 {
				now := a.whenToLook()
				require.GreaterOrEqual(t, now.patience, before.patience, "poll %v, left %v, rank %d", poll, left, a.at.Rank)
				require.GreaterOrEqual(t, now.due, before.due, "poll %v, left %v, rank %d", poll, left, a.at.Rank)
				before = now
			}
			next, now := a.whenToLook(), a.path.Clock.Now()
			next.isNext(now, left)
			require.GreaterOrEqual(t, next.due, now.Add(left))
		}
	}
}

// A message that comes after a look has found its grant is waited for, however long replicas may take.
func TestFound_NearTheLongest(t *testing.T) {
	for _, timeout := range []time.Duration{time.Second, math.MaxInt64 - transport.WaitAtMost, math.MaxInt64} {
		l := newLock(t)
		l.path.all.Replicas = &protocol.Replicas{N: 1, Timeout: timeout}
		a := l.waitingCall()
		h := a.hold
		_, _ = a.found(time.Second) // the embedded server knows no replicas
		_, until := h.Keeps()
		require.Greater(t, until, l.path.Clock.Now(), timeout)
	}
}
