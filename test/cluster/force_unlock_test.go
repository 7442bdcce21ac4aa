package cluster_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestForceUnlock_OnACluster(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	client := cluster.Client(t)
	for _, layout := range kit.Layouts {
		r := cluster.RegistryOn(t, client, kit.WithLayout(layout))
		for _, path := range []string{"1", "2", "3", "4", "{t}5"} {
			rw := r.ReadWrite("rw" + path)
			for _, l := range []*lockregistry.Lock{r.Obtain(path), rw.Reader(), rw.Writer()} {
				require.NoError(t, l.Lock(t.Context()))
				ctx := l.Context(t.Context())
				require.NoError(t, inspect.Of(r).ForceUnlock(t.Context(), l.Path()))
				require.ErrorIs(t, context.Cause(ctx), lockregistry.ErrLockLost)
				require.ErrorIs(t, l.Unlock(t.Context()), lockregistry.ErrLockLost)
			}
		}
		require.Empty(t, cluster.Keys(t))
	}
}
