package lock_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/leader"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// workWithin calls a function with a context of a hold of the path 42, for each kind of hold.
var workWithin = map[string]func(ctx context.Context, r *lockregistry.Registry, work func(context.Context) error) error{
	"Do": func(ctx context.Context, r *lockregistry.Registry, work func(context.Context) error) error {
		return r.Do(ctx, "42", work)
	},
	"Do within Do": func(ctx context.Context, r *lockregistry.Registry, work func(context.Context) error) error {
		return r.Do(ctx, "42", func(ctx context.Context) error { return r.Do(ctx, "43", work, lockregistry.Lease(time.Hour)) })
	},
	"Lock.Context": func(ctx context.Context, r *lockregistry.Registry, work func(context.Context) error) error {
		l := r.Obtain("42")
		if err := l.Lock(ctx); err != nil {
			return err
		}
		defer func() { _ = l.Unlock(ctx) }()
		return work(l.Context(ctx))
	},
	"Acquire": func(ctx context.Context, r *lockregistry.Registry, work func(context.Context) error) error {
		h, err := r.Acquire(ctx, "42")
		if err != nil {
			return err
		}
		defer func() { _ = h.Release(ctx) }()
		return work(h.Context(ctx))
	},
	"AcquireAll": func(ctx context.Context, r *lockregistry.Registry, work func(context.Context) error) error {
		h, err := r.AcquireAll(ctx, []string{"42", "43", "44"})
		if err != nil {
			return err
		}
		defer func() { _ = h.Release(ctx) }()
		return work(h.Context(ctx))
	},
	"Reader": func(ctx context.Context, r *lockregistry.Registry, work func(context.Context) error) error {
		return r.ReadWrite("42").Reader().Do(ctx, work)
	},
	"Writer": func(ctx context.Context, r *lockregistry.Registry, work func(context.Context) error) error {
		return r.ReadWrite("42").Writer().Do(ctx, work)
	},
	"Semaphore": func(ctx context.Context, r *lockregistry.Registry, work func(context.Context) error) error {
		return r.Semaphore("42", 2).Do(ctx, work)
	},
	"Once": func(ctx context.Context, r *lockregistry.Registry, work func(context.Context) error) error {
		_, err := r.Once(ctx, "42", time.Second, work)
		return err
	},
	"leader": func(ctx context.Context, r *lockregistry.Registry, work func(context.Context) error) error {
		ctx, stop := context.WithCancel(ctx)
		c, err := leader.New(r, "42", func(ctx context.Context) error {
			defer stop()
			return work(ctx)
		})
		if err != nil {
			return err
		}
		return c.Run(ctx)
	},
}

// The first look at a context after the lease reports its end, even if neither a timer nor a renewal of the process was in
// time, or the machine was suspended.
func TestContext_GoesByTheClock(t *testing.T) {
	t.Parallel()
	for name, in := range workWithin {
		for how, look := range map[string]func(context.Context) error{"Err": context.Context.Err, "Cause": context.Cause} {
			const lease = 10 * time.Second
			test := func(w *kit.World, pass func(r *lockregistry.Registry, d time.Duration)) {
				r := w.Registry(lockregistry.WithLease(lease))
				worked := false
				_ = in(w.Context(), r, func(ctx context.Context) error {
					kit.Stall(r)
					pass(r, lease/2)
					require.NoError(w, look(ctx))
					pass(r, lease/2)
					require.Error(w, look(ctx))
					require.ErrorIs(w, context.Cause(ctx), lockregistry.ErrLockLost)
					select {
					case <-ctx.Done():
					default:
						w.Error("Err is not nil before Done is closed")
					}
					worked = true
					return nil
				})
				require.True(w, worked)
			}
			t.Run(name+" "+how, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) { test(w, func(_ *lockregistry.Registry, d time.Duration) { w.Pass(d) }) })
			})
			t.Run(name+" "+how+" after a suspension", func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) { test(w, kit.Suspend) })
			})
		}
	}
}

// A look that ends a hold calls no code of the program: a caller may hold mutexes while it asks a context that the log handler
// and the observer need, too, as does the client's pool.
func TestContext_ALookCallsNobody(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		const lease = 10 * time.Second
		var mu sync.Mutex
		lost := 0
		observer := observe.Observer{Lost: func(observe.Lost) {
			mu.Lock()
			defer mu.Unlock()
			lost++
		}}
		f := w.Flaky()
		r := f.Registry(lockregistry.WithLease(lease), lockregistry.WithObserver(observer))
		l := r.Obtain("42")
		w.Lock(l)
		ctx := l.Context(w.Context())
		waits := kit.LockElsewhere(l, w.Context()) // the loss lets it in
		w.Settle()
		kit.Stall(r)
		w.Pass(lease)
		sent := f.LockCommands()
		mu.Lock()
		require.Error(w, ctx.Err())
		require.Equal(w, sent, f.LockCommands())
		mu.Unlock()
		require.ErrorIs(w, w.Registry().Obtain("43").Lock(ctx), lockregistry.ErrLockLost)
		require.NoError(w, <-waits)
		w.Settle()
		mu.Lock()
		defer mu.Unlock()
		require.Equal(w, 1, lost)
	})
}

// holds names a variable with the server's address for a process that holds paths, a comma, and how it is late.
const holds = "LOCKREGISTRY_HOLDS"

// No context is valid when another process has its path, neither in a process that was stopped in the meantime nor in one whose
// processors are busy.
func TestContext_OfAProcessThatIsLate(t *testing.T) {
	if how := os.Getenv(holds); how != "" {
		holdLate(t, how)
		return
	}
	for how, rounds := range map[string]int{"stopped": 3, "stopped and busy": 3, "busy": 1} { // the last one has a core for itself
		t.Run(how, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				for range rounds {
					later(w, how)
				}
			})
		})
	}
}

// later takes the paths over from a late process. It compares when that succeeded with when the process last believed in them.
func later(w *kit.World, how string) {
	self, err := os.Executable()
	require.NoError(w, err)
	child := exec.CommandContext(w.Context(), self, "-test.run", "^TestContext_OfAProcessThatIsLate$")
	child.Env, child.Stderr = append(os.Environ(), holds+"="+w.Server.Addr()+","+how), os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(w, err)
	require.NoError(w, child.Start())
	lines := bufio.NewScanner(out)
	require.True(w, lines.Scan())
	require.Equal(w, "has all", lines.Text())
	if how != "busy" {
		require.NoError(w, kit.Stop(child.Process))
	}
	h := w.AcquiresAll(w.Registry(), latePaths)
	got := time.Now()
	if how != "busy" {
		require.NoError(w, kit.Continue(child.Process))
	}
	for range latePaths {
		require.True(w, lines.Scan())
		path, at, _ := strings.Cut(lines.Text(), " ")
		nanos, err := strconv.ParseInt(at, 10, 64)
		require.NoError(w, err)
		seen := time.Unix(0, nanos)
		require.False(w, seen.After(got), "%s was valid %s after another process had it", path, seen.Sub(got))
	}
	for lines.Scan() {
	}
	require.NoError(w, child.Wait())
	w.Release(h)
}

var latePaths = []string{"acquire", "do", "lock", "several"}

// holdLate holds paths, renewed unless it is only busy, until all contexts have ended. For each path it prints when the last
// look that found it valid began.
func holdLate(t *testing.T, how string) {
	t.Helper()
	addr, how, _ := strings.Cut(how, ",")
	client, err := kit.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	require.NoError(t, err)
	defer client.Close()
	opts := []lockregistry.Option{
		lockregistry.WithLease(500 * time.Millisecond), lockregistry.WithCommandTimeout(10 * time.Second),
	}
	if how != "busy" {
		opts = append(opts, lockregistry.WithRenewal())
	}
	patient := lockregistry.Wait(time.Minute) // a lock that is granted later than its lease lasts is asked for again
	r, err := lockregistry.New(client, "orders", opts...)
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	valid, lock := map[string]context.Context{}, r.Obtain("lock")
	require.NoError(t, lock.Lock(t.Context(), patient))
	valid["lock"] = lock.Context(t.Context())
	if how == "busy" { // renewed holds would go on
		for _, path := range latePaths {
			if l := r.Obtain(path); path != "lock" {
				require.NoError(t, l.Lock(t.Context(), patient))
				valid[path] = l.Context(t.Context())
			}
		}
	} else {
		h, err := r.Acquire(t.Context(), "acquire", patient)
		require.NoError(t, err)
		valid["acquire"] = h.Context(t.Context())
		several, err := r.AcquireAll(t.Context(), []string{"other", "several"}, patient)
		require.NoError(t, err)
		valid["several"] = several.Context(t.Context())
		end, doing := make(chan struct{}), make(chan context.Context)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = r.Do(t.Context(), "do", func(ctx context.Context) error {
				doing <- ctx
				<-end
				return nil
			}, patient)
		}()
		valid["do"] = <-doing
		defer func() { close(end); <-done }()
	}
	var over atomic.Bool
	defer over.Store(true)
	if strings.Contains(how, "busy") {
		for range 8 {
			go func() {
				for !over.Load() { //nolint:revive // uses the processor
				}
			}()
		}
	}
	fmt.Println("has all")
	last := map[string]time.Time{}
	for len(valid) > 0 {
		for path, ctx := range valid {
			if at := time.Now(); ctx.Err() == nil {
				last[path] = at
			} else {
				fmt.Println(path, last[path].UnixNano())
				delete(valid, path)
			}
		}
	}
}
