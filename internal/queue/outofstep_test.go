package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Ten thousand calls that queue at the same moment look at different times, except for their first looks: no second has more than
// a tenth of the looks of half a minute, and no call looks more often than the others.
func TestLookTimes_AreOutOfStep(t *testing.T) {
	const (
		calls, minutes = 10_000, 5
		queued         = clock.Instant(time.Hour)
	)
	for name, c := range map[string]struct {
		apart time.Duration
		rank  func(i int) int
	}{
		"at once":         {time.Nanosecond, func(i int) int { return 10 + i }},
		"within a second": {time.Second / calls, func(i int) int { return 10 + i }},
		"steadily":        {time.Millisecond, func(i int) int { return 10 + i }},
		"a path each":     {time.Second / calls, func(int) int { return 0 }},
	} {
		apart := c.apart
		t.Run(name, func(t *testing.T) {
			firstAreOver := queued.Add(calls*apart + firstLook + mostSteps*lookStep + time.Second)
			var looks [minutes*60 + 60]int // in each second since the first call queued
			for i := range calls {
				began := queued + clock.Instant(i)*clock.Instant(apart)
				s := standing{rank: c.rank(i), left: time.Hour, shown: began, notified: began.Add(firstLook), poll: time.Second}
				last := clock.Instant(0)
				for now := began; now < queued.Add(minutes*time.Minute); {
					now = s.times(now).refresh.Add(time.Millisecond) // when the reply has come
					if last > s.notified.Add(mostSteps*lookStep+time.Second) {
						require.InDelta(t, refreshing, last.Until(now), float64(2*time.Millisecond))
					}
					s.shown, last = now, now
					if now > firstAreOver {
						looks[queued.Until(now)/time.Second]++
					}
				}
			}
			for from := int(queued.Until(firstAreOver)/time.Second) + 1; from+30 < minutes*60; from++ {
				all, most := 0, 0
				for _, n := range looks[from : from+30] {
					all, most = all+n, max(most, n)
				}
				require.LessOrEqual(t, most, all/10, "from second %d on", from)
				require.LessOrEqual(t, all, calls*11/10, "from second %d on", from)
			}
		})
	}
}
