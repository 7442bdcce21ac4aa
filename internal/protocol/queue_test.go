package protocol

import (
	"context"
	"math"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// The tests in this file are about the queue in scripts: short ways, and the cases that they leave to the long ones; windows,
// traces and marks. Holds are of the registries a, b and c, of which a and b listen.

const (
	formatQueue   = "orders:{" + formatKey + "}:waiters"
	formatChannel = "orders-channel:" + formatKey
)

// onServers has the servers of a test, one of each kind. The parts of the test use them one after another.
func onServers(t *testing.T) scriptServers {
	t.Helper()
	t.Parallel()
	s := scriptServers{T: t}
	for _, binary := range redistest.Binaries(t) {
		s.all = append(s.all, redistest.StartBinary(t, binary))
	}
	return s
}

type scriptServers struct {
	*testing.T
	all []*redistest.Server
}

// both runs a part of the test with each layout, while the registries a and b listen.
func (on scriptServers) both(name string, test func(s *scripted)) {
	on.Helper()
	for layout, redisson := range map[string]bool{"Spring": false, "Redisson": true} {
		on.run(name+"/"+layout, redisson, func(s *scripted) {
			s.attends("a")
			s.attends("b")
			test(s)
		})
	}
}

// spring runs a part of the test with Spring's layout. Nobody listens.
func (on scriptServers) spring(name string, test func(s *scripted)) {
	on.Helper()
	on.run(name, false, test)
}

func (on scriptServers) run(name string, redisson bool, test func(s *scripted)) {
	on.Helper()
	for _, server := range on.all {
		on.Run(name+"/"+filepath.Base(server.Binary()), func(t *testing.T) {
			server.Command(t, "FLUSHALL")
			test(&scripted{t, server, server.Connect(t), redisson})
		})
	}
}

// scripted is a server that runs scripts with the arguments that registries would give.
type scripted struct {
	*testing.T
	server   *redistest.Server
	conn     *redistest.Connection
	redisson bool
}

func (s *scripted) do(args ...string) string { return s.conn.Command(args...) }

// attends makes a process listen for its grants.
func (s *scripted) attends(registry string) <-chan string {
	s.Helper()
	return s.listens("orders-channel@"+registry, false)
}

// attendsInSlot is attends for a registry on a cluster. It reports false on a server before 7, on which clusters have no queue.
func (s *scripted) attendsInSlot(registry string) bool {
	s.Helper()
	if !s.shardsChannels() {
		return false
	}
	s.listens("orders-channel@{"+formatKey+"}"+registry, true)
	return true
}

func (s *scripted) shardsChannels() bool {
	_, err := s.server.Do("PUBSUB", "SHARDNUMSUB")
	return err == nil
}

// listens subscribes to a channel, and returns the messages that come. The subscription ends with the test.
func (s *scripted) listens(channel string, sharded bool) <-chan string {
	s.Helper()
	return s.listensTo(s.server, channel, sharded)
}

func (s *scripted) listensTo(server *redistest.Server, channel string, sharded bool) <-chan string {
	s.Helper()
	client := connectTo(s.T, server)
	subscribe, counts := client.B().Subscribe().Channel(channel).Build(), "NUMSUB"
	if sharded {
		subscribe, counts = client.B().Ssubscribe().Channel(channel).Build(), "SHARDNUMSUB"
	}
	subscribed := func(n string) {
		s.Helper()
		require.True(s, redistest.Await(20*time.Second, func() bool {
			return strings.HasSuffix(strings.TrimRight(server.Command(s.T, "PUBSUB", counts, channel), "]\n"), n)
		}), channel)
	}
	heard, done := make(chan string, 64), make(chan struct{})
	ctx, end := context.WithCancel(s.Context())
	go func() {
		defer close(done)
		_ = client.Receive(ctx, subscribe, func(m rueidis.PubSubMessage) { heard <- m.Message })
	}()
	s.Cleanup(func() {
		end()
		<-done
		client.Close()
		subscribed("0")
	})
	subscribed("1")
	return heard
}

func (s *scripted) hears(heard <-chan string, want string) {
	s.Helper()
	select {
	case got := <-heard:
		require.Equal(s, want, got)
	case <-time.After(20 * time.Second):
		s.Fatal("nobody published ", want)
	}
}

// pttl returns how long a key lives; negative if there is no key.
func (s *scripted) pttl(key string) time.Duration {
	s.Helper()
	ms, err := strconv.Atoi(s.do("PTTL", key))
	require.NoError(s, err)
	return time.Duration(ms) * time.Millisecond
}

// begins gives the key to a hold, and puts tickets into the queue, in this order. With an empty value the key is free. Without
// tickets there is no queue; with an empty slice there is one in which no call waits any more. If there is a queue, a value of
// this library has the mark.
func (s *scripted) begins(value string, tickets ...string) {
	s.Helper()
	s.do("DEL", formatKey, formatQueue)
	switch {
	case value == "":
	case s.redisson:
		s.do("HSET", formatKey, value, "1")
	case tickets != nil && strings.Contains(value, ":"):
		s.do("SET", formatKey, value+"+")
	default:
		s.do("SET", formatKey, value)
	}
	if tickets != nil { // a moment after the newest window
		s.do(append([]string{"EVAL", `local time = redis.call('TIME')
			local now = time[1] * 1000 + math.floor(time[2] / 1000)
			redis.call('ZADD', KEYS[1], -now, 'open', -now, 'wide')
			for i, ticket in ipairs(ARGV) do redis.call('ZADD', KEYS[1], string.format('%.0f', now * 1000 + i), ticket) end`,
			"1", formatQueue}, tickets...)...)
	}
}

// single is the configuration of registries on a single server.
var single = Config{Prefix: "orders", Publishes: true, Remove: func() string { return "UNLINK" }}

// format returns the format of the layout.
func (s *scripted) format() *Format {
	if s.redisson {
		return NewRedisson(single)
	}
	return NewSpring(single)
}

// runs makes the server execute a call of this library.
func (s *scripted) runs(c Call) string {
	s.Helper()
	keys := c.Keys()
	return s.do(slices.Concat([]string{"EVAL", c.Script.Source, strconv.Itoa(len(keys))}, keys, c.given())...)
}

// releases has a hold released.
func (s *scripted) releases(value string, how Release) string {
	s.Helper()
	how.Key, how.Value, how.Queued = formatKey, value, true
	return s.runs(s.format().Release(how))
}

// obtains makes a hold ask for the lock, or ask something of its queue.
func (s *scripted) obtains(value string, mode Mode) string {
	s.Helper()
	return s.runs(s.format().Obtain(scriptRequest(value, Queueing{Mode: mode}), false))
}

func scriptRequest(value string, what Queueing) Request {
	return Request{Key: formatKey, Value: value, Lease: lease.NewTerm(time.Minute), Queueing: what}
}

// asks makes a hold ask for the lock, or for a ticket.
func (s *scripted) asks(value string) string {
	s.Helper()
	return s.runs(s.format().Obtain(scriptRequest(value, Queueing{Mode: ModeEnqueue, Short: true}), false))
}

// owner returns the value of the key, without the mark; empty when the key is free.
func (s *scripted) owner() string {
	s.Helper()
	if s.redisson {
		return s.do("HKEYS", formatKey)
	}
	return strings.TrimSuffix(strings.TrimSuffix(s.do("GET", formatKey), "(nil)"), "+")
}

// queue returns the tickets in the queue.
func (s *scripted) queue() string {
	s.Helper()
	return strings.Join(strings.Fields(s.do("ZRANGEBYSCORE", formatQueue, "0", "+inf")), " ")
}

func TestQueue_ShortRelease(t *testing.T) {
	on := onServers(t)
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
		"the key is a later hold's":    {"a:4", []string{"b:2|60000"}, "-1", "a:4", "b:2|60000"},
		"the key is gone":              {"", []string{"b:2|60000"}, "0", "", "b:2|60000"},
		"a process that is gone":       {"a:1", []string{"c:2|60000", "b:3|60000", "b:4|60000"}, "2", "b:3", "b:4|60000"},
		"for less time than a grant's": {"a:1", []string{"b:2|990"}, "2", "b:2", ""},
		"of a newer version":           {"a:1", []string{"b:2|60000;x", "b:3|60000"}, "2", "", "b:2|60000;x b:3|60000"},
	} {
		on.both(name, func(s *scripted) {
			s.begins(c.owner, c.tickets...)
			require.Equal(s, c.reply, s.releases("a:1", Release{}))
			require.Equal(s, c.after, s.owner())
			require.Equal(s, c.left, s.queue())
		})
	}
}

// A release takes the short way exactly if the long one would serve the first ticket and do nothing else: when a window is due,
// or when calls that have waited for long must be told that they are next, it takes the long one.
func TestQueue_ShortReleaseOnlyServes(t *testing.T) {
	const ms = 1 // ages are in milliseconds
	on := onServers(t)
	for name, c := range map[string]struct {
		open, wide, waits float64 // how long ago the newest windows were, and the first ticket came
		quiet             bool
		short             bool
	}{
		"no window is due":              {open: 10 * ms, wide: 1000 * ms, short: true},
		"a short one is nearly due":     {open: 99 * ms, wide: 1000 * ms, short: true},
		"a short one is due":            {open: 100 * ms, wide: 1000 * ms},
		"a window is open":              {open: -10 * ms, wide: 1000 * ms},
		"a long one is open":            {open: -90 * ms, wide: -90 * ms},
		"a long one is nearly due":      {open: 10 * ms, wide: 1699 * ms, short: true},
		"a long one is due":             {open: 10 * ms, wide: 1700 * ms},
		"quiet":                         {open: 10 * ms, wide: 14999 * ms, quiet: true, short: true},
		"quiet, a long one is due":      {open: 10 * ms, wide: 15000 * ms, quiet: true},
		"quiet, and somebody was seen":  {open: 10 * ms, wide: 1700.5 * ms, quiet: true},
		"quiet, and one was put off":    {open: 10 * ms, wide: 1700.25 * ms, quiet: true},
		"somebody was seen, not yet":    {open: 10 * ms, wide: 1000.5 * ms, short: true},
		"the clock went back":           {open: -1000 * ms, wide: -1000 * ms},
		"long windows are not counted":  {open: 10 * ms, wide: math.Inf(1), quiet: true},
		"the next one need not be told": {open: 10 * ms, wide: 1000 * ms, waits: 998 * ms, short: true},
		"the next one must be told":     {open: 10 * ms, wide: 1000 * ms, waits: 1001 * ms},
	} {
		on.both(name, func(s *scripted) {
			release := s.format().Release(Release{Key: formatKey, Value: "a:1", Queued: true, Quiet: c.quiet})
			whole := release.Script.Source
			short, _, _ := strings.Cut(whole, "--# release.lua, arguments\n")
			long := strings.Replace(whole, "if direct then", "if false then", 1)
			require.NotEqual(s, whole, long)
			outcome := func(script string) (reply, after string) {
				s.begins("a:1", "b:2|60000", "b:3|60000")
				now := s.newestWindow() // at which the script runs, however busy the machine is
				s.do("ZINCRBY", formatQueue, strconv.FormatFloat(c.open, 'f', -1, 64), "open")
				if math.IsInf(c.wide, 1) {
					s.do("ZADD", formatQueue, "-1", "wide")
				} else {
					s.do("ZINCRBY", formatQueue, strconv.FormatFloat(c.wide, 'f', -1, 64), "wide")
				}
				for _, ticket := range []string{"b:2|60000", "b:3|60000"} {
					s.do("ZINCRBY", formatQueue, strconv.FormatFloat(-c.waits*1000, 'f', -1, 64), ticket)
				}
				release.Script = scriptAt(now, script)
				reply = s.runs(release)
				return reply, s.owner() + ", " + s.queue() + ", " + strconv.FormatBool(s.newestWindow() > now) // of one length
			}
			reply, after := outcome(short + "return 0")
			require.Equal(s, c.short, reply == "2")
			if c.short {
				require.Equal(s, "b:2, b:3|60000, false", after)
			} else {
				require.Equal(s, "a:1, b:2|60000 b:3|60000", after[:strings.LastIndex(after, ",")], "it has changed nothing")
			}
			wantReply, want := outcome(long)
			reply, after = outcome(whole)
			require.Equal(s, wantReply, reply)
			require.Equal(s, want, after)
		})
	}
}

// newestWindow is when the newest window ends, or has ended: a time of the server in milliseconds.
func (s *scripted) newestWindow() string {
	s.Helper()
	return strings.TrimPrefix(s.do("ZSCORE", formatQueue, "open"), "-")
}

// scriptAt is a script for which it is a time in milliseconds whenever it runs.
func scriptAt(now, source string) *Script {
	at := regexp.MustCompile(`redis\.p?call\('TIME'\)`)
	return NewScript(at.ReplaceAllString(source, "{'"+now[:len(now)-3]+"', '"+now[len(now)-3:]+"000'}"))
}

// A short release returns the same replies as a long one.
func TestQueue_ShortReleaseTells(t *testing.T) {
	onServers(t).both("one", func(s *scripted) {
		heard := s.attends("d")
		s.begins("a:1", "d:2|60000")
		require.Equal(s, "2", s.releases("a:1", Release{}))
		require.Equal(s, "g 2 1000 "+formatKey, <-heard)
		if !s.redisson {
			require.Equal(s, "d:2+", s.do("GET", formatKey), "with the mark, so that its release looks for the queue")
		}
		require.LessOrEqual(s, s.pttl(formatKey).Milliseconds(), int64(1000))
	})
}

// On a cluster the message of a grant is published in the slot of the key: by the key's hash tag, if it has one.
func TestQueue_ShortReleaseTellsInTheSlotOfTheKey(t *testing.T) {
	onServers(t).spring("one", func(s *scripted) {
		if !s.shardsChannels() {
			return // a server before 7, on which clusters have no queue
		}
		for key, tag := range map[string]string{"orders:{7}:x": "{7}", "orders:7": "{orders:7}"} {
			queue, channel := "orders:{"+key+"}:waiters", "orders-channel@"+tag+"d"
			if tag != "{"+key+"}" {
				queue = key + ":waiters"
			}
			heard := s.listens(channel, true)
			s.do("SET", key, "a:1+")
			now := strconv.FormatInt(time.Now().UnixMilli(), 10)
			s.do("ZADD", queue, "-"+now, "open", "-"+now, "wide", now+"000", "d:2|60000")
			clustered := single
			clustered.Cluster = true
			release := Release{Key: key, Value: "a:1", Queued: true, Quiet: true}
			require.Equal(s, "2", s.runs(NewSpring(clustered).Release(release)))
			require.Equal(s, "g 2 1000 "+key, <-heard)
		}
	})
}

// A process that listens to a replica, or to a former master, also gets messages. So no message is published for a ticket that is
// granted nothing.
func TestQueue_NobodyHearsOfAGrantThatIsNotHis(t *testing.T) {
	onServers(t).spring("one", func(s *scripted) {
		host, port, err := net.SplitHostPort(s.server.Addr())
		require.NoError(s, err)
		s.do("CONFIG", "SET", "repl-diskless-sync-delay", "0")
		replica := redistest.StartBinary(s, s.server.Binary(), "--replicaof", host, port)
		for _, key := range []string{"first", "second"} { // the first may come with the snapshot, before the stream of commands
			s.do("SET", key, "1")
			require.True(s, redistest.Await(20*time.Second, func() bool { return replica.Command(s, "GET", key) == "1" }))
		}
		heard := s.listensTo(replica, "orders-channel@c", false)
		for _, s.redisson = range []bool{false, true} {
			for _, how := range []Release{{}, {Quiet: true}, {Leads: true}} {
				s.begins("a:1", "c:2|60000")
				require.Equal(s, "1", s.releases("a:1", how))
				s.do("PUBLISH", "orders-channel@c", "the end")
				require.Equal(s, "the end", <-heard)
			}
		}
	})
}

func TestQueue_ShortAsk(t *testing.T) {
	on := onServers(t)
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
		on.both(name, func(s *scripted) {
			s.begins(c.owner, c.tickets...)
			reply := strings.Fields(s.asks("a:5"))
			if i := slices.IndexFunc(reply, func(word string) bool { return len(word) == 16 }); i >= 0 {
				reply[i] = "PLACE"
			}
			require.Equal(s, c.reply, strings.Join(reply, " "))
			require.Equal(s, c.after, s.owner())
			require.Equal(s, c.left, s.queue())
		})
	}
}

// The place is the server's time in microseconds, also at the beginning of a second, when these have few digits.
func TestQueue_ShortAskTellsThePlace(t *testing.T) {
	onServers(t).both("one", func(s *scripted) {
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

// If the queue is gone, a new one begins, with all its members.
func TestQueue_ShortAskBeginsAQueue(t *testing.T) {
	onServers(t).both("one", func(s *scripted) {
		s.begins("b:1", []string{}...)
		s.do("DEL", formatQueue)
		s.asks("a:5")
		require.Len(s, strings.Fields(s.do("ZRANGE", formatQueue, "0", "-1")), 3)
		require.Positive(s, s.pttl(formatQueue))
	})
}

// While a window is open, a free lock is left to calls without a ticket, even if no call waits in the queue: the next goroutine
// of the process that has opened the window comes at once.
func TestQueue_ShortAskInAWindow(t *testing.T) {
	onServers(t).both("one", func(s *scripted) {
		s.begins("")
		for _, window := range []string{"open", "wide"} {
			var reply string
			for took := time.Hour; took > 90*time.Millisecond; { // else the window may be over
				s.do("DEL", formatKey, formatQueue)
				start := time.Now()
				s.do("EVAL", `local time = redis.call('TIME')
					local now = time[1] * 1000 + math.floor(time[2] / 1000)
					local ends = -(now + 100)
					redis.call('ZADD', KEYS[1], ends, 'open', ARGV[1] == 'wide' and ends or -now, 'wide')`, "1", formatQueue, window)
				reply = s.asks("a:5")
				took = time.Since(start)
			}
			require.Contains(s, reply, "queued")
			require.Empty(s, s.owner())
			s.do("DEL", formatQueue)
		}
	})
}

// When the server's clock goes back, a ticket still comes last.
func TestQueue_ShortAskWhenTheClockGoesBack(t *testing.T) {
	onServers(t).both("one", func(s *scripted) {
		s.begins("b:1", "b:2|60000")
		const later = 4_000_000_000_000_000
		s.do("ZADD", formatQueue, strconv.FormatInt(later, 10), "b:3|60000")
		require.Contains(s, s.asks("a:5"), strconv.FormatInt(later+1, 10))
		require.Equal(s, "b:2|60000 b:3|60000 a:5|60000", s.queue())
	})
}

// A window that ends in an hour was opened before the server's clock was set back: the queue goes on, and there are windows as
// before.
func TestQueue_WindowsWhenTheClockGoesBack(t *testing.T) {
	onServers(t).both("one", func(s *scripted) {
		later := func() {
			s.do("EVAL", `local time = redis.call('TIME')
				local ends = -(time[1] * 1000 + 3600000)
				return redis.call('ZADD', KEYS[1], 'XX', ends, 'open', ends, 'wide')`, "1", formatQueue)
		}
		s.begins("", "b:2|60000")
		later()
		require.Contains(s, s.asks("a:5"), "queued")
		require.Equal(s, "b:2", s.owner())

		s.begins("a:1", "b:2|60000")
		later()
		require.Equal(s, "2", s.releases("a:1", Release{}))
		require.Equal(s, "b:2", s.owner())
		now := s.do("TIME")
		for _, window := range []string{"open", "wide"} {
			ends, err := strconv.ParseInt(s.do("ZSCORE", formatQueue, window), 10, 64)
			require.NoError(s, err)
			seconds, err := strconv.ParseInt(strings.Fields(now)[0], 10, 64)
			require.NoError(s, err)
			require.LessOrEqual(s, -ends/1000, seconds+1)
		}
	})
}

// A long window is due when tickets have kept the lock from others for 1.7 s, however long each hold was; for 15 s if it is quiet
// and no call without a ticket was seen. It is put off once if no call had waited for a second when the first ticket came.
func TestQueue_LongWindow(t *testing.T) {
	on := onServers(t)
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
		on.both(name, func(s *scripted) {
			s.begins("a:1", "b:2|60000")
			now := s.newestWindow()
			add := func(member string, d float64) {
				s.do("ZINCRBY", formatQueue, strconv.FormatFloat(d, 'f', -1, 64), member)
			}
			add("wide", float64(c.wide.Milliseconds())-c.since)
			add("open", float64(c.open.Milliseconds()))
			add("b:2|60000", -float64(c.waits.Microseconds()))
			owner := "b:2"
			if c.waits < 0 {
				s.do("ZREM", formatQueue, "b:2|60000")
			}
			if c.window || c.waits < 0 {
				owner = ""
			}
			release := s.format().Release(Release{Key: formatKey, Value: "a:1", Queued: true, Yields: c.waits < 0, Quiet: c.quiet})
			release.Script = scriptAt(now, release.Script.Source)
			s.runs(release)
			require.Equal(s, owner, s.owner())
			require.Equal(s, c.window, s.newestWindow() > now) // of one length
			wide, err := strconv.ParseFloat(s.do("ZSCORE", formatQueue, "wide"), 64)
			require.NoError(s, err)
			require.InDelta(s, c.after, math.Mod(-wide, 1), 0)
		})
	}
}

// If it is quiet, there are no short windows, unless a call listens for releases.
func TestQueue_ShortWindow(t *testing.T) {
	on := onServers(t)
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
		on.spring(name, func(s *scripted) {
			format := single
			if format.Cluster = c.cluster; !c.cluster {
				s.attends("b")
			} else if !s.attendsInSlot("b") {
				return
			}
			if c.heard {
				s.listens(formatChannel, false)
			}
			s.begins("a:1", "b:2|60000")
			s.do("ZINCRBY", formatQueue, "200", "open")
			if c.seen {
				s.do("ZINCRBY", formatQueue, "-0.5", "wide")
			}
			s.do("PEXPIRE", formatQueue, "5000")
			s.runs(NewSpring(format).Release(Release{Key: formatKey, Value: "a:1", Queued: true, Quiet: c.quiet}))
			require.Equal(s, c.window, s.owner() == "")
			require.Greater(s, s.pttl(formatQueue), time.Minute, "a queue in which calls wait briefly lives as long as they come")
		})
	}
}

// The process of the first ticket gets a message about a window. The process of the second one is told to look later than any
// window lasts, so it does not take that message for a window.
func TestQueue_OneTicketIsToldOfAWindow(t *testing.T) {
	onServers(t).spring("one", func(s *scripted) {
		first, second := s.attends("a"), s.attends("b")
		s.listens(formatChannel, false)
		s.begins("c:1", "a:2|60000", "b:3|60000")
		s.do("ZINCRBY", formatQueue, "200", "open")
		require.Equal(s, "2", s.releases("c:1", Release{}))
		require.Empty(s, s.owner())
		s.hears(first, "n 2 10 orders:42")
		s.hears(second, "n 3 120 orders:42")
	})
}

// A call that waits without a ticket leaves a trace, which releases see. So does a holder of another form, when a call with a
// ticket looks. Versions that do not know traces read the same time.
func TestQueue_Traces(t *testing.T) {
	on := onServers(t)
	const held, other = "b:1795278371204117", "a:1795278371204118"
	for name, c := range map[string]struct {
		owner string
		asks  func(s *scripted)
		trace bool
	}{
		"waits without a ticket":      {held, func(s *scripted) { s.obtains(other, ModePoll) }, true},
		"does not wait":               {held, func(s *scripted) { s.obtains(other, ModeNone) }, false},
		"finds the lock free":         {"", func(s *scripted) { s.obtains(other, ModePoll) }, false},
		"has a ticket":                {held, func(s *scripted) { s.obtains(other, ModeEnqueue) }, false},
		"has a ticket, behind others": {held, func(s *scripted) { s.asks(other) }, false},
		"looks":                       {held, func(s *scripted) { s.obtains(other, ModeCheck) }, false},
		"a path that stays taken":     {held + ":atleast", func(s *scripted) { s.obtains(other, ModeCheck) }, false},
		"has a ticket, behind Java":   {"4d3c8a52-96c1", func(s *scripted) { s.obtains(other, ModeEnqueue) }, true},
		"looks, behind Java":          {"4d3c8a52-96c1", func(s *scripted) { s.obtains(other, ModeCheck) }, true},
	} {
		on.spring(name, func(s *scripted) {
			s.begins(c.owner, "b:2|60000", other+"|60000")
			before := s.do("ZSCORE", formatQueue, "wide")
			c.asks(s)
			c.asks(s)
			after := s.do("ZSCORE", formatQueue, "wide")
			if c.trace {
				before += ".5"
			}
			require.Equal(s, before, after)

			s.do("DEL", formatQueue)
			s.obtains(other, ModePoll)
			require.Equal(s, "0", s.do("EXISTS", formatQueue), "a trace begins no queue")
		})
	}
}

// The same is true with readers and writers.
func TestQueue_LongWindowOfAReadWriteLock(t *testing.T) {
	on := onServers(t)
	for side, holder := range map[string][]string{
		"reader": {"mode", "read", "a:1", "1"},
		"writer": {"mode", "write", "a:1:write", "1"},
	} {
		for came, owner := range map[time.Duration]string{4990 * time.Millisecond: "", 100 * time.Millisecond: "b:2:write"} {
			on.spring(side+" "+came.String(), func(s *scripted) {
				s.attends("b")
				s.do(append([]string{"HSET", formatKey}, holder...)...)
				s.do("EVAL", `local time = redis.call('TIME')
					local past = time[1] * 1000 + math.floor(time[2] / 1000) - 5000
					redis.call('ZADD', KEYS[1], -past, 'open', -past, 'wide',
						string.format('%.0f', (past + 5000 - ARGV[1]) * 1000), 'b:2|60000w')`,
					"1", formatQueue, strconv.FormatInt(came.Milliseconds(), 10))
				format := NewRead(single)
				if side == "writer" {
					format = NewWrite(single)
				}
				s.runs(format.Release(Release{Key: formatKey, Value: "a:1", Queued: true}))
				fields := strings.Fields(strings.Trim(s.do("HKEYS", formatKey), "[]"))
				require.Equal(s, owner, strings.Join(slices.DeleteFunc(fields, func(f string) bool { return f == "mode" }), " "))
			})
		}
	}
}

func TestQueue_ShortReleaseOfOneThatNobodyWaitsFor(t *testing.T) {
	on := onServers(t)
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
		on.spring(name, func(s *scripted) {
			s.attends("b")
			s.begins(c.owner, c.tickets...)
			require.Equal(s, c.reply, s.releases("a:1", Release{}))
			require.Equal(s, c.after, s.owner())
		})
	}
}

// If the user may no longer ask for the time, there is no queue, which is not an error.
func TestQueue_ShortAskWithoutPermission(t *testing.T) {
	onServers(t).both("one", func(s *scripted) {
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

// Only the first two calls watch the key of a holder that does not know the queue. So each call is told how many are in front.
func TestQueue_ShortAskBehindAForeignHolder(t *testing.T) {
	onServers(t).spring("one", func(s *scripted) {
		s.begins("java", "b:2|60000", "b:3|60000", "b:4|60000")
		reply := strings.Fields(s.asks("a:5"))
		require.Len(s, reply, 5)
		require.Equal(s, []string{"queued", "-1", "3"}, reply[:3])
		require.Equal(s, "1", reply[4])
	})
}

// several makes a hold ask for the lock as one of several.
func (s *scripted) several(value string) {
	s.runs(s.format().ObtainAll([]Request{scriptRequest(value, Queueing{})}))
}

// Once others wait, the value of the holder has a mark, whichever script they run. Values of Java, and of old versions, which
// count their holds from 1, stay as they are.
func TestQueue_Mark(t *testing.T) {
	on := onServers(t)
	const held, ours, theirs = "b:1795278371204117", "a:1795278371204118", "a:1795278371204119"
	for name, c := range map[string]struct {
		owner, after string
		asks         func(s *scripted)
	}{
		"a ticket":                {held, held + "+", func(s *scripted) { s.obtains(ours, ModeEnqueue) }},
		"a short one":             {held, held + "+", func(s *scripted) { s.asks(ours) }},
		"a look":                  {held, held + "+", func(s *scripted) { s.obtains(ours, ModeCheck) }},
		"a late look":             {held, held, func(s *scripted) { s.obtains(theirs, ModeCheck) }},
		"one more":                {held + "+", held + "+", func(s *scripted) { s.asks(ours) }},
		"a try":                   {held, held, func(s *scripted) { s.obtains(ours, ModeNone) }},
		"Java":                    {"4d3c8a52-96c1", "4d3c8a52-96c1", func(s *scripted) { s.asks(ours) }},
		"an old version":          {"b:17", "b:17", func(s *scripted) { s.asks(ours) }},
		"a path that stays taken": {held + ":atleast", held + ":atleast", func(s *scripted) { s.asks(ours) }},
		"the lock was free":       {"", ours + "+", func(s *scripted) { s.asks(ours) }},
		"a hold of before":        {ours, theirs, func(s *scripted) { s.obtains(theirs, ModeNone) }},
		"one with a mark":         {ours + "+", theirs + "+", func(s *scripted) { s.obtains(theirs, ModeNone) }},
		"several locks":           {held + "+", held + "+", func(s *scripted) { s.several(ours) }},
		"several, one of before":  {ours + "+", theirs + "+", func(s *scripted) { s.several(theirs) }},
	} {
		on.spring(name, func(s *scripted) {
			if c.owner != "" {
				s.do("SET", formatKey, c.owner, "PX", "50000")
			}
			s.do("ZADD", formatQueue, "-1", "open", "-1", "wide", "7", ours+"|60000")
			c.asks(s)
			require.Equal(s, c.after, s.do("GET", formatKey))
			require.Positive(s, s.pttl(formatKey))
			if strings.TrimSuffix(c.after, "+") == c.owner {
				require.LessOrEqual(s, s.pttl(formatKey).Milliseconds(), int64(50000))
			}
		})
	}
}

// A mark changes nothing else about a hold.
func TestQueue_AMarkChangesNothingElse(t *testing.T) {
	on := onServers(t)
	for _, mark := range []string{"", "+"} {
		on.spring("mark "+mark, func(s *scripted) {
			own := func(value string) { s.do("SET", formatKey, value+mark, "PX", "50000") }
			own("a:5")
			renew := func(value string) string {
				return s.runs(s.format().Renew(formatKey, value, lease.NewTerm(70*time.Second)))
			}
			require.Equal(s, "1", renew("a:5"))
			require.Greater(s, s.pttl(formatKey).Milliseconds(), int64(50000))
			require.Equal(s, "a:5"+mark, s.do("GET", formatKey))
			require.Equal(s, "1", s.runs(s.format().Holds(formatKey, "a:5")))
			require.Contains(s, s.do("EVAL", Load("inspect").Source, "1", formatKey, "orders", "9"), "\na:5\n1\n")
			const another = "-1" // has it
			require.Equal(s, another, renew("a:6"))
			require.Equal(s, another, s.runs(s.format().Holds(formatKey, "a:6")))
			require.Equal(s, "-1", s.releases("a:4", Release{}), "it is a later hold of the registry")
			for name, how := range map[string]Release{
				"usual": {}, "others wait": {Quiet: true}, "leads": {Leads: true},
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
				require.Equal(s, "a:5", s.do("EVAL", forceUnlock(s).Source, "1", formatKey, holder, "", "", "orders-channel"))
				require.Empty(s, s.owner())
			}
		})
	}
}

// forceUnlock is the script of package operator, which knows this one.
func forceUnlock(s *scripted) *Script {
	source, err := os.ReadFile("operator/force_unlock.lua")
	require.NoError(s, err)
	files["force_unlock"] = split(string(source))
	return (&Description{}).operation("force_unlock")
}

// A call that finds the lock free when it looks serves the tickets in front of it, one at a time, except those of dead processes.
// It takes the lock when no ticket is in front.
func TestQueue_ALookServesThoseInFront(t *testing.T) {
	on := onServers(t)
	for name, redisson := range map[string]bool{"Spring": false, "Redisson": true} {
		on.run(name, redisson, func(s *scripted) {
			first, second := s.attends("a"), s.attends("b")
			s.begins("", "c:1|60000", "a:1|60000", "a:2|60000", "b:3|60000", "b:4|60000")
			for _, number := range []string{"1", "2"} {
				require.Contains(s, s.obtains("b:3", ModeCheck), "queued")
				s.hears(first, "g "+number+" 1000 orders:42")
				require.Equal(s, "a:"+number, s.owner())
				s.do("DEL", formatKey)
			}
			require.Equal(s, "(nil)", s.obtains("b:3", ModeCheck))
			s.hears(second, "n 4 60000 orders:42")
			require.Equal(s, "b:3", s.owner())
			require.Equal(s, "b:4|60000", s.queue())
			require.Empty(s, first)
			require.Empty(s, second)
		})
	}
}

// A look that comes after its call has left finds no ticket, and takes nothing from an older hold of its registry: nobody would
// remove what it takes. With its ticket it does.
func TestQueue_ALateLook(t *testing.T) {
	on := onServers(t)
	on.both("lock", func(s *scripted) {
		s.begins("a:1", "a:3|60000")
		require.Equal(s, "missing", s.obtains("a:2", ModeCheck))
		require.Equal(s, "a:1", s.owner())
		require.Equal(s, "(nil)", s.obtains("a:3", ModeCheck))
		require.Equal(s, "a:3", s.owner())
		require.Empty(s, s.queue())
		require.Equal(s, "(nil)", s.obtains("a:4", ModeEnqueue), "a call that asks anew does")
	})
	on.run("writer", false, func(s *scripted) {
		s.attends("a")
		f := NewWrite(single)
		const older, newer, other = "a:1", "a:2", "b:3"
		asks := func(value string, mode Mode) Request {
			return Request{Key: formatKey, Value: value, Side: "w", Lease: lease.NewTerm(time.Minute), Queueing: Queueing{Mode: mode}}
		}
		leaves := func(value string) Release {
			return Release{Key: formatKey, Value: value, Queued: true, Leaving: []string{asks(value, ModeEnqueue).Ticket()}}
		}
		require.Equal(s, "(nil)", s.runs(f.Obtain(asks(other, ModeTry), false)))
		require.Contains(s, s.runs(f.Obtain(asks(newer, ModeEnqueue), false)), "queued")
		s.runs(f.Release(leaves(newer)))
		s.runs(f.Release(Release{Key: formatKey, Value: other, Queued: true}))
		require.Equal(s, "(nil)", s.runs(f.Obtain(asks(older, ModeEnqueue), false)), "it comes late")
		require.Equal(s, "missing", s.runs(f.Obtain(asks(newer, ModeCheck), false)))
		s.runs(f.Release(leaves(older)))
		require.Equal(s, "0", s.do("EXISTS", formatKey))
	})
}

// A ticket of an unknown form keeps its place for two minutes: a newer version may serve it. Then a look removes it, not a
// release, so that a running process has had the window of the release in front.
func TestQueue_ATicketOfANewerVersion(t *testing.T) {
	on := onServers(t)
	for name, c := range map[string]struct {
		strange string
		age     time.Duration
		ask     string
		mode    Mode
		goes    bool
	}{
		"new, to a look":       {"b:2|60000;x", 0, "b:3", ModeCheck, false},
		"young, to a look":     {"b:2|60000;x", 110 * time.Second, "b:3", ModeCheck, false},
		"old, to a look":       {"b:2|60000;x", 130 * time.Second, "b:3", ModeCheck, true},
		"old, of another kind": {"permits", 130 * time.Second, "b:3", ModeCheck, true},
		"old, to a newcomer":   {"b:2|60000;x", 130 * time.Second, "a:5", ModeEnqueue, true},
		"known, however old":   {"b:2|60000", time.Hour, "b:3", ModeCheck, false},
	} {
		on.both(name, func(s *scripted) {
			ages := func() {
				s.do("ZINCRBY", formatQueue, strconv.FormatInt(-c.age.Microseconds(), 10), c.strange)
				s.do("ZADD", formatQueue, "-1", "open") // it is long ago that the lock was free
			}
			s.begins("a:1", c.strange, "b:3|60000")
			ages()
			s.releases("a:1", Release{})
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
	}
}
