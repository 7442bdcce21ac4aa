package belief

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// looked is the result of looks: how many there were, and how many connections were closed.
func looked(l *Looks, meets func(look int) (Role, int64)) (looks, closed int) {
	for ; !l.Enough(); looks++ {
		quits, over := l.Met(meets(looks))
		if over {
			break
		}
		if quits > 0 {
			closed++
		}
	}
	return looks, closed
}

// Looks end when all connections certainly lead to the master, and also if that cannot be known.
func TestLooks(t *testing.T) {
	for name, c := range map[string]struct {
		meets         func(look int) (Role, int64)
		looks, closed int
	}{
		"one good connection":       {func(int) (Role, int64) { return Master, 7 }, sureLooks, 0},
		"four good connections":     {func(look int) (Role, int64) { return Master, int64(look % 4) }, 4 * sureLooks, 0},
		"each time a new one":       {func(look int) (Role, int64) { return Master, int64(look) }, mostLooks, 0},
		"a replica always":          {func(int) (Role, int64) { return Replica, 7 }, mostQuits, mostQuits},
		"it never says what it is":  {func(int) (Role, int64) { return Untold, 0 }, mostQuits / 4, mostQuits / 4},
		"an old one is met at last": {func(look int) (Role, int64) { return Role(1 + look%sureLooks/(sureLooks-1)), 7 }, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := near()
			s.Redirected(milliseconds(2000))
			looks, closed := looked(s.Inspecting(), c.meets)
			if c.looks == 0 { // each time when it was almost sure
				require.Equal(t, mostQuits, closed)
				return
			}
			require.InDelta(t, c.looks, looks, 1)
			require.Equal(t, c.closed, closed)
		})
	}
}

// A question that is refused is asked again after a pause that grows. If it ends the connection for the second time, it is
// asked again an hour later; the first time may be chance.
func TestRefusals(t *testing.T) {
	var r Refusals
	now := milliseconds(5000)
	require.True(t, r.Allowed(now))
	for _, after := range []time.Duration{Again, 2 * Again, 4 * Again} {
		r.Refused(now)
		require.False(t, r.Allowed(now.Add(after-1)))
		now = now.Add(after)
		require.True(t, r.Allowed(now))
	}
	r.Answered()
	r.Refused(now)
	require.True(t, r.Allowed(now.Add(Again)), "it was answered in between")
	now = now.Add(Again)
	require.True(t, r.Ended(now))
	require.True(t, r.Allowed(now))
	r.Unclear()
	require.True(t, r.Ended(now), "once more may be chance, too")
	require.False(t, r.Ended(now))
	require.False(t, r.Allowed(now.Add(MostAgain-1)))
	require.True(t, r.Allowed(now.Add(MostAgain)))
}
