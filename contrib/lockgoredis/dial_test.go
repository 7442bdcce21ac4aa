package lockgoredis_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/lockgoredis"
)

// goRedisDial is the DialTimeout of go-redis without one.
const goRedisDial = 5 * time.Second

// A dialer that does not heed the end of its context is given up, as that of go-redis with TLS. What it connects later is closed.
func TestOpen_DialerThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		open  func(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error)) error
		limit time.Duration
	}{
		"of a client": {func(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error)) error {
			rdb := redis.NewClient(&redis.Options{Addr: somewhere, DialTimeout: 50 * time.Millisecond, Dialer: dial})
			defer func() { _ = rdb.Close() }()
			_, err := lockgoredis.Open(ctx, rdb, "orders")
			return err
		}, 50 * time.Millisecond},
		"of a client without a limit": {func(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error)) error {
			rdb := redis.NewClient(&redis.Options{Addr: somewhere, DialTimeout: -1, Dialer: dial})
			defer func() { _ = rdb.Close() }()
			_, err := lockgoredis.Open(ctx, rdb, "orders")
			return err
		}, goRedisDial},
		"of failover options": {func(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error)) error {
			o := &redis.FailoverOptions{MasterName: "main", SentinelAddrs: []string{somewhere}, Dialer: dial}
			_, err := lockgoredis.OpenFailover(ctx, o, "orders")
			return err
		}, goRedisDial},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, goesOn := time.Now(), make(chan struct{})
				ours, theirs := net.Pipe()
				err := c.open(t.Context(), func(context.Context, string, string) (net.Conn, error) {
					<-goesOn
					return theirs, nil
				})
				require.ErrorIs(t, err, lockregistry.ErrUnavailable)
				require.ErrorContains(t, err, "no answer in time")
				require.Equal(t, c.limit, time.Since(began))
				close(goesOn)
				_, err = ours.Read(make([]byte, 1))
				require.ErrorIs(t, err, io.EOF)
			})
		})
	}
}

// go-redis' own dialer, too, has a limit with failover options that have none, and ends.
func TestOpenFailover_HandshakeThatHangs(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, listener.Close()) }()
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := listener.Accept()
		accepted <- conn
	}()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	_, err = lockgoredis.OpenFailover(ctx, &redis.FailoverOptions{
		MasterName: "main", SentinelAddrs: []string{listener.Addr().String()}, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}, "orders")
	require.ErrorIs(t, err, lockregistry.ErrUnavailable)
	require.NoError(t, ctx.Err())
	conn := <-accepted
	defer func() { require.NoError(t, conn.Close()) }()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(limit)))
	_, err = io.Copy(io.Discard, conn)
	require.NoError(t, err, "it is closed at the other end")
}
