package lockgoredis_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/lockgoredis"
	"github.com/lockregistry/lockregistry/internal/redistest"
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

// A change that would have no effect is an error, and nothing is dialled: else locks would be on another server than the caller
// thinks, or in plaintext. A caller who connects in another way may change everything.
func TestOpen_ChangeWithoutEffect(t *testing.T) {
	t.Parallel()
	server, elsewhere := redistest.Start(t), "127.0.0.1:1"
	for name, c := range map[string]struct {
		change func(o *rueidis.ClientOption)
		addr   string
		tls    *tls.Config // of go-redis
	}{
		"InitAddress": {
			change: func(o *rueidis.ClientOption) { o.InitAddress = []string{server.Addr()} }, addr: elsewhere,
		},
		"Dialer.Timeout": {change: func(o *rueidis.ClientOption) { o.Dialer.Timeout = 20 * time.Second }, addr: server.Addr()},
		"TLSConfig": {
			change: func(o *rueidis.ClientOption) { o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12} }, addr: elsewhere,
		},
		"TLSConfig, taken away": {
			change: func(o *rueidis.ClientOption) { o.TLSConfig = nil }, addr: server.Addr(),
			tls: &tls.Config{MinVersion: tls.VersionTLS12},
		},
		"TLSConfig, changed in place": {
			change: func(o *rueidis.ClientOption) { o.TLSConfig.ServerName = "other" }, addr: elsewhere,
			tls: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: "one"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			what, _, _ := strings.Cut(name, ",")
			var dialled atomic.Int64
			rdb := redis.NewClient(&redis.Options{
				Addr: c.addr, TLSConfig: c.tls, Dialer: func(context.Context, string, string) (net.Conn, error) {
					dialled.Add(1)
					return nil, errors.New("not here")
				},
			})
			defer func() { _ = rdb.Close() }()
			_, err := lockgoredis.Open(t.Context(), rdb, "orders", lockregistry.WithClientOption(c.change))
			require.ErrorContains(t, err, "WithClientOption changes "+what+",")
			require.ErrorContains(t, err, "set DialCtxFn to nil to connect in your own way")
			require.NotErrorIs(t, err, lockregistry.ErrUnavailable)
			require.Zero(t, dialled.Load())
			if c.tls != nil {
				require.NotEqual(t, "other", c.tls.ServerName, "it is the service's")
			}
		})
	}
	for _, change := range []func(o *rueidis.ClientOption){
		func(o *rueidis.ClientOption) { o.InitAddress = []string{server.Addr()} },
		func(o *rueidis.ClientOption) {
			o.InitAddress, o.Dialer.Timeout, o.TLSConfig = []string{server.Addr()}, 20*time.Second, nil
		},
	} {
		rdb := redis.NewClient(&redis.Options{Addr: elsewhere})
		reg := open(t, rdb, lockregistry.WithClientOption(change), lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
			o.DialCtxFn = nil
		}))
		there := redis.NewClient(&redis.Options{Addr: server.Addr()})
		works(t, reg, there)
		require.NoError(t, there.Close())
	}
}

// A cluster without a dialer of its own is dialled with the settings that the caller has changed.
func TestOpen_ChangeForACluster(t *testing.T) {
	t.Parallel()
	at, strict := redistest.StartCluster(t, 3)[0].Addr(), &tls.Config{MinVersion: tls.VersionTLS12}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{at}, TLSConfig: strict})
	open(t, rdb, lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
		o.TLSConfig.ServerName = "other"
		o.TLSConfig = nil
	}))
	require.Empty(t, strict.ServerName, "it is the service's")

	own := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{at}, Dialer: new(net.Dialer).DialContext})
	defer func() { _ = own.Close() }()
	_, err := lockgoredis.Open(t.Context(), own, "orders", lockregistry.WithClientOption(func(o *rueidis.ClientOption) {
		o.TLSConfig = strict
	}))
	require.ErrorContains(t, err, "WithClientOption changes TLSConfig,")
}
