package barging

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

const (
	ms   = time.Millisecond
	noon = clock.Instant(12 * time.Hour)
)

// at is some time after noon.
func at(d time.Duration) clock.Instant { return noon.Add(d) }

// The scripts, which open the windows and tell calls that they are next, use the same numbers.
func TestNumbers_AreThoseOfTheScripts(t *testing.T) {
	for file, texts := range map[string][]string{
		"windows.lua": {
			fmt.Sprintf("WIDE, RARELY, SELDOM = %d, 1700, %d ", Window.Milliseconds(), seldom.Milliseconds()),
			fmt.Sprintf("SHORT, OFTEN = %d, %d ", turnaround.Milliseconds(), often.Milliseconds()),
		},
		"queue.lua": {
			fmt.Sprintf("micros - since >= %d ", NotifyAfter.Microseconds()), fmt.Sprintf("micros - %d,", NotifyAfter.Microseconds()),
			fmt.Sprintf("first[6] / 1000 < %d ", NotifyAfter.Milliseconds()),
			fmt.Sprintf("open < %d ", often.Milliseconds()), fmt.Sprintf("wide < 1700 or quiet and wide < %d ", seldom.Milliseconds()),
		},
	} {
		text, err := os.ReadFile("../protocol/lua/" + file)
		require.NoError(t, err)
		for _, part := range texts {
			require.Contains(t, string(text), part, file)
		}
	}
}

func TestState_OthersAreKnownForAMoment(t *testing.T) {
	for name, c := range map[string]struct {
		replies         []int64
		after           time.Duration
		contested, busy bool
	}{
		"nothing was released":    {nil, 0, false, false},
		"nobody waits":            {[]int64{1}, 0, false, false},
		"the hold was lost":       {[]int64{0}, 0, false, false},
		"others wait":             {[]int64{protocol.Contended}, 0, true, true},
		"they did, long ago":      {[]int64{protocol.Contended}, time.Hour, true, false},
		"they did, a moment ago":  {[]int64{protocol.Contended, 1}, busyFor - 1, true, true},
		"they do not any more":    {[]int64{protocol.Contended, 1}, busyFor, false, false},
		"the queue was not asked": {[]int64{protocol.Contended, protocol.NoQueue}, busyFor, true, false},
	} {
		var s State
		for _, reply := range c.replies {
			s.Released(reply, false, true, noon)
		}
		require.Equal(t, c.contested, s.Contested(at(c.after)), name)
		require.Equal(t, c.busy, s.Busy(at(c.after)), name)
	}
}

func TestState_WithoutAQueueTheNextCallBacksOff(t *testing.T) {
	const none, gone = 1, protocol.Contended
	type release struct {
		at     time.Duration
		yields bool
		reply  int64
	}
	for name, c := range map[string]struct {
		releases []release
		want     bool
	}{
		"nobody waits here":                  {[]release{{0, false, none}, {time.Hour, false, none}}, false},
		"some wait here, for the first time": {[]release{{0, true, none}}, false},
		"and soon again":                     {[]release{{0, true, none}, {99 * ms, true, none}}, false},
		"others have had no chance":          {[]release{{0, true, none}, {60 * ms, true, none}, {100 * ms, true, none}}, true},
		"they have had one":                  {[]release{{0, true, none}, {60 * ms, false, none}, {100 * ms, true, none}}, false},
		"others wait, too":                   {[]release{{0, true, gone}}, true},
		"others wait, and nobody here":       {[]release{{0, false, gone}}, false},
	} {
		var s, queues State
		for _, r := range c.releases {
			s.Released(r.reply, r.yields, false, at(r.at))
			queues.Released(r.reply, r.yields, true, at(r.at))
		}
		require.Equal(t, c.want || c.releases[0].reply == gone, s.Contested(at(time.Hour)), name)
		for _, want := range []bool{c.want, false} { // once
			pause, due := s.BackOff(time.Second, true)
			require.Equal(t, want, due, name)
			require.Equal(t, turnaround, pause)
			pause, due = queues.BackOff(time.Second, false)
			require.False(t, due, "the scripts decide: "+name)
			require.Equal(t, 1100*ms, pause, "a call that polls comes within it")
		}
	}
}

func TestState_MessagesStopWhileOthersWait(t *testing.T) {
	for _, reply := range []int64{1, protocol.Contended} {
		var s State
		s.Released(reply, false, true, noon)
		s.Unqueued()
		_, due := s.BackOff(time.Second, true)
		require.Equal(t, reply == protocol.Contended, due)
	}
}

func TestState_RepeatedTries(t *testing.T) {
	var s State
	require.False(t, s.Tried(noon))
	require.True(t, s.Tried(at(seldom-1)))
	require.False(t, s.Tried(at(2*seldom)))
}
