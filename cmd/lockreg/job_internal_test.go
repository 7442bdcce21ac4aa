//go:build unix

package main

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// Lockreg is stopped between the grant and the start, until the lock is gone.
func TestRunDoesNotStartWithoutTheLock(t *testing.T) {
	server := redistest.Start(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	require.NoError(t, err)
	defer client.Close()
	registry, err := lockregistry.New(client, "shop")
	require.NoError(t, err)
	defer func() { _ = registry.Close() }()
	hold, err := registry.Acquire(t.Context(), "a")
	require.NoError(t, err)
	server.Command(t, "DEL", "shop:a")
	require.ErrorIs(t, hold.Renew(t.Context(), leastLease), lockregistry.ErrLockLost)
	require.Zero(t, hold.Remaining())

	file := filepath.Join(t.TempDir(), "ran")
	r := &runner{app: &app{}, program: "/usr/bin/touch", args: []string{"touch", file}, log: slog.New(slog.DiscardHandler)}
	j := &job{runner: r, hold: hold, terminal: terminal{fd: -1}}
	require.ErrorIs(t, j.start(), lockregistry.ErrLockLost)
	require.Zero(t, j.pid)
}
