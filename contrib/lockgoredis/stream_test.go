package lockgoredis_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/contrib/lockgoredis"
)

// somewhere is an address without a name: go-redis asks the network about a name, which a bubble of fake time does not allow.
const somewhere = "192.0.2.1:1"

// What docs/operations.md says of StreamingCredentialsProvider.
func TestOpen_StreamStaysSubscribed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &source{}
		n := startNet(t)
		rdb := redis.NewClient(&redis.Options{Addr: somewhere, Dialer: n.dial, StreamingCredentialsProvider: p})
		defer func() { _ = rdb.Close() }()
		reg, err := lockgoredis.Open(t.Context(), rdb, "orders")
		require.NoError(t, err)
		locks := func(limit time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			return reg.Do(ctx, "42", func(context.Context) error { return nil })
		}
		for range 3 { // connections come and go
			require.NoError(t, locks(limit))
			<-time.After(time.Minute)
			require.Equal(t, state{listeners: 1, starts: 1}, p.state())
			n.cut(false)
		}

		p.fails(errors.New("the source is away"))
		require.Error(t, locks(2*time.Second), "as in go-redis")
		p.fails(nil)
		<-time.After(time.Second) // a connection that was being made has failed
		require.NoError(t, locks(limit))
		require.Equal(t, state{listeners: 1, starts: 1}, p.state(), "it has not left meanwhile")

		n.cut(true)
		<-time.After(9 * time.Second)
		require.Equal(t, state{listeners: 1, starts: 1}, p.state(), "it may connect at any moment")
		<-time.After(2 * time.Second)
		require.Equal(t, state{listeners: 0, starts: 1}, p.state())
		n.cut(false)
		require.NoError(t, locks(limit))
		require.Equal(t, state{listeners: 1, starts: 2}, p.state())

		require.NoError(t, reg.Close())
		<-time.After(11 * time.Second)
		require.Equal(t, state{listeners: 0, starts: 2}, p.state())
	})
}

// A failing Open leaves no subscription, either.
func TestOpen_StreamOfAClientThatCannotConnect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &source{password: "wrong"}
		rdb := redis.NewClient(&redis.Options{Addr: somewhere, Dialer: startNet(t).dial, StreamingCredentialsProvider: p})
		defer func() { _ = rdb.Close() }()
		_, err := lockgoredis.Open(t.Context(), rdb, "orders")
		require.ErrorContains(t, err, "the user or the password is wrong")
		<-time.After(11 * time.Second)
		require.Equal(t, state{listeners: 0, starts: 1}, p.state())
	})
}

// An Open that is given up while the provider is asked leaves no subscription, however late that answers.
func TestOpen_StreamThatAnswersLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := &source{before: func() {
			cancel()
			<-time.After(15 * time.Second)
		}}
		rdb := redis.NewClient(&redis.Options{Addr: somewhere, Dialer: startNet(t).dial, StreamingCredentialsProvider: p})
		defer func() { _ = rdb.Close() }()
		began := time.Now()
		_, err := lockgoredis.Open(ctx, rdb, "orders")
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, time.Since(began))
		<-time.After(30 * time.Second)
		require.Equal(t, state{listeners: 0, starts: 1}, p.state())
	})
}

// source is a provider that works while it has a listener. Nobody can leave it without an error.
type source struct {
	password string // empty: the right one
	before   func() // it answers; nil: nothing

	mu  sync.Mutex
	now state
	all map[auth.CredentialsListener]bool
	err error
}

type state struct{ listeners, starts int }

func (s *source) Subscribe(who auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	if s.before != nil {
		s.before()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, nil, s.err
	}
	if s.all == nil {
		s.all = map[auth.CredentialsListener]bool{}
	}
	if len(s.all) == 0 {
		s.now.starts++
	}
	s.all[who] = true
	password := s.password
	if password == "" {
		password = "a secret"
	}
	return auth.NewBasicCredentials("service", password), func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, who)
		return errors.New("it has gone, but something is wrong")
	}, nil
}

func (s *source) fails(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *source) state() state {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.listeners = len(s.all)
	return s.now
}

// testNet leads to an embedded server, in fake time.
type testNet struct {
	server *miniredis.Miniredis

	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

func startNet(t *testing.T) *testNet {
	t.Helper()
	n := &testNet{server: miniredis.NewMiniRedis()}
	n.server.RequireUserAuth("service", "a secret")
	t.Cleanup(n.server.Close)
	return n
}

func (n *testNet) dial(context.Context, string, string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.down {
		return nil, errors.New("there is no network")
	}
	conn, err := n.server.Dial()
	n.conns = append(n.conns, conn)
	return conn, err
}

// cut breaks all connections. Down: no new ones can be made.
func (n *testNet) cut(down bool) {
	n.mu.Lock()
	n.down = down
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
	n.mu.Unlock()
	synctest.Wait()
}
