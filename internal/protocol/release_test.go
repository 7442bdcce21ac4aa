package protocol

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

const (
	reader = "c:1795278371204111"
	writer = "b:1795278371204112"
)

// readAndAwaited makes two holds read, and one wait to write. It returns the readers' side.
func (f *formatTest) readAndAwaited() *formatTest {
	f.Helper()
	reading := *f
	reading.Format = newFormat(readers, *f.Config)
	for _, value := range []string{"a:1795278371204111", reader} {
		require.True(f, reading.obtains(value, ModeNone).Granted)
	}
	require.Equal(f, StateQueued, f.obtains(writer, ModeEnqueue).State)
	return &reading
}

// A writer's call that gives up while others read removes nothing, and so publishes nothing.
func TestRelease_WriterLeavesReaders(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		if f.format != writers {
			return
		}
		f.readAndAwaited()
		published := make(chan string, 16)
		channel := f.Channel(formatKey)
		publish := func(message string) int64 {
			n, err := f.client.Do(f.Context(), f.client.B().Publish().Channel(channel).Message(message).Build()).AsInt64()
			require.NoError(f, err)
			return n
		}
		ctx, cancel := context.WithCancel(f.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = f.client.Receive(ctx, f.client.B().Subscribe().Channel(channel).Build(),
				func(m rueidis.PubSubMessage) { published <- m.Message })
		}()
		f.Cleanup(func() { cancel(); <-done })
		require.Eventually(f, func() bool { return publish("begin") == 1 }, 10*time.Second, time.Millisecond)
		require.Equal(f, "begin", <-published)

		leaving := []string{f.request(writer, ModeNone).Ticket()}
		require.EqualValues(f, -1, f.releases(writer, Release{Leaving: leaving}))
		require.Equal(f, stateMissing, f.obtains(writer, ModeCheck).State)
		publish("end")
		require.Equal(f, "end", <-published)
	})
}

// A reader that releases while others still read learns that others wait.
func TestRelease_ReaderYieldsToReaders(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		if f.format != writers {
			return
		}
		reading := f.readAndAwaited()
		require.EqualValues(f, Contended, reading.releases(reader, Release{Yields: true}))
		require.EqualValues(f, 1, reading.holds("a:1795278371204111"))
		require.EqualValues(f, -1, reading.holds(reader))
	})
}

// If a later hold has the lock, the reply to a release says that the key is another's, whether or not that hold is of the same
// registry.
func TestRelease_FindsALaterHold(t *testing.T) {
	eachFormat(t, func(f *formatTest) {
		if f.format == readers || f.format == writers {
			return
		}
		for _, how := range []Release{{}, {Yields: true}, {Queued: true}, {Leaving: []string{"b:1|60000"}}} {
			require.True(f, f.obtains(older, ModeNone).Granted)
			require.True(f, f.obtains(newer, ModeNone).Granted)
			require.EqualValues(f, -1, f.releases(older, how))
			require.EqualValues(f, 1, f.releases(newer, Release{}))
			require.EqualValues(f, 0, f.releases(older, how))
			require.True(f, f.obtains("b:1795278371204112", ModeNone).Granted)
			require.EqualValues(f, -1, f.releases(older, how))
			require.EqualValues(f, 1, f.releases("b:1795278371204112", Release{}))
		}
	})
}
