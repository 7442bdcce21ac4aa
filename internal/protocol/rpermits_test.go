package protocol

import (
	"context"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
)

const (
	heldKey  = "{" + formatKey + "}:timeout"
	sleepers = "redisson_sc:{" + formatKey + "}" // of Redisson listen there
)

// redissons is a semaphore of three permits in Redisson's format.
func redissonsOf(t *testing.T) *semaphore {
	t.Helper()
	s := semaphoreOf(t)
	s.of, s.set = NewRedissonPermits, heldKey
	return s
}

// now is the server's time in milliseconds.
func (s *semaphore) now() int {
	s.Helper()
	n, err := strconv.Atoi(s.count("EVAL", "local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000)", "0"))
	require.NoError(s, err)
	return n
}

// javas is a permit of Redisson's that ends so many milliseconds from now by the server's clock, with so many others left.
func (s *semaphore) javas(id, ends int, left string) string {
	s.Helper()
	member := fmt.Sprintf("\x00\xff%014d", id)
	s.count("ZADD", heldKey, strconv.Itoa(s.now()+ends), member)
	s.count("SET", formatKey, left)
	return member
}

// tells is the messages to Redisson's waiters.
func (s *semaphore) tells() func() []string {
	s.Helper()
	return s.tellsBy("PUBLISH", s.client.B().Subscribe().Channel(sleepers).Build())
}

// tellsBy is those that come by one of the commands.
func (s *semaphore) tellsBy(publish string, subscribe rueidis.Completed) func() []string {
	s.Helper()
	heard, listener := make(chan string, 100), connectTo(s.T, s.server)
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(s.Context())
	go func() {
		defer close(done)
		_ = listener.Receive(ctx, subscribe, func(m rueidis.PubSubMessage) { heard <- m.Message })
	}()
	s.Cleanup(func() { cancel(); <-done })
	require.Eventually(s, func() bool { return s.count(publish, sleepers, "begin") == "1" }, 10*time.Second, time.Millisecond)
	require.Equal(s, "begin", <-heard)
	return func() (all []string) {
		s.Helper()
		s.count(publish, sleepers, "end")
		for m := range heard {
			if m == "end" {
				return all
			}
			all = append(all, m)
		}
		return nil
	}
}

// What is in Redis is what Redisson reads: how many are free, and whole milliseconds.
func TestRedissonPermits_Stored(t *testing.T) {
	s := redissonsOf(t)
	told := s.tells()
	one, two, before := s.value("a"), s.value("a"), s.now()
	require.Equal(t, StateGranted, s.is(one, 1, time.Minute, ModeTry))
	require.Equal(t, "2", s.count("GET", formatKey))
	require.Equal(t, StateGranted, s.is(two, 2, time.Minute, ModeTry))
	require.Equal(t, "0", s.count("GET", formatKey))
	require.Equal(t, "3", s.count("ZCARD", heldKey))
	for _, member := range []string{one, two, two + "*2"} {
		ends, err := strconv.Atoi(s.count("ZSCORE", heldKey, member))
		require.NoError(t, err, "whole milliseconds")
		require.InDelta(t, before+80_000, ends, 2000, "a third longer")
		require.Equal(t, 1, ends%2, "it is not to be lengthened")
	}
	require.Empty(t, s.is(s.value("a"), 1, time.Minute, ModeTry))
	require.Empty(t, told())
	require.EqualValues(t, 1, s.releases(one))
	require.Equal(t, []string{"1"}, told())
	require.EqualValues(t, 0, s.releases(one))
	require.EqualValues(t, 1, s.releases(two))
	require.Equal(t, []string{"3"}, told(), "the counter")
	require.Equal(t, "3", s.count("GET", formatKey))
	require.Equal(t, "0", s.count("EXISTS", heldKey))
	require.Equal(t, "-1", s.count("PTTL", formatKey), "the number stays")
	require.EqualValues(t, 0, s.releases(two))
	require.Equal(t, "3", s.count("GET", formatKey))
}

// The same value asks again, since its reply was lost: it takes nothing more.
func TestRedissonPermits_AsksAgain(t *testing.T) {
	s := redissonsOf(t)
	for _, permits := range []int{1, 2} {
		for _, mode := range []Mode{ModeTry, ModeNone, ModeTry} {
			value := "a:179527837120411" + strconv.Itoa(permits)
			require.Equal(t, StateGranted, s.is(value, permits, time.Minute, mode))
		}
	}
	require.Equal(t, "0", s.count("GET", formatKey))
	require.Equal(t, "3", s.count("ZCARD", heldKey))
}

// A renewal is of all permits of a hold, and of nothing that is over or gone.
func TestRedissonPermits_Renewal(t *testing.T) {
	s := redissonsOf(t)
	lost, other := s.value("a"), s.value("a")
	require.Equal(t, StateGranted, s.is(lost, 2, time.Hour, ModeTry))
	require.EqualValues(t, 1, s.sends(s.of(s.Config, 2, 3).Renew(formatKey, lost, lease.NewTerm(time.Minute))))
	for _, member := range []string{lost, lost + "*2"} {
		ends, err := strconv.Atoi(s.count("ZSCORE", heldKey, member))
		require.NoError(t, err)
		require.InDelta(t, s.now()+80_000, ends, 2000)
	}
	require.Positive(t, s.sends(s.of(s.Config, 1, 3).Holds(formatKey, lost)))
	s.count("ZREM", heldKey, lost) // by Redisson, which takes the first one of those that are over alike
	s.count("INCR", formatKey)
	require.EqualValues(t, 0, s.renews(lost, time.Minute))
	require.EqualValues(t, 0, s.sends(s.of(s.Config, 1, 3).Holds(formatKey, lost)))
	require.Equal(t, StateGranted, s.is(other, 2, time.Hour, ModeTry))
	require.Equal(t, "0", s.count("GET", formatKey))
	require.EqualValues(t, 0, s.releases(lost))
	require.Equal(t, "1", s.count("GET", formatKey), "what it had left")
	s.overs(other, 0)
	require.EqualValues(t, 0, s.renews(other, time.Hour))
}

// A hold of several permits of which Redisson has taken some out gives back the others, and no more.
func TestRedissonPermits_PartOfAHold(t *testing.T) {
	s := redissonsOf(t)
	s.count("SET", formatKey, "500")
	large := s.value("a")
	require.Equal(t, StateGranted, s.is(large, 300, time.Hour, ModeTry))
	require.Equal(t, "200", s.count("GET", formatKey))
	s.count("ZREM", heldKey, large, large+"*10", large+"*100", large+"*101")
	s.count("INCRBY", formatKey, "4")
	require.EqualValues(t, 0, s.renews(large, time.Hour))
	require.EqualValues(t, 0, s.releases(large))
	require.Equal(t, "500", s.count("GET", formatKey))
	require.Equal(t, "0", s.count("EXISTS", heldKey))
}

// Java pauses a semaphore by a number of 0, or lowers it to less: no ticket asks for too many then.
func TestRedissonPermits_NumberOfNone(t *testing.T) {
	for _, none := range []string{"0", "-3"} {
		t.Run(none, func(t *testing.T) {
			s := redissonsOf(t)
			heard, held := s.hears("b"), s.value("a")
			require.Equal(t, StateGranted, s.is(held, 1, time.Hour, ModeTry))
			s.count("SET", formatKey, none)
			s.count("DECR", formatKey)
			for i, permits := range []int{2, 1} {
				s.waits(s.value("b"), permits, i)
			}
			last := s.value("a")
			require.Empty(t, s.is(last, 1, time.Minute, ModeTry))
			require.Equal(t, StateQueued, s.is(last, 1, time.Minute, ModeEnqueue))
			require.EqualValues(t, Contended, s.releases(held))
			require.Equal(t, none, s.count("GET", formatKey))
			require.Equal(t, "3", s.tickets())
			for _, m := range s.heard("b", heard) {
				require.NotEqual(t, "d", m[:1], "it is not taken out")
			}
			s.count("SET", formatKey, "4")
			require.Equal(t, StateGranted, s.is(last, 1, time.Minute, ModeCheck))
		})
	}
}

// What is over is taken out, however much it is.
func TestRedissonPermits_ManyAreOver(t *testing.T) {
	s := redissonsOf(t)
	told := s.tells()
	const many = 20_000
	s.count("EVAL", `for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], i, 'gone:' .. i + 1000000) end
		for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], i, string.format('%016d', i)) end
		redis.call('SET', KEYS[2], -7)`, "2", heldKey, formatKey, strconv.Itoa(many))
	one := s.value("a")
	require.Equal(t, StateGranted, s.is(one, 1, time.Minute, ModeTry))
	require.Equal(t, strconv.Itoa(2*many-8), s.count("GET", formatKey))
	require.Equal(t, []string{strconv.Itoa(2*many - 7)}, told())
	require.Equal(t, "1", s.count("ZCARD", heldKey))
	require.EqualValues(t, 1, s.releases(one))
}

// A lease of Go's is over before one of Redisson's with a lower score that is left alone for longer.
func TestRedissonPermits_OverFirst(t *testing.T) {
	s := redissonsOf(t)
	require.Equal(t, StateGranted, s.is(s.value("a"), 1, 6*time.Second, ModeTry))
	require.Equal(t, StateGranted, s.is(s.value("a"), 1, time.Minute, ModeTry))
	s.javas(1, 5000, "0")
	r, err := s.asks(s.value("a"), 1, time.Minute, ModeTry)
	require.NoError(t, err)
	require.False(t, r.Granted)
	require.InDelta(t, 8*time.Second, r.Left, float64(2*time.Second))
}

// Redisson's permits go by the clock of their process: what is over of them is left alone for a third of the lease. Those
// without a lease are never over, and no number is.
func TestRedissonPermits_Redissons(t *testing.T) {
	s := redissonsOf(t)
	told := s.tells()
	java := s.javas(1, 5000, "2")
	s.count("ZADD", heldKey, "922337203685477", "0123456789abcdef")
	s.count("SET", formatKey, "1")
	mine, next := s.value("a"), s.value("a")
	require.Equal(t, StateGranted, s.is(mine, 1, time.Minute, ModeTry))
	require.Equal(t, "0", s.count("GET", formatKey))
	r, err := s.asks(next, 1, time.Minute, ModeTry)
	require.NoError(t, err)
	require.False(t, r.Granted)
	require.InDelta(t, 25*time.Second, r.Left, float64(2*time.Second), "with a third of a minute")
	s.overs(java, 19_000)
	require.Empty(t, s.is(next, 1, time.Minute, ModeTry))
	require.EqualValues(t, 1, s.releases(mine), "which knows of no lease")
	require.Equal(t, "2", s.count("ZCARD", heldKey))
	require.Equal(t, "1", s.count("GET", formatKey))
	s.count("SET", formatKey, "0")
	require.Empty(t, s.is(next, 1, time.Minute, ModeTry))
	s.overs(java, 20_100)
	require.Equal(t, []string{"1"}, told())
	require.Equal(t, StateGranted, s.is(next, 1, time.Minute, ModeTry))
	require.Equal(t, []string{"1"}, told(), "it was over")
	r, err = s.asks(s.value("a"), 1, time.Minute, ModeTry)
	require.NoError(t, err)
	require.InDelta(t, 80*time.Second, r.Left, float64(2*time.Second))
	s.releases(next)
	s.count("SET", formatKey, "0")
	r, err = s.asks(next, 1, time.Minute, ModeTry)
	require.NoError(t, err)
	require.Negative(t, r.Left, "one without a lease has it")
	require.EqualValues(t, 1, s.releases(permitOf(hex.EncodeToString([]byte("0123456789abcdef")))))
	require.Equal(t, StateGranted, s.is(next, 1, time.Minute, ModeTry))
}

// Less than one is never published, and what was lowered is given to nobody until fewer are held.
func TestRedissonPermits_NeverMoreThanThereAre(t *testing.T) {
	s := redissonsOf(t)
	s.listens()
	told := s.tells()
	one, two, next, large := s.value("a"), s.value("a"), s.value("b"), s.value("a")
	require.Equal(t, StateGranted, s.is(one, 1, time.Hour, ModeTry))
	require.Equal(t, StateGranted, s.is(two, 2, time.Hour, ModeTry))
	set := func(n int) int64 { return s.sends(s.of(s.Config, 1, 3).SetPermits(formatKey, n)) }
	require.EqualValues(t, 3, set(1))
	require.Equal(t, "-2", s.count("GET", formatKey))
	require.Empty(t, s.is(next, 1, time.Minute, ModeTry))
	require.EqualValues(t, 1, s.releases(one))
	require.Equal(t, "-1", s.count("GET", formatKey))
	require.Empty(t, told())
	require.EqualValues(t, 1, set(2))
	require.Equal(t, StateQueued, s.is(next, 1, time.Minute, ModeEnqueue))
	require.EqualValues(t, Contended, s.releases(two))
	require.Equal(t, StateOwner, s.is(next, 1, time.Minute, ModeCheck))
	require.Equal(t, "1", s.count("GET", formatKey))
	require.Empty(t, s.is(large, 2, time.Hour, ModeTry))
	require.NotContains(t, told(), "0")
	require.EqualValues(t, 2, set(6))
	require.Equal(t, []string{"5"}, told())
	require.Equal(t, StateGranted, s.is(large, 5, time.Hour, ModeTry))
	require.Equal(t, "0", s.count("GET", formatKey))
	require.EqualValues(t, 6, set(1))
	s.overs(large, 1)
	require.Empty(t, s.is(one, 1, time.Minute, ModeTry))
	require.Equal(t, "-4", s.count("GET", formatKey), "one was over")
	require.EqualValues(t, 0, s.releases(large))
	require.Equal(t, "0", s.count("GET", formatKey))
	require.Empty(t, told())
}

// Where Redisson has set no number, or somebody has removed it, the first call does. It leaves those who have permits theirs.
func TestRedissonPermits_NumberIsGone(t *testing.T) {
	s := redissonsOf(t)
	one, two := s.value("a"), s.value("a")
	require.Equal(t, StateGranted, s.is(one, 2, time.Hour, ModeTry))
	s.count("DEL", formatKey)
	require.EqualValues(t, 0, s.releases(s.value("a")))
	require.Empty(t, s.is(two, 2, time.Hour, ModeTry))
	require.Equal(t, StateGranted, s.is(two, 1, time.Hour, ModeTry))
	require.Equal(t, "0", s.count("GET", formatKey))
	s.count("DEL", formatKey)
	require.EqualValues(t, 1, s.releases(two))
	require.Equal(t, "0", s.count("EXISTS", formatKey), "a number of one would be wrong")
	require.EqualValues(t, 0, s.sends(s.of(s.Config, 1, 3).SetPermits(formatKey, 4)))
	require.Equal(t, "2", s.count("GET", formatKey))
	require.EqualValues(t, 1, s.releases(one))
	require.Equal(t, "4", s.count("GET", formatKey))
}

// Where somebody has given the number a lease, what is held has the same.
func TestRedissonPermits_NumberHasALease(t *testing.T) {
	s := redissonsOf(t)
	for i, mode := range []Mode{ModeTry, ModeEnqueue} {
		s.count("SET", formatKey, "3", "PX", "60000")
		require.Equal(t, StateGranted, s.is(s.value("a"), i+1, time.Hour, mode))
		left, err := strconv.Atoi(s.count("PTTL", heldKey))
		require.NoError(t, err)
		require.InDelta(t, 60_000, left, 5000)
		s.count("DEL", heldKey)
	}
}

// A grant of a second lasts for a third of the lease longer, in case that somebody's clock is ahead. One that nobody has
// lengthened is seen as such.
func TestRedissonPermits_StandsStill(t *testing.T) {
	s := redissonsOf(t)
	still := s.hears("b")
	one, two, first, second, last := s.value("a"), s.value("a"), s.value("b"), s.value("b"), s.value("c")
	s.hears("c")
	require.Equal(t, StateGranted, s.is(one, 1, time.Hour, ModeTry))
	require.Equal(t, StateGranted, s.is(two, 2, time.Hour, ModeTry))
	for i, v := range []string{first, second, last} {
		s.waits(v, 1, i)
	}
	require.EqualValues(t, Contended, s.releases(one))
	ends, err := strconv.Atoi(s.count("ZSCORE", heldKey, first))
	require.NoError(t, err)
	require.InDelta(t, s.now()+21_000, ends, 1000)
	require.Zero(t, ends%2)
	r, err := s.asks(first, 1, time.Minute, ModeCheck)
	require.NoError(t, err)
	require.Equal(t, StateOwner, r.State)
	require.LessOrEqual(t, r.Left, time.Second)
	require.Greater(t, r.Left, 100*time.Millisecond)
	s.overs(first, 2)
	s.count("ZINCRBY", heldKey, strconv.Itoa(s.score(first)%2), first)
	require.Equal(t, StateGranted, s.is(last, 1, time.Minute, ModeCheck))
	require.Equal(t, "0", s.tickets(), "it stands still")
	require.Equal(t, []string{
		"g " + first[2:] + " 1000 " + formatKey, "n " + second[2:] + " 1000 " + formatKey, "d " + second[2:] + " 0 " + formatKey,
	}, s.heard("b", still))
}

// Who leaves lets those in for whom there is room.
func TestRedissonPermits_LargeOneLeaves(t *testing.T) {
	s := redissonsOf(t)
	s.listens()
	large, small := s.value("b"), s.value("b")
	require.Equal(t, StateGranted, s.is(s.value("a"), 2, time.Hour, ModeTry))
	s.waits(large, 3, 0)
	s.waits(small, 1, 1)
	c := s.of(s.Config, 1, 3).Release(Release{
		Key: formatKey, Value: large, Queued: true, Leaving: Leaving{Ticket: large + "|60000p3"},
	})
	require.EqualValues(t, 0, s.sends(c))
	require.Equal(t, StateOwner, s.is(small, 1, time.Minute, ModeCheck))
}

// Redisson's waiters are told of what is free, and have it to themselves for a while; then the first ticket is served.
func TestRedissonPermits_Windows(t *testing.T) {
	s := redissonsOf(t)
	heard, told := s.hears("b"), s.tells()
	held, rest, next := s.value("a"), s.value("a"), s.value("b")
	require.Equal(t, StateGranted, s.is(held, 1, time.Hour, ModeTry))
	require.Equal(t, StateGranted, s.is(rest, 2, time.Hour, ModeTry))
	require.Equal(t, StateQueued, s.is(next, 1, time.Minute, ModeEnqueue))
	s.count("ZADD", QueueKey("orders", formatKey), "-"+strconv.Itoa(s.now()-500), "open")
	require.EqualValues(t, Contended, s.releases(held))
	require.Equal(t, []string{"1"}, told())
	require.Equal(t, []string{"n " + next[2:] + " 10 " + formatKey}, s.heard("b", heard))
	require.Equal(t, "1", s.count("GET", formatKey))
	granted := func() bool { return s.is(next, 1, time.Minute, ModeCheck) == StateGranted }
	require.Eventually(t, granted, 10*time.Second, time.Millisecond)
	require.Equal(t, "0", s.count("GET", formatKey))

	// While a window is open those who wait look again.
	again := s.value("b")
	s.waits(again, 1, 0)
	s.count("ZADD", QueueKey("orders", formatKey), "-"+strconv.Itoa(s.now()+60), "open")
	s.count("INCR", formatKey)
	r, err := s.asks(again, 1, time.Minute, ModeCheck)
	require.NoError(t, err)
	require.Equal(t, StateQueued, r.State)
	require.LessOrEqual(t, r.Left, 60*time.Millisecond)
}

func TestRedissonPermits_OutOfMemory(t *testing.T) {
	s := redissonsOf(t)
	held, other := s.value("a"), s.value("a")
	require.Equal(t, StateGranted, s.is(held, 2, time.Hour, ModeTry))
	s.count("CONFIG", "SET", "maxmemory", "1")
	for _, mode := range []Mode{ModeTry, ModeNone} {
		_, err := s.asks(other, 1, time.Hour, mode)
		require.ErrorContains(t, err, "OOM")
	}
	require.Equal(t, "1", s.count("GET", formatKey))
	before := s.score(held + "*2")
	require.EqualValues(t, 1, s.sends(s.of(s.Config, 2, 3).Renew(formatKey, held, lease.NewTerm(2*time.Hour))))
	require.Greater(t, s.score(held+"*2"), before+3_000_000)
	require.EqualValues(t, 1, s.releases(held))
	s.count("CONFIG", "SET", "maxmemory", "0")
	require.Equal(t, "3", s.count("GET", formatKey))
	require.Equal(t, StateGranted, s.is(other, 3, time.Hour, ModeTry))
}

// A key of somebody else's stays as it is.
func TestRedissonPermits_WrongType(t *testing.T) {
	s := redissonsOf(t)
	for _, made := range [][]string{
		{"SET", formatKey, "5663df93-db16-4f9a-9b65-18edd9dfba3f:1795278371204117"}, {"SET", formatKey, "1.5"}, {"SET", formatKey, ""},
		{"HSET", formatKey, "any", "1"}, {"ZADD", formatKey, "1", "any"}, {"SET", heldKey, "any"},
	} {
		s.count("FLUSHALL")
		s.count(made...)
		for _, mode := range []Mode{ModeNone, ModeTry, ModeEnqueue} {
			for _, permits := range []int{1, 2} {
				_, err := s.asks(s.value("a"), permits, time.Hour, mode)
				require.True(t, fault.IsWrongType(err), "%v %v", made, err)
			}
		}
		c := s.of(s.Config, 1, 3).SetPermits(formatKey, 3)
		require.True(t, fault.IsWrongType(c.Send(t.Context(), s.client).Error()), made)
		require.Equal(t, "1", s.count("DBSIZE"), made)
	}
}

// All holds of one moment are ended at once, Redisson's too.
func TestRedissonPermits_EveryHold(t *testing.T) {
	s := redissonsOf(t)
	s.listens()
	s.javas(1, math.MaxInt32, "2")
	require.Equal(t, StateGranted, s.is(s.value("a"), 2, time.Hour, ModeTry))
	next := s.value("b")
	require.Equal(t, StateQueued, s.is(next, 2, time.Minute, ModeEnqueue))
	require.EqualValues(t, Contended, s.releases(EveryHold))
	require.Equal(t, StateOwner, s.is(next, 2, time.Minute, ModeCheck))
	require.Equal(t, "1", s.count("GET", formatKey))
	require.EqualValues(t, 1, s.releases(EveryHold))
	require.EqualValues(t, 0, s.releases(EveryHold))
	require.Equal(t, "3", s.count("GET", formatKey))
}

// On a cluster the call names both keys, so that none is refused that the other is not.
func TestRedissonPermits_Keys(t *testing.T) {
	t.Parallel()
	f, aMinute := NewRedissonPermits(Config{Prefix: "orders", Cluster: true, Fencing: true}, 1, 3), lease.NewTerm(time.Minute)
	for _, c := range []Call{
		f.Obtain(Request{Key: formatKey, Queueing: Queueing{Mode: ModeTry}, Lease: aMinute}, false), f.Renew(formatKey, "a:1", aMinute),
		f.Holds(formatKey, "a:1"), f.Fence(formatKey, "a:1", aMinute), f.Release(Release{Key: formatKey}), f.SetPermits(formatKey, 3),
	} {
		require.Contains(t, c.Keys(), heldKey)
		require.Equal(t, formatKey, c.Keys()[0])
	}
	require.Equal(t, "orders:{4}2:timeout", heldPermits("orders:{4}2"))
}

func TestPermitOf(t *testing.T) {
	t.Parallel()
	for holder, is := range map[string]string{
		"a:1": "a:1", "5663df93-db16-4f9a-9b65-18edd9dfba3f:1795278371204117": "5663df93-db16-4f9a-9b65-18edd9dfba3f:1795278371204117",
		"a:1*2": "", "a:1*": "", "*": "", "30313233343536373839616263646566": "0123456789abcdef", "3031": "01", "a*:1": "a*:1",
	} {
		require.Equal(t, is, permitOf(holder), holder)
	}
}
