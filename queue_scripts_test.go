package lockregistry_test

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// The short ways, and what they leave to the long ones. Here holds are of the registries a, b and c, of which a and b listen.

// scripted is a server on which scripts run that are given what registries would give them.
type scripted struct {
	*world
	redisson bool
}

func scriptedWorlds(t *testing.T, test func(s *scripted)) {
	t.Helper()
	t.Parallel()
	for name, redisson := range map[string]bool{"Spring": false, "Redisson": true} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				for _, r := range []string{"a", "b"} {
					w.attends(w.client(), r)
				}
				test(&scripted{w, redisson})
			})
		})
	}
}

// attends has a process listen for its grants.
func (w *world) attends(client rueidis.Client, registry string) <-chan string {
	w.Helper()
	channel := "orders-channel@" + registry
	return w.heardBy(client, func(c rueidis.Client) rueidis.Completed { return c.B().Subscribe().Channel(channel).Build() },
		func() bool { return said(client, "PUBSUB", "NUMSUB", channel) == "["+channel+" 1]" })
}

// heardBy is what a client hears on a subscription, which is there once confirmed says so.
func (w *world) heardBy(
	client rueidis.Client, subscribe func(c rueidis.Client) rueidis.Completed, confirmed func() bool,
) <-chan string {
	w.Helper()
	heard := make(chan string, 64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = client.Receive(w.Context(), subscribe(client), func(m rueidis.PubSubMessage) { heard <- m.Message })
	}()
	w.Cleanup(func() { <-done })
	w.await("a subscription", confirmed)
	return heard
}

// begins has a hold own the key, and tickets be in the queue, in this order. An empty value: the key is free. Without tickets
// there is no queue, and with an empty slice nobody waits in it any more. Where there is one the value has the mark, if it is of
// this library.
func (s *scripted) begins(value string, tickets ...string) {
	s.Helper()
	s.do("DEL", theKey, theQueue)
	switch {
	case value == "":
	case s.redisson:
		s.do("HSET", theKey, value, "1")
	case tickets != nil && strings.Contains(value, ":"):
		s.do("SET", theKey, value+"+")
	default:
		s.do("SET", theKey, value)
	}
	if tickets != nil { // a moment after the newest window
		s.do(append([]string{"EVAL", `local time = redis.call('TIME')
			local now = time[1] * 1000 + math.floor(time[2] / 1000)
			redis.call('ZADD', KEYS[1], -now, 'open', -now, 'wide')
			for i, ticket in ipairs(ARGV) do redis.call('ZADD', KEYS[1], string.format('%.0f', now * 1000 + i), ticket) end`,
			"1", theQueue}, tickets...)...)
	}
}

// config is that of registries on a single server.
var config = protocol.Config{Prefix: "orders", Publishes: true, Remove: func() string { return "UNLINK" }}

// format is that of the layout.
func (s *scripted) format() *protocol.Format {
	if s.redisson {
		return protocol.NewRedisson(config)
	}
	return protocol.NewSpring(config)
}

// runs has the server execute a call of this library.
func (w *world) runs(c protocol.Call) string {
	w.Helper()
	keys := c.Keys()
	return w.do(slices.Concat([]string{"EVAL", c.Script.Source, strconv.Itoa(len(keys))}, keys, c.Given())...)
}

// releases has a hold end.
func (s *scripted) releases(value string, how protocol.Release) string {
	s.Helper()
	how.Key, how.Value, how.Queued = theKey, value, true
	return s.runs(s.format().Release(how))
}

// gives has a hold end by the short release that gives the lock to the first who waits.
func (s *scripted) gives(value string) string {
	s.Helper()
	return s.releases(value, protocol.Release{Known: protocol.Direct})
}

// obtains has a hold ask for the lock, or for something of its queue.
func (s *scripted) obtains(value string, mode protocol.Mode) string {
	s.Helper()
	return s.runs(s.format().Obtain(request(value, protocol.Queueing{Mode: mode}), false))
}

func request(value string, what protocol.Queueing) protocol.Request {
	return protocol.Request{Key: theKey, Value: value, Lease: lease.NewTerm(time.Minute), Queueing: what}
}

// asks has a hold ask for the lock, or a ticket.
func (s *scripted) asks(value string) string {
	s.Helper()
	return s.runs(s.format().Obtain(request(value, protocol.Queueing{Mode: protocol.ModeEnqueue, Short: true}), false))
}

// owner is whose the key is, without the mark; empty when it is free.
func (s *scripted) owner() string {
	s.Helper()
	if s.redisson {
		return s.do("HKEYS", theKey)
	}
	return strings.TrimSuffix(strings.TrimSuffix(s.do("GET", theKey), "(nil)"), "+")
}

// queue is who has tickets.
func (s *scripted) queue() string {
	s.Helper()
	return strings.Join(strings.Fields(s.do("ZRANGEBYSCORE", theQueue, "0", "+inf")), " ")
}

func TestQueue_ShortRelease(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		owner   string // of the key, before
		tickets []string
		reply   string
		after   string // the owner
		left    string // tickets
	}{
		"the first one":                {"a:1", []string{"b:2|60000", "a:3|60000"}, "2", "b:2", "a:3|60000"},
		"nobody waits":                 {"a:1", nil, "1", "", ""},
		"nobody waits any more":        {"a:1", []string{}, "1", "", ""},
		"the key is another's":         {"b:9", []string{"b:2|60000"}, "-1", "b:9", "b:2|60000"},
		"the key is a later hold's":    {"a:4", []string{"b:2|60000"}, "-2", "a:4", "b:2|60000"},
		"the key is gone":              {"", []string{"b:2|60000"}, "0", "", "b:2|60000"},
		"a process that is gone":       {"a:1", []string{"c:2|60000", "b:3|60000", "b:4|60000"}, "2", "b:3", "b:4|60000"},
		"for less time than a grant's": {"a:1", []string{"b:2|700"}, "2", "b:2", ""},
		"of a newer version":           {"a:1", []string{"b:2|60000;x", "b:3|60000"}, "2", "", "b:2|60000;x b:3|60000"},
	} {
		t.Run(name, func(t *testing.T) {
			scriptedWorlds(t, func(s *scripted) {
				s.begins(c.owner, c.tickets...)
				require.Equal(s, c.reply, s.gives("a:1"))
				require.Equal(s, c.after, s.owner())
				require.Equal(s, c.left, s.queue())
			})
		})
	}
}

// A short release says what long ones do.
func TestQueue_ShortReleaseTells(t *testing.T) {
	scriptedWorlds(t, func(s *scripted) {
		heard := s.attends(s.client(), "d")
		s.begins("a:1", "d:2|60000")
		require.Equal(s, "2", s.gives("a:1"))
		require.Equal(s, "g 2 1000 "+theKey, <-heard)
		if !s.redisson {
			require.Equal(s, "d:2+", s.do("GET", theKey), "with the mark, so that its release looks for the queue")
		}
		require.LessOrEqual(s, s.pttl(theKey).Milliseconds(), int64(1000))
	})
}

// On a cluster a grant is told in the slot of the key: by the key's hash tag, if it has one.
func TestQueue_ShortReleaseTellsInTheSlotOfTheKey(t *testing.T) {
	realWorlds(t, func(w *world) {
		if strings.Contains(said(w.client(), "PUBSUB", "SHARDNUMSUB"), "nknown subcommand") {
			return // a server before 7, on which clusters have no queue
		}
		for key, tag := range map[string]string{"orders:{7}:x": "{7}", "orders:7": "{orders:7}"} {
			queue, channel := "orders:{"+key+"}:waiters", "orders-channel@"+tag+"d"
			if tag != "{"+key+"}" {
				queue = key + ":waiters"
			}
			client := w.client()
			heard := w.heardBy(client,
				func(c rueidis.Client) rueidis.Completed { return c.B().Ssubscribe().Channel(channel).Build() },
				func() bool { return said(client, "PUBSUB", "SHARDNUMSUB", channel) == "["+channel+" 1]" })
			w.do("SET", key, "a:1+")
			w.do("ZADD", queue, "-1", "open", "-1", "wide", "7", "d:2|60000")
			clustered := config
			clustered.Cluster = true
			release := protocol.Release{Key: key, Value: "a:1", Queued: true, Known: protocol.Direct}
			require.Equal(w, "2", w.runs(protocol.NewSpring(clustered).Release(release)))
			require.Equal(w, "g 2 1000 "+key, <-heard)
		}
	})
}

// A process that listens to a replica, or to a master of before, hears what is published. So nothing is published for a ticket
// that gets nothing.
func TestQueue_NobodyHearsOfAGrantThatIsNotHis(t *testing.T) {
	followedWorlds(t, func(f *followed) {
		client, err := newClient(rueidis.ClientOption{InitAddress: []string{f.replica.Addr()}, ForceSingleClient: true})
		require.NoError(f, err)
		defer client.Close()
		heard := f.attends(client, "c")
		for _, redisson := range []bool{false, true} {
			for _, known := range []protocol.Known{"", protocol.Quiet, protocol.Direct} {
				s := &scripted{f.world, redisson}
				s.begins("a:1", "c:2|60000")
				require.Equal(f, "1", s.releases("a:1", protocol.Release{Known: known}))
				f.do("PUBLISH", "orders-channel@c", "the end")
				require.Equal(f, "the end", <-heard)
			}
		}
	})
}

func TestQueue_ShortAsk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		owner   string
		tickets []string
		reply   string
		after   string
		left    string
	}{
		"behind the holder":          {"b:1", []string{}, "0 PLACE", "b:1", "a:5|60000"},
		"behind others":              {"b:1", []string{"b:2|60000"}, "1 PLACE", "b:1", "b:2|60000 a:5|60000"},
		"the lock is free":           {"", nil, "(nil)", "a:5", ""},
		"others wait for a free one": {"", []string{"b:2|60000"}, "queued 1000 0 PLACE 0", "b:2", "a:5|60000"},
		"its own hold, of before":    {"a:4", []string{"b:2|60000"}, "(nil)", "a:5", "b:2|60000"},
		"its own hold, of later":     {"a:6", []string{"b:2|60000"}, "refused", "a:6", "b:2|60000"},
	} {
		t.Run(name, func(t *testing.T) {
			scriptedWorlds(t, func(s *scripted) {
				s.begins(c.owner, c.tickets...)
				reply := strings.Fields(s.asks("a:5"))
				if i := slices.IndexFunc(reply, func(word string) bool { return len(word) == 16 }); i >= 0 {
					reply[i] = "PLACE"
				}
				require.Equal(s, c.reply, strings.Join(reply, " "))
				require.Equal(s, c.after, s.owner())
				require.Equal(s, c.left, s.queue())
			})
		})
	}
}

// The place is the server's time in microseconds, also at the beginning of a second, when these have few digits.
func TestQueue_ShortAskTellsThePlace(t *testing.T) {
	scriptedWorlds(t, func(s *scripted) {
		now := func() (micros int, few bool) {
			parts := strings.Fields(s.do("TIME"))
			seconds, err := strconv.Atoi(parts[0])
			require.NoError(s, err)
			rest, err := strconv.Atoi(parts[1])
			require.NoError(s, err)
			return seconds*1_000_000 + rest, len(parts[1]) < 6
		}
		s.begins("b:1", []string{}...)
		before, few := now()
		for !few { // for a second at most
			before, few = now()
		}
		_, place, _ := strings.Cut(s.asks("a:5"), " ")
		after, _ := now()
		at, err := strconv.Atoi(place)
		require.NoError(s, err)
		require.LessOrEqual(s, before, at)
		require.LessOrEqual(s, at, after)
	})
}

// Where the queue is gone a new one begins, with all that belongs to it.
func TestQueue_ShortAskBeginsAQueue(t *testing.T) {
	scriptedWorlds(t, func(s *scripted) {
		s.begins("b:1", []string{}...)
		s.do("DEL", theQueue)
		s.asks("a:5")
		require.Len(s, strings.Fields(s.do("ZRANGE", theQueue, "0", "-1")), 3)
		require.Positive(s, s.pttl(theQueue))
	})
}

// While a window is open a free lock is left to those without a ticket, although nobody waits in the queue: goroutines of the
// process that has opened it come at once.
func TestQueue_ShortAskInAWindow(t *testing.T) {
	scriptedWorlds(t, func(s *scripted) {
		s.begins("")
		for _, window := range []string{"open", "wide"} {
			var reply string
			for took := time.Hour; took > 90*time.Millisecond; { // else the window may be over
				s.do("DEL", theKey, theQueue)
				start := time.Now()
				s.do("EVAL", `local time = redis.call('TIME')
					local now = time[1] * 1000 + math.floor(time[2] / 1000)
					local ends = -(now + 100)
					redis.call('ZADD', KEYS[1], ends, 'open', ARGV[1] == 'wide' and ends or -now, 'wide')`, "1", theQueue, window)
				reply = s.asks("a:5")
				took = time.Since(start)
			}
			require.Contains(s, reply, "queued")
			require.Empty(s, s.owner())
			s.do("DEL", theQueue)
		}
	})
}

// When the server's clock goes back, a ticket still comes last.
func TestQueue_ShortAskWhenTheClockGoesBack(t *testing.T) {
	scriptedWorlds(t, func(s *scripted) {
		s.begins("b:1", "b:2|60000")
		const later = 4_000_000_000_000_000
		s.do("ZADD", theQueue, strconv.Itoa(later), "b:3|60000")
		require.Contains(s, s.asks("a:5"), strconv.Itoa(later+1))
		require.Equal(s, "b:2|60000 b:3|60000 a:5|60000", s.queue())
	})
}

// Windows that end in an hour are of a clock that went back since: the queue goes on, and there are windows as before.
func TestQueue_WindowsWhenTheClockGoesBack(t *testing.T) {
	scriptedWorlds(t, func(s *scripted) {
		later := func() {
			s.do("EVAL", `local time = redis.call('TIME')
				local ends = -(time[1] * 1000 + 3600000)
				return redis.call('ZADD', KEYS[1], 'XX', ends, 'open', ends, 'wide')`, "1", theQueue)
		}
		s.begins("", "b:2|60000")
		later()
		require.Contains(s, s.asks("a:5"), "queued")
		require.Equal(s, "b:2", s.owner())

		s.begins("a:1", "b:2|60000")
		later()
		require.Equal(s, "2", s.releases("a:1", protocol.Release{}))
		require.Equal(s, "b:2", s.owner())
		now := s.do("TIME")
		for _, window := range []string{"open", "wide"} {
			ends, err := strconv.ParseInt(s.do("ZSCORE", theQueue, window), 10, 64)
			require.NoError(s, err)
			seconds, err := strconv.ParseInt(strings.Fields(now)[0], 10, 64)
			require.NoError(s, err)
			require.LessOrEqual(s, -ends/1000, seconds+1)
		}
	})
}

// A long window is due when tickets have kept the lock from others for 1.7 s, however long each of them has had it; for 15 s
// where it is quiet, and nobody was seen. Where nobody had waited for a second when the first ticket came it is put off, but not
// twice.
func TestQueue_LongWindow(t *testing.T) {
	t.Parallel()
	const ms, seen, late = time.Millisecond, 0.5, 0.25
	for name, c := range map[string]struct {
		wide, open time.Duration // how long ago the newest windows were
		since      float64       // what happened since
		waits      time.Duration // for how long the first ticket has; -1: nobody waits but others of the process
		quiet      bool
		window     bool
		after      float64 // what has happened then
	}{
		"not yet":                             {wide: 1500 * ms},
		"due":                                 {wide: 2000 * ms, open: 90 * ms, window: true},
		"due, where sections are long":        {wide: 5000 * ms, open: 5000 * ms, waits: 4500 * ms, window: true},
		"a rush begins":                       {wide: 5000 * ms, open: 5000 * ms, after: late},
		"a rush begins, long ago":             {wide: 5000 * ms, open: 5000 * ms, waits: 3500 * ms, after: late},
		"one more":                            {wide: 5000 * ms, open: 5000 * ms, since: late, window: true},
		"quiet":                               {wide: 14500 * ms, open: 90 * ms, quiet: true},
		"quiet, due":                          {wide: 15500 * ms, open: 90 * ms, quiet: true, window: true},
		"quiet, a rush begins":                {wide: 15500 * ms, open: 15500 * ms, quiet: true, after: late},
		"quiet, one more":                     {wide: 15500 * ms, open: 15500 * ms, quiet: true, since: late, window: true},
		"quiet, put off":                      {wide: 2000 * ms, open: 90 * ms, quiet: true, since: late, window: true},
		"quiet, put off, not yet":             {wide: 1500 * ms, open: 90 * ms, quiet: true, since: late, after: late},
		"quiet, somebody was seen":            {wide: 2000 * ms, open: 90 * ms, quiet: true, since: seen, window: true},
		"quiet, somebody was seen, not yet":   {wide: 1500 * ms, open: 90 * ms, quiet: true, since: seen, after: seen},
		"somebody was seen and a rush begins": {wide: 5000 * ms, open: 5000 * ms, since: seen, after: seen + late},
		"and one more":                        {wide: 5000 * ms, open: 5000 * ms, since: seen + late, window: true},
		"due, in a process":                   {wide: 2000 * ms, open: 90 * ms, waits: -1, window: true},
		"quiet, in a process":                 {wide: 2000 * ms, open: 90 * ms, waits: -1, quiet: true},
		"a rush begins in a process":          {wide: 5000 * ms, open: 5000 * ms, waits: -1, after: late},
		"one more in a process":               {wide: 5000 * ms, open: 5000 * ms, waits: -1, since: late, window: true},
	} {
		t.Run(name, func(t *testing.T) {
			scriptedWorlds(t, func(s *scripted) {
				s.begins("a:1", "b:2|60000")
				add := func(member string, d float64) {
					s.do("ZINCRBY", theQueue, strconv.FormatFloat(d, 'f', -1, 64), member)
				}
				add("wide", float64(c.wide.Milliseconds())-c.since)
				add("open", float64(c.open.Milliseconds()))
				add("b:2|60000", -float64(c.waits.Microseconds()))
				owner := "b:2"
				if c.waits < 0 {
					s.do("ZREM", theQueue, "b:2|60000")
				}
				if c.window || c.waits < 0 {
					owner = ""
				}
				how := protocol.Release{Yields: c.waits < 0}
				if c.quiet {
					how.Known = protocol.Quiet
				}
				s.releases("a:1", how)
				require.Equal(s, owner, s.owner())
				require.Equal(s, c.window, s.opens() > 0)
				wide, err := strconv.ParseFloat(s.do("ZSCORE", theQueue, "wide"), 64)
				require.NoError(s, err)
				require.InDelta(s, c.after, math.Mod(-wide, 1), 0)
			})
		})
	}
}

// opens is how many milliseconds a window is open still; if it is over, below zero.
func (s *scripted) opens() int {
	s.Helper()
	left, err := strconv.Atoi(s.do("EVAL", `local time = redis.call('TIME')
		return -redis.call('ZSCORE', KEYS[1], 'open') - time[1] * 1000 - math.floor(time[2] / 1000)`, "1", theQueue))
	require.NoError(s, err)
	return left
}

// attendsInSlot is attends for a registry on a cluster. It reports false on a server before 7, on which clusters have no queue.
func (w *world) attendsInSlot(registry string) bool {
	w.Helper()
	client := w.client()
	if strings.Contains(said(client, "PUBSUB", "SHARDNUMSUB"), "nknown subcommand") {
		return false
	}
	channel := "orders-channel@{" + theKey + "}" + registry
	w.heardBy(client, func(c rueidis.Client) rueidis.Completed { return c.B().Ssubscribe().Channel(channel).Build() },
		func() bool { return said(client, "PUBSUB", "SHARDNUMSUB", channel) == "["+channel+" 1]" })
	return true
}

// Where it is quiet there are no short windows, unless somebody listens.
func TestQueue_ShortWindow(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ quiet, cluster, heard, window, seen bool }{
		"nobody listens":          {},
		"somebody does":           {heard: true, window: true},
		"on a cluster":            {cluster: true, window: true},
		"quiet":                   {quiet: true},
		"quiet, somebody listens": {quiet: true, heard: true, window: true},
		"quiet, on a cluster":     {quiet: true, cluster: true},
		"seen, on a cluster":      {quiet: true, cluster: true, seen: true, window: true},
		"quiet, somebody there":   {quiet: true, cluster: true, heard: true, window: true},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				s := &scripted{w, false}
				format := config
				if format.Cluster = c.cluster; !c.cluster {
					s.attends(s.client(), "b")
				} else if !s.attendsInSlot("b") {
					return
				}
				if c.heard {
					w.heard(func(c rueidis.Client) rueidis.Completed { return c.B().Subscribe().Channel(theChannel).Build() }, theChannel, "1")
				}
				s.begins("a:1", "b:2|60000")
				s.do("ZINCRBY", theQueue, "200", "open")
				if c.seen {
					s.do("ZINCRBY", theQueue, "-0.5", "wide")
				}
				s.do("PEXPIRE", theQueue, "5000")
				how := protocol.Release{Key: theKey, Value: "a:1", Queued: true}
				if c.quiet {
					how.Known = protocol.Quiet
				}
				s.runs(protocol.NewSpring(format).Release(how))
				require.Equal(s, c.window, s.owner() == "")
				require.Greater(s, s.pttl(theQueue), time.Minute, "a queue in which calls wait briefly lives as long as they come")
			})
		})
	}
}

// The process of the first ticket is told of a window. That of the second one is told to look later than any window lasts: so it
// takes the message for no window.
func TestQueue_OneTicketIsToldOfAWindow(t *testing.T) {
	realWorlds(t, func(w *world) {
		s := &scripted{w, false}
		first, second := s.attends(s.client(), "a"), s.attends(s.client(), "b")
		w.heard(func(c rueidis.Client) rueidis.Completed { return c.B().Subscribe().Channel(theChannel).Build() }, theChannel, "1")
		s.begins("c:1", "a:2|60000", "b:3|60000")
		s.do("ZINCRBY", theQueue, "200", "open")
		require.Equal(s, "2", s.releases("c:1", protocol.Release{}))
		require.Empty(s, s.owner())
		w.hears(first, "n 2 10 orders:42")
		w.hears(second, "n 3 120 orders:42")
	})
}

// Who waits without a ticket leaves a trace, which releases see, and so does a holder of another form when one with a ticket
// looks. Versions that do not know it read the same time.
func TestQueue_Traces(t *testing.T) {
	t.Parallel()
	const held, other = "b:1795278371204117", "a:1795278371204118"
	for name, c := range map[string]struct {
		owner string
		asks  func(s *scripted)
		trace bool
	}{
		"waits without a ticket":      {held, func(s *scripted) { s.obtains(other, protocol.ModePoll) }, true},
		"does not wait":               {held, func(s *scripted) { s.obtains(other, protocol.ModeNone) }, false},
		"finds the lock free":         {"", func(s *scripted) { s.obtains(other, protocol.ModePoll) }, false},
		"has a ticket":                {held, func(s *scripted) { s.obtains(other, protocol.ModeEnqueue) }, false},
		"has a ticket, behind others": {held, func(s *scripted) { s.asks(other) }, false},
		"looks":                       {held, func(s *scripted) { s.obtains(other, protocol.ModeCheck) }, false},
		"a path that stays taken":     {held + ":atleast", func(s *scripted) { s.obtains(other, protocol.ModeCheck) }, false},
		"has a ticket, behind Java":   {"4d3c8a52-96c1", func(s *scripted) { s.obtains(other, protocol.ModeEnqueue) }, true},
		"looks, behind Java":          {"4d3c8a52-96c1", func(s *scripted) { s.obtains(other, protocol.ModeCheck) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				s := &scripted{w, false}
				s.begins(c.owner, "b:2|60000", other+"|60000")
				before := s.do("ZSCORE", theQueue, "wide")
				c.asks(s)
				c.asks(s)
				after := s.do("ZSCORE", theQueue, "wide")
				if c.trace {
					before += ".5"
				}
				require.Equal(s, before, after)

				s.do("DEL", theQueue)
				s.obtains(other, protocol.ModePoll)
				require.Equal(s, "0", s.do("EXISTS", theQueue), "a trace begins no queue")
			})
		})
	}
}

// So it is behind readers and writers.
func TestQueue_LongWindowOfAReadWriteLock(t *testing.T) {
	t.Parallel()
	for side, holder := range map[string][]string{
		"reader": {"mode", "read", "a:1", "1"},
		"writer": {"mode", "write", "a:1:write", "1"},
	} {
		for came, owner := range map[time.Duration]string{4990 * time.Millisecond: "", 100 * time.Millisecond: "b:2:write"} {
			t.Run(side+" "+came.String(), func(t *testing.T) {
				realWorlds(t, func(w *world) {
					w.attends(w.client(), "b")
					w.do(append([]string{"HSET", theKey}, holder...)...)
					w.do("EVAL", `local time = redis.call('TIME')
						local past = time[1] * 1000 + math.floor(time[2] / 1000) - 5000
						redis.call('ZADD', KEYS[1], -past, 'open', -past, 'wide',
							string.format('%.0f', (past + 5000 - ARGV[1]) * 1000), 'b:2|60000w')`,
						"1", theQueue, strconv.FormatInt(came.Milliseconds(), 10))
					format := protocol.NewRead(config)
					if side == "writer" {
						format = protocol.NewWrite(config)
					}
					w.runs(format.Release(protocol.Release{Key: theKey, Value: "a:1", Queued: true}))
					fields := strings.Fields(strings.Trim(w.do("HKEYS", theKey), "[]"))
					require.Equal(w, owner, strings.Join(slices.DeleteFunc(fields, func(f string) bool { return f == "mode" }), " "))
				})
			})
		}
	}
}

func TestQueue_ShortReleaseOfOneThatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		owner   string
		tickets []string
		reply   string
		after   string
	}{
		"nobody waits":          {"a:1", nil, "1", ""},
		"nobody waits any more": {"a:1", []string{}, "1", ""},
		"others wait":           {"a:1", []string{"b:2|60000"}, "2", "b:2"},
		"the key is another's":  {"b:9", nil, "-1", "b:9"},
		"a late grant":          {"a:0", nil, "0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				s := &scripted{w, false}
				s.attends(s.client(), "b")
				s.begins(c.owner, c.tickets...)
				require.Equal(s, c.reply, s.releases("a:1", protocol.Release{}))
				require.Equal(s, c.after, s.owner())
			})
		})
	}
}

// Where the user may not ask for the time any more there is no queue to be had, which is no error.
func TestQueue_ShortAskWithoutPermission(t *testing.T) {
	scriptedWorlds(t, func(s *scripted) {
		for _, owner := range []string{"b:1", ""} {
			s.begins(owner, "b:2|60000")
			s.do("ACL", "SETUSER", "default", "-time")
			reply := s.asks("a:5")
			s.do("ACL", "SETUSER", "default", "+time")
			require.Contains(s, reply, "error", "%q", owner)
			require.Equal(s, "b:2|60000", s.queue())
		}
	})
}

// Only the first two watch the key of a holder that does not know of the queue: so the others are told how many are in front.
func TestQueue_ShortAskBehindAForeignHolder(t *testing.T) {
	realWorlds(t, func(w *world) {
		s := &scripted{w, false}
		s.begins("java", "b:2|60000", "b:3|60000", "b:4|60000")
		reply := strings.Fields(s.asks("a:5"))
		require.Len(s, reply, 5)
		require.Equal(s, []string{"queued", "-1", "3"}, reply[:3])
		require.Equal(s, "1", reply[4])
	})
}

// several has a hold ask for the lock as one of several.
func (s *scripted) several(value string) {
	s.runs(s.format().ObtainAll([]protocol.Request{request(value, protocol.Queueing{})}))
}

// The value of a holder has a mark from when on others wait, by whatever script they ask. Java's and those of old versions, which
// count their holds from 1, stay as they are.
func TestQueue_Mark(t *testing.T) {
	t.Parallel()
	const held, ours, theirs = "b:1795278371204117", "a:1795278371204118", "a:1795278371204119"
	for name, c := range map[string]struct {
		owner, after string
		asks         func(s *scripted)
	}{
		"a ticket":                {held, held + "+", func(s *scripted) { s.obtains(ours, protocol.ModeEnqueue) }},
		"a short one":             {held, held + "+", func(s *scripted) { s.asks(ours) }},
		"a look":                  {held, held + "+", func(s *scripted) { s.obtains(ours, protocol.ModeCheck) }},
		"a late look":             {held, held, func(s *scripted) { s.obtains(theirs, protocol.ModeCheck) }},
		"one more":                {held + "+", held + "+", func(s *scripted) { s.asks(ours) }},
		"a try":                   {held, held, func(s *scripted) { s.obtains(ours, protocol.ModeNone) }},
		"Java":                    {"4d3c8a52-96c1", "4d3c8a52-96c1", func(s *scripted) { s.asks(ours) }},
		"an old version":          {"b:17", "b:17", func(s *scripted) { s.asks(ours) }},
		"a path that stays taken": {held + ":atleast", held + ":atleast", func(s *scripted) { s.asks(ours) }},
		"the lock was free":       {"", ours + "+", func(s *scripted) { s.asks(ours) }},
		"a hold of before":        {ours, theirs, func(s *scripted) { s.obtains(theirs, protocol.ModeNone) }},
		"one with a mark":         {ours + "+", theirs + "+", func(s *scripted) { s.obtains(theirs, protocol.ModeNone) }},
		"several locks":           {held + "+", held + "+", func(s *scripted) { s.several(ours) }},
		"several, one of before":  {ours + "+", theirs + "+", func(s *scripted) { s.several(theirs) }},
	} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				s := &scripted{w, false}
				if c.owner != "" {
					s.do("SET", theKey, c.owner, "PX", "50000")
				}
				s.do("ZADD", theQueue, "-1", "open", "-1", "wide", "7", ours+"|60000")
				c.asks(s)
				require.Equal(s, c.after, s.do("GET", theKey))
				require.Positive(s, s.pttl(theKey))
				if strings.TrimSuffix(c.after, "+") == c.owner {
					require.LessOrEqual(s, s.pttl(theKey).Milliseconds(), int64(50000))
				}
			})
		})
	}
}

// A hold is what it was, with a mark and without it.
func TestQueue_AMarkChangesNothingElse(t *testing.T) {
	t.Parallel()
	for _, mark := range []string{"", "+"} {
		t.Run("mark "+mark, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				s := &scripted{w, false}
				own := func(value string) { s.do("SET", theKey, value+mark, "PX", "50000") }
				own("a:5")
				renew := func(value string) string {
					return s.runs(s.format().Renew(theKey, value, lease.NewTerm(70*time.Second)))
				}
				require.Equal(s, "1", renew("a:5"))
				require.Greater(s, s.pttl(theKey).Milliseconds(), int64(50000))
				require.Equal(s, "a:5"+mark, s.do("GET", theKey))
				require.Equal(s, "1", s.runs(s.format().Holds(theKey, "a:5")))
				require.Contains(s, s.do("EVAL", sources()["inspect"], "1", theKey, "orders", "9"), "\na:5\n1\n")
				const another = "-1" // has it
				require.Equal(s, another, renew("a:6"))
				require.Equal(s, another, s.runs(s.format().Holds(theKey, "a:6")))
				require.Equal(s, "-2", s.releases("a:4", protocol.Release{}), "it is a later hold of the registry")
				for name, how := range map[string]protocol.Release{
					"usual": {}, "others wait": {Known: protocol.Direct}, "leads": {Leads: true},
				} {
					own("a:5")
					require.Equal(s, "1", s.releases("a:5", how), name)
					require.Empty(s, s.owner(), name)
					own("a:4")
					require.Equal(s, "0", s.releases("a:5", how), name)
					require.Empty(s, s.owner(), "a hold of before: %s", name)
				}
				for _, holder := range []string{"a:5", "a:5+", ""} {
					own("a:5")
					require.Equal(s, "a:5", s.do("EVAL", sources()["force_unlock"], "1", theKey, holder, "", "", "orders-channel"))
					require.Empty(s, s.owner())
				}
			})
		})
	}
}

// A call that finds the lock free when it looks serves those in front of it, one at a time, but for those whose process is gone.
// It takes the lock when nobody is in front.
func TestQueue_ALookServesThoseInFront(t *testing.T) {
	t.Parallel()
	for name, redisson := range map[string]bool{"Spring": false, "Redisson": true} {
		t.Run(name, func(t *testing.T) {
			realWorlds(t, func(w *world) {
				s := &scripted{w, redisson}
				first, second := w.attends(w.client(), "a"), w.attends(w.client(), "b")
				s.begins("", "c:1|60000", "a:1|60000", "a:2|60000", "b:3|60000", "b:4|60000")
				for _, number := range []string{"1", "2"} {
					require.Contains(s, s.obtains("b:3", protocol.ModeCheck), "queued")
					w.hears(first, "g "+number+" 1000 orders:42")
					require.Equal(s, "a:"+number, s.owner())
					s.do("DEL", theKey)
				}
				require.Equal(s, "(nil)", s.obtains("b:3", protocol.ModeCheck))
				w.hears(second, "n 4 60000 orders:42")
				require.Equal(s, "b:3", s.owner())
				require.Equal(s, "b:4|60000", s.queue())
				require.Empty(s, first)
				require.Empty(s, second)
			})
		})
	}
}

// A ticket of a form that is not known keeps its place, for two minutes: a newer version may serve it. It is a look that takes it
// out then, so that a process which is there has had the window of the release in front.
func TestQueue_ATicketOfANewerVersion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		strange string
		age     time.Duration
		ask     string
		mode    protocol.Mode
		goes    bool
	}{
		"new, to a look":       {"b:2|60000;x", 0, "b:3", protocol.ModeCheck, false},
		"young, to a look":     {"b:2|60000;x", 110 * time.Second, "b:3", protocol.ModeCheck, false},
		"old, to a look":       {"b:2|60000;x", 130 * time.Second, "b:3", protocol.ModeCheck, true},
		"old, of another kind": {"permits", 130 * time.Second, "b:3", protocol.ModeCheck, true},
		"old, to a newcomer":   {"b:2|60000;x", 130 * time.Second, "a:5", protocol.ModeEnqueue, true},
		"known, however old":   {"b:2|60000", time.Hour, "b:3", protocol.ModeCheck, false},
	} {
		t.Run(name, func(t *testing.T) {
			scriptedWorlds(t, func(s *scripted) {
				ages := func() {
					s.do("ZINCRBY", theQueue, strconv.FormatInt(-c.age.Microseconds(), 10), c.strange)
					s.do("ZADD", theQueue, "-1", "open") // it is long ago that the lock was free
				}
				s.begins("a:1", c.strange, "b:3|60000")
				ages()
				s.gives("a:1")
				if c.strange != "b:2|60000" {
					require.Equal(s, c.strange+" b:3|60000", s.queue(), "a release leaves it")
				}
				s.begins("", c.strange, "b:3|60000")
				ages()
				reply := s.obtains(c.ask, c.mode)
				stays := strings.Contains(s.queue(), c.strange)
				switch {
				case !c.goes && c.strange == "b:2|60000":
					require.Equal(s, "b:2", s.owner(), "it is served")
				case !c.goes:
					require.True(s, stays)
					require.Contains(s, reply, "queued")
					require.Empty(s, s.owner())
				default:
					require.False(s, stays)
					require.Equal(s, "b:3", s.owner())
				}
			})
		})
	}
}
