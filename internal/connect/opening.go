package connect

import (
	"context"
	"crypto/tls"
	"net"
	"sync"

	"github.com/redis/rueidis"
)

// opening has the connections of a client that is being made. The client itself has no end but its own limits: it goes from one
// server to the next, and waits for each.
type opening struct {
	given context.Context // ends when it is given up
	end   context.CancelFunc

	mu    sync.Mutex
	over  bool // it has succeeded, or was given up
	conns []net.Conn
}

type dialing = func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error)

// watch sees to it that a client dials through the opening that it returns.
func watch(o *rueidis.ClientOption) *opening {
	w := &opening{}
	w.given, w.end = context.WithCancel(context.Background())
	dial := dialingOf(o)
	o.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		return w.dial(ctx, dial, address, d, c)
	}
	return w
}

// dialingOf is how a client with these options dials.
func dialingOf(o *rueidis.ClientOption) dialing {
	switch plain := o.DialFn; {
	case o.DialCtxFn != nil:
		return o.DialCtxFn
	case plain != nil:
		return func(_ context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
			return plain(address, d, c)
		}
	default:
		return func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
			if c != nil {
				return (&tls.Dialer{NetDialer: d, Config: c}).DialContext(ctx, "tcp", address)
			}
			return d.DialContext(ctx, "tcp", address)
		}
	}
}

func (w *opening) dial(ctx context.Context, dial dialing, address string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.given, cancel)()
	conn, err := dial(ctx, address, d, c)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err = w.given.Err(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	if !w.over {
		w.conns = append(w.conns, conn)
	}
	return conn, nil
}

// succeed leaves the connections to the client.
func (w *opening) succeed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over, w.conns = true, nil
}

// giveUp closes the connections, and has no more made. It reports whether there was one.
func (w *opening) giveUp() (reached bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end()
	reached = len(w.conns) > 0
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.over, w.conns = true, nil
	return reached
}
