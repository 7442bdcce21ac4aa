package hold

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// closed reports whether a context's channel is closed.
func closed(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// The first look at a context after the end of the lease sees that end, although nothing else has noticed. The lock is told once.
func TestClock_TheFirstLookSeesTheEnd(t *testing.T) {
	type key struct{}
	for name, look := range map[string]func(ctx context.Context) error{
		"Err":                         context.Context.Err,
		"Cause":                       context.Cause,
		"Err of a child with a value": func(ctx context.Context) error { return context.WithValue(ctx, key{}, "value").Err() },
		"Cause of the same":           func(ctx context.Context) error { return context.Cause(context.WithValue(ctx, key{}, "value")) },
	} {
		for _, o := range []owner.ID{anna, owner.NewHold()} {
			t.Run(fmt.Sprint(name, " ", o.IsHold()), func(t *testing.T) {
				fake(t, func(w *world) {
					h := w.granted(terms(time.Minute))
					ctx, other := w.context(h, o), w.context(h, bert)
					child, cancel := context.WithTimeout(ctx, time.Hour)
					defer cancel()
					w.stall()
					pass(h.Left() - 1)
					require.NoError(w, look(ctx))
					pass(1)
					require.NoError(w, child.Err(), "a child that package context can cancel does not look")
					require.Error(w, look(ctx))
					require.True(w, closed(ctx))
					require.ErrorIs(w, context.Cause(ctx), fault.Lost)
					for _, ctx := range []context.Context{ctx, other, child} {
						require.True(w, closed(ctx))
						require.Equal(w, context.Canceled, ctx.Err())
						require.Equal(w, fault.LeaseOver.Err(), context.Cause(ctx))
					}
					require.Len(w, w.lost(), 1)
					require.Equal(w, []string{"lock lost"}, w.logged)
				})
			})
		}
	}
}

// causeKey is found, whether this version of Go asks for it at once or after Err. A context looks when it is asked for that key.
func TestClock_TheKeyOfCause(t *testing.T) {
	require.NotNil(t, causeKey)
	within, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.Same(t, within, within.Value(causeKey))
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		ctx := w.context(h, anna)
		w.stall()
		pass(time.Minute)
		require.Nil(w, ctx.Value("another key"))
		require.False(w, closed(ctx))
		require.NotNil(w, ctx.Value(causeKey))
		require.True(w, closed(ctx))
	})
}

// A context goes by the clocks of all holds that it was made in, whatever of package context is in between, unless it was
// detached from them.
func TestClock_OfTheHoldsAround(t *testing.T) {
	for name, c := range map[string]struct {
		between func(ctx context.Context) context.Context
		ends    bool
	}{
		"directly": {func(ctx context.Context) context.Context { return ctx }, true},
		"with a time": {func(ctx context.Context) context.Context {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			context.AfterFunc(ctx, cancel)
			return ctx
		}, true},
		"detached": {context.WithoutCancel, false},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(w *world) {
				first, second, third := w.granted(terms(time.Minute)), w.granted(terms(time.Hour)), w.granted(terms(time.Hour))
				ctx := c.between(w.context(first, anna))
				for _, h := range []*Hold{second, third, second} {
					var err error
					ctx, err = within(ctx, h, anna)
					require.NoError(w, err)
				}
				w.stall()
				pass(time.Minute)
				require.Equal(w, c.ends, ctx.Err() != nil)
				require.Equal(w, c.ends, closed(ctx))
				require.Equal(w, c.ends, context.Cause(ctx) != nil)
				require.True(w, second.Valid())
				require.True(w, third.Valid())
				require.Len(w, w.lost(), 1)
			})
		})
	}
}

// An enclosing hold that is over is no longer asked, and its context is not ended again.
func TestClock_OfAHoldAroundThatIsOver(t *testing.T) {
	fake(t, func(w *world) {
		outer, inner := w.granted(terms(time.Minute)), w.granted(terms(time.Hour))
		ctx := context.WithoutCancel(w.context(outer, anna))
		ctx, err := within(ctx, inner, anna)
		require.NoError(w, err)
		around := ctx.(*ending).outer
		require.NotNil(w, around)
		outer.End(w.path.Clock.Now())
		synctest.Wait()
		ended := 0
		around.unlink = func() { ended++ }
		require.NoError(w, ctx.Err())
		synctest.Wait()
		require.Zero(w, ended)
	})
}

// A goroutine that looks may hold any mutex: neither the lock nor the log is called before it has its answer.
func TestClock_ALookCallsNobody(t *testing.T) {
	fake(t, func(w *world) {
		h := w.granted(terms(time.Minute))
		ctx := w.context(h, anna)
		w.stall()
		pass(time.Minute)
		free := make(chan struct{})
		w.busy = free
		require.Error(w, ctx.Err())
		require.True(w, closed(ctx))
		synctest.Wait()
		require.Empty(w, w.losses, "the log waits, as if somebody held what it needs")
		close(free)
		require.Len(w, w.lost(), 1)
	})
}

// When several goroutines look at once, each finds the channel of its own context closed.
func TestClock_ManyLookAtOnce(t *testing.T) {
	for range 100 {
		fake(t, func(w *world) {
			h := w.granted(terms(time.Minute))
			ctx, other := w.context(h, anna), w.context(h, bert)
			w.stall()
			pass(time.Minute)
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() {
					ctx := []context.Context{ctx, other}[i%2]
					if ctx.Err() == nil || !closed(ctx) || context.Cause(ctx) != fault.LeaseOver.Err() { //nolint:errorlint // that very one
						w.Error("it is valid still")
					}
				})
			}
			all.Wait()
			require.Len(w, w.lost(), 1)
		})
	}
}

// A context has the same cause if another goroutine has ended the hold, but not the hold's contexts yet.
func TestClock_WhatOthersAreAboutToEnd(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(h *Hold)
		want error
	}{
		"released": {func(h *Hold) { h.lease.End(h.path.Clock.Now()) }, context.Canceled},
		"lost":     {func(h *Hold) { h.lease.Lose(fault.KeyTaken) }, fault.KeyTaken.Err()},
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, func(w *world) {
				h := w.granted(terms(time.Minute))
				ctx := w.context(h, anna)
				h.mu.Lock()
				c.end(h)
				h.mu.Unlock()
				require.Error(w, ctx.Err())
				require.Equal(w, c.want, context.Cause(ctx))
				synctest.Wait()
				require.Empty(w, w.lost())
			})
		})
	}
}

// The time to make a context of many holds grows with their number, not faster, and a look asks each of them.
func TestClock_ContextOfMany(t *testing.T) {
	fake(t, func(w *world) {
		ctx := w.Context()
		const holds = 3000
		asked := 0
		for range holds {
			h := w.granted(terms(time.Minute))
			var err error
			ctx, err = within(ctx, h, anna)
			require.NoError(w, err)
		}
		for e, _ := ctx.(*ending); e != nil; e = e.outer {
			asked++
		}
		require.Equal(w, holds, asked)
		w.stall()
		pass(time.Minute)
		require.Error(w, ctx.Err())
	})
}

func BenchmarkContext_Err(b *testing.B) {
	h := unbounded(b)
	ctx := h.linked(b.Context(), anna)
	b.ReportAllocs()
	for b.Loop() {
		_ = ctx.Err()
	}
}
