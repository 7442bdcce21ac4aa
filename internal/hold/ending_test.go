package hold

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// A hold keeps nothing of a context whose parent has ended or whose owner has left, and only one context for each parent.
func TestEndings_AreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const parents = 100
		h := unbounded(t)
		count := func(o owner.ID) (n int) {
			h.mu.Lock()
			defer h.mu.Unlock()
			for e, first := h.ends[o], true; e != nil && (first || e != h.ends[o]); e, first = e.next, false {
				require.Same(t, e, e.next.prev)
				n++
			}
			return n
		}
		var stops [parents]context.CancelFunc
		for i := range parents {
			var parent context.Context
			parent, stops[i] = context.WithCancel(t.Context())
			ctx := h.linked(parent, anna)
			require.Same(t, ctx, h.linked(parent, anna))
			require.NotSame(t, ctx, h.linked(parent, team), "another owner's ends at another time")
		}
		require.Equal(t, parents, count(anna))
		for i := range parents {
			if i%3 != 0 {
				stops[i]()
			}
		}
		synctest.Wait()
		left := (parents + 2) / 3
		require.Equal(t, left, count(anna))
		require.Equal(t, left, count(team))
		require.Len(t, h.ends.of(anna), left)
		require.Equal(t, left, count(team))
		for i := range parents {
			stops[i]()
		}
		synctest.Wait()
		require.Empty(t, h.ends)
	})
}

// unbounded returns a hold without a lock, with a lease that outlasts the test.
func unbounded(t testing.TB) *Hold {
	c := clock.New()
	h := New(&Path{Kind: &Kind{Env: &Env{Clock: c}}}, "me:7", terms(time.Hour))
	require.True(t, h.lease.Grant(c.Now(), c.Now()))
	return h
}

// linked is watch for a hold without a lock.
func (h *Hold) linked(parent context.Context, o owner.ID) context.Context {
	h.mu.Lock()
	last := h.ends.last(parent, o)
	h.mu.Unlock()
	if last != nil {
		return last
	}
	made := newEnding(parent, o, h.path, h, nil, nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends.add(made)
	return made
}

// uncomparable is a context that cannot be compared with another one.
type uncomparable struct {
	context.Context
	values []string
}

func TestEndings_OfStrangeParents(t *testing.T) {
	h := unbounded(t)
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	strange := uncomparable{parent, []string{"a"}}
	first, second := h.linked(strange, anna), h.linked(strange, anna)
	require.NotSame(t, first, second)
	background := h.linked(context.Background(), anna)
	require.Same(t, background, h.linked(context.Background(), anna))
	cause := errors.New("why")
	cancelAll(h.ends.all(), cause)
	require.Empty(t, h.ends)
	for _, ctx := range []context.Context{first, second, background} {
		require.Equal(t, cause, context.Cause(ctx))
	}
	again := h.linked(context.Background(), anna)
	require.NoError(t, again.Err())
	cancelAll(h.ends.of(anna), cause)
}

// reused is a context that is another request's after a while.
type reused struct {
	context.Context
	over  *atomic.Bool
	calls *atomic.Int32
}

func (r reused) called() context.Context {
	if r.over.Load() {
		r.calls.Add(1)
	}
	return r.Context
}

func (r reused) Deadline() (time.Time, bool) { return r.called().Deadline() }
func (r reused) Done() <-chan struct{}       { return r.called().Done() }
func (r reused) Err() error                  { return r.called().Err() }
func (r reused) Value(key any) any           { return r.called().Value(key) }

// When a context has ended with its hold, its parent is left alone: nothing calls its methods, not even a goroutine a moment
// later, and nothing waits for its end.
func TestEndings_LeaveTheirParentsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		parent := reused{ctx, new(atomic.Bool), new(atomic.Int32)}
		h := unbounded(t)
		own := h.linked(parent, anna)
		within := newEnding(context.WithValue(own, keyOfTest{}, 1), team, h.path, unbounded(t), nil, &own.(*ending).carrier)
		parent.over.Store(true)
		within.end(context.Canceled)
		cancelAll(h.ends.all(), context.Canceled)
		require.Error(t, own.Err())
		require.Error(t, within.Err())
		synctest.Wait()
		cancel()
		synctest.Wait()
		require.Zero(t, parent.calls.Load())
	})
}

type keyOfTest struct{}

// A context ends with its parent, whatever kind of context that is, and has its cause.
func TestEndings_EndWithTheirParents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("why")
		for name, of := range map[string]func(context.Context) context.Context{
			"of package context": func(ctx context.Context) context.Context { return ctx },
			"with a value":       func(ctx context.Context) context.Context { return context.WithValue(ctx, keyOfTest{}, 1) },
			"a wrapper":          func(ctx context.Context) context.Context { return uncomparable{ctx, nil} },
			"without values":     func(ctx context.Context) context.Context { return foreign{ctx} },
		} {
			ctx, cancel := context.WithCancelCause(t.Context())
			h := unbounded(t)
			own := h.linked(of(ctx), anna)
			within := newEnding(context.WithValue(own, keyOfTest{}, 1), team, h.path, unbounded(t), nil, &own.(*ending).carrier)
			require.NoError(t, within.Err(), name)
			cancel(why)
			synctest.Wait()
			for _, ended := range []context.Context{own, within} {
				require.ErrorIs(t, ended.Err(), context.Canceled, name)
				if name != "without values" { // package context finds no cause
					require.Equal(t, why, context.Cause(ended), name)
				}
			}
		}
	})
}

// foreign is a context whose cause package context cannot find.
type foreign struct{ context.Context }

func (foreign) Value(any) any { return nil }
