package lockgoredis

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9/auth"
)

// stream asks a streaming provider for a registry, and keeps it going meanwhile.
//
// As in go-redis each new connection subscribes, since a provider need not tell a listener of later credentials. A connection
// stays with its credentials, and the server closes it when they end. But a provider may stop when its last listener leaves, and
// ask its source anew for the next one: so of all subscriptions the last one is kept while the registry has connections.
type stream struct {
	provider auth.StreamingCredentialsProvider

	mu    sync.Mutex           // not held while the provider is called
	users int                  // connections, those to Sentinels included, and calls of ask
	leave auth.UnsubscribeFunc // ends the last subscription; nil: there is none
	idle  *time.Timer          // leaves, after linger without users; nil: there were always some
}

// linger is how long a subscription outlives the last connection. Nothing says that a registry's client is closed, or that it is
// about to connect again: it does so within a second or two while calls wait.
const linger = 10 * time.Second

// ask returns the credentials of this moment.
func (s *stream) ask(context.Context) (user, password string, err error) {
	s.begin() // the connection that it is for may be closed already
	defer s.end()
	now, leave, err := s.provider.Subscribe(new(deaf))
	if err != nil {
		return "", "", err
	}
	s.keep(leave)
	user, password = now.BasicAuth()
	return user, password, nil
}

// keep replaces the subscription by a newer one. The older one is left only then, so the provider always has a listener.
func (s *stream) keep(leave auth.UnsubscribeFunc) {
	s.mu.Lock()
	older := s.leave
	s.leave = leave
	s.mu.Unlock()
	if older != nil {
		_ = older() // the credentials are valid all the same
	}
}

func (s *stream) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
}

func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	switch {
	case s.users > 0:
	case s.idle == nil:
		s.idle = time.AfterFunc(linger, s.expire)
	default:
		s.idle.Reset(linger)
	}
}

// expire ends the subscription, unless there are users again: the last of these has it called once more. If it is late, and they
// have gone already, it leaves sooner than it might, and the next connection subscribes again.
func (s *stream) expire() {
	s.mu.Lock()
	if s.users > 0 {
		s.mu.Unlock()
		return
	}
	leave := s.leave
	s.leave = nil
	s.mu.Unlock()
	if leave != nil {
		_ = leave()
	}
}

// counts has the connections that dial makes counted as users.
func (s *stream) counts(dial dialer) dialer {
	return func(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, address, d, t)
		if err != nil {
			return nil, err
		}
		s.begin()
		return &user{Conn: conn, end: sync.OnceFunc(s.end)}, nil
	}
}

// user is a connection that counts until it is closed. It may be closed more than once.
type user struct {
	net.Conn
	end func()
}

func (u *user) Close() error {
	u.end()
	return u.Conn.Close()
}

// deaf listens to nothing. It has a size, since providers tell listeners apart by their addresses.
type deaf struct{ _ byte }

func (*deaf) OnNext(auth.Credentials) {}
func (*deaf) OnError(error)           {}
