package lockgoredis

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/auth"
	"github.com/redis/rueidis"
)

// dialer is rueidis' type for the function that connects.
type dialer = func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error)

// dialLimit is how long making a connection may take. Options that no client of go-redis was made with lack its default.
func dialLimit(given time.Duration) time.Duration {
	if given > 0 {
		return given
	}
	return 5 * time.Second
}

// dialing connects by dial, which has the settings of go-redis, TLS included, within limit. Dial need not heed the end of its
// context: with TLS that of go-redis does not. It is given up then, and a connection that it makes later is closed.
//
// No connection is lost: the channel has no buffer, so either the caller has received it, or the goroutine closes it.
func dialing(limit time.Duration, dial func(ctx context.Context, address string) (net.Conn, error)) dialer {
	type dialled struct {
		conn net.Conn
		err  error
	}
	return func(ctx context.Context, address string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		done := make(chan dialled)
		go func() {
			conn, err := dial(ctx, address)
			select {
			case done <- dialled{conn, err}:
			case <-ctx.Done():
				if err == nil {
					_ = conn.Close()
				}
			}
		}()
		select {
		case d := <-done:
			return d.conn, d.err
		case <-ctx.Done():
			return nil, fmt.Errorf("dial %s: %w", address, ctx.Err())
		}
	}
}

// tcp connects as go-redis does to a server whose address is known only then.
func tcp(o *redis.Options) func(ctx context.Context, address string) (net.Conn, error) {
	dial := o.Dialer
	if dial == nil {
		dial = redis.NewDialer(o)
	}
	return func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) }
}

// credentials returns the function that names user and password for each new connection; nil: they do not change. The order is
// that of go-redis.
func credentials(o *redis.Options) func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
	var ask func(ctx context.Context) (user, password string, err error)
	switch {
	case o.StreamingCredentialsProvider != nil:
		ask = func(context.Context) (string, string, error) { return current(o.StreamingCredentialsProvider) }
	case o.CredentialsProviderContext != nil:
		ask = o.CredentialsProviderContext
	case o.CredentialsProvider != nil:
		return func(rueidis.AuthCredentialsContext) (c rueidis.AuthCredentials, _ error) {
			c.Username, c.Password = o.CredentialsProvider()
			return c, nil
		}
	default:
		return nil
	}
	return func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		ctx, cancel := context.WithTimeout(context.Background(), dialLimit(o.DialTimeout))
		defer cancel()
		user, password, err := ask(ctx)
		return rueidis.AuthCredentials{Username: user, Password: password}, err
	}
}

// current asks a streaming provider for the credentials of this moment. Later ones are for later connections: a connection
// stays with those that it was made with, and the server closes it when they end.
func current(p auth.StreamingCredentialsProvider) (user, password string, err error) {
	now, unsubscribe, err := p.Subscribe(new(deaf))
	if err != nil {
		return "", "", err
	}
	if unsubscribe != nil {
		defer func() { err = unsubscribe() }()
	}
	user, password = now.BasicAuth()
	return user, password, nil
}

// deaf listens to nothing. It has a size, since providers tell listeners apart by their addresses.
type deaf struct{ _ byte }

func (*deaf) OnNext(auth.Credentials) {}
func (*deaf) OnError(error)           {}

// toSentinels marks the dialer of connections to Sentinels. Nothing is dialled with it.
const toSentinels = 1

// sentinel is the address of a Sentinel.
type sentinel struct{ net.Addr }

// connToSentinel is a connection to a Sentinel.
type connToSentinel struct{ net.Conn }

func (c connToSentinel) RemoteAddr() net.Addr { return sentinel{c.Conn.RemoteAddr()} }

// tellApart makes the function for credentials answer for masters and replicas only, as in go-redis; Sentinels have a user and
// password of their own. Rueidis asks it for both, and hands on the address of the connection, which may be one that nobody
// has named before.
func tellApart(c *rueidis.ClientOption) {
	dial, ofMaster, own := c.DialCtxFn, c.AuthCredentialsFn, c.Sentinel
	c.Sentinel.Dialer.FallbackDelay = toSentinels
	c.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, address, d, t)
		if err == nil && d.FallbackDelay == toSentinels {
			conn = connToSentinel{conn}
		}
		return conn, err
	}
	c.AuthCredentialsFn = func(at rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		if _, ok := at.Address.(sentinel); ok {
			return rueidis.AuthCredentials{Username: own.Username, Password: own.Password}, nil
		}
		return ofMaster(at)
	}
}
