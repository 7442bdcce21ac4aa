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
	s.box.open("7")
	s.ticket.newest, s.course.served = "me:7|60000", true
	require.True(t, s.box.put(Message{what: tellsNext, Number: "7"}))
	q.putBack(s)
	require.Empty(t, s.box.came)
	require.False(t, s.box.put(Message{what: tellsNext, Number: "7"}))
	require.False(t, s.box.put(Message{what: tellsNext}), "it waits for none")
	require.Equal(t, mail{}, s.box.take())
	require.Equal(t, ticket{}, s.ticket)
	require.Equal(t, course{}, s.course)
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
