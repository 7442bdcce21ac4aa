package hold

import (
	"context"
	"errors"
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
