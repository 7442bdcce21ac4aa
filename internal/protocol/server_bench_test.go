package protocol

import (
	"context"
	"fmt"
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

// BenchmarkServer measures how long the server takes for each script, and how many bytes it is sent. scripts/bench-scripts.sh
// runs it beside that of another version. The metric "server-µs/op" is the median of small batches, so that other work on the
// machine hardly shows.
func BenchmarkServer(b *testing.B) {
	bench := newServerBench(b)
	for _, f := range benchFormats() {
		for name, c := range bench.cases(f) {
			b.Run(f.name+"/"+name, func(b *testing.B) { bench.run(b, c) })
		}
	}
}

const (
	benchKey    = "orders:42"
	benchQueue  = "orders:{orders:42}:waiters"
	benchBatch  = 100
	benchHolder = "00000000-0000-4000-8000-000000000001:"
	benchOther  = "00000000-0000-4000-8000-000000000002:"
	benchFirst  = 1795278371204117
)

type benchFormat struct {
	name string
	*Format
	side  string
	plain bool
	hold  func(value string) [][]string // commands that make a hold the owner of the key
	await func(value string) [][]string // the same, of one that others wait for
}

func benchFormats() []benchFormat {
	c := Config{Prefix: "orders", Publishes: true, Remove: func() string { return "UNLINK" }}
	set := func(mark string) func(value string) [][]string {
		return func(value string) [][]string { return [][]string{{"SET", benchKey, value + mark, "PX", "60000"}} }
	}
	hash := func(fields ...string) func(value string) [][]string {
		return func(value string) [][]string {
			all := [][]string{{"DEL", benchKey}, slices.Concat([]string{"HSET", benchKey}, fields), {"PEXPIRE", benchKey, "60000"}}
			for i := range all[1] {
				all[1][i] = strings.ReplaceAll(all[1][i], "VALUE", value)
			}
			return all
		}
	}
	read := func(value string) [][]string {
		lease := []string{"SET", "{orders:42}:" + value + ":rwlock_timeout:1", "1", "PX", "60000"}
		return append(hash("mode", "read", "VALUE", "1")(value), lease)
	}
	permit := func(value string) [][]string {
		ends := strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10)
		return [][]string{{"DEL", benchKey}, {"ZADD", benchKey, "-1", "permits", ends, value}, {"PEXPIRE", benchKey, "60000"}}
	}
	plain, write := hash("VALUE", "1"), hash("mode", "write", "VALUE:write", "1")
	return []benchFormat{
		{"spring", NewSpring(c), "", true, set(""), set("+")},
		{"redisson", NewRedisson(c), "", true, plain, plain},
		{"read", NewRead(c), "r", false, read, read},
		{"write", NewWrite(c), "w", false, write, write},
		{"permits", NewPermits(c, 1, 1), "p1", false, permit, permit},
	}
}

// benchCase is a call of a script, for a hold with the k-th number, and the commands before it.
type benchCase struct {
	begin func() [][]string
	reset func(k int) [][]string
	call  func(k int) Call
	reply string // of each call
}

func value(k int) string { return benchHolder + strconv.FormatInt(benchFirst+int64(k), 10) }

// waitsFor returns tickets of so many holds, from the k-th on, that came now, in a queue whose newest window was a moment ago.
func waitsFor(k, tickets int, side string) (commands [][]string) {
	now := time.Now()
	ended := strconv.FormatInt(-now.UnixMilli(), 10)
	command := []string{"ZADD", benchQueue, ended, "open", ended, "wide"}
	for i := range tickets {
		command = append(command, strconv.FormatInt(now.UnixMicro()+int64(i), 10), value(k+i)+"|60000"+side)
	}
	return [][]string{{"DEL", benchQueue}, command}
}

func (s *serverBench) cases(f benchFormat) map[string]benchCase {
	gone := [][]string{{"DEL", benchKey, benchQueue}}
	none := func(int) [][]string { return nil }
	other := benchOther + strconv.FormatInt(benchFirst, 10)
	request := func(k int, q Queueing) Request {
		return Request{Key: benchKey, Value: value(k), Lease: lease.NewTerm(time.Minute), Side: f.side, Queueing: q}
	}
	writing := f // what is in the way of a reader
	if f.side == "r" {
		writing = benchFormats()[3]
	}
	cases := map[string]benchCase{
		"obtain alone": {
			reset: func(int) [][]string { return gone },
			call:  func(k int) Call { return f.Obtain(request(k, Queueing{}), false) },
			reply: "<nil>",
		},
		"obtain, taken": {
			begin: func() [][]string { return append(gone, writing.hold(other)...) }, reset: none,
			call: func(k int) Call { return f.Obtain(request(k, Queueing{}), false) },
		},
		"release alone": {
			reset: func(k int) [][]string { return append(gone, f.hold(value(k))...) },
			call: func(k int) Call {
				return f.Release(Release{Key: benchKey, Value: value(k), Queued: true})
			},
			reply: "1",
		},
		"renew": {
			begin: func() [][]string { return f.hold(value(0)) }, reset: none,
			call:  func(int) Call { return f.Renew(benchKey, value(0), lease.NewTerm(time.Minute)) },
			reply: "1",
		},
		"enqueue": {
			begin: func() [][]string { return append(writing.await(other), waitsFor(0, 100, f.side)...) }, reset: none,
			call: func(k int) Call { return f.Obtain(request(200+k, Queueing{Mode: ModeEnqueue}), false) },
		},
		"look": {
			begin: func() [][]string { return append(writing.await(other), waitsFor(0, 200, f.side)...) }, reset: none,
			call: func(k int) Call { return f.Obtain(request(k, Queueing{Mode: ModeCheck}), false) },
		},
	}
	if f.Many() { // the number of permits is there
		cases["obtain again"] = benchCase{
			begin: func() [][]string {
				return append(gone, []string{"ZADD", benchKey, "-1", "permits"}, []string{"PEXPIRE", benchKey, "60000"})
			},
			reset: func(k int) [][]string { return [][]string{{"ZREM", benchKey, value(k - 1)}} },
			call:  func(k int) Call { return f.Obtain(request(k, Queueing{Mode: ModeTry}), false) },
			reply: "<nil>",
		}
	}
	if f.plain {
		three := []string{benchKey, "orders:43", "orders:44"}
		cases["obtain three"] = benchCase{
			reset: func(int) [][]string { return [][]string{append([]string{"DEL"}, three...)} },
			call: func(k int) Call {
				return f.ObtainAll([]Request{
					{Key: three[0], Value: value(k), Lease: lease.NewTerm(time.Minute)},
					{Key: three[1], Value: value(k), Lease: lease.NewTerm(time.Minute)},
					{Key: three[2], Value: value(k), Lease: lease.NewTerm(time.Minute)},
				})
			},
			reply: "[0 0 0]",
		}
		cases["release three"] = benchCase{
			reset: func(k int) (commands [][]string) {
				for _, key := range three {
					for _, command := range f.hold(value(k)) {
						commands = append(commands, strings.Split(strings.Replace(strings.Join(command, "\n"), benchKey, key, 1), "\n"))
					}
				}
				return commands
			},
			call: func(k int) Call {
				return f.ReleaseAll([]Release{
					{Key: three[0], Value: value(k), Queued: true}, {Key: three[1], Value: value(k), Queued: true},
					{Key: three[2], Value: value(k), Queued: true},
				})
			},
			reply: "[1 1 1]",
		}
		cases["enqueue, fast"] = benchCase{
			begin: func() [][]string { return append(f.await(other), waitsFor(0, 100, "")...) }, reset: none,
			call: func(k int) Call { return f.Obtain(request(200+k, Queueing{Mode: ModeEnqueue, Short: true}), false) },
		}
	}
	for _, tickets := range []int{1, 100, 10_000} {
		waiting := f.side
		if f.side == "r" {
			waiting = "w" // of readers, all would be granted at once
		}
		release := func(how Release) benchCase {
			how.Key, how.Queued = benchKey, true
			return benchCase{
				begin: func() [][]string { return append(f.await(value(0)), waitsFor(1, tickets, waiting)...) },
				reset: func(k int) [][]string {
					last := strconv.FormatInt(time.Now().UnixMicro()+int64(tickets), 10)
					next := [][]string{{"ZADD", benchQueue, last, value(k+tickets) + "|60000" + waiting}}
					if f.side == "r" || k == 0 {
						next = append(next, f.await(value(k))...)
					}
					return next
				},
				call: func(k int) Call {
					how := how
					how.Value = value(k)
					return f.Release(how)
				},
				reply: "2",
			}
		}
		cases[fmt.Sprintf("release, %d tickets", tickets)] = release(Release{Leads: f.plain})
		if f.plain {
			cases[fmt.Sprintf("release directly, %d tickets", tickets)] = release(Release{})
		}
	}
	return cases
}

type serverBench struct {
	client rueidis.Client
}

func newServerBench(b *testing.B) *serverBench {
	b.Helper()
	server := redistest.Start(b)
	connect := func() rueidis.Client {
		client, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{server.Addr()}, ForceSingleClient: true, DisableCache: true,
		})
		require.NoError(b, err)
		b.Cleanup(client.Close)
		return client
	}
	s := &serverBench{client: connect()}
	listener := connect()
	channel := "orders-channel@" + strings.TrimSuffix(benchHolder, ":")
	go func() {
		_ = listener.Receive(b.Context(), listener.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {})
	}()
	for {
		counts, err := s.client.Do(b.Context(), s.client.B().Arbitrary("PUBSUB", "NUMSUB", channel).Build()).ToArray()
		require.NoError(b, err)
		if n, err := counts[1].AsInt64(); err == nil && n > 0 {
			return s
		}
	}
}

func (s *serverBench) run(b *testing.B, c benchCase) {
	b.Helper()
	var times []float64
	sent := 0
	for k := 0; k < b.N; k += benchBatch {
		if c.begin != nil {
			s.all(b, c.begin())
		}
		probe := c.call(0)
		require.NoError(b, s.client.Do(b.Context(), s.client.B().ScriptLoad().Script(probe.Script.Source).Build()).Error())
		before := s.spent(b)
		var commands rueidis.Commands
		scripts := map[int]bool{}
		for k := range benchBatch {
			for _, reset := range c.reset(k) {
				commands = append(commands, s.client.B().Arbitrary(reset...).Build())
			}
			call := c.call(k)
			command := call.Command(s.client.B(), false)
			sent = size(command.Commands())
			scripts[len(commands)] = true
			commands = append(commands, command)
		}
		for i, result := range s.client.DoMulti(b.Context(), commands...) {
			reply, err := result.ToAny()
			if !rueidis.IsRedisNil(err) {
				require.NoError(b, err)
			}
			if scripts[i] && c.reply != "" {
				require.Equal(b, c.reply, fmt.Sprint(reply))
			}
		}
		times = append(times, (s.spent(b)-before)/benchBatch)
		s.all(b, [][]string{{"FLUSHALL"}})
	}
	slices.Sort(times)
	b.ReportMetric(times[len(times)/2], "server-µs/op")
	b.ReportMetric(float64(sent), "bytes/op")
	b.ReportMetric(0, "ns/op")
}

// size returns how many bytes a command has on the wire.
func size(args []string) int {
	n := len(fmt.Sprintf("*%d\r\n", len(args)))
	for _, arg := range args {
		n += len(fmt.Sprintf("$%d\r\n%s\r\n", len(arg), arg))
	}
	return n
}

func (s *serverBench) all(b *testing.B, commands [][]string) {
	b.Helper()
	for _, command := range commands {
		require.NoError(b, s.client.Do(context.Background(), s.client.B().Arbitrary(command...).Build()).Error())
	}
}

// spent returns how many microseconds scripts have taken.
func (s *serverBench) spent(b *testing.B) float64 {
	b.Helper()
	info, err := s.client.Do(b.Context(), s.client.B().Info().Section("commandstats").Build()).ToString()
	require.NoError(b, err)
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:"); ok {
			_, rest, _ = strings.Cut(rest, "usec=")
			usec, _, _ := strings.Cut(rest, ",")
			n, err := strconv.ParseFloat(usec, 64)
			require.NoError(b, err)
			return n
		}
	}
	return 0
}
