package page_test

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(redistest.Patient{M: m, Leaks: leaks}, outlives) }

// When a client of a cluster has asked for the slots, a goroutine of rueidis sleeps for up to a second.
var outlives = goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1")

func leaks() error { return goleak.Find(outlives) }

// fake is a source of as many locks as a test likes.
type fake struct {
	passes, cycles atomic.Int64

	mu        sync.Mutex
	locks     map[string]inspect.Lock
	since     map[string]time.Time // when each was set
	deadlocks []observe.Deadlock
	failure   error
	each      time.Duration // Locks takes so long for a lock
	rest      time.Duration // Locks takes so long after the last lock
	hang      chan struct{} // Locks waits until it is closed, or its context ends
	released  []string
}

func newFake() *fake {
	return &fake{locks: map[string]inspect.Lock{}, since: map[string]time.Time{}}
}

func (f *fake) Locks(ctx context.Context) iter.Seq2[inspect.Lock, error] {
	return func(yield func(inspect.Lock, error) bool) {
		f.passes.Add(1)
		f.mu.Lock()
		infos, failure, each, rest, hang := slices.Collect(maps.Values(f.locks)), f.failure, f.each, f.rest, f.hang
		for i, info := range infos { // leases run down
			infos[i].Holders = slices.Clone(info.Holders)
			for k := range info.Holders {
				infos[i].Holders[k].Lease -= time.Since(f.since[info.Path])
			}
		}
		f.mu.Unlock()
		if hang != nil {
			select {
			case <-hang:
			case <-ctx.Done():
				yield(inspect.Lock{}, ctx.Err())
				return
			}
		}
		for _, info := range infos {
			if each > 0 {
				<-time.After(each)
			}
			if !yield(info, nil) {
				return
			}
		}
		// With the race detector Go's runtime may crash when two goroutines of a bubble receive from timers that are over already.
		if rest > 0 {
			select {
			case <-time.After(rest):
			case <-ctx.Done():
			}
		}
		if failure != nil {
			yield(inspect.Lock{}, failure)
		}
	}
}

func (f *fake) Deadlocks(context.Context) ([]observe.Deadlock, error) {
	f.cycles.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.deadlocks), nil
}

func (f *fake) ForceUnlockHolder(_ context.Context, path, holder string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, ok := f.locks[path]
	if !ok || info.Holders[0].Holder != holder {
		return &lockregistry.LockError{Err: lockregistry.ErrNotOwner}
	}
	f.released = append(f.released, path)
	delete(f.locks, path)
	return nil
}

func (f *fake) set(infos ...inspect.Lock) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, info := range infos {
		f.locks[info.Path], f.since[info.Path] = info, time.Now()
	}
}

func (f *fake) remove(path string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.locks, path)
}

func (f *fake) do(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// someLock is a lock with a holder and some waiters.
func someLock(path string, waiters int) inspect.Lock {
	info := inspect.Lock{
		Path: path, Key: "orders:" + path, Kind: "lock", HolderCount: 1,
		Holders: []inspect.Holder{{
			Holder: "r1:17", Label: observe.Label{Registry: "r1", Host: "web-1", PID: 4711, Name: "billing"},
			Since: time.Now().Add(-time.Minute), Lease: time.Minute, Token: 42,
		}},
		WaiterCount: waiters,
	}
	for i := range min(waiters, 100) {
		name := fmt.Sprintf("r%d", i)
		info.Waiters = append(info.Waiters, inspect.Waiter{
			Registry: name, Label: observe.Label{Registry: name, Host: "web-2", PID: 100 + i, Name: "mail"},
			Since: time.Now().Add(-time.Duration(waiters-i) * time.Second),
		})
	}
	return info
}

var oneDeadlock = []observe.Deadlock{{Waits: []observe.DeadlockWait{
	{Path: "a", Owner: "goroutine 1", Holds: []string{"b"}}, {Path: "b", Owner: "goroutine 2", Holds: []string{"a"}},
}}}

// newPage makes a page that is closed with the test.
func newPage(t testing.TB, source page.Source, options ...page.Option) *page.Handler {
	t.Helper()
	h, err := page.New(source, append([]page.Option{page.WithLogger(slog.New(slog.DiscardHandler))}, options...)...)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	return h
}

// browser is a ResponseWriter that keeps what is streamed to it.
type browser struct {
	t      testing.TB
	h      http.Handler
	leave  context.CancelFunc
	left   chan struct{}
	block  chan struct{} // nil: takes everything at once
	header http.Header

	mu   sync.Mutex
	code int
	text strings.Builder
}

// look opens the stream of a page.
func look(t testing.TB, h http.Handler, change ...func(*http.Request)) *browser {
	t.Helper()
	b := newBrowser(t, h)
	b.look(change...)
	return b
}

func newBrowser(t testing.TB, h http.Handler) *browser {
	t.Helper()
	return &browser{t: t, h: h, left: make(chan struct{}), header: http.Header{}}
}

func (b *browser) look(change ...func(*http.Request)) {
	b.t.Helper()
	ctx, leave := context.WithCancel(b.t.Context())
	b.leave = leave
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/events", nil)
	require.NoError(b.t, err)
	r.Host = "localhost"
	for _, c := range change {
		c(r)
	}
	go func() {
		defer close(b.left)
		b.h.ServeHTTP(b, r)
	}()
	b.t.Cleanup(b.close)
}

// stop has the browser take nothing from now on, until block is closed; nil: it takes everything at once.
func (b *browser) stop(block chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.block = block
}

func (b *browser) close() {
	b.leave()
	<-b.left
}

func (b *browser) Header() http.Header              { return b.header }
func (b *browser) Flush()                           {}
func (b *browser) SetWriteDeadline(time.Time) error { return nil }
func (b *browser) SetReadDeadline(time.Time) error  { return nil }
func (b *browser) WriteHeader(code int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.code = code
}

func (b *browser) Write(text []byte) (int, error) {
	b.mu.Lock()
	block := b.block
	b.mu.Unlock()
	if block != nil {
		<-block
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

// read is all that has come since the last read.
func (b *browser) read() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.text.String()
	b.text.Reset()
	return text
}
