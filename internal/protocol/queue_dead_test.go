package protocol

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/lease"
)

// The tests in this file are about tickets of processes that are gone. Of the registries a, b and c, a and b listen.

// clears makes a hold look, and remove the tickets in front whose processes are gone.
func (s *scripted) clears(value string) string {
	s.Helper()
	return s.runs(s.format().Obtain(scriptRequest(value, Queueing{Mode: ModeCheck, Clears: true}), false))
}

// While the lock is held, no release grants it, and so no ticket is passed over. A look that clears removes the tickets in front
// of the first one that may be served, tells the process of that ticket, and gets its own new rank as the reply.
func TestQueue_ALookClears(t *testing.T) {
	on := onServers(t)
	for name, c := range map[string]struct {
		tickets []string
		left    string
		rank    string
		told    string
	}{
		"nobody is in front":     {[]string{"b:3|60000", "c:4|60000"}, "b:3|60000 c:4|60000", "0", ""},
		"one in front":           {[]string{"c:1|60000", "b:3|60000"}, "b:3|60000", "0", ""},
		"the first one is there": {[]string{"a:1|60000", "c:2|60000", "b:3|60000"}, "a:1|60000 c:2|60000 b:3|60000", "2", ""},
		"another is first then": {
			[]string{"c:1|60000", "c:2|60000", "a:1|60000", "b:3|60000"}, "a:1|60000 b:3|60000", "1", "n 1 0",
		},
		"a newer version's in front": {[]string{"c:1|60000;x", "c:2|60000", "b:3|60000"}, "c:1|60000;x c:2|60000 b:3|60000", "2", ""},
		"and behind one":             {[]string{"c:1|60000", "c:1|60000;x", "b:3|60000"}, "c:1|60000;x b:3|60000", "1", ""},
	} {
		on.run(name, false, func(s *scripted) {
			told := s.attends("a")
			s.attends("b")
			for _, s.redisson = range []bool{false, true} {
				s.begins("a:9", c.tickets...)
				before := s.queue()
				require.Contains(s, s.obtains("b:3", ModeCheck), "queued")
				require.Equal(s, before, s.queue(), "other looks change nothing")
				reply := strings.Fields(s.clears("b:3"))
				require.Equal(s, []string{"queued", "-1", c.rank}, reply[:3], reply)
				require.Equal(s, c.left, s.queue())
				require.Equal(s, "a:9", s.owner())
				s.do("PUBLISH", "orders-channel@a", "the end")
				if c.told != "" {
					s.hears(told, c.told+" orders:42")
				}
				s.hears(told, "the end")
			}
		})
	}
	on.both("the ticket is gone", func(s *scripted) {
		s.begins("a:9", "c:1|60000")
		require.Equal(s, "missing", s.clears("b:3"))
		require.Equal(s, "c:1|60000", s.queue())
	})
	on.both("the lock is free", func(s *scripted) {
		s.begins("", "c:1|60000", "b:3|60000")
		require.Equal(s, "(nil)", s.clears("b:3"))
		require.Equal(s, "b:3", s.owner())
		require.Empty(s, s.queue())
	})
	on.run("the one that is first then may look at the lease's end", false, func(s *scripted) {
		told := s.attends("a")
		s.begins("a:9", "c:1|60000", "a:1|60000", "b:3|60000")
		s.do("PEXPIRE", formatKey, "60000")
		require.Contains(s, s.clears("b:3"), "queued")
		s.do("PUBLISH", "orders-channel@a", "the end")
		said := strings.Fields(<-told)
		require.Len(s, said, 4)
		require.Equal(s, []string{"n", "1", formatKey}, []string{said[0], said[1], said[3]})
		ms, err := strconv.Atoi(said[2])
		require.NoError(s, err)
		require.InDelta(s, 59000, ms, 1000)
	})
}

// A dead ticket kept out calls behind it that could have the lock. Once it is removed, the first of them looks at once.
func TestQueue_ALookClearsForWhoMayEnter(t *testing.T) {
	t.Run("a reader", func(t *testing.T) {
		eachFormat(t, func(f *formatTest) {
			if f.format != writers {
				return
			}
			reading := *f
			reading.Format = newFormat(readers, *f.Config)
			require.True(f, reading.obtains("d:1", ModeNone).Granted)
			require.NoError(f, f.client.Do(f.Context(), f.client.B().Arbitrary("ZADD", formatQueue, "-1", "open", "-1", "wide",
				"1", "c:1|60000w", "2", "b:2|60000r", "3", "a:3|60000w").Build()).Error())
			look := f.request("a:3", ModeCheck)
			look.Clears = true
			c := f.Obtain(look, false)
			reply, err := c.Decode(c.Send(f.Context(), f.client))
			require.NoError(f, err)
			require.Equal(f, StateQueued, reply.State)
			require.Equal(f, 1, reply.Rank)
			require.NoError(f, f.client.Do(f.Context(),
				f.client.B().Publish().Channel("orders-channel@b").Message("the end").Build()).Error())
			require.Equal(f, "n 2 0 "+formatKey, <-f.told)
			require.True(f, reading.obtains("b:2", ModeCheck).Granted)
		})
	})
	t.Run("permits", func(t *testing.T) {
		s := semaphoreOf(t)
		told := s.hears("b")
		require.Equal(t, stateGranted, s.is(s.value("a"), 2, time.Hour, ModeTry))
		gone, one, several := s.value("c"), s.value("b"), s.value("b")
		s.waits(gone, 2, 0)
		s.waits(one, 1, 1)
		s.waits(several, 3, 2)
		c := NewPermits(s.Config, 3, 3).Obtain(Request{
			Key: formatKey, Value: several, Lease: lease.NewTerm(time.Minute), Side: "p3",
			Queueing: Queueing{Mode: ModeCheck, Clears: true},
		}, false)
		reply, err := c.Decode(c.Send(t.Context(), s.client))
		require.NoError(t, err)
		require.Equal(t, StateQueued, reply.State)
		require.Equal(t, 1, reply.Rank)
		require.Equal(t, []string{"n " + one[2:] + " 0 " + formatKey}, s.heard("b", told))
	})
}
