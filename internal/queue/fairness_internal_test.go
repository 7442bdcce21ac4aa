package queue

import (
	"sort"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// A release says that no process tries without a ticket only by an answer that was asked for no longer than 1.5 s before its
// hold was granted, however long that is ago: a process that began to try since would wait for a window that is rare.
func TestFairness_AgeOfTheEvidence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLock(t)
		shard := l.path.Shard()
		shard.KeepAlive()
		<-time.After(time.Second)
		shard.EndKeepAlive()
		<-time.After(10 * time.Minute) // it asks no more
		now := l.path.Clock.Now()
		// Quiet is true for all instants up to the newest question.
		asked := clock.Instant(sort.Search(int(now), func(i int) bool { return !shard.Quiet(clock.Instant(i)) }) - 1)
		require.Positive(t, asked, "nobody has asked")

		l.path.contention() // others may wait
		for after, known := range map[time.Duration]protocol.Known{
			-time.Minute:            protocol.Quiet,
			0:                       protocol.Quiet,
			1400 * time.Millisecond: protocol.Quiet,
			evidenceAge:             protocol.Quiet,
			evidenceAge + 1:         "",
			1600 * time.Millisecond: "",
			time.Minute:             "",
		} {
			h, granted := l.NewHold(hold.Terms{Lease: lease.NewTerm(2 * time.Hour)}), asked.Add(after)
			require.True(t, h.Grant(granted, granted))
			for _, held := range []time.Duration{0, time.Second, time.Hour} {
				m := protocol.Release{Queued: true}
				l.path.fairness(&m, h, false, granted.Add(held))
				require.Equal(t, known, m.Known, "granted %v after the question, held for %v", after, held)
			}
		}
	})
}
