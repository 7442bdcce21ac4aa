package protocol

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/lease"
)

// The tests in this file are about free permits that are too few for the first ticket.

// reserved makes the newest reservation end in so many milliseconds.
func (s *semaphore) reserved(left int) {
	s.count("EVAL", `local time = redis.call('TIME')
		return redis.call('ZADD', KEYS[1], 'XX', -time[1] * 1000 - math.floor(time[2] / 1000) - ARGV[1], 'wide')`,
		"1", queueKey("orders", formatKey), strconv.Itoa(left))
}

// looks makes a call look after its ticket, and returns the reply.
func (s *semaphore) looks(value string, permits int) Reply {
	s.Helper()
	r, err := s.asks(value, permits, time.Minute, ModeCheck)
	require.NoError(s, err)
	return r
}

// reservation is two permits of three that are held, a ticket of registry b for two, and one of c for one behind it.
func reservation(t *testing.T) (s *semaphore, large, small string, b <-chan string) {
	t.Helper()
	s = semaphoreOf(t)
	b = s.hears("b")
	s.hears("c")
	for range 2 {
		require.Equal(t, stateGranted, s.is(s.value("a"), 1, time.Hour, ModeTry))
	}
	large, small = s.value("b"), s.value("c")
	s.waits(large, 2, 0)
	s.waits(small, 1, 20_000_000)
	return s, large, small, b
}

// toldToLook is the message that makes a call look.
func toldToLook(value string) string { return "d " + value[2:] + " 0 " + formatKey }

// A running process looks when it is asked to. So no call overtakes its call, however often the calls behind ask.
func TestPermits_FirstOneRuns(t *testing.T) {
	s, large, small, b := reservation(t)
	for range 5 {
		r := s.looks(small, 1)
		require.Equal(t, StateQueued, r.State)
		require.Greater(t, r.Left, 900*time.Millisecond)
		require.LessOrEqual(t, r.Left, time.Second, "it looks again then")
		require.Equal(t, []string{toldToLook(large)}, s.heard("b", b))
		r = s.looks(small, 1)
		require.Equal(t, StateQueued, r.State)
		require.LessOrEqual(t, r.Left, time.Second)

		r = s.looks(large, 2)
		require.Equal(t, StateQueued, r.State)
		require.Zero(t, r.Rank)
		require.NotContains(t, r.Place, ".")
		require.Greater(t, s.looks(small, 1).Left, 59*time.Minute, "once in a second is enough")
		require.Empty(t, s.heard("b", b))
		s.reserved(0)
	}
	require.Equal(t, "2", s.tickets())
}

// The same is true if no permit is free any more when it looks.
func TestPermits_FirstOneRunsWhereNoneIsFree(t *testing.T) {
	s, large, small, _ := reservation(t)
	require.Equal(t, StateQueued, s.looks(small, 1).State)
	taken := s.value("d")
	require.Equal(t, stateGranted, s.is(taken, 1, time.Hour, ModeNone))
	require.NotContains(t, s.looks(large, 2).Place, ".")
	require.EqualValues(t, Contended, s.releases(taken))
	s.reserved(0)
	require.Equal(t, StateQueued, s.looks(small, 1).State)
	require.Equal(t, "2", s.tickets())
}

// A process that was asked and has not looked stands still: its calls are passed over, and keep their places for when it goes on.
func TestPermits_FirstOneStandsStill(t *testing.T) {
	s, large, small, b := reservation(t)
	behind := s.value("b")
	s.waits(behind, 1, 30_000_000)
	place := s.count("ZSCORE", queueKey("orders", formatKey), large+"|60000p2")
	require.Equal(t, StateQueued, s.looks(small, 1).State)
	s.reserved(0)
	require.True(t, s.looks(small, 1).Granted)
	require.Equal(t, "0", s.tickets())
	require.Equal(t, []string{toldToLook(large), toldToLook(large), toldToLook(behind)}, s.heard("b", b))

	require.NotEqual(t, StateQueued, s.looks(large, 2).State)
	s.waits(s.value("c"), 1, 30_000_000)
	again := s.value("b")
	c := NewPermits(s.Config, 2, 3).Obtain(Request{
		Key: formatKey, Value: again, Lease: lease.NewTerm(time.Minute), Side: "p2",
		Queueing: Queueing{Mode: ModeEnqueue, Place: place},
	}, false)
	r, err := c.Decode(c.Send(t.Context(), s.client))
	require.NoError(t, err)
	require.Equal(t, StateQueued, r.State)
	require.Zero(t, r.Rank)
	require.Equal(t, place, r.Place)
}

// Each first ticket is asked anew, and has the whole time to answer.
func TestPermits_NextFirstOneIsAsked(t *testing.T) {
	s, _, small, _ := reservation(t)
	d := s.hears("d")
	next := s.value("d")
	s.waits(next, 2, 10_000_000)
	require.Equal(t, StateQueued, s.looks(small, 1).State)
	s.reserved(0)
	require.Equal(t, StateQueued, s.looks(small, 1).State)
	require.Equal(t, "2", s.tickets())
	require.Equal(t, []string{toldToLook(next)}, s.heard("d", d), "at once")
	left := s.looks(small, 1).Left
	require.LessOrEqual(t, left, time.Second, "which is when the next look is due")
	require.Positive(t, left)
	require.Equal(t, "2", s.tickets())
	s.reserved(0)
	require.True(t, s.looks(small, 1).Granted)
}

// If any call of a process looks, the process runs.
func TestPermits_OwnProcessIsNotAsked(t *testing.T) {
	s, _, _, b := reservation(t)
	behind := s.value("b")
	s.waits(behind, 1, 30_000_000)
	require.Greater(t, s.looks(behind, 1).Left, 59*time.Minute)
	require.Empty(t, s.heard("b", b))
}

// Processes that are far away have more time, as for a grant.
func TestPermits_FarFirstOne(t *testing.T) {
	for zeros, most := range map[string]time.Duration{"0": 2 * time.Second, "000": 8 * time.Second, "0000": 8 * time.Second} {
		t.Run(zeros, func(t *testing.T) {
			s, large, small, _ := reservation(t)
			queue := queueKey("orders", formatKey)
			place := s.count("ZSCORE", queue, large+"|60000p2")
			s.count("ZREM", queue, large+"|60000p2")
			s.count("ZADD", queue, place, large+"|"+zeros+"60000p2")
			left := s.looks(small, 1).Left
			require.Greater(t, left, most-100*time.Millisecond)
			require.LessOrEqual(t, left, most)
		})
	}
}

// If the server's clock is set back, no call waits until the former time has come again.
func TestPermits_ReservationIsAskedAnew(t *testing.T) {
	s, large, small, b := reservation(t)
	require.Equal(t, StateQueued, s.looks(small, 1).State)
	s.reserved(3_600_000)
	require.LessOrEqual(t, s.looks(small, 1).Left, time.Second)
	require.Equal(t, []string{toldToLook(large), toldToLook(large)}, s.heard("b", b))
	require.Equal(t, "2", s.tickets())
	require.NotContains(t, s.looks(large, 2).Place, ".")
	s.reserved(0)
	require.Equal(t, StateQueued, s.looks(small, 1).State)
}
