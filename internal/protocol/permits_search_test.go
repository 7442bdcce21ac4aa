package protocol

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// searched has a search for another process have found none so many milliseconds ago.
func (s *semaphore) searched(ago int) {
	s.count("EVAL", `local time = redis.call('TIME')
		return redis.call('ZADD', KEYS[1], 'XX', ARGV[1] - time[1] * 1000 - math.floor(time[2] / 1000), 'open')`,
		"1", QueueKey("orders", formatKey), strconv.Itoa(ago))
}

// Where all that wait are calls of one process, a release finds that out once in a second. Then another one is found.
func TestPermits_OneProcessIsSearchedOnce(t *testing.T) {
	for _, c := range []struct {
		name    string
		each    int // permits
		lookups string
	}{{"the short way", 1, "1"}, {"the long way", 3, "[1-3]"}} {
		t.Run(c.name, func(t *testing.T) {
			s := semaphoreOf(t)
			own, other := s.hears("b"), s.hears("c")
			held := ""
			for range 3 / c.each {
				held = s.value("a")
				require.Equal(t, StateGranted, s.is(held, c.each, time.Hour, ModeTry))
			}
			var waits []string
			for i := range 200 {
				waits = append(waits, s.value("b"))
				s.waits(waits[i], c.each, i)
			}
			require.EqualValues(t, Contended, s.releases(held))
			s.count("CONFIG", "RESETSTAT")
			require.EqualValues(t, Contended, s.releases(waits[0]))
			require.Regexp(t, "cmdstat_zrange:calls="+c.lookups+",", s.count("INFO", "commandstats"))

			last := s.value("c")
			s.waits(last, c.each, 200)
			s.searched(0)
			require.EqualValues(t, Contended, s.releases(waits[1]))
			require.Empty(t, s.heard("c", other), "a newer call looks by itself")
			s.searched(1001)
			require.EqualValues(t, Contended, s.releases(waits[2]))
			require.Equal(t, []string{"n " + last[2:] + " 1000 " + formatKey}, s.heard("c", other))
			s.searched(-1001) // the server's clock went back
			require.EqualValues(t, Contended, s.releases(waits[3]))
			require.Len(t, s.heard("c", other), 1)
			require.Len(t, s.heard("b", own), 5, "grants")
		})
	}
}

// Where the server's clock went back, new tickets have places ahead of it. They keep the queue there all the same.
func TestPermits_QueueLivesAlthoughTheClockWentBack(t *testing.T) {
	for name, holds := range map[string][]int{"the short way": {1, 1, 1}, "the long way": {2, 1}} {
		t.Run(name, func(t *testing.T) {
			s := semaphoreOf(t)
			s.listens()
			for _, permits := range holds {
				require.Equal(t, StateGranted, s.is(s.value("a"), permits, time.Hour, ModeTry))
			}
			queue, ahead := QueueKey("orders", formatKey), 3_600_000_000
			first, next := s.value("b"), s.value("b")
			s.waits(first, 1, ahead)
			s.count("PEXPIRE", queue, "5000")
			require.Equal(t, StateQueued, s.is(next, 1, time.Minute, ModeEnqueue))
			require.Equal(t, "1", s.count("ZREVRANK", queue, first+"|60000p1"), "it is the last one")
			left, err := strconv.Atoi(s.count("PTTL", queue))
			require.NoError(t, err)
			require.Greater(t, left, 100_000)
		})
	}
}
