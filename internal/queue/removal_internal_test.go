package queue

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// However many permits were released in the last seconds, a connection that breaks has only the newest removed once more.
func TestRemoved_PermitsFreedAtOnce(t *testing.T) {
	p := &newLock(t).path
	p.Side = p.all.Side(Permits(1))
	known, now := &p.all.freed, p.Clock.Now()
	for i := range 3 * mostFreed {
		p.Removed(p.all.Values+strconv.Itoa(i), now)
		require.LessOrEqual(t, len(known.all), mostFreed)
	}
	all := known.recent(now.Add(recallFor - time.Millisecond))
	require.Len(t, all, 1000)
	require.Equal(t, strconv.Itoa(3*mostFreed-1), all[999].number)
	require.Empty(t, known.recent(now.Add(recallFor)))
	p.Removed(p.all.Values+"later", now.Add(recallFor))
	require.Len(t, known.all, 1, "older ones are forgotten")
}
