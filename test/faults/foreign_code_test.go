package faults_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// gated is a context whose methods pass a gate.
type gated struct {
	context.Context
	gate *gate
}

func (c gated) Deadline() (time.Time, bool) {
	c.gate.pass()
	return c.Context.Deadline()
}

func (c gated) Done() <-chan struct{} {
	c.gate.pass()
	return c.Context.Done()
}

func (c gated) Err() error {
	c.gate.pass()
	return c.Context.Err()
}

func (c gated) Value(key any) any {
	c.gate.pass()
	return c.Context.Value(key)
}

// hooked is a client with a hook, as rueidishook makes one.
type hooked struct {
	rueidis.Client
	gate *gate
}

func (c hooked) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	c.gate.pass()
	return c.Client.Do(ctx, command)
}

func (c hooked) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	c.gate.pass()
	return c.Client.DoMulti(ctx, commands...)
}

func (c hooked) Dedicate() (rueidis.DedicatedClient, func()) {
	c.gate.pass()
	client, giveBack := c.Client.Dedicate()
	return hookedAlone{client, c.gate}, giveBack
}

// hookedAlone is a connection of such a client.
type hookedAlone struct {
	rueidis.DedicatedClient
	gate *gate
}

func (c hookedAlone) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	c.gate.pass()
	return c.DedicatedClient.Do(ctx, command)
}

func (c hookedAlone) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	c.gate.pass()
	return c.DedicatedClient.DoMulti(ctx, commands...)
}

// handler is a log handler that passes a gate.
type handler struct{ gate *gate }

func (h handler) Enabled(context.Context, slog.Level) bool {
	h.gate.pass()
	return true
}

func (h handler) Handle(context.Context, slog.Record) error {
	h.gate.pass()
	return nil
}

func (h handler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h handler) WithGroup(string) slog.Handler { return h }

// spoken is a value whose text passes a gate.
type spoken struct{ gate *gate }

func (s spoken) String() string {
	s.gate.pass()
	return "spoken"
}

// bystander has a hold that is renewed, with a context, and shares a read hold with the owner whose code blocks.
type bystander struct {
	*kit.World
	reg  *lockregistry.Registry
	gate *gate
	held *lockregistry.Hold
	ctx  context.Context
}

// foreignCode does something again and again. Each time, user code blocks that was called from another place, until all places
// were covered. Meanwhile another hold of the registry must be renewed, and must be reported lost when its key is removed.
func foreignCode(
	t *testing.T, beyond bool, do func(b *bystander), opts func(g *gate) []lockregistry.Option,
	wrap func(c rueidis.Client, g *gate) rueidis.Client,
) {
	t.Helper()
	t.Parallel()
	places{}.foreignCode(t, beyond, do, opts, wrap)
}

// foreignCode is the same for places that are not known yet. So several actions that pass partly through the same places take
// one run for each place.
func (known places) foreignCode(
	t *testing.T, beyond bool, do func(b *bystander), opts func(g *gate) []lockregistry.Option,
	wrap func(c rueidis.Client, g *gate) rueidis.Client,
) {
	t.Helper()
	const lease = 6 * time.Second
	called := false
	for n, more := 1, true; more && !t.Failed(); n++ {
		kit.FakeWorldAlone(t, func(w *kit.World) {
			g := &gate{known: known, open: make(chan struct{})}
			client := w.Client()
			if wrap != nil {
				client = wrap(client, g)
			}
			options := []lockregistry.Option{lockregistry.WithLease(lease), lockregistry.WithRenewal()}
			if opts != nil {
				options = append(options, opts(g)...)
			}
			b := &bystander{World: w, gate: g, reg: w.RegistryOn(client, options...)}
			var err error
			b.held, err = b.reg.Acquire(w.Context(), "bystander")
			require.NoError(w, err)
			b.ctx = b.held.Context(w.Context())
			w.Settle()
			g.arm(beyond)

			var done sync.WaitGroup
			done.Go(func() { do(b) })
			w.Pass(2*lease + lease/2)
			require.NoError(w, b.ctx.Err(), "place %d", n)
			require.Positive(w, b.held.Remaining(), "place %d", n)
			require.Positive(w, w.Pttl("orders:bystander"), "place %d", n)
			w.Do("DEL", "orders:bystander")
			w.Pass(lease)
			require.ErrorIs(w, context.Cause(b.ctx), lockregistry.ErrLockLost, "place %d", n)
			var here bool
			here, more = g.leave()
			called = called || here
			done.Wait()
		})
	}
	require.True(t, called, "code of the user is called")
}

func TestLock_BlockedContextDisturbsNoOtherHold(t *testing.T) {
	t.Parallel()
	calls := map[string]func(b *bystander, ctx context.Context, cancel func()){
		"Hold.Context": func(b *bystander, ctx context.Context, cancel func()) {
			h, err := b.reg.Acquire(context.Background(), "blocked")
			require.NoError(b, err)
			h.Context(ctx)
			cancel()
			h.Context(ctx)
			_ = h.Release(context.Background())
		},
		"Hold.Context, lost": func(b *bystander, ctx context.Context, _ func()) {
			h, err := b.reg.Acquire(context.Background(), "blocked")
			require.NoError(b, err)
			h.Context(ctx)
			b.Do("DEL", "orders:blocked")
			<-h.Context(context.Background()).Done()
			_ = h.Release(context.Background())
		},
		"Lock.Context": func(b *bystander, ctx context.Context, _ func()) {
			l := b.reg.Obtain("blocked")
			b.Lock(l)
			for range 2 {
				l.Context(l.Context(ctx))
			}
			b.Unlock(l)
		},
		"the context of readers": func(b *bystander, _ context.Context, _ func()) {
			reader, mine := b.reg.ReadWrite("shared").Reader(), lockregistry.ContextWithOwner(context.Background())
			require.NoError(b, reader.Lock(mine))
			other := b.Goroutine()
			require.NoError(b, other.Lock(reader))
			var shares context.Context
			require.NoError(b, other.Do(func() error { shares = reader.Context(context.Background()); return nil }))
			go reader.Context(gated{mine, b.gate})
			b.Settle()
			b.Do("DEL", "orders:shared")
			<-time.After(5 * time.Second)
			require.ErrorIs(b, context.Cause(shares), lockregistry.ErrLockLost)
			require.ErrorIs(b, other.Unlock(reader), lockregistry.ErrLockLost)
			require.ErrorIs(b, reader.Unlock(mine), lockregistry.ErrLockLost)
		},
		"Do": func(b *bystander, ctx context.Context, _ func()) {
			_ = b.reg.Do(ctx, "blocked", func(context.Context) error { return nil })
		},
		"Do, lost": func(b *bystander, ctx context.Context, _ func()) {
			_ = b.reg.Do(ctx, "blocked", func(ctx context.Context) error {
				b.Do("DEL", "orders:blocked")
				<-ctx.Done()
				return ctx.Err()
			})
		},
		"Lock and Unlock": func(b *bystander, ctx context.Context, _ func()) {
			l := b.reg.Obtain("blocked")
			if l.Lock(ctx) == nil {
				_ = l.Renew(ctx, time.Minute)
				_ = l.Unlock(ctx)
			}
		},
		"Lock that waits here": func(b *bystander, ctx context.Context, _ func()) {
			l := b.reg.Obtain("blocked")
			b.Lock(l)
			done := kit.LockElsewhere(l, ctx, lockregistry.Wait(time.Second))
			<-time.After(500 * time.Millisecond)
			b.Unlock(l)
			<-done //nolint:errcheck // whether it got the lock does not matter
		},
		"Lock that waits for others": func(b *bystander, ctx context.Context, _ func()) {
			b.Do("SET", "orders:blocked", "another", "PX", "200")
			h, err := b.reg.Acquire(ctx, "blocked", lockregistry.Wait(time.Second))
			if err == nil {
				_ = h.Release(ctx)
			}
		},
		"Lock that fails fast": func(b *bystander, ctx context.Context, _ func()) {
			opts := []lockregistry.LockOption{lockregistry.Wait(time.Second), lockregistry.FailFast()}
			l := b.reg.Obtain("blocked")
			b.Lock(l)
			here := kit.LockElsewhere(l, ctx, opts...)
			b.Do("SET", "orders:taken", "another", "PX", "200")
			there := kit.LockElsewhere(b.reg.Obtain("taken"), ctx, opts...)
			<-time.After(500 * time.Millisecond)
			b.Unlock(l)
			<-here  //nolint:errcheck // whether they got the locks does not matter
			<-there //nolint:errcheck // likewise
		},
		"Shutdown": func(b *bystander, ctx context.Context, end func()) {
			time.AfterFunc(time.Minute, end)
			_ = b.reg.Shutdown(ctx)
		},
		"Lock without an answer": func(b *bystander, ctx context.Context, cancel func()) {
			h, err := b.reg.Acquire(context.Background(), "blocked")
			require.NoError(b, err)
			b.loading()
			_ = h.Renew(ctx, time.Minute)
			_, _ = b.reg.Obtain("another").TryLock(ctx)
			cancel()
			_ = h.Release(ctx)
		},
		"AcquireAll": func(b *bystander, ctx context.Context, _ func()) {
			if h, err := b.reg.AcquireAll(ctx, []string{"blocked", "too"}); err == nil {
				h.Context(ctx)
				_ = h.Release(ctx)
			}
		},
		"Once": func(b *bystander, ctx context.Context, _ func()) {
			_, _ = b.reg.Once(ctx, "blocked", time.Second, func(context.Context) error { return nil })
		},
		"questions": func(b *bystander, ctx context.Context, _ func()) {
			_, _ = inspect.Of(b.reg).Inspect(ctx, "blocked")
			_ = inspect.Of(b.reg).ForceUnlock(ctx, "blocked")
			_, _ = inspect.Of(b.reg).Deadlocks(ctx)
			for _, err := range inspect.Of(b.reg).Locks(ctx) {
				_ = err
			}
		},
	}
	known := places{}
	for _, name := range kit.InOrder(calls) {
		t.Run(name, func(t *testing.T) {
			known.foreignCode(t, true, func(b *bystander) {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				calls[name](b, gated{ctx, b.gate}, cancel)
			}, nil, nil)
		})
	}
}

// The methods of a context may ask the lock that the context is made for.
func TestHold_ContextWhoseMethodsAskTheHold(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry()
		h, err := r.Acquire(w.Context(), "42")
		require.NoError(w, err)
		ctx := h.Context(Mode{w.Context(), func() { _, _ = h.Remaining(), r.Obtain("42").IsHeld() }})
		require.NoError(w, ctx.Err())
		w.Released(h.Release(w.Context()))
		require.Equal(w, context.Canceled, context.Cause(ctx))
	})
}

type Mode struct {
	context.Context
	ask func()
}

func (a Mode) Done() <-chan struct{} { a.ask(); return a.Context.Done() }

func (a Mode) Err() error { a.ask(); return a.Context.Err() }

func (a Mode) Value(key any) any { a.ask(); return a.Context.Value(key) }

// events makes everything happen that an observer or a log is told of.
func (b *bystander) events() {
	_ = b.reg.Do(context.Background(), "quiet", func(context.Context) error { return nil })
	h, err := b.reg.Acquire(context.Background(), "lost")
	if err != nil {
		return
	}
	b.Do("DEL", "orders:lost")
	<-h.Context(context.Background()).Done()
	_ = h.Release(context.Background())
	b.circle()
	b.loading()
	<-time.After(10 * time.Second)
}

// circle has two owners wait for each other for a while.
func (b *bystander) circle() {
	var have, all sync.WaitGroup
	have.Add(2)
	for _, paths := range [][2]string{{"left", "right"}, {"right", "left"}} {
		all.Go(func() {
			owner := lockregistry.ContextWithOwner(context.Background())
			locked := b.reg.Obtain(paths[0]).Lock(owner) == nil
			have.Done()
			have.Wait()
			if ok, _ := b.reg.Obtain(paths[1]).TryLock(owner, lockregistry.Wait(2*time.Second)); ok {
				_ = b.reg.Obtain(paths[1]).Unlock(owner)
			}
			if locked {
				_ = b.reg.Obtain(paths[0]).Unlock(owner)
			}
		})
	}
	all.Wait()
}

// loading makes the server refuse everything for a while.
func (b *bystander) loading() {
	b.Mini.SetError("LOADING")
	time.AfterFunc(2500*time.Millisecond, func() { b.Mini.SetError("") }) // a lease outlasts that, even when a third of it is over
}

func TestLock_BlockedObserverDisturbsNoOtherHold(t *testing.T) {
	t.Parallel()
	for name, pass := range map[string]func(g *gate){
		"that blocks": (*gate).pass,
		"that panics with a value that blocks": func(g *gate) {
			panic(spoken{g})
		},
	} {
		t.Run(name, func(t *testing.T) {
			foreignCode(t, true, (*bystander).events, func(g *gate) []lockregistry.Option {
				return []lockregistry.Option{lockregistry.WithObserver(observe.Observer{
					Acquired: func(_ context.Context, a observe.Acquired) {
						if a.Path != "bystander" {
							pass(g)
						}
					},
					Released:   func(context.Context, observe.Released) { pass(g) },
					Lost:       func(observe.Lost) { pass(g) },
					Renewing:   func(observe.Renewing) { pass(g) },
					Deadlocked: func(observe.Deadlock) { pass(g) },
				}), lockregistry.WithLogger(slog.New(handler{&gate{}}))}
			}, nil)
		})
	}
}

func TestLock_BlockedLogDisturbsNoOtherHold(t *testing.T) {
	foreignCode(t, true, (*bystander).events, func(g *gate) []lockregistry.Option {
		return []lockregistry.Option{lockregistry.WithLogger(slog.New(handler{g}))}
	}, nil)
}

// A hook that never returns is like a server that does not answer the command.
func TestLock_BlockedHookDisturbsNoOtherHold(t *testing.T) {
	foreignCode(t, false, func(b *bystander) {
		err := b.reg.Do(context.Background(), "blocked", func(context.Context) error {
			<-time.After(10 * time.Second)
			return nil
		})
		if err != nil && !errors.Is(err, lockregistry.ErrUnavailable) {
			require.ErrorIs(b, err, lockregistry.ErrLockLost)
		}
		b.Do("SET", "orders:taken", "another", "PX", "200")
		if l := b.reg.Obtain("taken"); l.Lock(context.Background(), lockregistry.Wait(time.Second)) == nil {
			_ = l.Unlock(context.Background())
		}
	}, nil, func(c rueidis.Client, g *gate) rueidis.Client { return hooked{c, g} })
}

// describing is a client whose methods about itself pass a gate. It pretends to be a Sentinel client, whose methods are called
// all the time.
type describing struct {
	rueidis.Client
	gate *gate
}

func (c *describing) Mode() rueidis.ClientMode {
	c.gate.pass()
	return rueidis.ClientModeSentinel
}

func (c *describing) Nodes() map[string]rueidis.Client {
	c.gate.pass()
	return map[string]rueidis.Client{"": c.Client}
}

func TestLock_BlockedQuestionToTheClientDisturbsNoOtherHold(t *testing.T) {
	foreignCode(t, true, func(b *bystander) {
		l := b.reg.Obtain("blocked")
		b.Lock(l)
		waits := kit.LockElsewhere(l, b.Context(), lockregistry.Wait(time.Second))
		go b.reg.Stats()
		<-waits //nolint:errcheck // it does not get the lock
		b.Unlock(l)
	}, nil, func(c rueidis.Client, g *gate) rueidis.Client { return &describing{c, g} })
}

// A client whose methods block, with a registry and a waiting call, does not disturb registries on another client.
func TestNew_BlockedClientDisturbsNoOtherOne(t *testing.T) {
	t.Parallel()
	known := places{}
	for n, more := 1, true; more && !t.Failed(); n++ {
		kit.FakeWorldAlone(t, func(w *kit.World) {
			g := &gate{armed: true, beyond: true, known: known, open: make(chan struct{})}
			client, other := &describing{w.Client(), g}, w.Client()
			blocked := make(chan *lockregistry.Registry, 1)
			go func() {
				r, err := lockregistry.New(client, "orders")
				if err != nil {
					w.Error(err)
				} else {
					w.Do("SET", "orders:blocked", "another", "PX", "200")
					err = r.Obtain("blocked").Lock(w.Context(), lockregistry.Wait(time.Second))
				}
				if err == nil {
					_ = r.Obtain("blocked").Unlock(context.WithoutCancel(w.Context()))
				}
				blocked <- r
			}()
			w.Settle()
			done := make(chan error, 1)
			go func() {
				r, err := lockregistry.New(other, "orders")
				if err == nil {
					w.Do("SET", "orders:free", "another", "PX", "200")
					err = r.Obtain("free").Lock(w.Context(), lockregistry.Wait(time.Second))
				}
				if err == nil {
					err = r.Obtain("free").Unlock(w.Context())
				}
				if err == nil {
					err = r.Close()
				}
				done <- err
			}()
			w.Pass(5 * time.Second)
			select {
			case err := <-done:
				done <- err
			default:
				w.Errorf("place %d is in the way", n)
			}
			_, more = g.leave()
			if r := <-blocked; r != nil {
				require.NoError(w, r.Close())
			}
			require.NoError(w, <-done)
		})
	}
}

// wordy is an error whose methods pass a gate.
type wordy struct {
	err  error
	gate *gate
}

func (e wordy) Error() string {
	e.gate.pass()
	return e.err.Error()
}

func (e wordy) Unwrap() error {
	e.gate.pass()
	return e.err
}

func (e wordy) Is(error) bool {
	e.gate.pass()
	return false
}

// wordyEnd is a context that ends with such an error.
type wordyEnd struct{ gated }

func (c wordyEnd) Err() error {
	if err := c.Context.Err(); err != nil {
		return wordy{err, c.gate}
	}
	return nil
}

func (c wordyEnd) Done() <-chan struct{} { return c.Context.Done() }

func (c wordyEnd) Value(key any) any { return c.Context.Value(key) }

// Blocked methods of the error that a context ends with disturb no other hold.
func TestLock_BlockedErrorDisturbsNoOtherHold(t *testing.T) {
	foreignCode(t, true, func(b *bystander) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		ends := wordyEnd{gated{ctx, b.gate}}
		h, err := b.reg.Acquire(context.Background(), "blocked")
		require.NoError(b, err)
		mine := h.Context(ends)
		b.Do("SET", "orders:taken", "another", "PX", "100000")
		time.AfterFunc(time.Second, cancel)
		_ = b.reg.Obtain("taken").Lock(ends)
		_ = mine.Err()
		_ = h.Renew(ends, time.Minute)
		_, _ = b.reg.Obtain("taken").TryLock(ends)
		_ = b.reg.Do(ends, "free", func(context.Context) error { return nil })
		_ = h.Release(ends)
	}, nil, nil)
}

// failing is a client with a hook that, once told so, makes commands for a path fail with such an error.
type failing struct {
	rueidis.Client
	gate *gate
	told *atomic.Bool
}

func (c failing) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	return c.DoMulti(ctx, command)[0]
}

func (c failing) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	fail := make([]bool, len(commands))
	for i, command := range commands { // commands must not be read after they were sent
		fail[i] = c.told.Load() && slices.Contains(command.Commands(), "orders:blocked")
	}
	results := c.Client.DoMulti(ctx, commands...)
	for i := range results {
		if fail[i] {
			results[i] = rueidis.NewErrorResult(wordy{io.EOF, c.gate})
		}
	}
	return results
}

// Blocked methods of an error that a client's hook returns disturb no other hold.
func TestLock_BlockedErrorOfAHookDisturbsNoOtherHold(t *testing.T) {
	t.Parallel()
	calls := map[string]func(b *bystander, h *lockregistry.Hold, fail func()){
		"renewals": func(_ *bystander, _ *lockregistry.Hold, fail func()) {
			fail()
			<-time.After(10 * time.Second)
		},
		"Hold.Renew": func(_ *bystander, h *lockregistry.Hold, fail func()) {
			fail()
			_ = h.Renew(context.Background(), time.Minute)
		},
		"Hold.Release": func(_ *bystander, h *lockregistry.Hold, fail func()) {
			fail()
			_ = h.Release(context.Background())
		},
		"TryLock": func(b *bystander, h *lockregistry.Hold, fail func()) {
			require.NoError(b, h.Release(context.Background()))
			fail()
			_, _ = b.reg.Obtain("blocked").TryLock(context.Background())
		},
	}
	known := places{}
	for _, name := range kit.InOrder(calls) {
		t.Run(name, func(t *testing.T) {
			var told atomic.Bool
			known.foreignCode(t, true, func(b *bystander) {
				h, err := b.reg.Acquire(context.Background(), "blocked")
				require.NoError(b, err)
				calls[name](b, h, func() { told.Store(true) })
			}, nil, func(c rueidis.Client, g *gate) rueidis.Client {
				told.Store(false)
				return failing{c, g, &told}
			})
		})
	}
}

// gate is in user code: contexts, hooks, handlers. Once it is armed, the first call from a new place blocks, and with beyond
// all that follow block, too.
type gate struct {
	mu      sync.Mutex
	armed   bool
	beyond  bool
	known   places
	called  bool // since it was armed
	blocked bool
	open    chan struct{}
}

// places are the call stacks, of this library's functions, that have led to a blocked call. Each stack is a place of its own,
// since other mutexes may be held there. Calls of the standard library in between do not count: the library holds the same
// mutexes whichever of an error's methods errors.Is or a text calls first.
type places map[string]bool

// place returns the place of its caller's caller.
func place() string {
	const library = "github.com/lockregistry/lockregistry"
	var stack [64]uintptr
	frames := runtime.CallersFrames(stack[:runtime.Callers(3, stack[:])])
	var calls strings.Builder
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if strings.HasPrefix(f.Function, library) && !strings.HasPrefix(f.Function, library+"/test/") {
			fmt.Fprintln(&calls, f.Function, f.Line)
		}
	}
	return calls.String()
}

func (g *gate) pass() {
	g.mu.Lock()
	here := ""
	if g.armed && !g.blocked {
		here = place()
	}
	g.called = g.called || g.armed
	blocks := g.armed && (g.blocked && g.beyond || !g.blocked && !g.known[here])
	if blocks && !g.blocked {
		g.blocked, g.known[here] = true, true
	}
	g.mu.Unlock()
	if blocks {
		<-g.open
	}
}

// arm makes calls block from now on.
func (g *gate) arm(beyond bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed, g.beyond = true, beyond
}

// leave lets all calls through, and reports whether there was a call, and whether one has blocked.
func (g *gate) leave() (called, blocked bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = false
	close(g.open)
	return g.called, g.blocked
}
