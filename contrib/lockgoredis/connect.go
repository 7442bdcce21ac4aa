package lockgoredis

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"reflect"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
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

// dialing connects by dial, with TLS if the settings say so, within the dialer's timeout. Dial need not heed the end of its
// context: with TLS that of go-redis does not. It is given up then, and a connection that it makes later is closed.
//
// No connection is lost: the channel has no buffer, so either the caller has received it, or the goroutine closes it.
func dialing(dial dialer) dialer {
	type dialled struct {
		conn net.Conn
		err  error
	}
	return func(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialLimit(d.Timeout))
		defer cancel()
		done := make(chan dialled)
		go func() {
			conn, err := dial(ctx, address, d, t)
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

// tcp connects to a server whose address is known only when it is dialled. It uses the dialer of o if there is one, which has
// settings of its own.
func tcp(c *rueidis.ClientOption, o *redis.Options) dialer {
	if o.Dialer != nil {
		return ignoring(c, "", func(ctx context.Context, address string) (net.Conn, error) {
			return o.Dialer(ctx, "tcp", address)
		})
	}
	return func(ctx context.Context, address string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		return redis.NewDialer(&redis.Options{DialTimeout: dialLimit(d.Timeout), TLSConfig: t})(ctx, "tcp", address)
	}
}

// ignoring connects by dial, which ignores the settings that rueidis hands on. It fails if they are no longer those in c now: the
// change would have no effect. With an empty address any address is right.
func ignoring(c *rueidis.ClientOption, address string, dial func(ctx context.Context, address string) (net.Conn, error)) dialer {
	timeout, config := c.Dialer.Timeout, c.TLSConfig.Clone() // a caller may change TLSConfig in place
	return func(ctx context.Context, at string, d *net.Dialer, t *tls.Config) (net.Conn, error) {
		switch {
		case address != "" && at != address:
			return nil, changedError("InitAddress")
		case d.Timeout != timeout:
			return nil, changedError("Dialer.Timeout")
		case !sameTLS(config, t):
			return nil, changedError("TLSConfig")
		default:
			return dial(ctx, at)
		}
	}
}

// sameTLS compares two configurations field by field. Two closures of one function count as the same.
func sameTLS(a, b *tls.Config) bool {
	if a == nil || b == nil {
		return a == b
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[tls.Config]()) {
		x, y := reflect.ValueOf(a).Elem().FieldByIndex(field.Index), reflect.ValueOf(b).Elem().FieldByIndex(field.Index)
		switch {
		case !field.IsExported():
		case field.Type.Kind() == reflect.Func:
			if x.Pointer() != y.Pointer() {
				return false
			}
		case !reflect.DeepEqual(x.Interface(), y.Interface()):
			return false
		}
	}
	return true
}

// changedError says that the caller has changed a setting which would have no effect. It names the setting.
type changedError string

func (e changedError) Error() string {
	return "WithClientOption changes " + string(e) + ", but the dialer of go-redis connects, with settings of its own: " +
		"set DialCtxFn to nil to connect in your own way"
}

// Is makes the error one that lasts, not an outage.
func (changedError) Is(target error) bool { return target == fault.Lasting }

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
