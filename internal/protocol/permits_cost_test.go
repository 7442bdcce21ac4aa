package protocol

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// commands returns how many commands a step costs, including those that its scripts call.
func (s *semaphore) commands(step func()) (n int) {
	s.Helper()
	s.count("CONFIG", "RESETSTAT")
	step()
	for _, m := range regexp.MustCompile(`cmdstat_(eval|evalsha|z[a-z]+|time|pexpire|pubsub[|a-z]*):calls=([0-9]+)`).
		FindAllStringSubmatch(s.count("INFO", "commandstats"), -1) {
		calls, err := strconv.Atoi(m[2])
		require.NoError(s, err)
		n += calls
	}
	return n
}

// The steps that thousands of waiting calls repeat cost little: a look at a ticket, and the removal of a grant that may still
// arrive.
func TestPermits_WaitingCostsLittle(t *testing.T) {
	s := semaphoreOf(t)
	s.listens()
	for range 3 {
		require.Equal(t, stateGranted, s.is(s.value("a"), 1, time.Hour, ModeTry))
	}
	s.waits(s.value("b"), 1, 0)
	waits, gone := s.value("b"), s.value("b")
	require.Equal(t, StateQueued, s.is(waits, 1, time.Minute, ModeEnqueue))
	removes := func(value string, leaving []string) int64 {
		return s.sends(NewPermits(s.Config, 1, 3).Release(Release{Key: formatKey, Value: value, Leaving: leaving}))
	}
	look := func() { require.Equal(t, StateQueued, s.is(waits, 1, time.Minute, ModeCheck)) }
	of := func(value string) []string { return []string{value + "|60000p1"} }
	nothing := func() { require.Zero(t, removes(gone, nil)) }
	noTicket := func() { require.Zero(t, removes(gone, of(gone))) }
	for _, step := range []func(){look, nothing, noTicket} { // the scripts are known
		step()
	}
	require.Equal(t, 7, s.commands(look))
	require.Equal(t, 3, s.commands(nothing))
	require.Equal(t, 3, s.commands(noTicket))

	require.Zero(t, removes(waits, of(waits)))
	require.Equal(t, "1", s.tickets(), "a ticket without permits")
	require.EqualValues(t, Contended, s.releases(s.count("ZRANGE", formatKey, "1", "1")))
	require.Equal(t, "0", s.tickets())
	granted := s.count("ZRANGE", formatKey, "1", "1")
	require.Regexp(t, "^b:", granted)
	require.EqualValues(t, 1, removes(granted, of(granted)), "its ticket is gone")
	require.EqualValues(t, 0, removes(granted, nil))
}

// A call that leaves has two tickets while it is not known whether the newer one has replaced the older one. Either may be gone.
func TestPermits_BothTicketsGo(t *testing.T) {
	s := semaphoreOf(t)
	s.listens()
	for range 3 {
		require.Equal(t, stateGranted, s.is(s.value("a"), 1, time.Hour, ModeTry))
	}
	for _, there := range []int{0, 1} {
		values := []string{s.value("b"), s.value("b")}
		require.Equal(t, StateQueued, s.is(values[there], 1, time.Minute, ModeEnqueue))
		require.Equal(t, "1", s.tickets())
		s.sends(NewPermits(s.Config, 1, 3).Release(Release{
			Key: formatKey, Value: values[1], Leaving: []string{values[0] + "|60000p1", values[1] + "|60000p1"},
		}))
		require.Equal(t, "0", s.tickets(), "%d", there)
	}
}
