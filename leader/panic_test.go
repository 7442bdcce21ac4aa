package leader_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/leader"
)

// bomb is a context of which one call of a method panics in the goroutine that runs the candidate.
type bomb struct {
	context.Context
	left *atomic.Int32 // calls until then; 0: none panics
}

func (b bomb) count() {
	var stack [64]uintptr
	frames := runtime.CallersFrames(stack[:runtime.Callers(2, stack[:])])
	for more := true; more; {
		var f runtime.Frame
		if f, more = frames.Next(); strings.HasSuffix(f.Function, "leader.(*Candidate).Run") && b.left.Add(-1) == 0 {
			panic("a method of the context")
		}
	}
}

func (b bomb) Deadline() (time.Time, bool) { b.count(); return b.Context.Deadline() }
func (b bomb) Done() <-chan struct{}       { b.count(); return b.Context.Done() }
func (b bomb) Err() error                  { b.count(); return b.Context.Err() }
func (b bomb) Value(key any) any           { b.count(); return b.Context.Value(key) }

// Wherever a method of Run's context panics, the role is free again.
func TestRun_ContextThatPanics(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry()
		for n, ended := int32(0), false; !ended; n++ { // the first time it is asked for more
			granted, led := 0, 0
			c, err := leader.New(r, role, func(context.Context) error { led++; return nil },
				leader.OnRevoked(func(error) { granted-- }), leader.OnGranted(func(context.Context) { granted++ }))
			require.NoError(w, err)
			left := new(atomic.Int32)
			left.Store(n)
			func() {
				defer func() { _ = recover() }()
				_ = c.Run(bomb{w.Context(), left})
			}()
			w.await("the role is free", func() bool { return w.do("GET", key) == "" })
			require.False(w, c.IsLeader())
			require.LessOrEqual(w, granted, 0, "after call %d", n)
			ended = left.Load() > 0
			require.True(w, !ended && n > 0 || led == 1)
		}
	})
}
