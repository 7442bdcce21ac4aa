package protocol

import (
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// A script that the user's rights stop fails before it writes, or undoes what it wrote. Otherwise a second run without the queue,
// see beside, would find the hold, and take it for granted or lost.

// forbidden is what servers of different versions say of a command.
const forbidden = "can't run this command|no permissions"

// lacking returns a client of a user who lacks a right.
func lacking(t *testing.T, server *redistest.Server, right string) rueidis.Client {
	t.Helper()
	server.Command(t, "ACL", "SETUSER", "app", "reset", "on", "nopass", "~*", "&*", "+@all", "-"+right)
	return connectAs(t, server, "app")
}

// without makes a call as a user who lacks a right.
func (s *scripted) without(right string, c Call) rueidis.RedisResult {
	s.Helper()
	return c.Send(s.Context(), lacking(s.T, s.server, right))
}

func TestForbidden_LeasesOfPermits(t *testing.T) {
	s := semaphoreOf(t)
	all, queue := s.client, queueKey("orders", formatKey)
	limited := lacking(t, s.server, "pexpire")
	refused := func() {
		s.client = limited
		defer func() { s.client = all }()
		for _, permits := range []int{1, 2} {
			_, err := s.asks(s.value("a"), permits, time.Hour, ModeTry)
			require.Regexp(t, forbidden, err)
		}
	}
	refused()
	require.Equal(t, "0", s.count("EXISTS", formatKey, queue), "a key would stay for ever")

	// Beside a hold whose key ends sooner.
	held := s.value("a")
	require.Equal(t, stateGranted, s.is(held, 1, time.Minute, ModeTry))
	ends := s.count("ZSCORE", formatKey, held)
	refused()
	require.Equal(t, "2", s.count("ZCARD", formatKey))
	c := NewPermits(s.Config, 1, 3).Renew(formatKey, held, lease.NewTerm(time.Hour))
	require.Regexp(t, forbidden, c.Send(t.Context(), limited).Error())
	require.Equal(t, ends, s.count("ZSCORE", formatKey, held))
}

// A release gives a permit to nobody if the short lease of the grant is refused.
func TestForbidden_LeaseOfAPermitThatIsGiven(t *testing.T) {
	s := semaphoreOf(t)
	s.listens()
	held := s.value("a")
	for _, value := range []string{held, s.value("a"), s.value("a")} {
		require.Equal(t, stateGranted, s.is(value, 1, time.Minute, ModeTry))
	}
	waits := s.value("b")
	require.Equal(t, StateQueued, s.is(waits, 1, time.Minute, ModeEnqueue))
	s.count("PEXPIRE", formatKey, "14000")
	s.client = lacking(t, s.server, "pexpire")
	require.Positive(t, s.releases(held))
	require.Equal(t, "3", s.count("ZCARD", formatKey))
	require.Equal(t, "(nil)", s.count("ZSCORE", formatKey, waits))
}

func TestForbidden_LeasesInRedissonsFormat(t *testing.T) {
	on := onServers(t)
	on.run("a grant", true, func(s *scripted) {
		s.attends("b")
		client := lacking(s.T, s.server, "pexpire") // before: the release must find the newest window young
		s.begins("a:1", "b:2|60000")
		c := s.format().Release(Release{Key: formatKey, Value: "a:1", Queued: true})
		n, err := Confirmed(c.Send(s.Context(), client))
		require.NoError(s, err)
		require.Positive(s, n)
		require.Equal(s, "0", s.do("EXISTS", formatKey))
	})
	on.run("a path that stays taken", true, func(s *scripted) {
		s.begins("a:1")
		c := s.format().Release(Release{Key: formatKey, Value: "a:1", Queued: true, Keep: time.Minute})
		require.Regexp(s, forbidden, s.without("pexpire", c).Error())
		require.Equal(s, "1", s.do("HEXISTS", formatKey, "a:1"))
		require.Equal(s, "1", s.do("HLEN", formatKey))
	})
}

// A reader that leaves, or is removed, leaves the lease of the others as it is if the user may not shorten it.
func TestForbidden_LeaseOfOtherReaders(t *testing.T) {
	onServers(t).run("one", false, func(s *scripted) {
		s.begins("")
		s.do("HSET", formatKey, "mode", "read", "a:1", "1", "b:1", "1")
		for _, reader := range []string{"a:1", "b:1"} {
			s.do("SET", readersLease(formatKey, reader), "1", "PX", "60000")
		}
		s.do("PEXPIRE", formatKey, "3600000")
		c := NewRead(single).Release(Release{Key: formatKey, Value: "a:1", Queued: true})
		n, err := Confirmed(s.without("pexpire", c))
		require.NoError(s, err)
		require.EqualValues(s, 1, n)
		require.Equal(s, "0", s.do("HEXISTS", formatKey, "a:1"))
		require.Greater(s, s.pttl(formatKey), 59*time.Minute)
	})
}

// A queue that the user may not give an end is not begun: there would be one more key for each path, for ever.
func TestForbidden_EndOfAQueue(t *testing.T) {
	on := onServers(t)
	for name, owner := range map[string]string{"a ticket": "b:1", "a ticket for a free lock": ""} {
		on.both(name, func(s *scripted) {
			s.begins(owner)
			c := s.format().Obtain(scriptRequest("a:5", Queueing{Mode: ModeEnqueue}), false)
			reply, err := c.Decode(s.without("pexpire", c))
			require.NoError(s, err)
			require.Equal(s, StateFailing, reply.State)
			require.Regexp(s, forbidden, reply.Why)
			require.Equal(s, "0", s.do("EXISTS", formatQueue))
		})
	}
	on.both("a window", func(s *scripted) {
		s.begins("a:1")
		c := s.format().Release(Release{Key: formatKey, Value: "a:1", Queued: true, Yields: true})
		n, err := Confirmed(s.without("pexpire", c))
		require.NoError(s, err)
		require.EqualValues(s, NoQueue, n)
		require.Equal(s, "0", s.do("EXISTS", formatKey, formatQueue))
	})
	on.run("a reservation", true, func(s *scripted) {
		for _, keeps := range []bool{false, true} { // a queue without tickets
			s.begins("")
			if keeps {
				s.do("ZADD", formatQueue, "-2", "open", "-1", "wide")
			}
			s.do("HSET", formatKey, "mode", "read", "b:1", "1")
			reply := s.without("pexpire", NewWrite(single).Obtain(scriptRequest("a:5", Queueing{Mode: ModePoll}), false))
			left, err := reply.AsInt64()
			require.NoError(s, err)
			require.EqualValues(s, -1, left)
			require.Equal(s, map[bool]string{false: "0", true: "2"}[keeps], s.do("ZCARD", formatQueue))
		}
	})
}

// A call that gets a ticket, but may not ask for its rank, is told that there is no queue. Sent again without the queue it could
// obtain the lock, and its ticket would still wait.
func TestForbidden_RankOfATicket(t *testing.T) {
	s := semaphoreOf(t)
	for range 3 {
		require.Equal(t, stateGranted, s.is(s.value("a"), 1, time.Hour, ModeTry))
	}
	s.waits(s.value("b"), 1, 0)
	s.client = lacking(t, s.server, "zrank")
	require.Equal(t, StateFailing, s.is(s.value("b"), 1, time.Minute, ModeEnqueue))
}

// The short way to a ticket is left if its place may not be seen.
func TestForbidden_PlaceOfATicket(t *testing.T) {
	onServers(t).both("one", func(s *scripted) {
		s.begins("b:1", "b:2|60000")
		c := s.format().Obtain(scriptRequest("a:5", Queueing{Mode: ModeEnqueue, Short: true}), false)
		reply, err := c.Decode(s.without("zrange", c))
		require.NoError(s, err)
		require.Equal(s, StateQueued, reply.State, "the long way needs another command")
		require.Equal(s, "b:2|60000 a:5|60000", s.queue())
	})
}
