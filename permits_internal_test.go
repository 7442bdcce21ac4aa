package lockregistry

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/queue"
)

// However many permits were released in the last seconds, a connection that breaks has only the newest removed once more.
func TestPermits_FreedAtOnce(t *testing.T) {
	r := embedded(t)
	p, now := &r.permits, r.clock.Now()
	l := p.join(r.permit, "orders:seat")
	defer p.leave(l)
	for i := range 3 * mostFreed {
		p.removed(l, r.values+strconv.Itoa(i), now)
		require.LessOrEqual(t, len(p.freed), mostFreed)
	}
	all := p.recent(now.Add(queue.RecallFor - time.Millisecond))
	require.Len(t, all, 1000)
	require.Equal(t, strconv.Itoa(3*mostFreed-1), all[999].number)
	require.Empty(t, p.recent(now.Add(queue.RecallFor)))
	p.removed(l, r.values+"later", now.Add(queue.RecallFor))
	require.Len(t, p.freed, 1, "older ones are forgotten")
}
