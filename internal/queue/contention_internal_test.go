package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
)

func TestWhatACallNeededToWaitIsKeptAsNew(t *testing.T) {
	q := &Shared{}
	s := q.waitKit()
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
