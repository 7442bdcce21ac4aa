package clock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBackoff(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		failed      int
		lease, most time.Duration
	}{
		{1, time.Hour, 50 * ms},
		{2, time.Hour, 100 * ms},
		{3, time.Hour, 200 * ms},
		{4, time.Hour, 400 * ms},
		{5, time.Hour, 800 * ms},
		{6, time.Hour, time.Second},
		{7, time.Hour, time.Second},
		{1 << 30, time.Hour, time.Second},
		{0, time.Hour, 50 * ms},
		{5, 3 * time.Second, 300 * ms}, // a tenth of the lease
		{1, 300 * ms, 30 * ms},
		{9, 2 * ms, ms}, // a pause all the same
	} {
		least, most := time.Hour, time.Duration(0)
		for range 2000 {
			pause := Backoff(c.failed, c.lease)
			least, most = min(least, pause), max(most, pause)
		}
		require.LessOrEqual(t, most, c.most, c)
		require.Greater(t, most, c.most-c.most/20, c)
		require.GreaterOrEqual(t, least, c.most-c.most/4, c)
		require.Less(t, least, c.most-c.most/5, "with jitter: %v", c)
	}
}
