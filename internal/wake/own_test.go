package wake

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

// messages takes what is published for a listener.
type messages chan string

func (m messages) take(channel, message string) { m <- channel + ": " + message }

func (b *bench) takes(m messages, message string) {
	b.Helper()
	select {
	case taken := <-m:
		require.Equal(b, message, taken)
	case <-time.After(limit):
		b.Fatal("it does not arrive: ", message)
	}
}

// number is that of a node's connection.
func (b *bench) number(n *node) uint64 {
	b.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	require.NotZero(b, n.number)
	return n.number
}

// subscriber returns a listener and where its messages go.
func (b *bench) subscriber(client rueidis.Client, o Options) (*Listener, messages) {
	b.Helper()
	m := make(messages, 64)
	o.Message = m.take
	return b.listen(client, o), m
}

// subscribed returns a waiter that subscribes.
func (b *bench) subscribed(l *Listener, wait Wait) *Waiter {
	b.Helper()
	w := l.Waiter(wait)
	require.NotNil(b, w)
	b.Cleanup(w.Close)
	b.subscribes(w)
	return w
}

// subscribes has a waiter subscribe as a call does: whenever it wakes.
func (b *bench) subscribes(w *Waiter) {
	b.Helper()
	for {
		switch w.Subscribe(b.Context(), limit) {
		case Proven:
			return
		case Deaf:
			b.Fatal("it is deaf")
		case NotYet:
			b.wakes(w)
		}
	}
}

// deafens has a waiter subscribe until it is deaf.
func (b *bench) deafens(w *Waiter) {
	b.Helper()
	for {
		switch w.Subscribe(b.Context(), limit) {
		case Proven:
			b.Fatal("it subscribes")
		case Deaf:
			return
		case NotYet:
			b.wakes(w)
		}
	}
}

func (b *bench) subscribers(channel string) string {
	b.Helper()
	return b.do("PUBSUB", "NUMSUB", channel)[len(channel)+1:]
}

func TestHear(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{"tracking": tracking, "subscribing": subscribing, "either": either} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			l, m := b.subscriber(b.client, o)
			wait := Wait{Key: "key", Channel: "channel:key", Own: "own"}
			w := b.subscribed(l, wait)
			require.Empty(t, w.wakeup)
			require.Empty(t, m, "the probe is for nobody")
			b.do("PUBLISH", "own", "for you")
			b.do("EVAL", "redis.call('PUBLISH', 'own', 'from a script')", "0")
			b.takes(m, "own: for you")
			b.takes(m, "own: from a script")

			// It does not wake for its key, until it is watched too.
			b.do("SET", "key", "taken")
			b.do("PUBLISH", "channel", "key")
			b.do("PUBLISH", "channel:key", "key")
			b.do("PUBLISH", "own", "key")
			b.takes(m, "own: key")
			b.sleeps(w)
			require.True(t, w.Watch(t.Context(), limit).Watched)
			b.do("DEL", "key")
			b.do("PUBLISH", "channel", "key")
			b.wakes(w)
			require.Equal(t, Proven, w.Subscribe(t.Context(), 0))

			// Another waiter on the channel is answered at once, although the server is silent, and the goroutine waits for it.
			b.server.Freeze()
			defer b.server.Thaw()
			silent := l.Waiter(Wait{Key: "silent"})
			silent.Watch(t.Context(), time.Millisecond)
			other := l.Waiter(Wait{Key: "other", Own: "own"})
			require.Equal(t, Proven, other.Subscribe(t.Context(), 0))
			b.server.Thaw()
			silent.Close()
		})
	}
}

// The channel stays subscribed to for a while when nobody waits, and is left then.
func TestOwnChannel_IsLeft(t *testing.T) {
	b := newBench(t)
	l, m := b.subscriber(b.client, either)
	wait := Wait{Key: "key", Own: "own"}
	w := b.subscribed(l, wait)
	closed := time.Now()
	inTime := func() bool { return time.Since(closed) < tidying } // otherwise it may be left already
	w.Close()
	if heard := b.do("PUBLISH", "own", "late") == "1"; heard || inTime() {
		b.takes(m, "own: late")
	}
	again := l.Waiter(wait)
	if is := again.Subscribe(t.Context(), 0); inTime() {
		require.Equal(t, Proven, is)
	}
	b.subscribes(again)
	b.await("it was looked whether it is to be left", func() bool {
		l.hub.mu.Lock()
		defer l.hub.mu.Unlock()
		return len(l.hub.nodes[""].mail.idle) == 0
	})
	require.Equal(t, "1", b.subscribers("own"))
	again.Close()
	b.await("left", func() bool { return b.subscribers("own") == "0" })
	b.subscribed(l, wait)
}

// A waiter whose channel is proven wakes when the connection is lost, and subscribes again on the next.
func TestHear_AfterALoss(t *testing.T) {
	b := newBench(t)
	l, m := b.subscriber(b.client, either)
	w := b.subscribed(l, Wait{Key: "key", Own: "own"})
	for range 3 {
		b.do("CLIENT", "KILL", "TYPE", "pubsub")
		b.wakes(w)
		b.subscribes(w)
		for len(w.Wakeup()) > 0 {
			<-w.Wakeup()
		}
		b.do("PUBLISH", "own", "again")
		b.takes(m, "own: again")
		b.sleeps(w)
	}
}

// Watching does not swallow the wake-up that tells of a loss.
func TestArm_AfterALoss(t *testing.T) {
	b := newBench(t)
	l, _ := b.subscriber(b.client, either)
	w := b.subscribed(l, Wait{Key: "key", Own: "own"})
	b.do("CLIENT", "KILL", "TYPE", "pubsub")
	b.await("watched", func() bool { return w.Watch(t.Context(), limit).Watched })
	b.wakes(w)
}

// If messages of the scripts that hand off could not arrive, nothing is proven, and one line says so in each place.
func TestDeaf(t *testing.T) {
	t.Parallel()
	const all = "+@all"
	for name, rules := range map[string][]string{
		"no channel":     {all, "resetchannels"},
		"other channels": {all, "resetchannels", "&other*"},
		"no SUBSCRIBE":   {all, "-subscribe"},
		"no EVAL":        {all, "-eval"},
		"no PUBLISH":     {all, "-publish"},
		"no PUBSUB":      {all, "-pubsub"},
		"no NUMSUB":      {all, "-pubsub", "+pubsub|channels"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.do(append([]string{"ACL", "SETUSER", "app", "on", ">secret", "~*", "&*"}, rules...)...)
			client, err := rueidis.NewClient(rueidis.ClientOption{
				InitAddress: []string{b.server.Addr()}, Username: "app", Password: "secret",
			})
			require.NoError(t, err)
			defer client.Close()
			for i := range 4 {
				o := either
				o.Sink = i % 2
				l, m := b.subscriber(client, o)
				w := l.Waiter(Wait{Key: "key", Channel: "channel:key", Own: fmt.Sprint("own", i)})
				defer w.Close()
				b.deafens(w)
				require.Equal(t, Deaf, w.Subscribe(t.Context(), 0))
				b.await("watched all the same", func() bool { return w.Watch(b.Context(), limit).Watched })
				require.Empty(t, m)
			}
			require.Equal(t, 2, b.logged("way=queueing"))

			// On a connection that is made after the permissions were changed, messages arrive.
			b.do("ACL", "SETUSER", "app", "+@all", "allchannels")
			l, m := b.subscriber(client, either)
			w := l.Waiter(Wait{Key: "key", Own: "new"})
			defer w.Close()
			b.do("CLIENT", "KILL", "USER", "app")
			b.subscribes(w)
			b.do("PUBLISH", "new", "message")
			b.takes(m, "new: message")
		})
	}
}

// A listener that subscribes is not refused, though it may not listen in other ways.
func TestHear_Only(t *testing.T) {
	b := newBench(t)
	b.do("ACL", "SETUSER", "app", "on", ">secret", "~*", "resetchannels", "&own*", "+@all")
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{b.server.Addr()}, Username: "app", Password: "secret",
	})
	require.NoError(t, err)
	defer client.Close()
	l, m := b.subscriber(client, subscribing)
	w := b.subscribed(l, Wait{Key: "key", Channel: "channel:key", Own: "own"})
	for range 3 {
		require.False(t, w.Watch(t.Context(), limit).Watched)
		require.Equal(t, Proven, w.Subscribe(t.Context(), 0))
		b.do("PUBLISH", "own", "message")
		b.takes(m, "own: message")
	}
	require.Zero(t, b.logged("lost the connection"))
}

// While the server cannot say, it is asked again.
func TestHear_ABusyServer(t *testing.T) {
	b := newBench(t)
	l, m := b.subscriber(b.client, either)
	b.subscribed(l, Wait{Key: "first", Own: "first"})
	b.do("CONFIG", "SET", "busy-reply-threshold", "1")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = b.server.Do("EVAL", "while true do end", "0")
	}()
	b.await("busy", func() bool {
		_, err := b.server.Do("GET", "key")
		return err != nil && strings.HasPrefix(err.Error(), "BUSY")
	})
	w := l.Waiter(Wait{Key: "key", Own: "own"})
	defer w.Close()
	require.Equal(t, NotYet, w.Subscribe(t.Context(), limit), "it is told at once")
	require.Equal(t, NotYet, w.Subscribe(t.Context(), time.Millisecond))
	b.do("SCRIPT", "KILL")
	<-ended
	b.wakes(w)
	require.Equal(t, Proven, w.Subscribe(t.Context(), 0))
	b.do("PUBLISH", "own", "message")
	b.takes(m, "own: message")
	require.Zero(t, b.logged("lost the connection"))
}

// muffled is a client whose connections swallow messages.
type muffled struct{ rueidis.Client }

func (m *muffled) Dedicate() (rueidis.DedicatedClient, func()) {
	c, giveBack := m.Client.Dedicate()
	return &muffledConnection{c}, giveBack
}

type muffledConnection struct{ rueidis.DedicatedClient }

func (c *muffledConnection) SetPubSubHooks(hooks rueidis.PubSubHooks) <-chan error {
	hooks.OnMessage = nil
	return c.DedicatedClient.SetPubSubHooks(hooks)
}

func TestHear_MessagesThatDoNotArrive(t *testing.T) {
	b := newBench(t)
	l, _ := b.subscriber(&muffled{b.client}, either)
	w := l.Waiter(Wait{Key: "key", Own: "own"})
	defer w.Close()
	b.deafens(w)
	require.Equal(t, 1, b.logged("way=queueing"))
}

// With version 2 of the protocol, subscriptions have a connection of their own.
func TestHear_InRESP2(t *testing.T) {
	b := newBench(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{b.server.Addr()}, AlwaysRESP2: true, DisableCache: true,
	})
	require.NoError(t, err)
	defer client.Close()
	wait := Wait{Key: "key", Own: "own"}
	tracks := b.listen(client, tracking) // which does not work in that version
	deaf := tracks.Waiter(Wait{Key: "key", Own: "other"})
	b.deafens(deaf)
	require.Nil(t, tracks.Waiter(wait))
	deaf.Close()

	l, m := b.subscriber(client, either)
	w := b.subscribed(l, wait)
	for range 2 {
		b.do("PUBLISH", "own", "message")
		b.takes(m, "own: message")
		require.Equal(t, Proven, w.Subscribe(t.Context(), 0))
		b.do("CLIENT", "KILL", "TYPE", "pubsub")
		b.wakes(w)
		b.subscribes(w)
	}
	w.Close()
	b.await("left", func() bool { return b.subscribers("own") == "0" })
	b.subscribed(l, wait)
	b.do("PUBLISH", "own", "message")
	b.takes(m, "own: message")
}

// A suspicion replaces the connection, unless it is new.
func TestSuspect(t *testing.T) {
	b := newBench(t)
	news := make(chan Connection, 8)
	o := either
	o.Connection = func(c Connection) { news <- c }
	l, m := b.subscriber(b.client, o)
	w := b.subscribed(l, Wait{Key: "key", Own: "own"})
	relies := b.watched(b.listen(b.client, tracking), "key")
	n := l.hub.nodes[""]
	old := b.number(n)
	require.True(t, (<-news).Up)
	for range 2 {
		l.hub.mu.Lock()
		up := l.hub.nodes[""].since
		l.hub.mu.Unlock()
		for len(news) == 0 {
			w.Suspect()
			select {
			case <-relies.Wakeup():
			case <-time.After(time.Millisecond):
			}
		}
		require.Greater(t, time.Since(up), trusted)
		require.ErrorIs(t, (<-news).Err, errSuspect)
		require.True(t, (<-news).Up)
		b.wakes(w)
		b.subscribes(w)
		b.do("PUBLISH", "own", "message")
		b.takes(m, "own: message")
		b.await("watched", func() bool { return relies.Watch(t.Context(), limit).Watched })
	}
	w.Close()
	w.Suspect() // is nothing
	require.Empty(t, news)

	// A message on a former connection does not count.
	n.published(old, rueidis.PubSubMessage{Channel: "own", Message: "late"})
	require.Empty(t, m)
	n.published(b.number(n), rueidis.PubSubMessage{Channel: "own", Message: "timely"})
	b.takes(m, "own: timely")
	n.invalidated(old, nil)
	require.Empty(t, m)
	b.sleeps(relies)
}

// A silent connection that is suspected is replaced without waiting for it.
func TestSuspect_ASilentServer(t *testing.T) {
	b := newBench(t)
	news := make(chan Connection, 8)
	o := either
	o.Connection = func(c Connection) { news <- c }
	l, _ := b.subscriber(b.client, o)
	w := b.subscribed(l, Wait{Key: "key", Own: "own"})
	require.True(t, (<-news).Up)
	l.hub.mu.Lock()
	l.hub.nodes[""].since = time.Now().Add(-trusted)
	l.hub.mu.Unlock()
	b.server.Freeze()
	defer b.server.Thaw()
	other := l.Waiter(Wait{Key: "other", Own: "other"})
	defer other.Close()
	require.Equal(t, NotYet, other.Subscribe(t.Context(), time.Millisecond)) // the goroutine waits for the server now
	start := time.Now()
	w.Suspect()
	require.Empty(t, news, "once it may be late")
	w.Suspect()
	require.ErrorIs(t, (<-news).Err, errSuspect)
	b.wakes(w)
	require.Equal(t, NotYet, w.Subscribe(t.Context(), limit))
	require.Less(t, time.Since(start), limit/4)
	b.server.Thaw()
	b.subscribes(w)
	b.subscribes(other)
}

// mute is a connection of a client from which nothing comes any more once it is told so.
type mute struct {
	net.Conn

	told   <-chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (m *mute) Read(p []byte) (n int, err error) {
	n, err = m.Conn.Read(p)
	select {
	case <-m.told:
		<-m.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (m *mute) Close() error {
	m.once.Do(func() { close(m.closed) })
	return m.Conn.Close()
}

// A suspected connection on which nothing comes is replaced at once.
func TestSuspect_AHalfOpenConnection(t *testing.T) {
	b := newBench(t)
	told := make(chan struct{})
	var dialled atomic.Int32
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{b.server.Addr()}, PipelineMultiplex: -1,
		DialCtxFn: func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			c, err := d.DialContext(ctx, "tcp", address)
			if err != nil || dialled.Add(1) != 2 { // the first is for commands, the second for blocking ones
				return c, err
			}
			return &mute{Conn: c, told: told, closed: make(chan struct{})}, nil
		},
	})
	require.NoError(t, err)
	defer client.Close()
	l, m := b.subscriber(client, either)
	w := b.subscribed(l, Wait{Key: "key", Own: "own"})
	close(told)
	b.do("PUBLISH", "own", "lost")
	l.hub.mu.Lock()
	l.hub.nodes[""].since = time.Now().Add(-trusted)
	l.hub.mu.Unlock()
	for len(w.Wakeup()) > 0 {
		<-w.Wakeup()
	}
	start := time.Now()
	w.Suspect()
	w.Suspect()
	b.wakes(w)
	b.subscribes(w)
	require.Less(t, time.Since(start), limit/4)
	b.do("PUBLISH", "own", "message")
	b.takes(m, "own: message")
}

func TestHear_IsNotAnswered(t *testing.T) {
	b := newBench(t)
	l, m := b.subscriber(b.client, either)
	first := b.subscribed(l, Wait{Key: "first", Own: "first"})
	first.Close()
	b.server.Freeze()
	defer b.server.Thaw()
	waiter := func(own string) *Waiter {
		w := l.Waiter(Wait{Key: "key", Own: own})
		t.Cleanup(w.Close)
		return w
	}

	late := waiter("late")
	require.Equal(t, NotYet, late.Subscribe(t.Context(), time.Millisecond))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ended := waiter("own")
	require.Equal(t, NotYet, ended.Subscribe(ctx, limit))
	ended.Close()

	answer := make(chan Subscription)
	asks := func(w *Waiter) {
		go func() { answer <- w.Subscribe(t.Context(), limit) }()
		b.await("it asks", func() bool {
			l.hub.mu.Lock()
			defer l.hub.mu.Unlock()
			return w.waits
		})
	}
	closed := waiter("closed")
	asks(closed)
	closed.Close()
	require.Equal(t, NotYet, <-answer)

	b.sleeps(late)
	b.server.Thaw()
	b.wakes(late)
	require.Equal(t, Proven, late.Subscribe(t.Context(), 0))
	b.do("PUBLISH", "late", "message")
	b.takes(m, "late: message")
	b.await("what nobody wants is left", func() bool { return b.subscribers("own") == "0" && b.subscribers("closed") == "0" })

	other, taken := b.subscriber(b.client, either)
	w := other.Waiter(Wait{Key: "key", Own: "of another"})
	defer w.Close()
	b.subscribes(w)
	b.server.Freeze()
	l.Close()
	require.Equal(t, NotYet, late.Subscribe(t.Context(), limit))
	last := other.Waiter(Wait{Key: "key", Own: "last"})
	defer last.Close()
	asks(last)
	wait := other.Close()
	require.Equal(t, NotYet, <-answer)
	b.server.Thaw()
	wait()
	require.Empty(t, taken)
}

// A closed listener gets no more messages, even if other listeners keep the connection.
func TestClose_MessagesAfterIt(t *testing.T) {
	b := newBench(t)
	stays, m := b.subscriber(b.client, either)
	b.subscribed(stays, Wait{Key: "key", Own: "stays"})
	goes, none := b.subscriber(b.client, either)
	w := b.subscribed(goes, Wait{Key: "key", Own: "goes"})
	goes.Close()
	b.do("PUBLISH", "goes", "message")
	b.do("PUBLISH", "stays", "message")
	b.takes(m, "stays: message")
	require.Empty(t, none)
	w.Close()
	b.await("left", func() bool { return b.subscribers("goes") == "0" })
}

func TestHear_Without(t *testing.T) {
	b := newBench(t)
	var none *Waiter
	require.Equal(t, Deaf, none.Subscribe(t.Context(), limit))
	none.Suspect()
	w := b.listen(b.client, either).Waiter(Wait{Key: "key"})
	defer w.Close()
	require.Equal(t, Deaf, w.Subscribe(t.Context(), limit))
}

// A message costs next to nothing.
func TestHear_MessagesAreCheap(t *testing.T) { // alone: what others allocate would count
	b := newBenchAlone(t)
	o, n := either, 0
	o.Message = func(string, string) { n++ }
	l := b.listen(b.client, o)
	b.subscribed(l, Wait{Key: "key", Own: "own"})
	at := l.hub.nodes[""]
	message, number := rueidis.PubSubMessage{Channel: "own", Message: "message"}, b.number(at)
	require.Zero(t, testing.AllocsPerRun(100, func() { at.published(number, message) }))
	require.Positive(t, n)
}

// Calls come and go, and so does the connection. The calls that are left are subscribed.
func TestHear_InTheMidstOfIt(t *testing.T) {
	b := newBench(t)
	const calls = 8
	var all sync.WaitGroup
	stop := make(chan struct{})
	for i := range calls {
		o := either
		o.Message = func(string, string) {}
		l := b.listen(b.client, o)
		all.Go(func() {
			for j := 0; ; j++ {
				select {
				case <-stop:
					return
				default:
				}
				w := l.Waiter(Wait{Key: "key", Channel: "channel:key", Own: fmt.Sprint("own", i, j%3)})
				w.Subscribe(t.Context(), time.Duration(j%4)*time.Millisecond)
				w.Watch(t.Context(), time.Millisecond)
				if j%100 == 0 {
					w.Suspect()
				}
				w.Close()
			}
		})
	}
	for start := time.Now(); time.Since(start) < 2*time.Second; {
		b.do("PUBLISH", "own00", "message")
		if rand.N(100) == 0 {
			b.do("CLIENT", "KILL", "TYPE", "pubsub")
		}
	}
	close(stop)
	all.Wait()
	l, m := b.subscriber(b.client, either)
	b.subscribed(l, Wait{Key: "key", Own: "last"})
	b.do("PUBLISH", "last", "message")
	b.takes(m, "last: message")
	b.await("all others are left", func() bool { return b.do("PUBSUB", "CHANNELS", "own*") == "" })
}

// Many listeners share one connection, and no channel stays subscribed without a waiter.
func TestHear_Many(t *testing.T) {
	b := newBench(t)
	before := b.connections()
	const listeners = 1000
	var waiters []*Waiter
	m := make(messages, listeners)
	o := either
	o.Message = m.take
	for i := range listeners {
		w := b.listen(b.client, o).Waiter(Wait{Key: "key", Own: strconv.Itoa(i)})
		defer w.Close()
		waiters = append(waiters, w)
		w.Subscribe(t.Context(), 0)
	}
	for _, w := range waiters {
		b.subscribes(w)
	}
	require.Equal(t, before+1, b.connections())
	require.Contains(t, b.do("INFO", "stats"), fmt.Sprintf("pubsub_channels:%d", listeners))
	for i := range listeners {
		b.do("PUBLISH", strconv.Itoa(i), "message")
		b.takes(m, strconv.Itoa(i)+": message")
	}
	for _, w := range waiters[1:] {
		w.Close()
	}
	b.await("one is left", func() bool { return b.do("PUBSUB", "CHANNELS") == "0" })
	for len(waiters[0].Wakeup()) > 0 {
		<-waiters[0].Wakeup()
	}
	b.do("CLIENT", "KILL", "TYPE", "pubsub")
	b.wakes(waiters[0])
	b.subscribes(waiters[0])
	require.Equal(t, "0", b.do("PUBSUB", "CHANNELS"))
}

// A missed message may only be late, and any other message shows that the connection is alive.
func TestSuspect_OnceInAWhile(t *testing.T) {
	b := newBench(t)
	news := make(chan Connection, 8)
	o := either
	o.Connection = func(c Connection) { news <- c }
	l, m := b.subscriber(b.client, o)
	w := b.subscribed(l, Wait{Key: "key", Own: "own"})
	require.True(t, (<-news).Up)
	l.hub.mu.Lock()
	l.hub.nodes[""].since = time.Now().Add(-trusted)
	l.hub.mu.Unlock()
	for range 3 {
		w.Suspect()
		b.do("PUBLISH", "own", "message")
		b.takes(m, "own: message")
	}
	require.Empty(t, news)
	w.Suspect()
	w.Suspect()
	require.ErrorIs(t, (<-news).Err, errSuspect)
	w.Close()
}
