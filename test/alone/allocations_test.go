//go:build !race

package alone_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Acquire and Release allocate little more than Lock and Unlock do.
func TestAcquire_AllocationsOfAHold(t *testing.T) {
	kit.RealWorldsAlone(t, func(w *kit.World) {
		l := w.Registry().Obtain("42")
		ctx := context.Background()
		once := func(err error) {
			if err != nil {
				w.Error(err)
			}
		}
		lock := func() {
			once(l.Lock(ctx))
			once(l.Unlock(ctx))
		}
		acquire := func() {
			h, err := l.Acquire(ctx)
			once(err)
			once(h.Release(ctx))
		}
		// The background allocates, too. And after a late reply, on a busy machine, a client has no connection of its own for single
		// commands for a while, which costs one more allocation. What each call allocates shows in the best of many short runs.
		locking, acquiring := math.Inf(1), math.Inf(1)
		const most = 3.5 // more
		for began := time.Now(); acquiring >= locking+most && time.Since(began) < 10*time.Second; {
			locking = min(locking, testing.AllocsPerRun(20, lock))
			acquiring = min(acquiring, testing.AllocsPerRun(20, acquire))
		}
		w.Log(locking, acquiring)
		require.Less(w, acquiring, locking+most)
	})
}

// An observer costs no allocation.
func TestObserver_AllocationsOfAnObserver(t *testing.T) {
	kit.RealWorldsAlone(t, func(w *kit.World) {
		client := w.Client() // for both: much depends on whether it has a connection of its own for single commands
		ctx := context.Background()
		allocs := func(l *lockregistry.Lock) float64 {
			const sections = 25
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range sections {
				if err := errors.Join(l.Lock(ctx), l.Unlock(ctx)); err != nil {
					w.Error(err)
				}
			}
			runtime.ReadMemStats(&after)
			return float64(after.Mallocs-before.Mallocs) / sections
		}
		var events int
		bare := w.RegistryOn(client).Obtain("42")
		observed := w.RegistryOn(client, lockregistry.WithObserver(observe.Observer{
			Acquired: func(context.Context, observe.Acquired) { events++ },
			Released: func(context.Context, observe.Released) { events++ },
			Lost:     func(observe.Lost) {},
			Renewing: func(observe.Renewing) {},
		})).Obtain("42")
		// The client and other goroutines allocate now and then, on a busy machine often. What each section allocates shows in the
		// best of many short runs.
		const least, most = 20, 500 // runs
		without, with := math.Inf(1), math.Inf(1)
		for run := 0; run < least || run < most && with >= without+0.5; run++ {
			without, with = min(without, allocs(bare)), min(with, allocs(observed))
		}
		w.Logf("%v without, %v with", without, with)
		require.Less(w, with, without+0.5)
		require.GreaterOrEqual(w, events, 500)
	})
}

// workOf is what each path of a call of AcquireAll costs, on average.
type workOf struct {
	commands, bytes float64
	links           int // how deep the stack is when the last path's context asks the caller's
}

// root is a caller's context, which returns how deep the stack is when its children ask it.
type root struct{ context.Context }

func (r root) Value(key any) any {
	if key == (root{}) {
		return runtime.Callers(0, make([]uintptr, 4096))
	}
	return r.Context.Value(key)
}

// inOrder has a call acquire and release that many paths one after the other, since the first one is taken at the start.
func inOrder(w *kit.World, paths int) (cost workOf) {
	w.Helper()
	all := kit.NumberedPaths(paths)
	last := all[len(all)-1]
	f := w.Flaky()
	r := f.Registry(lockregistry.WithObserver(observe.Observer{
		Acquired: func(ctx context.Context, a observe.Acquired) {
			if a.Path == last {
				cost.links, _ = ctx.Value(root{}).(int)
			}
		},
	}))
	other := w.Registry().Obtain(all[0])
	w.Lock(other)
	got, failed := w.AllOf(root{w.Context()}, r, all)
	w.Await("it waits for the first path", func() bool { return r.Stats().Tickets == 1 })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	commands := f.LockCommands()
	w.Unlock(other)
	select {
	case h := <-got:
		require.Len(w, h.Paths(), paths)
		if err := h.Release(w.Context()); err != nil { // on a busy machine it may take longer than Unlock waits
			require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		}
	case err := <-failed:
		require.NoError(w, err)
	}
	w.Await("nothing is left", func() bool { return w.Left() == "" })
	runtime.ReadMemStats(&after)
	cost.commands = float64(f.LockCommands()-commands) / float64(paths)
	cost.bytes = float64(after.TotalAlloc-before.TotalAlloc) / float64(paths)
	return cost
}

// Ten times as many paths take ten times the work, up to the most paths that a call may have.
func TestAcquireAll_TakesWorkInProportionToItsPaths(t *testing.T) { //nolint:paralleltest // what others allocate would count
	kit.RealWorldsAlone(t, func(w *kit.World) {
		few, many := inOrder(w, 300), inOrder(w, 3000)
		w.Log(few, many)
		require.Less(w, many.commands, 1.5*few.commands)
		require.Less(w, many.bytes, 1.5*few.bytes)
		require.NotZero(w, few.links)
		require.Equal(w, few.links, many.links)
	})
}

// A lock and unlock that nobody else wants allocate three times: for the hold, for its value, and for the name of the queue
// among the keys of the script that releases. Every caller would pay for more.
func TestLock_Allocations(t *testing.T) { //nolint:paralleltest // what others allocate would count
	server := redistest.Start(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, ForceSingleClient: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r, err := lockregistry.New(client, "orders")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	l := r.Obtain("42")
	once := func() {
		if err := l.Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 { // the dedicated connection comes into use
		once()
	}
	const most = 3.0
	// Timers and checks in the background allocate now and then. On a busy machine so do commands after a pause of ten
	// milliseconds, since they start goroutines. What each call allocates shows in the best of many short runs, too.
	least := math.Inf(1)
	for try := 0; try < 500 && least > most; try++ {
		least = min(least, testing.AllocsPerRun(20, once))
	}
	require.LessOrEqual(t, least, most)
}

// Options, and what they hold, stay on the caller's stack. A call that is refused in this process at once allocates nothing
// else.
func TestOptions_AllocateNothing(t *testing.T) { //nolint:paralleltest // what others allocate would count
	kit.RealWorldsAlone(t, func(w *kit.World) {
		l, other := w.Registry().Obtain("42"), lockregistry.ContextWithOwner(w.Context())
		w.Lock(l)
		least := math.Inf(1)
		for try := 0; try < 100 && least > 0; try++ { // others allocate now and then
			least = min(least, testing.AllocsPerRun(20, func() {
				got, err := l.TryLock(other, lockregistry.NoWait(), lockregistry.FailFast(), lockregistry.AtMost(time.Hour))
				if got || err != nil {
					w.Error(got, err)
				}
			}))
		}
		require.Zero(w, least)
		w.Unlock(l)
	})
}
