package lockregistry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// sharing is a half in Redis whose hold on reading can be shared, and for which nobody looks for writers elsewhere.
type sharing struct{}

func (sharing) Sharable() bool { return true }
func (sharing) LookDue() bool  { return false }
func (sharing) Look() bool     { return false }

func (sharing) LookAgain() time.Duration { return defaultHandoff }

func newSharing() *ReadWriteLock {
	rw := &ReadWriteLock{}
	rw.wrote.Store(hold.New(&hold.Path{}, "the writer's", hold.Terms{}))
	rw.reader.pair, rw.writer.pair = rw, rw
	rw.local.Init(sharing{})
	return rw
}

// enters makes an owner enter a local half without waiting.
func enters(t *testing.T, half local.Half, o owner.ID, want local.Admission) {
	t.Helper()
	how, w := half.Enter(o, 0, false, nil)
	require.Equal(t, want, how)
	require.Nil(t, w)
	if how == local.Entered {
		half.Granted()
	}
}

// exits makes an owner leave a local half.
func exits(t *testing.T, half local.Half, o owner.ID, want local.Departure) {
	t.Helper()
	require.Equal(t, want, departs(half.Exit(o)))
}

// The lease of a hold may be shortened if one owner has it alone; this is checked without the mutex.
func TestReadWriteLock_SeveralReaders(t *testing.T) {
	rw := newSharing()
	reader, writer := rw.reader.half(), rw.writer.half()
	enters(t, writer, anna, local.Entered)
	require.EqualValues(t, 1, (*forHold)(&rw.writer).Count())
	enters(t, reader, anna, local.Entered)
	exits(t, writer, anna, local.Last)
	writer.Free()
	enters(t, reader, anna, local.Reentered)
	require.EqualValues(t, 1, (*forHold)(&rw.reader).Count(), "one, twice")
	enters(t, reader, bert, local.Joined)
	require.EqualValues(t, 2, (*forHold)(&rw.reader).Count())
	require.EqualValues(t, 1, (*forHold)(&rw.writer).Count())
	exits(t, reader, anna, local.Stays)
	require.EqualValues(t, 2, (*forHold)(&rw.reader).Count())
	exits(t, reader, anna, local.Leaves)
	require.EqualValues(t, 1, (*forHold)(&rw.reader).Count())
	exits(t, reader, bert, local.Last)
	require.Zero(t, (*forHold)(&rw.reader).Count())
	require.EqualValues(t, 1, (*forHold)(&Lock{}).Count(), "a plain lock")
}

// A reader names its own writer's hold until the writer's key is known to be removed.
func TestReadWriteLock_ReaderUnderALeavingWriter(t *testing.T) {
	rw := newSharing()
	reader, writer := rw.reader.half(), rw.writer.half()
	require.Empty(t, rw.under())
	enters(t, writer, team, local.Entered)
	how, _ := reader.Enter(team, 0, false, nil)
	require.Equal(t, local.Entered, how)
	require.Equal(t, "the writer's", rw.under())
	exits(t, writer, team, local.Last)
	require.Equal(t, "the writer's", rw.under())
	writer.Free()
	require.Empty(t, rw.under())
}

// Both sides of a lock share what is known of other waiters, and whether Redis can be asked.
func TestReadWriteLock_BothSidesKnowOfOthers(t *testing.T) {
	reg := embedded(t, withWakeup(wakeupPoll))
	for _, path := range []string{"reader", "writer"} {
		rw := reg.ReadWrite(path)
		side, other := &rw.reader, &rw.writer
		if path == "writer" {
			side, other = other, side
		}
		over := side.redis.Unavailable(fault.NoAnswer, 0)
		require.ErrorIs(t, other.redis.LastFailure(true), fault.NoAnswer)
		over()
		require.NoError(t, other.redis.LastFailure(true))

		require.False(t, other.redis.Contested())
		side.redis.NoteContention(protocol.Contended, false, reg.now())
		require.True(t, other.redis.Contested())
	}
}
