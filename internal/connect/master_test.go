package connect_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/connect"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// ofReplica are the options of a client whose first connection leads to a replica, and what further ones do.
func ofReplica(t *testing.T, then func(ctx context.Context, replica string) error) (address string, o rueidis.ClientOption) {
	t.Helper()
	replica := redistest.Start(t, "--replicaof", "127.0.0.1 1")
	address = "redis://" + replica.Addr()
	o, err := connect.Parse(address)
	require.NoError(t, err)
	o.PipelineMultiplex, o.DisableCache, o.ForceSingleClient = -1, true, true
	first := make(chan struct{}, 1)
	first <- struct{}{}
	o.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		select {
		case <-first:
		default:
			if err := then(ctx, replica.Addr()); err != nil {
				return nil, err
			}
		}
		return d.DialContext(ctx, "tcp", address)
	}
	return address, o
}

// An address that leads to a replica, and then nowhere, is tried for as long as making a connection may take, however long each
// attempt takes.
func TestOpenMaster_AnAttemptThatHangs(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithTimeout(t.Context(), 20*time.Second)
	defer end()
	address, o := ofReplica(t, func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
	o.Dialer.Timeout = 2 * time.Second // which is enough for the first attempt on a busy machine
	began := time.Now()
	_, err := connect.OpenMaster(ctx, address, o)
	require.ErrorContains(t, err, "it leads to a replica")
	require.NoError(t, ctx.Err())
	require.GreaterOrEqual(t, time.Since(began), o.Dialer.Timeout)
}

// An address that leads to a replica is tried again even if neither dialing nor an answer has a limit of its own.
func TestOpenMaster_WithoutALimit(t *testing.T) {
	t.Parallel()
	address, o := ofReplica(t, func(ctx context.Context, replica string) error {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{replica}, DisableCache: true})
		if err != nil {
			return err
		}
		defer client.Close()
		return client.Do(ctx, client.B().Arbitrary("REPLICAOF", "NO", "ONE").Build()).Error()
	})
	o.Dialer.Timeout, o.ConnWriteTimeout = 0, -1
	opened, err := connect.OpenMaster(t.Context(), address, o)
	require.NoError(t, err)
	require.True(t, opened.Master)
	opened.Client.Close()
}
