package protocol

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/lease"
)

// Of a hold of which Redisson has taken some out, no more is taken from what is free than is put there.
func TestRedissonPermits_AsksAgainForAPart(t *testing.T) {
	s := redissonsOf(t)
	const three = "a:1795278371204113"
	for _, c := range []struct {
		gone []string
		mode Mode
	}{
		{[]string{three}, ModeTry}, {[]string{three}, ModeNone}, {[]string{three + "*2"}, ModeTry},
		{[]string{three + "*3", three}, ModeNone}, {[]string{three + "*2"}, ModeEnqueue},
	} {
		s.count("FLUSHALL")
		s.count("SET", formatKey, "8")
		require.Equal(t, StateGranted, s.is(three, 3, time.Hour, ModeTry))
		s.count(append([]string{"ZREM", heldKey}, c.gone...)...)
		s.count("INCRBY", formatKey, strconv.Itoa(len(c.gone)))
		require.Equal(t, StateGranted, s.is(three, 3, time.Hour, c.mode), c)
		require.Equal(t, "3", s.count("ZCARD", heldKey), c)
		require.Equal(t, "5", s.count("GET", formatKey), c)
		require.EqualValues(t, 1, s.releases(three))
		require.Equal(t, "8", s.count("GET", formatKey), c)
	}

	// Where others have got what was taken out, it waits, and does not have it besides.
	s.count("FLUSHALL")
	require.Equal(t, StateGranted, s.is(three, 3, time.Hour, ModeTry))
	s.count("ZREM", heldKey, three+"*3")
	s.count("INCR", formatKey)
	require.Equal(t, StateGranted, s.is(s.value("b"), 1, time.Hour, ModeTry))
	require.Empty(t, s.is(three, 3, time.Hour, ModeTry))
	require.Equal(t, "0", s.count("GET", formatKey))
	require.Equal(t, "3", s.count("ZCARD", heldKey))
}

// A hold of several permits of which Java has released one is lost.
func TestRedissonPermits_RenewsAllOrNone(t *testing.T) {
	s := redissonsOf(t)
	renews := func(value string) []int64 {
		f, anHour := s.of(s.Config, 3, 3), lease.NewTerm(time.Hour)
		return []int64{
			s.sends(f.Holds(formatKey, value)), s.sends(f.Renew(formatKey, value, anHour)), s.sends(f.Fence(formatKey, value, anHour)),
		}
	}
	for _, part := range []string{"*2", "*3", ""} {
		s.count("FLUSHALL")
		large := s.value("a")
		require.Equal(t, StateGranted, s.is(large, 3, time.Minute, ModeTry))
		require.Equal(t, []int64{1, 1}, renews(large)[:2])
		s.count("ZREM", heldKey, large+part)
		s.count("INCR", formatKey)
		require.Equal(t, []int64{0, 0, 0}, renews(large), part)
	}
}

// A grant of nearly all that was asked for is not to be lengthened: its end is no sign of a process that stands still.
func TestRedissonPermits_ShortLease(t *testing.T) {
	s := redissonsOf(t)
	s.listens()
	for ms, odd := range map[int]int{999: 1, 1000: 1, 1010: 1, 1011: 0, 60_000: 0} {
		s.count("DEL", formatKey, heldKey)
		held, next := s.value("a"), s.value("b")
		require.Equal(t, StateGranted, s.is(held, 3, time.Hour, ModeTry))
		require.Equal(t, StateQueued, s.is(next, 1, time.Duration(ms)*time.Millisecond, ModeEnqueue))
		require.EqualValues(t, Contended, s.releases(held))
		require.Equal(t, odd, s.score(next)%2, ms)
	}
}

// The end of a hold is a third of its own lease later, also when a renewal is shorter than that.
func TestRedissonPermits_RenewalWithinABound(t *testing.T) {
	s := redissonsOf(t)
	value, aMinute := s.value("a"), lease.NewTerm(time.Minute)
	require.Equal(t, StateGranted, s.is(value, 2, time.Minute, ModeTry))
	f := s.of(s.Config, 2, 3)
	for length, ends := range map[time.Duration]int{time.Second: 21_000, 30 * time.Second: 50_000, time.Minute: 80_000} {
		require.EqualValues(t, 1, s.sends(f.RenewWithin(formatKey, value, lease.NewTerm(length), aMinute)))
		for _, member := range []string{value, value + "*2"} {
			require.InDelta(t, s.now()+ends, s.score(member), 2000)
			require.Equal(t, 1, s.score(member)%2)
		}
	}
	c := NewPermits(s.Config, 2, 3).RenewWithin(formatKey, "a:1", lease.NewTerm(time.Second), aMinute)
	require.Equal(t, []string{"a:1", "1000"}, c.Given(), "of the other format as it was")
}
