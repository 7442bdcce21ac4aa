package cluster_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// onOneOf is a cluster, and a path of a semaphore with three permits.
type onOneOf struct {
	*testing.T
	cluster *kit.SharedCluster
	path    string
}

func (c *onOneOf) registry(opts ...lockregistry.Option) *lockregistry.Registry {
	c.Helper()
	return c.cluster.Registry(c.T, opts...)
}

// acquires starts a call of a registry without any other call, and waits until its ticket is there.
func (c *onOneOf) acquires(r *lockregistry.Registry, opts ...lockregistry.SemaphoreOption) <-chan *lockregistry.Hold {
	c.Helper()
	got := make(chan *lockregistry.Hold, 1)
	go func() {
		h, err := r.Semaphore(c.path, 3).Acquire(c.Context(), append(opts, lockregistry.Wait(20*time.Second))...)
		assert.NoError(c, err)
		got <- h
	}()
	require.Eventually(c, func() bool { return r.Stats().Tickets == 1 }, 10*time.Second, time.Millisecond)
	return got
}

func (c *onOneOf) acquired(r *lockregistry.Registry, opts ...lockregistry.SemaphoreOption) *lockregistry.Hold {
	c.Helper()
	h, err := r.Semaphore(c.path, 3).Acquire(c.Context(), opts...)
	require.NoError(c, err)
	return h
}

func (c *onOneOf) full(r *lockregistry.Registry) {
	c.Helper()
	_, ok, err := kit.TryAcquire(c.Context(), r.Semaphore(c.path, 3))
	require.NoError(c, err)
	require.False(c, ok)
}

// On a cluster the queue, the counter and the channels of a semaphore are in the slot of its key.
func TestSemaphore_OnACluster(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	if !kit.HasShardedChannels(t, cluster.Nodes[0]) {
		return // there is no queue
	}
	for _, path := range []string{"a", "b", "c", "{tag}d"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			c := &onOneOf{t, cluster, path}
			a, b := c.registry(lockregistry.WithFencing()), c.registry(lockregistry.WithFencing())
			one, two := c.acquired(a), c.acquired(b, lockregistry.Permits(2))
			require.Positive(t, one.Token())
			require.Greater(t, two.Token(), one.Token())
			c.full(a)

			large := c.acquires(a, lockregistry.Permits(3))
			small := c.acquires(b)
			info, err := inspect.Of(b).Inspect(t.Context(), path)
			require.NoError(t, err)
			require.Equal(t, observe.KindSemaphore, info.Kind)
			require.Equal(t, 3, info.Permits)
			require.Equal(t, []int{1, 2}, []int{info.Holders[0].Permits, info.Holders[1].Permits})
			require.Equal(t, []int{3, 1}, []int{info.Waiters[0].Permits, info.Waiters[1].Permits})
			require.False(t, info.Waiters[0].Gone || info.Waiters[1].Gone)
			require.NoError(t, kit.UnlessLate(one.Release(t.Context())))
			c.full(b)
			require.NoError(t, kit.UnlessLate(two.Release(t.Context())))
			all := <-large
			c.full(b)
			require.Empty(t, small)
			require.NoError(t, kit.UnlessLate(all.Release(t.Context())))
			one = <-small
			wakeups := b.Stats().Wakeups
			require.Positive(t, wakeups.Messages+wakeups.Changes, "it was told")

			two = c.acquired(a, lockregistry.Permits(2))
			ctx := one.Context(t.Context())
			small = c.acquires(a)
			require.NoError(t, inspect.Of(b).ForceUnlockHolder(t.Context(), path, one.Holder()))
			require.ErrorIs(t, context.Cause(ctx), lockregistry.ErrLockLost)
			one = <-small
			small = c.acquires(b)
			require.NoError(t, inspect.Of(a).ForceUnlock(t.Context(), path))
			require.NoError(t, kit.UnlessLate((<-small).Release(t.Context())))
			require.ErrorIs(t, one.Release(t.Context()), lockregistry.ErrLockLost)
			require.ErrorIs(t, two.Release(t.Context()), lockregistry.ErrLockLost)

			require.NoError(t, a.Semaphore(path, 3).SetPermits(t.Context(), 1))
			require.NoError(t, kit.UnlessLate(c.acquired(b).Release(t.Context())))
		})
	}
}

// With many calls of several processes, never more permits are held than there are, and no message is missed.
func TestSemaphore_OfManyProcessesOnACluster(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	const processes, goroutines, turns = 4, 3, 30
	var all sync.WaitGroup
	var inside, most atomic.Int32
	began := time.Now()
	poll := kit.NoPoll
	if !kit.HasShardedChannels(t, cluster.Nodes[0]) { // calls have no messages, and poll
		poll = 10 * time.Millisecond
	}
	for i := range processes {
		layout := []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson}[i%2] // in both the format is the same
		s := cluster.Registry(t, lockregistry.WithPollInterval(poll), kit.WithLayout(layout)).Semaphore("seat", 3)
		for g := range goroutines {
			all.Go(func() {
				for range turns {
					each := 1 + g%2
					assert.NoError(t, s.Do(t.Context(), func(context.Context) error {
						n := inside.Add(int32(each))
						assert.LessOrEqual(t, n, int32(3))
						for {
							if known := most.Load(); n <= known || most.CompareAndSwap(known, n) {
								break
							}
						}
						inside.Add(-int32(each))
						return nil
					}, lockregistry.Permits(each), lockregistry.Wait(20*time.Second)))
				}
			})
		}
	}
	all.Wait()
	require.Greater(t, most.Load(), int32(1))
	require.Less(t, time.Since(began), kit.NoPoll)
}

// Where braces put the queue into another slot, calls poll, and a log line says so. With fencing, which needs a second key,
// calls return an error.
func TestSemaphore_BracesOnACluster(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	var log kit.Journal
	c := &onOneOf{t, cluster, "e}1"}
	a, b := c.registry(kit.Redisson), c.registry(log.Option())
	h := c.acquired(a, lockregistry.Permits(3))
	got := make(chan *lockregistry.Hold, 1)
	go func() { got <- c.acquired(b, lockregistry.Wait(20*time.Second)) }()
	require.Eventually(t, func() bool { return len(log.Lines("because of the braces")) == 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, kit.UnlessLate(h.Release(t.Context())))
	require.NoError(t, kit.UnlessLate((<-got).Release(t.Context())))

	_, err := c.registry(lockregistry.WithFencing()).Semaphore("e}1", 3).Acquire(t.Context())
	require.ErrorContains(t, err, "acquire "+cluster.Prefix+":e}1: a cluster keeps the fencing counter")
	require.Empty(t, kit.SentinelsOf(err))
	require.True(t, strings.HasSuffix(err.Error(), "such as {order}42"))
}
