package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

type keyed struct{}

// ears are ways in which a goroutine waits for a hold's end, while nothing but what it waits on leads to the hold.
var ears = map[string]func(h *lockregistry.Hold, parent context.Context) <-chan struct{}{
	"Done": func(h *lockregistry.Hold, parent context.Context) <-chan struct{} {
		return h.Context(parent).Done()
	},
	"Done of the second one": func(h *lockregistry.Hold, parent context.Context) <-chan struct{} {
		h.Context(context.WithValue(parent, keyed{}, "another"))
		return h.Context(parent).Done()
	},
	"Done of one with a value": func(h *lockregistry.Hold, parent context.Context) <-chan struct{} {
		return context.WithValue(h.Context(parent), keyed{}, "value").Done()
	},
	"AfterFunc": func(h *lockregistry.Hold, parent context.Context) <-chan struct{} {
		done := make(chan struct{})
		context.AfterFunc(h.Context(parent), func() { close(done) })
		return done
	},
	"a child": func(h *lockregistry.Hold, parent context.Context) <-chan struct{} {
		child, cancel := context.WithCancel(h.Context(parent))
		_ = cancel // nobody cancels it
		return child.Done()
	},
}

// A goroutine that waits for the end of a hold's context keeps the hold reachable, and is told of the end, whatever causes it.
func TestHold_WaitingForItsEndKeepsIt(t *testing.T) {
	t.Parallel()
	for name, listen := range ears {
		for i, end := range []string{"it is lost", "the registry is closed", "its parent ends"} {
			t.Run(name+", "+end, func(t *testing.T) {
				t.Parallel()
				kit.FakeWorldAlone(t, func(w *kit.World) { keeps(w, listen, []string{"42", "43", "44"}[i/2:i+1], end) })
			})
		}
	}
}

func keeps(
	w *kit.World, listen func(*lockregistry.Hold, context.Context) <-chan struct{}, paths []string, end string,
) {
	w.Helper()
	var log kit.Journal
	r := w.Registry(log.Option(), lockregistry.WithRenewal(), lockregistry.WithLease(time.Second))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if end != "its parent ends" {
		ctx = context.Background() // which never ends
	}
	done := acquiresAll(w, r, paths, func(h *lockregistry.Hold) <-chan struct{} { return listen(h, ctx) })
	for range 3 * len(paths) {
		w.Collect()
		w.Pass(time.Second)
	}
	w.Settle()
	select {
	case <-done:
		w.Fatal("it has ended")
	default:
	}
	require.Empty(w, log.Lines(kit.Forgotten, "stays until its lease ends"))
	switch end {
	case "it is lost":
		w.Do("DEL", "orders:"+paths[len(paths)-1])
	case "the registry is closed":
		require.NoError(w, r.Close())
	case "its parent ends":
		cancel()
	}
	w.Pass(time.Second)
	<-done
}

//go:noinline
func acquiresAll[T any](w *kit.World, r *lockregistry.Registry, paths []string, keep func(h *lockregistry.Hold) T) T {
	w.Helper()
	h, err := r.AcquireAll(w.Context(), paths)
	require.NoError(w, err)
	return keep(h)
}

// When the parent of a hold's context ends, the context shows that at once.
func TestHold_ContextEndsAsItsParentDoes(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		h := w.Acquires(w.Registry().Obtain("42"))
		parent, cancel := context.WithTimeoutCause(context.Background(), time.Second, errors.New("too slow"))
		defer cancel()
		ctx := h.Context(parent)
		child, stop := context.WithCancel(ctx)
		defer stop()
		until, ok := ctx.Deadline()
		require.True(w, ok)
		require.Equal(w, time.Second, time.Until(until))
		w.Pass(2 * time.Second)
		for _, ctx := range []context.Context{ctx, child} {
			require.Equal(w, context.DeadlineExceeded, ctx.Err())
			require.EqualError(w, context.Cause(ctx), "too slow")
		}
		for range 100 {
			parent, cancel := context.WithCancel(context.Background())
			done, err, cause := h.Context(parent), h.Context(parent), h.Context(parent)
			cancel()
			require.Equal(w, context.Canceled, context.Cause(cause))
			require.Equal(w, context.Canceled, err.Err())
			<-done.Done()
		}
		w.Release(h)
	})
}
