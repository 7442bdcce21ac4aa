package lockgoredis

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

// access asks for user and password at each new connection, where they may change.
type access struct {
	ask         func(ctx context.Context) (user, password string, err error)
	limit       time.Duration           // for an answer
	stream      *stream                 // nil: what is asked is not a streaming provider
	ofSentinels rueidis.AuthCredentials // see tellApart
}

// accessOf returns nil for a user and a password that do not change. The order is that of go-redis.
func accessOf(o *redis.Options) *access {
	a := &access{limit: dialLimit(o.DialTimeout)}
	switch {
	case o.StreamingCredentialsProvider != nil:
		a.stream = &stream{provider: o.StreamingCredentialsProvider}
		a.ask = a.stream.ask
	case o.CredentialsProviderContext != nil:
		a.ask = o.CredentialsProviderContext
	case o.CredentialsProvider != nil:
		a.ask = func(context.Context) (user, password string, _ error) {
			user, password = o.CredentialsProvider()
			return user, password, nil
		}
	default:
		return nil
	}
	return a
}

// credentials is rueidis' function for them.
func (a *access) credentials(at rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
	if _, ok := at.Address.(sentinel); ok {
		return a.ofSentinels, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.limit)
	defer cancel()
	user, password, err := a.ask(ctx)
	return rueidis.AuthCredentials{Username: userOf(user, password), Password: password}, err
}

// userOf is the user to sign in as. Without a password go-redis does not sign in, but rueidis would if it had a user.
func userOf(user, password string) string {
	if password == "" {
		return ""
	}
	return user
}

// finish changes the options after everybody else has: what the caller has set counts, and nothing undoes what finish does.
func (a *access) finish(c *rueidis.ClientOption) {
	if a.stream != nil {
		c.DialCtxFn = a.stream.counts(dialingOf(c))
	}
	if c.Sentinel.MasterSet != "" {
		a.tellApart(c)
	}
}

// toSentinels marks the dialer of connections to Sentinels. Nothing is dialled with it.
const toSentinels = 1

// sentinel is the address of a Sentinel.
type sentinel struct{ net.Addr }

// connToSentinel is a connection to a Sentinel.
type connToSentinel struct{ net.Conn }

func (c connToSentinel) RemoteAddr() net.Addr { return sentinel{c.Conn.RemoteAddr()} }

// tellApart makes credentials answer for masters and replicas only, as in go-redis; Sentinels have a user and password of their
// own. Rueidis asks it for both, and hands on the address of the connection, which may be one that nobody has named before.
func (a *access) tellApart(c *rueidis.ClientOption) {
	dial, own := dialingOf(c), c.Sentinel
	a.ofSentinels = rueidis.AuthCredentials{Username: own.Username, Password: own.Password}
	c.Sentinel.Dialer.FallbackDelay = toSentinels
	c.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		if d.FallbackDelay != toSentinels {
			return dial(ctx, address, d, t)
		}
		conn, err := dial(ctx, address, &own.Dialer, t)
		if err != nil {
			return nil, err
		}
		return connToSentinel{conn}, nil
	}
}
