package lockregistry_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/observe"
)

// numbered are so many paths, in the order of their keys.
func numbered(paths int) []string {
	all := make([]string, paths)
	for i := range all {
		all[i] = fmt.Sprintf("%05d", i)
	}
	return all
}

// workOf is what each path of a call of AcquireAll costs, on average.
type workOf struct {
	commands, bytes float64
	links           int // how deep the stack is when the context of the last one asks the caller's
}

// root is a context of a caller, which tells how many calls its children make to ask it.
type root struct{ context.Context }

func (r root) Value(key any) any {
	if key == (root{}) {
		return runtime.Callers(0, make([]uintptr, 4096))
	}
	return r.Context.Value(key)
}

// inOrder has a call acquire and release so many paths one after the other, since the first one is taken when it begins.
func (w *world) inOrder(paths int) (cost workOf) {
	w.Helper()
	all := numbered(paths)
	last := all[len(all)-1]
	f := w.flaky()
	r := f.registry(lockregistry.WithObserver(observe.Observer{
		Acquired: func(ctx context.Context, a observe.Acquired) {
			if a.Path == last {
				cost.links, _ = ctx.Value(root{}).(int)
			}
		},
	}))
	other := w.registry().Obtain(all[0])
	w.lock(other)
	got, failed := w.allOf(root{w.Context()}, r, all)
	w.await("it waits for the first path", func() bool { return r.Stats().Tickets == 1 })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	commands := f.lockCommands()
	w.unlock(other)
	select {
	case h := <-got:
		require.Len(w, h.Paths(), paths)
		if err := h.Release(w.Context()); err != nil { // a busy machine may need longer than an Unlock for all
			require.ErrorIs(w, err, lockregistry.ErrUnavailable)
		}
	case err := <-failed:
		require.NoError(w, err)
	}
	w.await("nothing is left", func() bool { return w.left() == "" })
	runtime.ReadMemStats(&after)
	cost.commands = float64(f.lockCommands()-commands) / float64(paths)
	cost.bytes = float64(after.TotalAlloc-before.TotalAlloc) / float64(paths)
	return cost
}

// Ten times the paths are ten times the work, up to the most that a call may have.
func TestAcquireAll_TakesWorkInProportionToItsPaths(t *testing.T) { //nolint:paralleltest // what others allocate would count
	realWorldsAlone(t, func(w *world) {
		few, many := w.inOrder(300), w.inOrder(3000)
		w.Log(few, many)
		require.Less(w, many.commands, 1.5*few.commands)
		require.Less(w, many.bytes, 1.5*few.bytes)
		require.NotZero(w, few.links)
		require.Equal(w, few.links, many.links)
	})
}
