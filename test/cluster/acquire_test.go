package cluster_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// Holds, paths that stay taken, and jobs work on a cluster as they do on one server, wherever the key is.
func TestAcquire_HoldsOnACluster(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	one, two := cluster.Registry(t), cluster.Registry(t)
	const least = 150 * time.Millisecond
	for _, path := range []string{"a", "b", "c", "{tag}d"} {
		t.Run(path, func(t *testing.T) {
			ctx := t.Context()
			hold, err := one.Acquire(ctx, path)
			require.NoError(t, err)
			require.Positive(t, hold.Remaining())
			_, err = two.Acquire(ctx, path, lockregistry.NoWait())
			require.ErrorIs(t, err, lockregistry.ErrTaken)
			_, err = one.Acquire(hold.Context(ctx), path)
			require.ErrorIs(t, err, lockregistry.ErrDeadlock)
			next := make(chan *lockregistry.Hold, 1)
			obtained := time.Now() // or later
			go func() {
				h, err := two.Acquire(ctx, path, lockregistry.AtLeast(least))
				if err != nil {
					t.Error(err)
				}
				next <- h
			}()
			released := make(chan error, 1)
			go func() { released <- hold.Release(ctx) }()
			require.NoError(t, <-released)
			require.ErrorIs(t, hold.Release(ctx), lockregistry.ErrNotOwner)

			hold = <-next
			require.NotNil(t, hold)
			require.NoError(t, hold.Renew(ctx, time.Minute))
			require.NoError(t, kit.UnlessLate(hold.Release(ctx)))
			if free, err := one.Obtain(path).TryLock(ctx); free {
				require.GreaterOrEqual(t, time.Since(obtained), least, "the path stays taken")
				require.NoError(t, kit.UnlessLate(one.Obtain(path).Unlock(ctx)))
			} else {
				require.NoError(t, err)
			}
			value, err := lockregistry.DoValue(ctx, one.Obtain(path), func(context.Context) (string, error) { return "done", nil })
			require.NoError(t, err)
			require.Equal(t, "done", value)
			ran, err := two.Once(ctx, path, time.Hour, func(context.Context) error { return nil })
			require.NoError(t, err)
			require.True(t, ran)
			ran, err = one.Once(ctx, path, time.Hour, func(context.Context) error { return nil })
			require.NoError(t, err)
			require.False(t, ran, "it ran this hour")
		})
	}
}
