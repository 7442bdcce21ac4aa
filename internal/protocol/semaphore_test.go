package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// semaphore has a server, and the calls that holds make for a semaphore of three permits.
type semaphore struct {
	*testing.T
	Config
	server *redistest.Server
	conn   *redistest.Connection
	client rueidis.Client
	last   int
}

func semaphoreOf(t *testing.T) *semaphore {
	t.Helper()
	t.Parallel()
	server := redistest.Start(t)
	return &semaphore{
		T: t, Config: Config{Prefix: "orders", Publishes: true},
		server: server, conn: server.Connect(t), client: connectTo(t, server),
	}
}

// value returns a value that no hold has had.
func (s *semaphore) value(registry string) string {
	s.last++
	return registry + ":" + strconv.FormatInt(1795278371204111+int64(s.last), 10)
}

func (s *semaphore) asks(value string, permits int, ms time.Duration, mode Mode) (Reply, error) {
	c := NewPermits(s.Config, permits, 3).Obtain(Request{
		Key: formatKey, Value: value, Lease: lease.NewTerm(ms), Side: "p" + strconv.Itoa(permits), Queueing: Queueing{Mode: mode},
	}, false)
	return c.Decode(c.Send(s.Context(), s.client))
}

func (s *semaphore) is(value string, permits int, ms time.Duration, mode Mode) string {
	s.Helper()
	r, err := s.asks(value, permits, ms, mode)
	require.NoError(s, err)
	if r.Granted {
		return stateGranted
	}
	return r.State
}

func (s *semaphore) sends(c Call) int64 {
	s.Helper()
	n, err := Confirmed(c.Send(s.Context(), s.client))
	require.NoError(s, err)
	return n
}

func (s *semaphore) renews(value string, d time.Duration) int64 {
	return s.sends(NewPermits(s.Config, 1, 3).Renew(formatKey, value, lease.NewTerm(d)))
}

func (s *semaphore) releases(value string) int64 {
	return s.sends(NewPermits(s.Config, 1, 3).Release(Release{Key: formatKey, Value: value, Queued: true}))
}

// count returns the number that a command replies.
func (s *semaphore) count(args ...string) string { return s.conn.Command(args...) }

func (s *semaphore) tickets() string {
	return s.count("ZCOUNT", queueKey("orders", formatKey), "0", "+inf")
}

// overs makes the lease of a hold end some milliseconds ago.
func (s *semaphore) overs(value string, ms int) {
	s.count("EVAL", `local time = redis.call('TIME')
		return redis.call('ZADD', KEYS[1], 'XX', time[1] * 1000 + math.floor(time[2] / 1000) - ARGV[1], ARGV[2])`,
		"1", formatKey, strconv.Itoa(ms), value)
}

// listens makes a client listen to the channel of registry b.
func (s *semaphore) listens() { s.hears("b") }

// hears returns the messages that a registry gets.
func (s *semaphore) hears(registry string) <-chan string {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	done, heard, listener := make(chan struct{}), make(chan string, 1000), connectTo(s.T, s.server)
	channel := "orders-channel@" + registry
	go func() {
		defer close(done)
		_ = listener.Receive(ctx, listener.B().Subscribe().Channel(channel).Build(), func(m rueidis.PubSubMessage) {
			if m.Message != "begin" {
				select {
				case heard <- m.Message:
				case <-ctx.Done(): // nobody has read what came before
				}
			}
		})
	}()
	s.Cleanup(func() { cancel(); <-done })
	require.Eventually(s, func() bool { return s.count("PUBLISH", channel, "begin") == "1" }, 10*time.Second, time.Millisecond)
	return heard
}

// heard returns all messages until now.
func (s *semaphore) heard(registry string, from <-chan string) (all []string) {
	s.Helper()
	s.count("PUBLISH", "orders-channel@"+registry, "end")
	for {
		select {
		case m := <-from:
			if m == "end" {
				return all
			}
			all = append(all, m)
		case <-time.After(10 * time.Second):
			s.Fatal("the last message does not come")
		}
	}
}

// waits puts a ticket in the queue that has been there for a minute, and for so many microseconds less.
func (s *semaphore) waits(value string, permits, micros int) {
	s.Helper()
	s.allWait([]string{value}, permits, micros)
}

// allWait makes holds wait, each a microsecond after the one before.
func (s *semaphore) allWait(values []string, permits, micros int) {
	s.Helper()
	args := []string{"EVAL", `local time = redis.call('TIME')
		redis.call('ZADD', KEYS[1], -time[1] * 1000 + 60000, 'open', -1, 'wide')
		for i = 2, #ARGV do
			redis.call('ZADD', KEYS[1], string.format('%.0f', time[1] * 1000000 - 60000000 + ARGV[1] + i - 2), ARGV[i])
		end`, "1", queueKey("orders", formatKey), strconv.Itoa(micros)}
	for _, value := range values {
		args = append(args, value+"|60000p"+strconv.Itoa(permits))
	}
	s.count(args...)
}

// values returns the values of so many new holds of a registry.
func (s *semaphore) values(registry string, count int) []string {
	all := make([]string, count)
	for i := range all {
		all[i] = s.value(registry)
	}
	return all
}

// A hold whose lease is over is not renewed, even if it is still in the set, and all its permits are free for the next hold.
func TestPermits_LeaseIsOver(t *testing.T) {
	s := semaphoreOf(t)
	lost, other, next := s.value("a"), s.value("a"), s.value("b")
	require.Equal(t, stateGranted, s.is(lost, 2, time.Hour, ModeTry))
	require.Equal(t, stateGranted, s.is(other, 1, time.Hour, ModeTry))
	require.Equal(t, "4", s.count("ZCARD", formatKey), "the number, two holds, and what one has more")
	require.Empty(t, s.is(next, 1, time.Hour, ModeTry))
	require.EqualValues(t, 1, s.renews(lost, time.Hour))
	s.overs(lost, 0)
	require.EqualValues(t, 0, s.renews(lost, time.Hour))
	require.Equal(t, stateGranted, s.is(next, 2, time.Hour, ModeTry))
	require.Equal(t, "4", s.count("ZCARD", formatKey))
	require.EqualValues(t, 0, s.renews(lost, time.Hour))
	require.EqualValues(t, 0, s.releases(lost))
	require.Equal(t, "4", s.count("ZCARD", formatKey))
	require.EqualValues(t, 1, s.releases(next))
	require.EqualValues(t, 1, s.releases(other))
	require.Equal(t, "1", s.count("ZCARD", formatKey))
}

// A renewal that shortens a lease does not shorten the key's: other holds live as long as before.
func TestPermits_KeyLivesAsLongAsTheLongestLease(t *testing.T) {
	s := semaphoreOf(t)
	long, short := s.value("a"), s.value("b")
	pttl := func() int {
		n, err := strconv.Atoi(s.count("PTTL", formatKey))
		require.NoError(t, err)
		return n
	}
	require.Equal(t, stateGranted, s.is(short, 1, time.Minute, ModeTry))
	require.LessOrEqual(t, pttl(), 75_000)
	require.Greater(t, pttl(), 60_000)
	require.Equal(t, stateGranted, s.is(long, 1, time.Hour, ModeTry))
	require.Greater(t, pttl(), 3_500_000)
	require.EqualValues(t, 1, s.renews(short, time.Minute))
	require.Greater(t, pttl(), 3_500_000)
	require.EqualValues(t, 1, s.renews(short, 2*time.Hour))
	require.Greater(t, pttl(), 7_100_000)
}

// A process that was granted permits and does not lengthen their lease stands still: all its calls are passed over.
func TestPermits_StandsStill(t *testing.T) {
	s := semaphoreOf(t)
	still, third := s.hears("b"), s.hears("c")
	one, two := s.value("a"), s.value("a")
	require.Equal(t, stateGranted, s.is(one, 1, time.Hour, ModeTry))
	require.Equal(t, stateGranted, s.is(two, 2, time.Hour, ModeTry))
	first, second, large, last := s.value("b"), s.value("b"), s.value("c"), s.value("b")
	for i, v := range []string{first, second, large, last} {
		s.waits(v, 1+i/2%2, i)
	}
	require.EqualValues(t, Contended, s.releases(one))
	require.Equal(t, StateOwner, s.is(first, 1, time.Minute, ModeCheck))
	require.Equal(t, StateQueued, s.is(large, 2, time.Minute, ModeCheck))
	require.Equal(t, "3", s.tickets())
	s.count("ZINCRBY", formatKey, "-2000", first)
	require.Positive(t, s.sends(NewPermits(s.Config, 1, 3).Fence(formatKey, two, lease.NewTerm(time.Hour))))
	require.Equal(t, StateQueued, s.is(large, 2, time.Minute, ModeCheck), "there is room for one")
	require.Equal(t, "1", s.tickets())
	gone := func(v string) string { return "d " + v[2:] + " 0 " + formatKey }
	require.Equal(t, []string{"g " + first[2:] + " 1000 " + formatKey, gone(second), gone(last)}, s.heard("b", still))
	require.EqualValues(t, Contended, s.releases(two))
	require.Len(t, s.heard("c", third), 2)
	require.Equal(t, StateOwner, s.is(large, 2, time.Minute, ModeCheck))

	// One that has lengthened it, and whose lease is over, does not.
	require.EqualValues(t, 1, s.renews(large, time.Minute))
	s.waits(last, 3, 0)
	s.waits(second, 1, 1)
	s.overs(large, 10)
	require.Equal(t, stateGranted, s.is(first, 1, time.Hour, ModeNone))
	require.Equal(t, "2", s.tickets())
}

// A registry that was refused the queue still passes permits on: waiting calls are woken by nothing else.
func TestPermits_ReleaseWithoutTheQueue(t *testing.T) {
	s := semaphoreOf(t)
	heard := s.hears("b")
	held, next := s.value("a"), s.value("b")
	require.Equal(t, stateGranted, s.is(held, 3, time.Hour, ModeTry))
	require.Equal(t, StateQueued, s.is(next, 1, time.Minute, ModeEnqueue))
	c := NewPermits(s.Config, 3, 3).Release(Release{Key: formatKey, Value: held, Queued: false})
	require.EqualValues(t, Contended, s.sends(c))
	require.Equal(t, []string{"g " + next[2:] + " 1000 " + formatKey}, s.heard("b", heard))
}

// If a process with very many calls stands still, a script passes over some thousands of them, since it must be short.
func TestPermits_StandsStillWithThousands(t *testing.T) {
	s := semaphoreOf(t)
	s.listens()
	held, granted := s.value("a"), s.value("b")
	require.Equal(t, stateGranted, s.is(held, 3, time.Hour, ModeTry))
	s.waits(granted, 1, 0)
	s.count("EVAL", `for i = 1, 2500 do
		redis.call('ZADD', KEYS[1], redis.call('TIME')[1] * 1000000 - i, 'b:17952783713' .. 10000 + i .. '|60000p3')
	end`, "1", queueKey("orders", formatKey))
	require.EqualValues(t, Contended, s.releases(held))
	require.Equal(t, "2500", s.tickets())
	s.count("ZINCRBY", formatKey, "-2000", granted)
	require.Equal(t, StateQueued, s.is(s.value("c"), 3, time.Minute, ModeEnqueue))
	require.Equal(t, "500", s.tickets(), "the next of them has a second")
}

// A grant with a short lease is marked, so that scripts see if it was not lengthened. A grant with the whole lease is not.
func TestPermits_Grant(t *testing.T) {
	for _, c := range []struct {
		asked  time.Duration
		slow   bool
		marked bool
	}{
		{time.Minute, false, true},
		{time.Minute, true, true},
		{1020 * time.Millisecond, false, true},
		{1010 * time.Millisecond, false, false},
		{time.Second, false, false},
		{time.Second, true, false},
		{500 * time.Millisecond, false, false},
	} {
		t.Run(fmt.Sprint(c.asked, c.slow), func(t *testing.T) {
			s := semaphoreOf(t)
			s.listens()
			held, rest, next, permits := s.value("a"), s.value("a"), s.value("b"), 1
			if c.slow {
				permits = 2
			} else {
				require.Equal(t, stateGranted, s.is(s.value("a"), 1, 9*time.Second, ModeTry))
			}
			require.Equal(t, stateGranted, s.is(rest, permits, 9*time.Second, ModeTry))
			require.Equal(t, stateGranted, s.is(held, 1, 9*time.Second, ModeTry))
			require.Equal(t, StateQueued, s.is(next, 1, c.asked, ModeEnqueue))
			s.count("PEXPIRE", formatKey, "5000")
			require.EqualValues(t, Contended, s.releases(held))
			require.Equal(t, c.marked, strings.HasSuffix(s.count("ZSCORE", formatKey, next), ".5"))
			left, err := strconv.Atoi(s.count("PTTL", formatKey))
			require.NoError(t, err)
			require.Equal(t, c.marked, left > 10_000, left)
			s.count("ZINCRBY", formatKey, "60000", next) // else the grant may be over
			require.EqualValues(t, 1, s.renews(next, time.Minute))
			require.NotContains(t, s.count("ZSCORE", formatKey, next), ".")
		})
	}
}

// Calls that wait too briefly to look after their tickets still keep the queue alive.
func TestPermits_QueueLives(t *testing.T) {
	for name, permits := range map[string]int{"the short way": 1, "the long way": 2} {
		t.Run(name, func(t *testing.T) {
			s := semaphoreOf(t)
			s.listens()
			for range 3 {
				require.Equal(t, stateGranted, s.is(s.value("a"), 1, time.Hour, ModeTry))
			}
			queue := queueKey("orders", formatKey)
			s.waits(s.value("b"), 1, 0)
			s.count("PEXPIRE", queue, "5000")
			require.Equal(t, StateQueued, s.is(s.value("b"), permits, time.Minute, ModeEnqueue))
			lives := func() int {
				left, err := strconv.Atoi(s.count("PTTL", queue))
				require.NoError(t, err)
				return left
			}
			require.Greater(t, lives(), 100_000)
			looks := s.value("b")
			require.Equal(t, StateQueued, s.is(looks, permits, time.Minute, ModeEnqueue))
			s.count("PEXPIRE", queue, "5000")
			require.Equal(t, StateQueued, s.is(looks, permits, time.Minute, ModeCheck))
			require.Greater(t, lives(), 100_000)
		})
	}
}

// A call without a ticket overtakes no ticket, but does not wait for tickets of dead processes.
func TestPermits_Try(t *testing.T) {
	s := semaphoreOf(t)
	one, two := s.value("a"), s.value("a")
	require.Equal(t, stateGranted, s.is(one, 2, time.Hour, ModeTry))
	require.Equal(t, StateQueued, s.is(s.value("b"), 2, time.Minute, ModeEnqueue))
	require.Equal(t, StateQueued, s.is(s.value("b"), 3, time.Minute, ModeEnqueue))
	require.Equal(t, stateGranted, s.is(two, 1, time.Hour, ModeTry), "nobody listens")
	require.Equal(t, "0", s.tickets())
	require.EqualValues(t, 1, s.releases(two))
	s.listens()
	require.Equal(t, StateQueued, s.is(s.value("b"), 2, time.Minute, ModeEnqueue))
	require.Empty(t, s.is(two, 1, time.Hour, ModeTry))
	require.Equal(t, stateGranted, s.is(two, 1, time.Hour, ModeNone), "where there is no queue")
}

// Late commands of a hold that has permits, or had some, neither get a ticket nor grant a permit.
func TestPermits_LateCommands(t *testing.T) {
	s := semaphoreOf(t)
	s.listens()
	one, two, three, first, second := s.value("a"), s.value("a"), s.value("a"), s.value("b"), s.value("b")
	for _, v := range []string{one, two, three} {
		require.Equal(t, stateGranted, s.is(v, 1, time.Hour, ModeTry))
	}
	require.Equal(t, stateGranted, s.is(three, 1, time.Hour, ModeTry), "the same once more")
	require.Equal(t, StateQueued, s.is(first, 1, time.Minute, ModeEnqueue))
	require.Equal(t, StateQueued, s.is(second, 1, time.Minute, ModeEnqueue))
	require.Equal(t, "2", s.tickets())
	require.Equal(t, StateOwner, s.is(one, 1, time.Hour, ModeEnqueue))
	require.Equal(t, "2", s.tickets())
	require.EqualValues(t, 0, s.releases(s.value("a")))
	require.Equal(t, "2", s.tickets())
	require.EqualValues(t, Contended, s.releases(one))
	require.EqualValues(t, 0, s.releases(one))
	require.EqualValues(t, 0, s.renews(one, time.Hour))
	require.Equal(t, "1", s.tickets())
	require.Equal(t, "4", s.count("ZCARD", formatKey))
	require.Equal(t, StateOwner, s.is(first, 1, time.Minute, ModeCheck))
}

// After the number was lowered, no permit is granted until fewer are held. A hold with several permits counts as several.
func TestPermits_NeverMoreThanThereAre(t *testing.T) {
	s := semaphoreOf(t)
	s.listens()
	one, two, next, large := s.value("a"), s.value("a"), s.value("b"), s.value("a")
	require.Equal(t, stateGranted, s.is(one, 1, time.Hour, ModeTry))
	require.Equal(t, stateGranted, s.is(two, 2, time.Hour, ModeTry))
	require.Equal(t, StateQueued, s.is(next, 1, time.Minute, ModeEnqueue))
	c := NewPermits(s.Config, 1, 3).SetPermits(formatKey, 2)
	require.EqualValues(t, 3, s.sends(c))
	require.EqualValues(t, Contended, s.releases(one))
	require.Equal(t, "1", s.tickets(), "two are held")
	require.Empty(t, s.is(s.value("a"), 1, time.Hour, ModeNone))
	require.EqualValues(t, Contended, s.releases(two))
	require.Equal(t, StateOwner, s.is(next, 1, time.Minute, ModeCheck))
	require.Empty(t, s.is(large, 2, time.Hour, ModeTry))

	c = NewPermits(s.Config, 1, 3).SetPermits(formatKey, 6)
	require.EqualValues(t, 2, s.sends(c))
	require.Equal(t, stateGranted, s.is(large, 5, time.Hour, ModeTry))
	require.Empty(t, s.is(s.value("a"), 1, time.Hour, ModeTry))
	require.Equal(t, StateQueued, s.is(s.value("b"), 1, time.Minute, ModeEnqueue))
	c = NewPermits(s.Config, 1, 3).SetPermits(formatKey, 1)
	require.EqualValues(t, 6, s.sends(c))
	require.EqualValues(t, Contended, s.releases(next))
	require.Equal(t, "1", s.tickets())
}

func TestPermits_OutOfMemory(t *testing.T) {
	s := semaphoreOf(t)
	held, other := s.value("a"), s.value("a")
	require.Equal(t, stateGranted, s.is(held, 2, time.Hour, ModeTry))
	s.count("CONFIG", "SET", "maxmemory", "1")
	_, err := s.asks(other, 1, time.Hour, ModeTry)
	require.ErrorContains(t, err, "OOM")
	before := s.count("ZSCORE", formatKey, held)
	require.EqualValues(t, 1, s.renews(held, 2*time.Hour), "who has permits keeps them")
	require.Greater(t, s.count("ZSCORE", formatKey, held), before)
	require.EqualValues(t, 1, s.releases(held))
	s.count("CONFIG", "SET", "maxmemory", "0")
	require.Equal(t, "1", s.count("ZCARD", formatKey))
	require.Equal(t, stateGranted, s.is(other, 3, time.Hour, ModeTry))
}

// A sorted set of another program stays as it is.
func TestPermits_WrongType(t *testing.T) {
	s := semaphoreOf(t)
	s.count("ZADD", formatKey, "1", "any", "-5", "other")
	for _, mode := range []Mode{ModeNone, ModeTry, ModeEnqueue} {
		_, err := s.asks(s.value("a"), 1, time.Hour, mode)
		require.True(t, fault.IsWrongType(err), err)
	}
	c := NewPermits(s.Config, 1, 3).SetPermits(formatKey, 3)
	require.True(t, fault.IsWrongType(c.Send(t.Context(), s.client).Error()))
	require.EqualValues(t, 0, s.releases(s.value("a")))
	require.Equal(t, "2", s.count("ZCARD", formatKey))
}

// If the key has the number of a Redisson semaphore, which may be negative, the error says so, and the key stays as it is. Keys
// of other types, and errors about permissions, get no such error.
func TestPermits_NumberOfRedisson(t *testing.T) {
	s := semaphoreOf(t)
	fails := func() (errs []error) {
		t.Helper()
		for _, mode := range []Mode{ModeNone, ModeTry, ModePoll, ModeEnqueue} {
			for _, permits := range []int{1, 2} {
				_, err := s.asks(s.value("a"), permits, time.Hour, mode)
				errs = append(errs, err)
			}
		}
		c := NewPermits(s.Config, 1, 3).SetPermits(formatKey, 3)
		return append(errs, c.Send(t.Context(), s.client).Error())
	}
	for value, named := range map[string]bool{"0": true, "3": true, "-2": true, "a:1": false, "1.5": false} {
		s.count("SET", formatKey, value)
		for _, err := range fails() {
			require.ErrorIs(t, fault.Classify(err), fault.WrongType, value)
			require.Equal(t, named, errors.Is(fault.Classify(err), fault.Number), "%s: %v", value, err)
		}
		require.Equal(t, value, s.count("GET", formatKey))
	}
	s.count("SET", formatKey, "3")
	s.count("ACL", "SETUSER", "default", "-get")
	for _, err := range fails() {
		require.ErrorIs(t, fault.Classify(err), fault.WrongType, "it is not known what is there")
	}
	s.count("DEL", formatKey)
	s.count("ACL", "SETUSER", "default", "-zrangebyscore")
	for _, err := range fails() {
		require.Error(t, err)
		require.NotErrorIs(t, fault.Classify(err), fault.WrongType)
	}
	require.Equal(t, "0", s.count("EXISTS", formatKey))
}

// The process that is granted permits may stand still, with all its calls. So another process is told, too.
func TestPermits_AnotherProcessIsTold(t *testing.T) {
	for _, c := range []struct {
		name   string
		frozen int // calls in front
		more   int // of the same process, behind the other
		dead   int // calls of a process that is gone, in front of the other
		slow   bool
	}{
		{"the next one", 1, 0, 0, false},
		{"the next one, of several permits", 1, 0, 0, true},
		{"behind a few", 5, 0, 0, false},
		{"among hundreds", 4, 300, 0, false},
		{"far among hundreds", 90, 300, 0, false},
		{"behind hundreds", 400, 0, 0, true},
		{"behind the dead", 3, 30, 20, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := semaphoreOf(t)
			held, rest, other := s.value("a"), s.value("a"), s.value("c")
			permits := 2
			if c.slow {
				permits = 1
				require.Equal(t, stateGranted, s.is(s.value("a"), 1, time.Hour, ModeTry))
			}
			require.Equal(t, stateGranted, s.is(rest, permits, time.Hour, ModeTry))
			require.Equal(t, stateGranted, s.is(held, 1, time.Hour, ModeTry))
			frozen, third := s.hears("b"), s.hears("c")
			for i := range c.frozen {
				s.waits(s.value("b"), 1, i)
			}
			for i := range c.dead {
				s.waits(s.value("d"), 1, c.frozen+i)
			}
			s.waits(other, 1, c.frozen+c.dead)
			for i := range c.more {
				s.waits(s.value("b"), 1, c.frozen+c.dead+1+i)
			}
			require.EqualValues(t, Contended, s.releases(held))
			require.Len(t, s.heard("b", frozen), 1, "the grant")
			require.Equal(t, []string{"n " + other[2:] + " 1000 " + formatKey}, s.heard("c", third))
		})
	}
}

// If all waiting calls belong to one process, it is told only of the grant.
func TestPermits_NoOtherProcess(t *testing.T) {
	s := semaphoreOf(t)
	held := s.value("a")
	require.Equal(t, stateGranted, s.is(held, 3, time.Hour, ModeTry))
	heard := s.hears("b")
	s.allWait(s.values("b", 3000), 3, 0)
	require.EqualValues(t, Contended, s.releases(held))
	require.Len(t, s.heard("b", heard), 1)
}

// Tickets of a dead process are removed together, but only as many at a time as keep the script short.
func TestPermits_ManyAreGone(t *testing.T) {
	s := semaphoreOf(t)
	s.listens()
	held, next := s.value("a"), s.value("b")
	require.Equal(t, stateGranted, s.is(held, 3, time.Hour, ModeTry))
	s.allWait(s.values("gone", 1500), 1, 0)
	s.waits(next, 1, 1500)
	s.count("CONFIG", "RESETSTAT")
	require.EqualValues(t, Contended, s.releases(held))
	stats := s.count("INFO", "commandstats")
	require.Regexp(t, `cmdstat_pubsub\|numsub:calls=[1-5],|cmdstat_pubsub:calls=[1-5],`, stats)
	require.Regexp(t, `cmdstat_zrem:calls=\d\d,`, stats)
	require.Equal(t, StateOwner, s.is(next, 1, time.Minute, ModeCheck))
	require.Equal(t, "0", s.tickets())

	held = s.value("a")
	require.EqualValues(t, 1, s.renews(next, time.Hour))
	require.Equal(t, stateGranted, s.is(held, 1, time.Hour, ModeTry))
	require.Equal(t, stateGranted, s.is(s.value("a"), 1, time.Hour, ModeTry))
	s.allWait(s.values("gone", 2500), 1, 0)
	require.EqualValues(t, Contended, s.releases(held))
	require.NotEqual(t, "0", s.tickets(), "the rest goes when the lease of the next one is over")
}

// A ticket for more permits than there are keeps no call out, nor does a lock's ticket.
func TestPermits_AsksForTooMany(t *testing.T) {
	s := semaphoreOf(t)
	heard := s.hears("b")
	first, last := s.value("b"), s.value("b")
	for _, asks := range []func(){
		func() { require.Equal(t, stateGranted, s.is(s.value("b"), 1, time.Hour, ModeTry)) },
		func() { require.Equal(t, stateGranted, s.is(first, 2, time.Hour, ModeEnqueue)) },
		func() {
			s.waits(last, 2, 1)
			require.EqualValues(t, Contended, s.releases(first))
			require.Equal(t, StateOwner, s.is(last, 2, time.Minute, ModeCheck))
		},
		func() { require.EqualValues(t, 3, s.sends(NewPermits(s.Config, 1, 3).SetPermits(formatKey, 5))) },
	} {
		large, lock, reader := s.value("b"), s.value("b"), s.value("b")
		s.waits(large, 8, 0)
		s.count("ZADD", queueKey("orders", formatKey), "1", lock+"|60000", "2", reader+"|60000r")
		asks()
		var out []string
		for _, v := range []string{large, lock, reader} {
			out = append(out, "d "+v[2:]+" 0 "+formatKey)
		}
		require.ElementsMatch(t, out, slices.DeleteFunc(s.heard("b", heard), func(m string) bool { return m[0] == 'g' }))
	}
}

// A script for locks does not serve the ticket of a call for permits.
func TestPermits_LocksDoNotServeThem(t *testing.T) {
	s := semaphoreOf(t)
	heard := s.hears("b")
	s.waits(s.value("b"), 1, 0)
	value, plain := s.value("a"), NewSpring(Config{Prefix: "orders", Publishes: true, Remove: func() string { return "UNLINK" }})
	s.count("SET", formatKey, value+"+")
	require.Positive(t, s.sends(plain.Release(Release{Key: formatKey, Value: value, Queued: true})))
	require.Equal(t, "0", s.count("EXISTS", formatKey))
	require.Empty(t, s.heard("b", heard))
}

// A release of every hold ends all holds of that moment. Calls that are granted permits then keep them.
func TestPermits_EveryHold(t *testing.T) {
	s := semaphoreOf(t)
	s.listens()
	for range 3 {
		require.Equal(t, stateGranted, s.is(s.value("a"), 1, time.Hour, ModeTry))
	}
	next := s.value("b")
	require.Equal(t, StateQueued, s.is(next, 2, time.Minute, ModeEnqueue))
	require.EqualValues(t, Contended, s.releases(EveryHold))
	require.Equal(t, StateOwner, s.is(next, 2, time.Minute, ModeCheck))
	require.Equal(t, "3", s.count("ZCARD", formatKey))
	require.EqualValues(t, 1, s.releases(EveryHold))
	require.EqualValues(t, 0, s.releases(EveryHold))
	require.Equal(t, "1", s.count("ZCARD", formatKey))
}

// A call that gets a ticket at once also learns the number of permits.
func TestPermits_NumberWithATicket(t *testing.T) {
	s := semaphoreOf(t)
	s.listens()
	require.Equal(t, stateGranted, s.is(s.value("a"), 1, time.Hour, ModeTry))
	require.EqualValues(t, 3, s.sends(NewPermits(s.Config, 1, 3).SetPermits(formatKey, 1)))
	require.Equal(t, StateQueued, s.is(s.value("b"), 1, time.Minute, ModeEnqueue))
	r, err := s.asks(s.value("b"), 1, time.Minute, ModeEnqueue)
	require.NoError(t, err)
	require.Equal(t, StateQueued, r.State)
	require.Equal(t, 1, r.Number)
	require.EqualValues(t, 1, s.sends(NewPermits(s.Config, 1, 3).SetPermits(formatKey, 3)))
	r, err = s.asks(s.value("b"), 3, time.Minute, ModeEnqueue)
	require.NoError(t, err)
	require.Zero(t, r.Number)
}

func TestHoldIn(t *testing.T) {
	t.Parallel()
	for member, is := range map[string]bool{"a:1": true, "a:1795278371204111": true, "permits": false, "a:1*": false, "": false} {
		require.Equal(t, is, IsHold(member), member)
	}
}
