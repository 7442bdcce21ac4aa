package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/wake"
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

// Where no message of a grant can come the calls of a path do not queue, so no release leaves a window for those without one.
func TestQueues_NotWhereNoMessageComes(t *testing.T) {
	all := &Shared{Waker: &Waker{Listening: &wake.Listener{}}}
	p := &Path{}
	p.Init(hold.Path{Kind: &hold.Kind{Env: &hold.Env{Clock: clock.New()}}}, all.Side(""), nil, p)
	require.True(t, p.Queues())
	p.deaf(true)
	require.False(t, p.Queues())
	p.deaf(false)
	require.True(t, p.Queues())
	all.Waker.Listening = nil
	require.False(t, p.Queues())
}
