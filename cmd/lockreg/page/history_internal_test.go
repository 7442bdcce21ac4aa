package page

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Six hours are kept, with the most of each ten seconds, and no more memory than that.
func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	var h history
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	looks := func(lasts time.Duration, waiters int64) {
		for end := now.Add(lasts); now.Before(end); now = now.Add(time.Second) {
			h.add(sample{now.UnixMilli(), known, 1, waiters, 0, 0, 0})
		}
	}
	looks(5*time.Minute, 0)
	looks(time.Second, 9)
	looks(8*time.Hour, 0)
	samples := h.all()
	require.InDelta(t, 600+6*360-60, len(samples), 5)
	require.InDelta(t, coarseFor.Milliseconds(), samples[len(samples)-1].at()-samples[0].at(), 20_000)

	looks(5*time.Second, 0) // in the midst of ten seconds
	looks(time.Second, 9)
	looks(20*time.Minute, 0)
	samples = h.all()
	peak := int64(0)
	for _, s := range samples[:len(samples)-620] {
		peak = max(peak, s[sampleHead+1])
	}
	require.Equal(t, int64(9), peak, "it stays when seconds become tens of them")

	for range 10_000 { // gaps without an end
		now = now.Add(100 * time.Millisecond)
		h.add(sample{now.UnixMilli(), known, 1, 0, 0, 0, 0})
		h.pause(now, nobody)
	}
	require.LessOrEqual(t, len(h.all()), 3000)
}
