package wake

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/internal/topology"
)

func TestMain(m *testing.M) {
	// Most of the time a test waits for a server.
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", strconv.Itoa(4*runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	// A cluster client of rueidis closes connections that it no longer needs five seconds later, also after its Close.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"),
		// A delayed look at the cluster's nodes outlives the client's Close by a second, too.
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

const (
	poll  = time.Minute // so long that a test which needs a poll fails
	limit = 20 * time.Second
)

// bench is a server, a client of it, and what was logged.
type bench struct {
	*testing.T
	server *redistest.Server
	client rueidis.Client

	mu    sync.Mutex
	lines []string
}

// optionFor returns options of a client whose buffers are so small that making them takes no longer than a test.
func optionFor(server *redistest.Server) rueidis.ClientOption {
	const buffer = 16 << 10
	return rueidis.ClientOption{
		InitAddress: []string{server.Addr()}, ClientName: "listens", ReadBufferEachConn: buffer, WriteBufferEachConn: buffer,
	}
}

// newBench has the test run beside others.
func newBench(t *testing.T) *bench {
	t.Helper()
	t.Parallel()
	return newBenchAlone(t)
}

func newBenchAlone(t *testing.T) *bench {
	t.Helper()
	server := redistest.Start(t)
	client, err := rueidis.NewClient(optionFor(server))
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return &bench{T: t, server: server, client: client}
}

func (b *bench) log(_ slog.Level, message string, attributes ...slog.Attr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, fmt.Sprintln(message, attributes))
}

func (b *bench) logged(text string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.lines {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (b *bench) listen(client rueidis.Client, o Options) *Listener {
	b.Helper()
	o.Poll, o.Log = poll, b.log
	if o.Sink == nil {
		o.Sink = b
	}
	if client.Mode() == rueidis.ClientModeCluster {
		o.Slots = topology.NewResolver(context.Background(), client, clock.New(), func(topology.Map) {}, far).Masters
	}
	l := Listen(client, o)
	b.Cleanup(func() { l.Close()() })
	return l
}

// far is how much longer servers take to answer than those nearby.
func far() time.Duration { return 0 }

func (b *bench) do(args ...string) string {
	b.Helper()
	return b.server.Command(b, args...)
}

func (b *bench) await(what string, happened func() bool) {
	b.Helper()
	require.True(b, redistest.Await(limit, happened), what)
}

// watched returns a waiter that is watched.
func (b *bench) watched(l *Listener, key string) *Waiter {
	b.Helper()
	w := l.Waiter(Wait{Key: key, Channel: "channel:" + key})
	require.NotNil(b, w)
	b.Cleanup(w.Close)
	b.await("watched", func() bool { return w.Watch(b.Context(), limit).Watched })
	return w
}

func (b *bench) wakes(w *Waiter) {
	b.Helper()
	select {
	case <-w.Wakeup():
	case <-time.After(limit):
		b.Fatal("it does not wake: ", w.Key)
	}
}

func (b *bench) sleeps(w *Waiter) {
	b.Helper()
	select {
	case <-w.Wakeup():
		b.Fatal("it wakes: ", w.Key)
	default:
	}
}

// connections returns how many connections of the client do more than run commands of their own.
func (b *bench) connections() int { return b.named("listens") }

// named returns how many connections of a client have a name.
func (b *bench) named(name string) (n int) {
	b.Helper()
	for line := range strings.Lines(b.do("CLIENT", "LIST")) {
		if strings.Contains(line, "name="+name+" ") {
			n++
		}
	}
	return n
}

var (
	tracking    = Options{Track: true}
	subscribing = Options{Subscribe: true, Common: "channel"}
	either      = Options{Track: true, Subscribe: true, Common: "channel"}
)

// Listeners with different wishes share a connection, and each gets what it asks for.
func TestListener_IsShared(t *testing.T) {
	b := newBench(t)
	before := b.connections()
	listeners := map[string]*Listener{
		"tracking": b.listen(b.client, tracking), "subscribing": b.listen(b.client, subscribing), "either": b.listen(b.client, either),
		"another channel": b.listen(b.client, Options{Subscribe: true, Common: "elsewhere"}),
	}
	waiters := map[string]*Waiter{}
	for name, l := range listeners {
		b.do("SET", "key", "taken")
		waiters[name] = b.watched(l, "key")
	}
	require.Equal(t, before+1, b.connections())

	b.do("PEXPIRE", "key", "100000")
	b.wakes(waiters["tracking"])
	b.wakes(waiters["either"])
	b.sleeps(waiters["subscribing"])
	b.do("PUBLISH", "channel", "key")
	b.wakes(waiters["subscribing"])
	b.sleeps(waiters["another channel"])
	b.do("PUBLISH", "elsewhere", "key")
	b.wakes(waiters["another channel"])
	b.do("PUBLISH", "channel:key", "anything")
	b.wakes(waiters["subscribing"])
	b.wakes(waiters["another channel"])
	b.sleeps(waiters["either"])

	listeners["another channel"].Close()
	b.await("its channel is left", func() bool { return b.do("PUBSUB", "NUMSUB", "elsewhere") == "elsewhere\n0" })
	require.Equal(t, "channel\n1", b.do("PUBSUB", "NUMSUB", "channel"))
	delete(listeners, "another channel")
	for name, l := range listeners {
		require.Equal(t, before+1, b.connections(), name)
		l.Close()()
	}
	b.await("the connection is closed", func() bool { return b.connections() == before })
}

// byValue is a client that cannot be the key of a map.
type byValue struct {
	rueidis.Client
	_ []int
}

func TestListener_OfAClientThatCannotBeCompared(t *testing.T) {
	b := newBench(t)
	for range 2 {
		b.do("SET", "key", "taken")
		w := b.watched(b.listen(byValue{Client: b.client}, tracking), "key")
		b.do("DEL", "key")
		b.wakes(w)
	}
}

// While the server is silent, a waiter asks once, however often its call asks, and not at all when the call is over.
func TestNews_OfASilentServer(t *testing.T) {
	b := newBench(t)
	l := b.listen(b.client, either)
	first := b.watched(l, "first")
	b.server.Freeze()
	defer b.server.Thaw()
	n := l.hub.nodes[""]
	asked := func() int {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.peers.asked)
	}
	asks := l.Waiter(Wait{Key: "asks"})
	require.False(t, asks.Watch(t.Context(), time.Millisecond).Watched)
	b.await("the server is asked", func() bool { return asked() == 0 }) // what comes now has to wait
	const waiters = 20
	var all []*Waiter
	for i := range waiters {
		w := l.Waiter(Wait{Key: strconv.Itoa(i)})
		all = append(all, w)
		for range 3 {
			require.False(t, w.Watch(t.Context(), time.Millisecond).Watched)
		}
	}
	require.LessOrEqual(t, asked(), waiters)
	require.Greater(t, asked(), waiters/2)
	for _, w := range all[1:] {
		w.Close()
	}
	require.LessOrEqual(t, asked(), 1)
	b.server.Thaw()
	b.await("an answer", func() bool { return all[0].Watch(t.Context(), limit).Watched || asked() == 0 })
	all[0].Close()
	asks.Close()
	first.Close()
}

// A call that asks again gets the answer for which it has not waited before, whether that has come meanwhile or not.
func TestNews_AnAnswerAfterItsCall(t *testing.T) {
	for name, comes := range map[string]bool{"has come": true, "is under way": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			l := b.listen(b.client, tracking)
			defer b.watched(l, "first").Close()
			b.do("SET", "key", "42", "PX", "600000")
			n, w := l.hub.nodes[""], l.Waiter(Wait{Key: "key"})
			defer w.Close()
			b.server.Freeze()
			defer b.server.Thaw()
			require.False(t, w.Watch(t.Context(), time.Millisecond).Watched)
			b.await("the question", func() bool {
				n.mu.Lock()
				defer n.mu.Unlock()
				return w.watched
			})
			if comes {
				b.server.Thaw()
				b.await("the answer", func() bool { return len(w.ready) == 1 })
			} else {
				b.server.Thaw()
			}
			seen := w.Watch(t.Context(), limit)
			require.True(t, seen.Watched)
			require.True(t, seen.Taken)
			require.Greater(t, seen.Left, 5*time.Minute)
			require.Equal(t, KeyState{}, w.Watch(t.Context(), limit), "there is nothing to wait for")
			b.do("DEL", "key")
			b.wakes(w)
		})
	}
}

// A listener is told when the connection works and when it is lost.
func TestNews_OfTheConnection(t *testing.T) {
	b := newBench(t)
	news := make(chan Connection, 8)
	o := subscribing
	o.Connection = func(c Connection) { news <- c }
	l := b.listen(b.client, o)
	w := b.watched(l, "key")
	next := func() Connection {
		select {
		case c := <-news:
			return c
		case <-time.After(limit):
			t.Fatal("no news")
			return Connection{}
		}
	}
	require.True(t, next().Up)
	for range 2 {
		b.await("subscribed", func() bool { return b.do("PUBSUB", "NUMSUB", "channel:key") == "channel:key\n1" })
		b.do("CLIENT", "KILL", "TYPE", "pubsub")
		down := next()
		require.False(t, down.Up)
		require.Error(t, down.Err)
		b.wakes(w) // a change may have been missed
		require.True(t, next().Up, "a waiting call is enough to connect again")
		b.await("watched", func() bool { return w.Watch(b.Context(), limit).Watched })
	}
	w.Close()
	l.Close()()
	require.Empty(t, news, "to close is no news")
	require.Equal(t, 2, b.logged("lost the connection"))
}

// ofSentinel is a client that finds its master through Sentinel, which names another one when told.
type ofSentinel struct {
	rueidis.Client

	mu     sync.Mutex
	master string
	asked  int // how often it was asked which server that is
}

func (*ofSentinel) Mode() rueidis.ClientMode { return rueidis.ClientModeSentinel }

func (s *ofSentinel) Nodes() map[string]rueidis.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return map[string]rueidis.Client{s.master: s.Client}
}

func (s *ofSentinel) change(master string) (asked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.master = master
	return s.asked
}

// A connection to a master that was deposed is given up, though it is still open.
func TestNews_OfADeposedMaster(t *testing.T) {
	b := newBench(t)
	client := &ofSentinel{Client: b.client, master: "before"}
	news := make(chan Connection, 8)
	o := either
	o.Connection = func(c Connection) { news <- c }
	w := b.watched(b.listen(client, o), "key")
	require.True(t, (<-news).Up)
	client.change("after")
	b.wakes(w)
	require.ErrorIs(t, (<-news).Err, errDeposed)
	require.True(t, (<-news).Up)
	b.await("watched", func() bool { return w.Watch(t.Context(), limit).Watched })
}

// A line that concerns several listeners is logged once in each place where their lines end up.
func TestNews_LinesAreToldOnce(t *testing.T) {
	b := newBench(t)
	for i := range 6 {
		o := subscribing
		o.Sink = i % 2
		b.watched(b.listen(b.client, o), "key")
	}
	b.do("CLIENT", "KILL", "TYPE", "pubsub")
	b.await("the loss is logged", func() bool { return b.logged("lost the connection") > 0 })
	b.await("connected again", func() bool { return b.do("PUBSUB", "NUMSUB", "channel") == "channel\n1" })
	require.Equal(t, 2, b.logged("lost the connection"))
}

// Changes of a key of the same name in another database wake a call only a few times. Then this package looks in its place.
func TestNews_OfAnotherDatabase(t *testing.T) {
	b := newBench(t)
	w := b.watched(b.listen(b.client, either), "key")
	b.do("SET", "key", "taken", "PX", "600000")
	b.wakes(w)
	require.True(t, w.Watch(t.Context(), limit).Taken)
	elsewhere, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{b.server.Addr()}, SelectDB: 1})
	require.NoError(t, err)
	defer elsewhere.Close()
	const changes = 2000
	woken := 0
	for range changes {
		require.NoError(t, elsewhere.Do(t.Context(), elsewhere.B().Incr().Key("key").Build()).Error())
		select {
		case <-w.Wakeup():
			woken++
			w.Watch(t.Context(), limit)
		default:
		}
	}
	t.Log(woken, "wake-ups for", changes, "changes")
	require.LessOrEqual(t, woken, 16)

	b.await("it looks by itself", func() bool { return b.do("PUBSUB", "NUMSUB", "channel:key") == "channel:key\n1" })
	b.do("PUBLISH", "channel:key", "key")
	b.wakes(w) // so a release that is published wakes at once
	require.False(t, w.Watch(t.Context(), limit).Watched, "it pauses")
	b.do("DEL", "key")
	b.wakes(w) // and one that is not, after a pause
}

// A listener that the server allows no way to listen is told so, and gets no waiters.
func TestListener_IsRefused(t *testing.T) {
	b := newBench(t)
	b.do("ACL", "SETUSER", "app", "on", ">secret", "~*", "resetchannels", "+@all", "-client", "-eval", "-ping")
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{b.server.Addr()}, Username: "app", Password: "secret", DisableCache: true,
	})
	require.NoError(t, err)
	defer client.Close()
	for _, o := range []Options{tracking, subscribing} {
		l := b.listen(client, o)
		w := l.Waiter(Wait{Key: "key", Channel: "channel:key"})
		b.await("it is refused", func() bool { return !w.Watch(t.Context(), limit).Watched && l.Waiter(Wait{Key: "other"}) == nil })
		w.Close()
	}
	require.Equal(t, 1, b.logged("way=tracking"))
	require.Equal(t, 1, b.logged("way=subscribing"))
	require.Len(t, b.lines, 2)
}

// Closing while the server says nothing takes as long as rueidis needs to give up on the connection, and leaves nothing.
func TestClose_WhileTheServerIsSilent(t *testing.T) {
	b := newBench(t)
	l := b.listen(b.client, either)
	w := b.watched(l, "key")
	b.server.Freeze()
	defer b.server.Thaw()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	other := l.Waiter(Wait{Key: "other"})
	ended := make(chan KeyState, 1)
	go func() { ended <- other.Watch(ctx, limit) }()
	start := time.Now()
	wait := l.Close()
	require.Equal(t, KeyState{}, <-ended)
	require.Less(t, time.Since(start), limit/4)
	wait()
	require.Less(t, time.Since(start), limit/2)
	require.False(t, other.Watch(ctx, limit).Watched)
	require.Nil(t, l.Waiter(Wait{Key: "late"}))
	w.Close()
	other.Close()
}

// A server that cannot save refuses PING, which rueidis sends when a channel is left. That must not end the program.
func TestOwnChannel_IsLeftOnceTheServerSavesAgain(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	server := redistest.Start(t, "--dir", folder, "--save", "3600", "1")
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	b := &bench{T: t, server: server, client: client}
	l := b.listen(client, subscribing)
	stays, leaves := b.watched(l, "stays"), b.watched(l, "leaves")
	obstacle := filepath.Join(folder, "dump.rdb")
	require.NoError(t, os.Mkdir(obstacle, 0o700))
	server.Command(t, "BGSAVE")
	refused := func() bool {
		_, err := server.Do("PING")
		return err != nil && strings.HasPrefix(err.Error(), "MISCONF")
	}
	b.await("the server cannot save", refused)

	leaves.Close()
	rejected := regexp.MustCompile(`cmdstat_ping:.*rejected_calls=\d+`)
	count := func() string { return rejected.FindString(server.Command(t, "INFO", "commandstats")) }
	before := count()
	b.await("a channel was to be left", func() bool { return count() != before })
	require.Equal(t, "channel:leaves\n1", server.Command(t, "PUBSUB", "NUMSUB", "channel:leaves"))
	server.Command(t, "PUBLISH", "channel:stays", "stays")
	b.wakes(stays)

	require.NoError(t, os.Remove(obstacle))
	server.Command(t, "BGSAVE")
	b.await("it saves again", func() bool { return !refused() })
	b.await("the channel is left", func() bool {
		return server.Command(t, "PUBSUB", "NUMSUB", "channel:leaves") == "channel:leaves\n0"
	})
}

// A server that is busy with a script refuses UNSUBSCRIBE as it refuses PING. That must not end the program either.
func TestOwnChannel_IsLeftOnceTheServerIsNotBusy(t *testing.T) {
	b := newBench(t)
	l := b.listen(b.client, subscribing)
	stays, leaves := b.watched(l, "stays"), b.watched(l, "leaves")
	b.do("CONFIG", "SET", "lua-time-limit", "1")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = b.server.Do("EVAL", "while true do end", "0")
	}()
	b.await("busy", func() bool {
		_, err := b.server.Do("GET", "key")
		return err != nil && strings.HasPrefix(err.Error(), "BUSY")
	})
	leaves.Close()
	require.Never(t, func() bool { return b.logged("lost the connection") > 0 }, 2*tidying, tidying/10)
	b.do("SCRIPT", "KILL")
	<-ended
	b.await("the channel is left", func() bool { return b.do("PUBSUB", "NUMSUB", "channel:leaves") == "channel:leaves\n0" })
	b.do("PUBLISH", "channel:stays", "stays")
	b.wakes(stays)
}

// Many channels are left with a few commands.
func TestChannels_ManyAreLeft(t *testing.T) {
	b := newBench(t)
	l := b.listen(b.client, Options{Subscribe: true})
	b.watched(l, "first")
	var waiters []*Waiter
	for i := range 2 * batch {
		key := strconv.Itoa(i)
		w := l.Waiter(Wait{Key: key, Channel: "channel:" + key})
		w.Watch(t.Context(), 0)
		waiters = append(waiters, w)
	}
	subscribed := func(n int) func() bool {
		return func() bool { return strings.Contains(b.do("INFO", "stats"), fmt.Sprintf("pubsub_channels:%d\r", n)) }
	}
	b.await("subscribed", subscribed(2*batch+1))
	for _, w := range waiters {
		w.Close()
	}
	b.await("left", subscribed(1))
	require.Regexp(t, "cmdstat_unsubscribe:calls=[2-4],", b.do("INFO", "commandstats")) // 2, unless closing them takes seconds
}

// Waits for answers are longer if the server is far away.
func TestShared_LimitsGrowWithTheRoundTrip(t *testing.T) {
	trip := time.Duration(0)
	far := &shared{trip: func() time.Duration { return trip }}
	for _, s := range []*shared{{}, far} {
		require.Equal(t, time.Second, s.plus(time.Second, 6))
	}
	trip = 500 * time.Millisecond
	require.Equal(t, 4*time.Second, far.plus(time.Second, 6))
}
