package sentinel

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// fake is a Sentinel, as far as a watch talks to it.
type fake struct {
	id       string
	listener net.Listener

	mu     sync.Mutex
	answer Answer
	others []*fake
	hears  map[net.Conn]bool // connections that have subscribed
	all    map[net.Conn]bool
	mute   bool   // it answers nothing
	old    bool   // it knows neither RESP3 nor MYID
	run    string // of its process; empty: it does not say
	asked  int
}

func newFake(t *testing.T, id string) *fake {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &fake{id: id, listener: l, answer: stands(id, former), hears: map[net.Conn]bool{}, all: map[net.Conn]bool{}}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.all[conn] = true
			f.mu.Unlock()
			running.Go(func() { f.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		f.cut()
		running.Wait()
	})
	return f
}

func (f *fake) address() string { return f.listener.Addr().String() }

// cut ends all connections.
func (f *fake) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.all {
		_ = conn.Close()
	}
}

func (f *fake) change(to func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	to()
}

// heard waits until somebody listens.
func (f *fake) heard(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.hears) > 0 && f.asked > 0
	}, patience, time.Millisecond)
}

func (f *fake) publish(channel, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for conn := range f.hears {
		_, _ = io.WriteString(conn, array(bulk("message"), bulk(channel), bulk(message)))
	}
}

func (f *fake) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		f.change(func() { delete(f.hears, conn); delete(f.all, conn) })
	}()
	for r := bufio.NewReader(conn); ; {
		words, err := request(r)
		if err != nil {
			return
		}
		f.mu.Lock()
		if !f.mute {
			_, _ = io.WriteString(conn, f.reply(conn, words))
		}
		f.mu.Unlock()
	}
}

// reply answers in RESP2. The caller holds the mutex.
func (f *fake) reply(conn net.Conn, words []string) string {
	switch command := strings.ToUpper(strings.Join(words[:min(2, len(words))], " ")); {
	case strings.HasPrefix(command, "SUBSCRIBE"):
		var b strings.Builder
		for i, channel := range words[1:] {
			b.WriteString(array(bulk("subscribe"), bulk(channel), fmt.Sprintf(":%d\r\n", i+1)))
		}
		f.hears[conn] = true
		return b.String()
	case command == "SENTINEL MASTER":
		f.asked++
		host, port, _ := net.SplitHostPort(f.answer.Watches)
		return texts("ip", host, "port", port, "flags", strings.Join(f.answer.Flags, ","),
			"config-epoch", strconv.FormatInt(f.answer.Epoch, 10))
	case command == "SENTINEL GET-MASTER-ADDR-BY-NAME":
		host, port, _ := net.SplitHostPort(f.answer.Names)
		return texts(host, port)
	case command == "SENTINEL SENTINELS":
		all := make([]string, len(f.others))
		for i, other := range f.others {
			host, port, _ := net.SplitHostPort(other.address())
			all[i] = texts("ip", host, "port", port, "runid", other.id)
		}
		return array(all...)
	case command == "SENTINEL MYID" && f.old:
		return "-ERR Unknown sentinel subcommand 'MYID'\r\n"
	case command == "SENTINEL MYID":
		return bulk(f.id)
	case command == "INFO SERVER" && f.run == "":
		return bulk("# Server\r\nredis_version:3.0.0\r\n")
	case command == "INFO SERVER":
		return bulk("# Server\r\nrun_id:" + f.run + "\r\n")
	case command == "HELLO 3" && f.old:
		return "-NOPROTO unsupported protocol version\r\n"
	case command == "PING":
		return "+PONG\r\n"
	default:
		return "+OK\r\n"
	}
}

func request(r *bufio.Reader) (words []string, err error) {
	n, err := size(r)
	for ; err == nil && n > 0; n-- {
		var length int
		if length, err = size(r); err == nil {
			word := make([]byte, length+2)
			_, err = io.ReadFull(r, word)
			words = append(words, string(word[:length]))
		}
	}
	return words, err
}

func size(r *bufio.Reader) (int, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

func bulk(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

func array(all ...string) string { return fmt.Sprintf("*%d\r\n%s", len(all), strings.Join(all, "")) }

func texts(all ...string) string {
	for i, text := range all {
		all[i] = bulk(text)
	}
	return array(all...)
}

// watching is a watch of some Sentinels.
type watching struct {
	*Watch
	doubts atomic.Int32
}

func watch(t *testing.T, addresses ...string) *watching {
	t.Helper()
	o := withRESP3(addresses...)
	o.AlwaysRESP2 = true
	w := &watching{Watch: New(o, "main")}
	w.Begin(func() string { return former }, func() { w.doubts.Add(1) })
	t.Cleanup(w.Close)
	return w
}

func withRESP3(addresses ...string) rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress: addresses, ForceSingleClient: true, DisableCache: true, DisableRetry: true, PipelineMultiplex: -1,
		DialCtxFn: func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", address)
		},
	}
}

// three are Sentinels that know each other.
func three(t *testing.T) (all []*fake) {
	t.Helper()
	for _, id := range []string{"a", "b", "c"} {
		all = append(all, newFake(t, id))
	}
	for _, f := range all {
		f.change(func() {
			for _, other := range all {
				if other != f {
					f.others = append(f.others, other)
				}
			}
		})
	}
	return all
}

func (w *watching) hearsAll(t *testing.T, all []*fake) {
	t.Helper()
	for _, f := range all {
		f.heard(t)
	}
	require.Eventually(t, func() bool { return len(w.Absent()) == 0 }, patience, time.Millisecond)
}

// A watch that knows one Sentinel finds the others, asks all of them, and hears each.
func TestWatch(t *testing.T) {
	all := three(t)
	w := watch(t, all[0].address())
	w.hearsAll(t, all)
	require.Equal(t, Vouched, w.Ask(former, patience, patience))
	require.Equal(t, Replaced, w.Ask(heir, patience, patience))
	require.Zero(t, w.doubts.Load())
	for i, f := range all {
		f.publish("+odown", "master other 10.0.0.1 6379")
		f.publish("+odown", "master main 10.0.0.1 6379")
		require.Eventually(t, func() bool { return w.doubts.Load() == int32(i+1) }, patience, time.Millisecond)
	}
}

// Each answer names the other Sentinels. So a Sentinel that is added, or moves, while all connections last, is asked from then
// on.
func TestWatch_OneIsAdded(t *testing.T) {
	all := three(t)
	w := watch(t, all[0].address())
	w.hearsAll(t, all)
	added := newFake(t, "d")
	all[1].change(func() { all[1].others = append(all[1].others, added) })
	require.Equal(t, Vouched, w.Ask(former, patience, patience))
	added.heard(t)
}

// A Sentinel that knows the master by another name disputes it for as long as it lasts. That is known, so it raises no doubt
// again when the Sentinel is asked only where the others are: because it has found one, or another one's connection has broken.
func TestWatch_OneThatDisputesIsAskedForTheOthers(t *testing.T) {
	all := three(t)
	all[2].answer = stands("c", "10.0.0.9:6379")
	w := watch(t, all[0].address())
	w.hearsAll(t, all)
	require.Eventually(t, func() bool { return w.doubts.Load() == 1 }, patience, time.Millisecond)
	asked := func(again func()) {
		all[2].change(func() { all[2].asked = 0 })
		again()
		all[2].heard(t)
	}
	asked(func() { all[2].publish(found, "sentinel b 127.0.0.1 1 @ main 10.0.0.1 6379") })
	asked(func() {
		_ = all[1].listener.Close()
		all[1].cut()
	})
	w.Ask(former, patience, patience) // these answers come after those
	require.EqualValues(t, 1, w.doubts.Load())
}

// Sentinels are replaced one after another, while nothing is asked. When all first ones are gone, the last ones are heard.
func TestWatch_AllAreReplaced(t *testing.T) {
	all := three(t)
	w := watch(t, all[0].address())
	w.hearsAll(t, all)
	for _, id := range []string{"d", "e", "f"} {
		added := newFake(t, id)
		for _, f := range all {
			f.change(func() { f.others = append(f.others, added) })
			added.others = append(added.others, f)
		}
		host, port, _ := net.SplitHostPort(added.address())
		all[0].publish(found, "sentinel "+id+" "+host+" "+port+" @ main 10.0.0.1 6379")
		added.heard(t)
		_ = all[0].listener.Close()
		all[0].cut()
		all = append(all[1:], added)
	}
	all[1].publish("+odown", "master main 10.0.0.1 6379")
	require.Eventually(t, func() bool { return w.doubts.Load() == 1 }, patience, time.Millisecond)
}

// A Sentinel of another deployment, with a master set of the same name, does not count beside those that stand by the server,
// whatever it publishes, and however many others it knows.
func TestWatch_AStranger(t *testing.T) {
	all, stranger, others := three(t), newFake(t, "x"), []*fake{newFake(t, "y"), newFake(t, "z")}
	w := watch(t, all[0].address())
	w.hearsAll(t, all)
	stranger.change(func() {
		stranger.answer, stranger.others = another("x", 9), others
	})
	w.handle(func(c *council) []act { return c.learn([]string{stranger.address()}) })
	w.hearsAll(t, append(all, stranger))
	require.Equal(t, Contested, w.Ask(former, patience, patience))
	stranger.publish("+sdown", "master main 10.9.9.9 6379")
	all[0].publish("+sdown", "master main 10.0.0.1 6379")
	require.Eventually(t, func() bool { return w.doubts.Load() > 0 }, patience, time.Millisecond)
	require.Equal(t, Contested, w.Ask(former, patience, patience))
	require.EqualValues(t, 1, w.doubts.Load())
	require.Empty(t, w.Absent())
	for _, o := range others {
		o.mu.Lock()
		require.Zero(t, o.asked)
		o.mu.Unlock()
	}
}

// The first question waits for connections that are being made: a process may begin during a failover.
func TestWatch_TheFirstQuestion(t *testing.T) {
	all := three(t)
	w := watch(t, all[0].address(), all[1].address(), all[2].address())
	require.Equal(t, Vouched, w.Ask(former, patience, patience))
}

// A change that was missed while a Sentinel was not heard is noticed as soon as it is heard again.
func TestWatch_EventsBetweenTwoSubscriptions(t *testing.T) {
	all := three(t)
	w := watch(t, all[0].address())
	w.hearsAll(t, all)
	all[1].change(func() {
		all[1].answer = stands("b", former, foundDown)
		all[1].asked = 0
		clear(all[1].hears)
	})
	all[1].cut()
	all[1].heard(t)
	require.Eventually(t, func() bool { return w.doubts.Load() == 1 }, patience, time.Millisecond)
}

// A Sentinel that does not answer delays the verdict of the others no longer than its limit allows. It is not asked again
// before it has answered.
func TestWatch_OneIsSilent(t *testing.T) {
	all := three(t)
	w := watch(t, all[0].address())
	w.hearsAll(t, all)
	all[2].change(func() { all[2].mute = true })
	require.Equal(t, Vouched, w.Ask(former, patience, time.Millisecond))
	require.Equal(t, Vouched, w.Ask(former, patience, patience), "it owes an answer")
	all[1].change(func() { all[1].mute = true })
	require.Equal(t, Unknown, w.Ask(former, time.Millisecond, patience))
}

// A Sentinel that is gone is not waited for.
func TestWatch_OneIsGone(t *testing.T) {
	all := three(t)
	w := watch(t, all[0].address())
	w.hearsAll(t, all)
	_ = all[2].listener.Close()
	all[2].cut()
	gone := []string{all[2].address()}
	require.Eventually(t, func() bool { return slices.Equal(gone, w.Absent()) }, patience, time.Millisecond)
	require.Equal(t, Vouched, w.Ask(former, patience, patience))
}

// A Sentinel before Redis 6.2 does not say its id. At two addresses it counts once, by its process; if it does not say that
// either, it counts as one that does not answer.
func TestWatch_NamelessSentinels(t *testing.T) {
	all := three(t)
	one, same, other := all[0], all[1], all[2]
	for _, f := range all {
		f.change(func() { f.old, f.run = true, "x" })
	}
	w := watch(t, one.address(), same.address(), other.address())
	w.hearsAll(t, all)
	require.Equal(t, Unknown, w.Ask(former, patience, patience), "all are the same one")
	other.change(func() { other.run = "y" })
	require.Equal(t, Vouched, w.Ask(former, patience, patience), "two of three")
	other.change(func() { other.run = "" })
	require.Equal(t, Unknown, w.Ask(former, patience, patience), "one cannot be told apart")
}

// If the Sentinel that leads a failover does not answer, that counts, although all others stand by the master. When one
// Sentinel has announced the change, the former master is not believed, whatever the others say.
func TestWatch_TheLeaderIsSilent(t *testing.T) {
	all := three(t)
	w := watch(t, all[0].address())
	w.hearsAll(t, all)
	all[2].change(func() { all[2].mute = true })
	all[1].publish(vote, "c 6")
	require.Eventually(t, func() bool { return w.doubts.Load() == 1 }, patience, time.Millisecond)
	require.Equal(t, Elected, w.Ask(former, 5*time.Second, time.Millisecond))
	all[1].publish(switched, "main 10.0.0.1 6379 10.0.0.2 6379")
	require.Eventually(t, func() bool { return w.doubts.Load() == 2 }, patience, time.Millisecond)
	require.Equal(t, Replaced, w.Ask(former, patience, time.Millisecond))
}

// After a question it is known which Sentinels name another server.
func TestWatch_Against(t *testing.T) {
	all := three(t)
	w := watch(t, all[0].address())
	w.hearsAll(t, all)
	all[1].change(func() { all[1].answer = stands("b", "10.0.0.9:6379") })
	require.Equal(t, Disputed, w.Ask(former, patience, patience))
	require.Equal(t, []string{all[1].address()}, w.Against())
	all[1].change(func() { all[1].answer = stands("b", former) })
	require.Equal(t, Vouched, w.Ask(former, patience, patience))
	require.Empty(t, w.Against())
}

// A Sentinel that refuses RESP3 is heard and asked in RESP2.
func TestWatch_WithoutRESP3(t *testing.T) {
	all := three(t)
	for _, f := range all {
		f.change(func() { f.old, f.run = true, f.id })
	}
	w := watching{Watch: New(withRESP3(all[0].address()), "main")}
	w.Begin(func() string { return former }, func() { w.doubts.Add(1) })
	t.Cleanup(w.Close)
	w.hearsAll(t, all)
	require.Equal(t, Vouched, w.Ask(former, patience, patience))
}

// A watch that is closed ends at once, whatever it waits for, and all answers are that nothing is known.
func TestWatch_Close(t *testing.T) {
	mute := newFake(t, "a")
	mute.change(func() { mute.mute = true })
	hangs := make(chan struct{})
	w := New(rueidis.ClientOption{
		InitAddress: []string{mute.address(), "hangs"}, ForceSingleClient: true, DisableCache: true,
		DialCtxFn: func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			if address == "hangs" {
				close(hangs)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return d.DialContext(ctx, "tcp", address)
		},
	}, "main")
	w.Begin(func() string { return former }, func() { t.Error("a doubt") })
	<-hangs
	require.Eventually(t, func() bool {
		mute.mu.Lock()
		defer mute.mu.Unlock()
		return len(mute.all) > 0
	}, patience, time.Millisecond)
	began := time.Now()
	w.Close()
	require.Less(t, time.Since(began), patience)
	require.Equal(t, Unknown, w.Ask(former, time.Hour, time.Hour))
	w.Begin(func() string { return former }, func() { t.Error("a doubt") })
}

// A function of the user that dials may not stop when its context ends. It delays the end of a watch only for a moment. A
// connection that it makes later is closed.
func TestWatch_CloseDuringADialThatHangs(t *testing.T) {
	hangs, goOn := make(chan struct{}), make(chan struct{})
	here, there := net.Pipe()
	o := withRESP3("hangs")
	o.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
		close(hangs)
		<-goOn
		return here, nil
	}
	w := New(o, "main")
	w.Begin(func() string { return former }, func() { t.Error("a doubt") })
	<-hangs
	began := time.Now()
	w.Close()
	require.Less(t, time.Since(began), patience)
	close(goOn)
	_ = there.SetReadDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, there)
	require.NoError(t, err, "it was closed")
}
