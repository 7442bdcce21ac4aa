package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

func TestWhatACallNeededToWaitIsKeptAsNew(t *testing.T) {
	q := &Shared{}
	s := q.spare()
	s.timer.Reset(time.Nanosecond)
	s.came <- struct{}{}
	q.putBack(s)
	require.Empty(t, s.came)
	s.timer.Reset(time.Hour)
	select {
	case <-s.timer.C:
		t.Error("the timer of the call before")
	default:
	}
}

func TestNoFailureTakesNoMemory(t *testing.T) {
	var lastFailure lastFailure
	require.Zero(t, testing.AllocsPerRun(100, func() { lastFailure.note(nil) }))
	lastFailure.note(fault.NoAnswer)
	require.ErrorIs(t, *lastFailure.failure.Load(), fault.NoAnswer)
	lastFailure.note(nil)
	require.Nil(t, lastFailure.failure.Load())
}

// A process knows from the server's clock when the next window is due, and errs to the early side. What is of a clock that went
// back counts for nothing.
func TestWhenTheNextWindowIsDue(t *testing.T) {
	const ms = clock.Instant(time.Millisecond)
	for name, c := range map[string]struct {
		now clock.Instant
		due string
		at  clock.Instant
	}{
		"soon":                {1010 * ms, "1795322775625", 1050 * ms},
		"a long wait before":  {9000 * ms, "1795322783600", 9025 * ms},
		"over":                {1010 * ms, "1795322775525", 950 * ms},
		"the clock went back": {1010 * ms, "1795326375575", 0},
		"not known":           {1010 * ms, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			g, known := gapOf(1000*ms, c.now, "1795322775575000", c.due)
			require.Equal(t, c.at, g.due)
			require.Equal(t, c.at != 0, known)
		})
	}
}
