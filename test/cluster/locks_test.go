package cluster_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

func TestLocks_OnACluster(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	r := cluster.Registry(t)
	var paths []string
	for i := range 30 {
		path := fmt.Sprintf("%02d", i)
		require.NoError(t, r.Obtain(path).Lock(t.Context()))
		paths = append(paths, path)
	}
	require.NoError(t, r.Obtain("e}f").Lock(t.Context()))
	require.NoError(t, r.ReadWrite("read").Reader().Lock(t.Context()))
	viewer := cluster.Registry(t)
	require.Equal(t, append(paths, "e}f", "read"), kit.PathsOf(t, viewer))
	info, err := inspect.Of(viewer).Inspect(t.Context(), "read")
	require.NoError(t, err)
	require.True(t, info.Holders[0].Shared)
	require.Positive(t, info.Holders[0].Lease)
}
