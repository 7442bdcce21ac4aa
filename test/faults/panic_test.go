package faults_test

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// bomb is in user code: contexts, hooks, functions of an observer. It goes off once, in the goroutine of the call under test,
// at the first place where none has gone off.
type bomb struct {
	known places
	bang  func()

	mu    sync.Mutex
	armed bool
	fired bool
	at    string // the place
}

const bombRuns = "faults_test.(*bomb).runs"

func (b *bomb) pass() {
	b.mu.Lock()
	goes := false
	if b.armed && !b.fired && b.isHere() {
		if here := place(); !b.known[here] {
			b.known[here], b.fired, b.at, goes = true, true, here, true
		}
	}
	b.mu.Unlock()
	if goes {
		b.bang()
	}
}

// isHere reports whether this is the goroutine of the call under test. A panic in another goroutine would end the program.
func (b *bomb) isHere() bool {
	var stack [64]uintptr
	frames := runtime.CallersFrames(stack[:runtime.Callers(2, stack[:])])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if strings.HasSuffix(f.Function, bombRuns) {
			return true
		}
	}
	return false
}

func (b *bomb) arm(armed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.armed = armed
}

// runs makes a call in which the bomb may go off.
func (b *bomb) runs(call func()) {
	b.arm(true)
	defer b.arm(false)
	defer func() { _ = recover() }()
	call()
}

// bombed is a context whose methods pass a bomb.
type bombed struct {
	context.Context
	bomb *bomb
}

func (c bombed) Deadline() (time.Time, bool) { c.bomb.pass(); return c.Context.Deadline() }
func (c bombed) Done() <-chan struct{}       { c.bomb.pass(); return c.Context.Done() }
func (c bombed) Err() error                  { c.bomb.pass(); return c.Context.Err() }
func (c bombed) Value(key any) any           { c.bomb.pass(); return c.Context.Value(key) }

// bombedClient is a client with a hook that passes a bomb, before or after the command.
type bombedClient struct {
	rueidis.Client
	bomb  *bomb
	after bool
}

func (c bombedClient) Do(ctx context.Context, command rueidis.Completed) rueidis.RedisResult {
	if !c.after {
		c.bomb.pass()
	}
	result := c.Client.Do(ctx, command)
	if c.after {
		c.bomb.pass()
	}
	return result
}

func (c bombedClient) DoMulti(ctx context.Context, commands ...rueidis.Completed) []rueidis.RedisResult {
	if !c.after {
		c.bomb.pass()
	}
	results := c.Client.DoMulti(ctx, commands...)
	if c.after {
		c.bomb.pass()
	}
	return results
}

// panicking is a call in which user code panics, or ends the goroutine, and what the call works on.
type panicking struct {
	*kit.World

	reg, other *lockregistry.Registry
	ctx        context.Context
	run        func(call func()) // the bomb goes off within
}

// locks obtains a lock and unlocks it. If the call panics while its caller knows to have the lock, the caller unlocks it once
// more.
func (p *panicking) locks(l *lockregistry.Lock, opts ...lockregistry.LockOption) {
	got := false
	p.run(func() {
		got = l.Lock(p.ctx, opts...) == nil
		if got {
			_ = l.Unlock(p.ctx)
			got = false
		}
	})
	if got {
		_ = l.Unlock(context.Background())
	}
}

func (p *panicking) acquires(acquire func(ctx context.Context) (*lockregistry.Hold, error)) {
	var h *lockregistry.Hold
	p.run(func() {
		h, _ = acquire(p.ctx)
		if h != nil {
			h.Context(p.ctx)
			_ = h.Renew(p.ctx, time.Minute)
			_ = h.Release(p.ctx)
		}
	})
	if h != nil {
		_ = h.Release(context.Background())
	}
}

// panickingCalls are calls that call user code.
var panickingCalls = map[string]func(p *panicking){
	"Lock": func(p *panicking) { p.locks(p.reg.Obtain("a")) },
	"Lock that waits here": func(p *panicking) {
		h, err := p.reg.Acquire(context.Background(), "a")
		require.NoError(p, err)
		time.AfterFunc(time.Second, func() { _ = h.Release(context.Background()) })
		p.locks(p.reg.Obtain("a"), lockregistry.Wait(3*time.Second))
	},
	"Lock that fails fast": func(p *panicking) {
		h, err := p.reg.Acquire(context.Background(), "a")
		require.NoError(p, err)
		time.AfterFunc(time.Second, func() { _ = h.Release(context.Background()) })
		p.locks(p.reg.Obtain("a"), lockregistry.Wait(3*time.Second), lockregistry.FailFast())
	},
	"Lock that waits for others": func(p *panicking) {
		p.Do("SET", "orders:a", "another", "PX", "1500")
		p.locks(p.reg.Obtain("a"), lockregistry.Wait(5*time.Second))
	},
	"TryLock that finds it taken": func(p *panicking) {
		p.Do("SET", "orders:a", "another", "PX", "200")
		p.run(func() { _, _ = p.reg.Obtain("a").TryLock(p.ctx) })
	},
	"nested Lock": func(p *panicking) {
		l := p.reg.Obtain("a")
		p.Lock(l)
		defer p.Unlock(l)
		p.locks(l, lockregistry.Lease(time.Minute))
	},
	"Reader": func(p *panicking) { p.locks(p.reg.ReadWrite("a").Reader()) },
	"Reader that joins": func(p *panicking) {
		h, err := p.reg.ReadWrite("a").Reader().Acquire(context.Background())
		require.NoError(p, err)
		defer func() { _ = h.Release(context.Background()) }()
		p.locks(p.reg.ReadWrite("a").Reader(), lockregistry.Lease(time.Hour))
	},
	"Writer": func(p *panicking) { p.locks(p.reg.ReadWrite("a").Writer()) },
	"Do": func(p *panicking) {
		p.run(func() {
			_ = p.reg.Do(p.ctx, "a", func(ctx context.Context) error {
				return p.reg.Do(ctx, "a", func(context.Context) error { return nil })
			})
		})
	},
	"Once": func(p *panicking) {
		p.run(func() {
			_, _ = p.reg.Once(p.ctx, "a", time.Second, func(context.Context) error { return nil })
		})
	},
	"Acquire": func(p *panicking) {
		p.acquires(func(ctx context.Context) (*lockregistry.Hold, error) { return p.reg.Acquire(ctx, "a") })
	},
	"Semaphore": func(p *panicking) {
		p.acquires(func(ctx context.Context) (*lockregistry.Hold, error) { return p.reg.Semaphore("a", 1).Acquire(ctx) })
	},
	"AcquireAll": func(p *panicking) {
		p.acquires(func(ctx context.Context) (*lockregistry.Hold, error) {
			return p.reg.AcquireAll(ctx, []string{"a", "b"})
		})
	},
	"AcquireAll in order": func(p *panicking) {
		p.Do("SET", "orders:b", "another", "PX", "1500")
		p.acquires(func(ctx context.Context) (*lockregistry.Hold, error) {
			return p.reg.AcquireAll(ctx, []string{"a", "b", "c"}, lockregistry.Wait(5*time.Second))
		})
	},
}

// panics makes user code panic, or end the goroutine, at each place where a call calls it, one place a run. Afterwards
// everything is free: nothing is held in this process, and nothing stays in Redis.
func panics(
	t *testing.T, bang func(), opts func(b *bomb) []lockregistry.Option, wrap func(c rueidis.Client, b *bomb) rueidis.Client,
	context func(b *bomb) context.Context,
) {
	t.Helper()
	t.Parallel()
	known := places{}
	for _, name := range kit.InOrder(panickingCalls) {
		t.Run(name, func(t *testing.T) {
			for fired := true; fired && !t.Failed(); {
				kit.FakeWorldAlone(t, func(w *kit.World) {
					b := &bomb{known: known, bang: bang}
					options := []lockregistry.Option{lockregistry.WithRenewal()}
					if opts != nil {
						options = append(options, opts(b)...)
					}
					client := w.Client()
					p := &panicking{
						World: w, reg: w.RegistryOn(wrap(client, b), options...), other: w.RegistryOn(client), ctx: context(b), run: b.runs,
					}
					done := make(chan struct{})
					go func() {
						defer close(done)
						panickingCalls[name](p)
					}()
					<-done
					w.Pass(5 * time.Second)
					p.isFree(name, b.at)
					fired = b.fired
				})
			}
		})
	}
}

// isFree checks that this registry and another one on its client can get the locks, and that nothing is left once no late grant
// can arrive any more.
func (p *panicking) isFree(name, after string) {
	p.Helper()
	paths := []string{"a"}
	if strings.HasPrefix(name, "AcquireAll") {
		paths = []string{"a", "b", "c"}
	}
	for _, reg := range []*lockregistry.Registry{p.reg, p.other} {
		for _, path := range paths {
			wait := lockregistry.Wait(10 * time.Second)
			var h *lockregistry.Hold
			var err error
			switch {
			case name == "Semaphore":
				h, err = reg.Semaphore(path, 1).Acquire(p.Context(), wait)
			case strings.HasPrefix(name, "Reader") || name == "Writer":
				h, err = reg.ReadWrite(path).Writer().Acquire(p.Context(), wait)
			default:
				h, err = reg.Acquire(p.Context(), path, wait)
			}
			require.NoError(p, err, "%s, after a panic at\n%s", path, after)
			require.NoError(p, h.Release(p.Context()))
		}
	}
	for start := time.Now(); p.Left() != ""; p.Pass(10 * time.Second) {
		require.Less(p, time.Since(start), 3*time.Minute, "%s, after a panic at\n%s", p.Left(), after)
	}
}

func plainClient(c rueidis.Client, _ *bomb) rueidis.Client { return c }

func plainContext(*bomb) context.Context { return context.Background() }

func TestLock_ContextThatPanicsLeavesNothingTaken(t *testing.T) {
	panics(t, func() { panic("a method of the context") }, nil, plainClient, func(b *bomb) context.Context {
		return bombed{context.Background(), b}
	})
}

func TestLock_HookThatPanicsLeavesNothingTaken(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]bool{"before": false, "after": true} {
		t.Run(name, func(t *testing.T) {
			panics(t, func() { panic("a hook") }, nil, func(c rueidis.Client, b *bomb) rueidis.Client {
				return bombedClient{c, b, after}
			}, plainContext)
		})
	}
}

func TestLock_ObserverThatEndsTheGoroutineLeavesNothingTaken(t *testing.T) {
	panics(t, runtime.Goexit, func(b *bomb) []lockregistry.Option {
		return []lockregistry.Option{lockregistry.WithObserver(observe.Observer{
			Acquired:   func(context.Context, observe.Acquired) { b.pass() },
			Released:   func(context.Context, observe.Released) { b.pass() },
			Lost:       func(observe.Lost) { b.pass() },
			Renewing:   func(observe.Renewing) { b.pass() },
			Deadlocked: func(observe.Deadlock) { b.pass() },
		})}
	}, plainClient, plainContext)
}
