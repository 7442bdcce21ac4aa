package lockgoredis

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
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

// dialingOf is how a client with these options connects. A caller may have replaced, or taken away, what this package has set.
func dialingOf(c *rueidis.ClientOption) dialer {
	switch plain := c.DialFn; {
	case c.DialCtxFn != nil:
		return c.DialCtxFn
	case plain != nil:
		return func(_ context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
			return plain(address, d, t)
		}
	default:
		return func(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
			if t != nil {
				return (&tls.Dialer{NetDialer: d, Config: t}).DialContext(ctx, "tcp", address)
			}
			return d.DialContext(ctx, "tcp", address)
		}
	}
}
