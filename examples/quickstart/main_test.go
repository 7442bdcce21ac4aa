package main

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
)

func TestRun(t *testing.T) {
	server := miniredis.RunT(t)
	t.Setenv("REDIS_URL", "redis://"+server.Addr())
	require.NoError(t, run(t.Context()))
	require.Empty(t, server.Keys(), "it is unlocked")

	t.Setenv("REDIS_URL", "")
	require.Error(t, run(t.Context()))
	t.Setenv("REDIS_URL", "redis://127.0.0.1:1") // nobody listens there
	require.ErrorIs(t, run(t.Context()), lockregistry.ErrUnavailable)
}
