package protocol

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// searched sets that a search for another process found none so many milliseconds ago.
func (s *semaphore) searched(ago int) {
	s.count("EVAL", `local time = redis.call('TIME')
		return redis.call('ZADD', KEYS[1], 'XX', ARGV[1] - time[1] * 1000 - math.floor(time[2] / 1000), 'open')`,
		"1", queueKey("orders", formatKey), strconv.Itoa(ago))
}

// If all waiting calls belong to one process, a release searches for another process only once a second. Later it finds one.
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
				require.Equal(t, stateGranted, s.is(held, c.each, time.Hour, ModeTry))
			}
			waits := s.values("b", 200)
			s.allWait(waits, c.each, 0)
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

// After the server's clock was set back, new tickets have places ahead of it. They still keep the queue alive.
func TestPermits_QueueLivesAlthoughTheClockWentBack(t *testing.T) {
	for name, holds := range map[string][]int{"the short way": {1, 1, 1}, "the long way": {2, 1}} {
		t.Run(name, func(t *testing.T) {
			s := semaphoreOf(t)
			s.listens()
			for _, permits := range holds {
				require.Equal(t, stateGranted, s.is(s.value("a"), permits, time.Hour, ModeTry))
			}
			queue, ahead := queueKey("orders", formatKey), 2_000_000_000
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

// A ticket of an unknown form keeps its place for two minutes, as in the queue of a lock: a newer version may serve it. Then a
// look removes it.
func TestPermits_ATicketOfANewerVersion(t *testing.T) {
	for name, c := range map[string]struct {
		ticket string
		age    time.Duration
		mode   Mode
		goes   bool
	}{
		"new":                       {"c:1|60000x9", 0, ModeCheck, false},
		"young":                     {"c:1|60000x9", 110 * time.Second, ModeCheck, false},
		"old":                       {"c:1|60000x9", 130 * time.Second, ModeCheck, true},
		"old, of another kind":      {"permits", time.Hour, ModeCheck, true},
		"young, to a newcomer":      {"c:1|60000x9", 110 * time.Second, ModeEnqueue, false},
		"old, to a newcomer":        {"c:1|60000x9", 130 * time.Second, ModeEnqueue, true},
		"old, to one without queue": {"c:1|60000x9", time.Hour, ModeTry, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := semaphoreOf(t)
			first, last := s.value("b"), s.value("b")
			s.listens()
			s.waits(first, 1, 0)
			place := time.Now().Add(-c.age).UnixMicro()
			s.count("ZADD", queueKey("orders", formatKey), strconv.FormatInt(place, 10), c.ticket)
			s.count("ZADD", queueKey("orders", formatKey), strconv.FormatInt(place+1, 10), first+"|60000p1")
			asks := map[Mode]string{ModeCheck: first, ModeEnqueue: last, ModeTry: last}[c.mode]
			state := s.is(asks, 1, time.Minute, c.mode)
			if !c.goes {
				require.NotEqual(t, stateGranted, state)
				require.NotEqual(t, "(nil)", s.count("ZSCORE", queueKey("orders", formatKey), c.ticket))
				require.Equal(t, "0", s.count("EXISTS", formatKey), "nobody has a permit")
				return
			}
			require.Equal(t, "(nil)", s.count("ZSCORE", queueKey("orders", formatKey), c.ticket))
			require.NotEqual(t, "(nil)", s.count("ZSCORE", formatKey, first), "the first one has its permit")
		})
	}
}
