package browser

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/cmd/lockreg/page"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

// limit is how long to wait for anything. The machine may be busy.
const limit = 40 * time.Second

var chromium context.Context // of the one browser that all tests share

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	program, err := find()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(program),
		chromedp.NoSandbox, // root, in a container
		chromedp.WSURLReadTimeout(2*time.Minute),
	)...)
	defer stop()
	browser, quit := chromedp.NewContext(allocator)
	defer quit()
	if err := chromedp.Do(browser); err != nil {
		fmt.Fprintln(os.Stderr, "cannot start", program, err)
		return 1
	}
	chromium = browser
	return m.Run()
}

func find() (string, error) {
	names := []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"}
	if named := os.Getenv("LOCKREGISTRY_CHROMIUM"); named != "" {
		names = []string{named}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("no Chromium found; scripts/ensure-chromium.sh installs one")
}

// tab is a page in the browser.
type tab struct {
	t        *testing.T
	ctx      context.Context
	mu       sync.Mutex
	messages []string // what is in the console, and exceptions
}

// open shows an address.
func open(t *testing.T, url string, width, height int64) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(chromium, chromedp.WithNewBrowserContext())
	b := &tab{t: t, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			picture := filepath.Join(os.TempDir(), "lockreg-"+filepath.Base(t.Name())+".png")
			if text, err := b.shoot(); err == nil && os.WriteFile(picture, text, 0o600) == nil {
				t.Log("how it looked:", picture)
			}
		}
		cancel()
	})
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(width, height)))
	console := chromedp.Console(ctx) // exceptions, too, and what the browser says, such as that the policy forbids something
	go func() {
		for message, err := range console {
			if err == nil {
				b.mu.Lock()
				b.messages = append(b.messages, message.Text)
				b.mu.Unlock()
			}
		}
	}()
	b.do(chromedp.Navigate(url))
	return b
}

// quiet fails the test when the page had something to complain about.
func (b *tab) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b.t, b.messages)
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 2*limit)
	defer cancel()
	require.NoError(b.t, chromedp.Do(ctx, actions...))
}

func (b *tab) shoot() ([]byte, error) {
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	return chromedp.Run(ctx, chromedp.CaptureScreenshot())
}

// value evaluates JavaScript.
func value[T any](b *tab, script string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 2*limit)
	defer cancel()
	result, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	require.NoError(b.t, err, script)
	return result
}

// await waits until a script is true, and returns how long that took.
func (b *tab) await(script string) time.Duration {
	b.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	for {
		// An error is one of a page that goes to another one, or of a script that looks for what is not there yet.
		so, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+script+")"))
		switch {
		case so && err == nil:
			return time.Since(began)
		case ctx.Err() != nil:
			b.t.Fatalf("not so after %s: %s (%v)", limit, script, err)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// press is a key as people press it: what it would do does not happen when the page keeps it for itself.
func (b *tab) press(key, text string) {
	b.t.Helper()
	codes := map[string]int64{"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "ArrowUp": 38, "ArrowDown": 40, "/": 191}
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
		_, err := chromedp.Call(b.ctx, input.DispatchKeyEvent, input.DispatchKeyEventParams{
			Type: kind, Key: key, Code: key, Text: text, WindowsVirtualKeyCode: codes[key],
		})
		require.NoError(b.t, err)
		text = ""
	}
}

// row is a script that is the row of a path, as text, or "".
func row(path string) string {
	return fmt.Sprintf(`([...document.querySelectorAll("#rows .row:not([hidden])")].find(
		(r) => r.querySelector(".path").textContent === %q)?.innerText ?? "")`, path)
}

func (b *tab) click(selector string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// text waits until an element has a text.
func (b *tab) text(selector, text string) time.Duration {
	b.t.Helper()
	return b.await(fmt.Sprintf(`document.querySelector(%q)?.innerText.includes(%q)`, selector, text))
}

// signIn enters a token, on the page for that.
func (b *tab) signIn(token string) {
	b.t.Helper()
	b.await(`location.pathname === "/login" && document.readyState === "complete"`) // else what is typed may be lost
	b.do(empty("#token"), chromedp.SendKeys(chromedp.CSS("#token"), token), chromedp.Click(chromedp.CSS("#enter")))
}

// fake is a source of locks that are made up.
type fake struct {
	mu        sync.Mutex
	locks     map[string]inspect.Lock
	deadlocks []observe.Deadlock
	released  []string // holders
	failure   atomic.Pointer[error]
	waits     func(i int) time.Duration // how long the i-th waiter of each lock has waited at each pass; nil: since it was made
	late      atomic.Bool               // releases come too late
	slow      atomic.Bool               // each lock takes a while to be read
}

var errRights = errors.New("NOPERM this user has no permissions")

func (f *fake) Locks(ctx context.Context) iter.Seq2[inspect.Lock, error] {
	return func(yield func(inspect.Lock, error) bool) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if failure := f.failure.Load(); failure != nil {
			yield(inspect.Lock{}, *failure)
			return
		}
		for _, info := range f.locks {
			info.Holders = slices.Clone(info.Holders)
			for i := range info.Holders {
				if h := &info.Holders[i]; h.Lease == lasting { // else it would be renewed at each pass
					h.Lease -= time.Since(began)
				}
			}
			if f.waits != nil {
				info.Waiters = slices.Clone(info.Waiters)
				for i := range info.Waiters {
					info.Waiters[i].Since = time.Now().Add(-f.waits(i))
				}
			}
			if f.slow.Load() {
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			if !yield(info, nil) {
				return
			}
		}
	}
}

func (f *fake) Deadlocks(context.Context) ([]observe.Deadlock, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.deadlocks, nil
}

func (f *fake) ForceUnlockHolder(_ context.Context, path, holder string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.late.Load() {
		return lockregistry.ErrNotOwner
	}
	delete(f.locks, path)
	f.released = append(f.released, holder)
	return nil
}

func (f *fake) set(infos ...inspect.Lock) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.locks == nil {
		f.locks = map[string]inspect.Lock{}
	}
	for _, info := range infos {
		f.locks[info.Path] = info
	}
}

// lasting is the lease of a made-up holder; it ends so long after the tests began.
const lasting = 1000 * time.Hour

var began = time.Now()

// made is a lock with some waiters, held for long.
func made(path string, waiters int) inspect.Lock {
	info := inspect.Lock{
		Path: path, Key: "orders:" + path, Kind: "lock", HolderCount: 1, WaiterCount: waiters,
		Holders: []inspect.Holder{{
			Holder: "7f6f0f7a:1795278376064288", Label: label("web-1", 4711, "billing"), Since: time.Now().Add(-100 * time.Second),
			Lease: lasting, Token: 42,
		}},
	}
	for i := range min(100, waiters) {
		info.Waiters = append(info.Waiters, inspect.Waiter{
			Registry: fmt.Sprintf("%08x", i), Label: label("web-2", 812+i, "mail"),
			Since: time.Now().Add(time.Duration(i-waiters) * time.Second),
		})
	}
	return info
}

func label(host string, pid int, name string) observe.Label {
	return observe.Label{Registry: "7f6f0f7a", Host: host, PID: pid, Name: name}
}

// loseOne has a lock that is overdue, and then is gone.
func (f *fake) loseOne(t *testing.T, b *tab) {
	t.Helper()
	lost := made("lost", 0)
	lost.Holders[0].Renewed, lost.Holders[0].Lease = time.Minute, 200*time.Millisecond
	f.set(lost)
	b.text("#stuck-list", "lost: held by billing")
	require.NoError(t, f.ForceUnlockHolder(t.Context(), "lost", ""))
	b.text("#lost-list", "lost: billing")
}

// serve serves a page on loopback, and returns its address.
func serve(t *testing.T, source page.Source, options ...page.Option) string {
	t.Helper()
	return "http://" + listen(t, handler(t, source, options...), "127.0.0.1:0").Addr + "/"
}

func handler(t *testing.T, source page.Source, options ...page.Option) *page.Handler {
	t.Helper()
	h, err := page.New(source,
		append([]page.Option{page.WithLogger(slog.New(slog.DiscardHandler)), page.WithHosts()}, options...)...)
	require.NoError(t, err)
	t.Cleanup(h.Close)
	return h
}

// free is an address on which a server may listen twice: no other program takes it in between.
func free(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", redistest.FreePort(t))
}

// listen returns a server whose address is that which it got.
func listen(t *testing.T, h http.Handler, address string) *http.Server {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	require.NoError(t, err)
	server := &http.Server{Addr: listener.Addr().String(), Handler: h, ReadHeaderTimeout: limit}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return server
}

// scheme makes the page light or dark.
func (b *tab) scheme(name string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
	require.NoError(b.t, err)
}
