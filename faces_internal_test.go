package lockregistry

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/presence"
)

// Of many paths that a caller holds, a deadlock names some, and the one that it is about.
func TestDeadlockOf_ManyHolds(t *testing.T) {
	var many []string
	for i := range 90 {
		many = append(many, strconv.Itoa(10+i))
	}
	d := deadlockOf(detector.Cycle{
		{Wait: presence.Wait{Path: "one", Holds: many}},
		{Wait: presence.Wait{Path: "99", Holds: []string{"one"}}},
	})
	require.Len(t, d.Waits[0].Holds, mostShown)
	require.Contains(t, d.Waits[0].Holds, "99")
	require.Equal(t, []string{"one"}, d.Waits[1].Holds)
}
