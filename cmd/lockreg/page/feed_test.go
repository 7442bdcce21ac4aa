package page_test

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/observe"
)

func TestStreamTellsAllThenWhatChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		source.set(someLock("a", 0), someLock("b", 3))
		b := look(t, newPage(t, source, page.WithTitle("orders on localhost")))
		synctest.Wait()
		text := b.read()
		require.Contains(t, text, `"title":"orders on localhost"`)
		require.Contains(t, text, `event: begin`)
		require.Contains(t, text, `"path":"a"`)
		require.Contains(t, text, `"path":"b"`)
		require.Contains(t, text, `"held":2,"waiters":3,"oldest":3000`)

		<-time.After(time.Second)
		synctest.Wait()
		text = b.read()
		require.NotContains(t, text, `event: rows`, "leases that run down are no change")
		require.Contains(t, text, `event: tick`)

		source.set(someLock("b", 4))
		source.remove("a")
		<-time.After(time.Second)
		synctest.Wait()
		text = b.read()
		require.NotContains(t, text, `event: begin`)
		require.Contains(t, text, `event: gone`+"\n"+`data: ["a"]`)
		require.Equal(t, 1, strings.Count(text, `"path":"b"`), "once, as it changed once")
	})
}

// unread is a log that nobody reads: it takes no line until the channel is closed.
type unread chan struct{}

func (u unread) Write(line []byte) (int, error) {
	<-u
	return len(line), nil
}

// A log that nobody reads is in no browser's way.
func TestStreamWhoseLogIsNotRead(t *testing.T) {
	t.Parallel()
	log, source := make(unread), newFake()
	source.set(someLock("a", 0))
	source.failure = errors.New("NOPERM")
	h := newPage(t, source, page.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	defer close(log) // before browsers leave
	for range 2 {
		b := look(t, h)
		require.Eventually(t, func() bool { return strings.Contains(b.read(), "NOPERM") }, 20*time.Second, time.Millisecond)
	}
}

func TestSourceIsAskedOnceForAllAndNotWhenNobodyLooks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		h := newPage(t, source)
		pass := func(d time.Duration) int64 {
			before := source.passes.Load()
			<-time.After(d)
			synctest.Wait()
			return source.passes.Load() - before
		}
		require.Zero(t, pass(time.Hour))

		one := look(t, h)
		synctest.Wait()
		alone := pass(time.Minute)
		require.InDelta(t, 120, alone, 2)
		others := []*browser{look(t, h), look(t, h), look(t, h)}
		require.InDelta(t, alone, pass(time.Minute), 2)

		one.close()
		for _, b := range others {
			b.close()
		}
		synctest.Wait()
		require.Zero(t, pass(time.Hour))

		// It begins again at once, and does not show what was an hour ago.
		source.set(someLock("new", 0))
		again := look(t, h)
		synctest.Wait()
		require.Contains(t, again.read(), `"path":"new"`)
	})
}

func TestPassThatNobodyWaitsForIsEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		source.hang = make(chan struct{}) // for ever
		h := newPage(t, source)
		b := look(t, h)
		synctest.Wait()
		b.close()
		synctest.Wait()
		require.EqualValues(t, 1, source.passes.Load())
		h.Close() // would wait for it
	})
}

// With many other keys it takes long until another lock is found, or none is: what was found is shown meanwhile.
func TestWhatIsFoundIsShownWhileMoreIsLookedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		source.rest = time.Minute
		source.set(someLock("a", 0))
		b := look(t, newPage(t, source))
		<-time.After(1500 * time.Millisecond)
		synctest.Wait()
		text := b.read()
		require.Contains(t, text, `"path":"a"`)
		require.Contains(t, text, `"at":0,`, "the pass is not over")
		require.Contains(t, text, `"found":1,`)
		<-time.After(30 * time.Second)
		synctest.Wait()
		require.NotContains(t, b.read(), `event: tick`, "nothing is new")
		<-time.After(30 * time.Second)
		synctest.Wait()
		require.Contains(t, b.read(), `"found":0,`)
	})
}

func TestFailureIsShownAndWhatWasKnownStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		source.set(someLock("a", 0))
		b := look(t, newPage(t, source))
		synctest.Wait()
		b.read()
		source.do(func() { source.failure = errors.New("NOPERM no \x1b[2J") })
		<-time.After(time.Second)
		synctest.Wait()
		text := b.read()
		require.Contains(t, text, `"trouble":"NOPERM no \u001b[2J"`)
		require.NotContains(t, text, `event: gone`)
		source.do(func() { source.failure = nil })
		<-time.After(time.Second)
		synctest.Wait()
		require.Contains(t, b.read(), `"trouble":""`)
	})
}

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		source.hang = make(chan struct{})
		b := look(t, newPage(t, source))
		synctest.Wait()
		b.read()
		<-time.After(14 * time.Second)
		synctest.Wait()
		require.Empty(t, b.read())
		<-time.After(2 * time.Second)
		synctest.Wait()
		require.Equal(t, ":\n\n", b.read())
	})
}

// A stream on which nothing is sent for longer than a write may take goes on, with HTTP/2 as well.
func TestStreamThatIsQuietGoesOn(t *testing.T) {
	t.Parallel()
	source := newFake()
	source.set(someLock("a", 0))
	source.hang = make(chan struct{})
	h := newPage(t, source, page.WithPatience(3*time.Second))
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	defer h.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/events", nil)
	require.NoError(t, err)
	answer, err := server.Client().Do(r)
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	require.Equal(t, 2, answer.ProtoMajor)
	read := bufio.NewScanner(answer.Body)
	until := func(want string) {
		for read.Scan() {
			if strings.Contains(read.Text(), want) {
				return
			}
		}
		t.Fatalf("the stream ends before %q: %v", want, read.Err())
	}
	until("event: hello")
	<-time.After(4 * time.Second)
	close(source.hang)
	until(`"path":"a"`)
}

// Whoever may write to Redis may write any number, also where a time is expected.
func TestTimesThatJSONDoesNotHave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		far := time.UnixMicro(1 << 62)
		lock := someLock("a", 1)
		lock.Holders[0].Since, lock.Waiters[0].Since = far, far
		source.set(lock)
		source.deadlocks = []observe.Deadlock{{Waits: []observe.DeadlockWait{{Path: "b", Since: far}}}}
		b := look(t, newPage(t, source))
		synctest.Wait()
		text := b.read()
		require.Contains(t, text, `"path":"a"`)
		require.Contains(t, text, `"path":"b"`)
		require.Contains(t, text, `"since":null`)
	})
}

func TestStreamsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newPage(t, newFake())
		first := look(t, h)
		for range 63 {
			look(t, h)
		}
		synctest.Wait()
		refused := look(t, h)
		<-refused.left
		require.Equal(t, http.StatusServiceUnavailable, refused.code)
		require.NotEmpty(t, refused.header.Get("Retry-After"))
		first.close()
		next := look(t, h)
		synctest.Wait()
		require.Zero(t, next.code)
		require.Contains(t, next.read(), "event: hello")
	})
}

// A browser that takes nothing for a while gets everything anew, and the server keeps no more than a megabyte for it.
func TestStreamThatIsBehindGetsAllAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		long := strings.Repeat("x", 5000)
		change := func(round int) { // half a megabyte of it
			for i := range 100 {
				lock := someLock(fmt.Sprint(long, i), 0)
				lock.WaiterCount = round
				source.set(lock)
			}
		}
		change(0)
		b := look(t, newPage(t, source))
		synctest.Wait()
		b.read()

		block := make(chan struct{})
		b.mu.Lock()
		b.block = block
		b.mu.Unlock()
		for round := range 20 {
			change(round + 1)
			<-time.After(500 * time.Millisecond)
		}
		source.set(someLock("last", 0))
		<-time.After(time.Second)
		b.mu.Lock()
		b.block = nil
		b.mu.Unlock()
		close(block)
		synctest.Wait()
		text := b.read()
		require.Contains(t, text, "event: begin")
		require.Contains(t, text, `"path":"last"`)
		require.Less(t, len(text), 3<<20, "twenty rounds would be ten megabytes")
	})
}

// A browser that does not read holds its place until the deadline of a write, no longer.
func TestStreamThatDoesNotReadEnds(t *testing.T) {
	t.Parallel()
	source := newFake()
	h := newPage(t, source, page.WithPatience(3*time.Second), page.WithInterval(10*time.Millisecond))
	server := httptest.NewServer(h)
	defer server.Close()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return h.Streams() == 1 }, 20*time.Second, time.Millisecond)

	done := make(chan struct{})
	defer close(done)
	long := strings.Repeat("x", 1000)
	go func() {
		for round := 0; ; round++ {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
			for i := range 1000 {
				source.set(someLock(fmt.Sprint(long, i), round%50))
			}
		}
	}()
	require.Eventually(t, func() bool { return h.Streams() == 0 }, time.Minute, 10*time.Millisecond)
}

func TestCloseEndsStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newPage(t, newFake())
		b := look(t, h)
		synctest.Wait()
		h.Close()
		h.Close()
		<-b.left
		refused := look(t, h)
		<-refused.left
		require.Equal(t, http.StatusServiceUnavailable, refused.code)
	})
}

func TestHistoryIsThereForThoseWhoComeLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		source.set(someLock("a", 7))
		h := newPage(t, source)
		look(t, h)
		<-time.After(20 * time.Minute)
		late := look(t, h)
		synctest.Wait()
		hello, _, _ := strings.Cut(late.read(), "\n\n")
		require.Equal(t, 601+60, strings.Count(hello, ",0,1,7,"), "each second of ten minutes, and every ten seconds of those before")
	})
}

func TestDeadlocksAreToldWhenTheyChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		wait := func(path, holds string) observe.DeadlockWait {
			return observe.DeadlockWait{Path: path, Kind: "lock", Owner: "goroutine 17", Holds: []string{holds}, Since: time.Now()}
		}
		a, b := wait("a", "b"), wait("b", "a")
		viewer := look(t, newPage(t, source))
		synctest.Wait()
		require.Contains(t, viewer.read(), `"deadlocks":[]`)
		source.do(func() { source.deadlocks = []observe.Deadlock{{Waits: []observe.DeadlockWait{a, b}}} })
		<-time.After(3 * time.Second)
		synctest.Wait()
		require.Equal(t, 1, strings.Count(viewer.read(), `"holds":["b"]`))
		source.do(func() { source.deadlocks = []observe.Deadlock{{Waits: []observe.DeadlockWait{b, a}}} })
		<-time.After(10 * time.Second)
		synctest.Wait()
		require.NotContains(t, viewer.read(), `"deadlocks"`, "the same cycle")
		source.do(func() { source.deadlocks = nil })
		<-time.After(3 * time.Second)
		synctest.Wait()
		require.Contains(t, viewer.read(), `"deadlocks":[]`)
	})
}

// What a long pass has found is shown before it is over.
func TestLongPassIsShownInParts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		for i := range 100 {
			source.set(someLock(fmt.Sprint("p", i), 1))
		}
		source.each = 97 * time.Millisecond // no lock is found at the moment at which what was found is shown
		b := look(t, newPage(t, source))
		<-time.After(2 * time.Second)
		synctest.Wait()
		text := b.read()
		require.GreaterOrEqual(t, strings.Count(text, `"path":`), 10)
		require.Contains(t, text, `{"at":0,"took":0,"locks":12,"of":[{"held":12,"waiters":12,"oldest":`)
		require.Contains(t, text, `"found":12,`)
		late := look(t, b.h)
		synctest.Wait()
		require.Contains(t, late.read(), `"path":`, "also to those who come meanwhile")
		<-time.After(8500 * time.Millisecond)
		synctest.Wait()
		text += b.read()
		require.Equal(t, 100, strings.Count(text, `"path":`), "each once")
		require.Contains(t, text, `"locks":100,"of":[{"held":100,"waiters":100,`)
		require.Contains(t, text, `"took":9700,"locks":100,"of":[{"held":100,"waiters":100,"oldest":10700,"waits":[0,41,59,0,0],`+
			`"grants":0,"handoffs":0}],"found":0,"failed":false,"trouble":""}`)

		// In the next pass what it has not come to stays, also when it fails.
		source.remove("p7")
		source.do(func() { source.failure = errors.New("gone") })
		<-time.After(20 * time.Second)
		synctest.Wait()
		text = b.read()
		require.Contains(t, text, `"found":`)
		require.Contains(t, text, `"trouble":"gone"`)
		require.NotContains(t, text, "event: gone")
		source.do(func() { source.failure = nil })
		<-time.After(30 * time.Second)
		synctest.Wait()
		require.Contains(t, b.read(), `data: ["p7"]`)
	})
}

// A browser that keeps up gets each lock once, however many come at a time.
func TestMuchAtATimeIsNotSentTwice(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		b := look(t, newPage(t, source))
		synctest.Wait()
		long := strings.Repeat("x", 4000)
		for i := range 500 { // two megabytes
			source.set(someLock(fmt.Sprint(long, i), 0))
		}
		b.read()
		<-time.After(time.Second)
		synctest.Wait()
		text := b.read()
		require.Equal(t, 500, strings.Count(text, `"path":`))
		require.NotContains(t, text, "event: begin")
	})
}

// Paths that are no UTF-8 do not collapse into one, and each can be asked for and released.
func TestPathsThatAreNoUTF8(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		for i, path := range []string{"a\xff", "a\xfe", "a\ufffd"} {
			source.set(someLock(path, i))
		}
		h := newPage(t, source, page.WithRelease(everybody))
		b := look(t, h)
		synctest.Wait()
		text := b.read()
		for i, id := range []string{"a%FF", "a%FE", "a%EF%BF%BD"} {
			require.Contains(t, text, fmt.Sprintf(`"id":"%s"`, id))
			require.Contains(t, request(h, "GET", "/lock?path="+id).body(), fmt.Sprintf(`"waiterCount":%d`, i))
		}
		require.Contains(t, text, `"path":"a\\xff"`)
		require.Equal(t, 200, request(h, "POST", "/release", `{"id":"a%FE","holderId":"r1%3A17"}`).code())
		require.Equal(t, []string{"a\xfe"}, source.released)
		require.Equal(t, 400, request(h, "POST", "/release", `{"id":"a%F","holderId":"r1%3A17"}`).code())
		<-time.After(time.Second)
		synctest.Wait()
		require.Contains(t, b.read(), "event: gone\ndata: [\"a%FE\"]")
	})
}

func TestOneLock(t *testing.T) {
	t.Parallel()
	source := newFake()
	source.set(someLock("a b", 2))
	h := newPage(t, source)
	require.Contains(t, request(h, "GET", "/lock?path=a+b").body(), `"lock":null`, "nobody looks, so nothing is known")
	look(t, h)
	require.Eventually(t, func() bool {
		return !strings.Contains(request(h, "GET", "/lock?path=a+b").body(), `"lock":null`)
	}, 20*time.Second, time.Millisecond)
	require.Contains(t, request(h, "GET", "/lock?path=a").body(), `"lock":null`)
	got := request(h, "GET", "/lock?path=a+b")
	assert.Contains(t, got.body(), `"waiterCount":2`)
	assert.Contains(t, got.body(), `"key":"orders:a b"`)
}

// A source that is slow is left alone for longer.
func TestPauses(t *testing.T) {
	t.Parallel()
	for took, pause := range map[time.Duration]time.Duration{
		time.Millisecond: 500 * time.Millisecond, 30 * time.Millisecond: 570 * time.Millisecond,
		100 * time.Millisecond: 750 * time.Millisecond, time.Second: time.Second, 8 * time.Second: 8 * time.Second,
	} {
		assert.Equal(t, pause, page.PauseAfter(took, 500*time.Millisecond), took)
	}
}

// Of several holders a row has the first, and one that is overdue as soon as it is, though nothing else has changed.
func TestRowHasTheHolderThatIsOverdue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		lock := heldBy("a", "r1:1", "r2:2", "r3:3")
		for i, left := range []int{30, 19, 18} { // less than 17 s is overdue
			lock.Holders[i].Renewed, lock.Holders[i].Lease = 30*time.Second, time.Duration(left)*time.Second
		}
		source.set(lock)
		b := look(t, newPage(t, source))
		row := func(after time.Duration) string {
			<-time.After(after)
			synctest.Wait()
			all := regexp.MustCompile(`"holder":"([^"]*)"`).FindAllStringSubmatch(b.read(), -1)
			if len(all) == 0 {
				return ""
			}
			return all[len(all)-1][1]
		}
		require.Equal(t, "r1:1", row(0))
		require.Equal(t, "r3:3", row(2*time.Second))
		require.Empty(t, row(3*time.Second), "another one is overdue, too, but less")
	})
}

// Of holders that are not known to be renewed, a row has the one whose process turns out to be silent, and is told once.
func TestRowHasTheHolderWhoseProcessIsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		lock := heldBy("a", "r1:1", "r2:2")
		for i := range lock.Holders {
			lock.Holders[i].Lease = -1
		}
		source.set(lock)
		b := look(t, newPage(t, source))
		synctest.Wait()
		b.read()
		for i := range 3 {
			lock.Holders = slices.Clone(lock.Holders) // the source has the others
			lock.Holders[1].Silent = time.Duration(20+i) * time.Second
			source.set(lock)
			<-time.After(time.Second)
			synctest.Wait()
			if text := b.read(); i == 0 {
				require.Contains(t, text, `"holder":"r2:2"`)
				require.Contains(t, text, `"silentMs":20000`)
			} else {
				require.NotContains(t, text, `"holder"`)
			}
		}
	})
}
