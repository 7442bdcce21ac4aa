package lockregistry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatACallNeedsToWaitIsKeptForTheNextOne(t *testing.T) {
	l := &Lock{}
	s := l.spare()
	l.putBack(s)
	require.NotSame(t, s, l.spare(), "others have not wanted the path so far")

	l.company()
	l.putBack(s)
	require.Same(t, s, l.spare())
	other := l.spare()
	require.NotSame(t, s, other, "a call has it")

	s.timer.Reset(time.Nanosecond)
	s.came <- struct{}{}
	l.putBack(s)
	require.Same(t, s, l.spare())
	require.Empty(t, s.came)
	s.timer.Reset(time.Hour)
	select {
	case <-s.timer.C:
		t.Error("the timer of the call before")
	default:
	}
}

func TestNoTroubleTakesNoMemory(t *testing.T) {
	var trouble trouble
	require.Zero(t, testing.AllocsPerRun(100, func() { trouble.note(nil) }))
	trouble.note(errNoAnswer)
	require.ErrorIs(t, *trouble.failure.Load(), errNoAnswer)
	trouble.note(nil)
	require.Nil(t, trouble.failure.Load())
}
