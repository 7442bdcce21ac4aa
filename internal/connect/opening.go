package connect

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// opening has the connections of a client that is being made, so that the attempt can be ended. Rueidis itself goes from one
// server to the next, and ends only by the client's own limits for each.
type opening struct {
	ctx   context.Context // ends when the attempt is given up
	end   context.CancelFunc
	given []string // the addresses that the user gives

	mu    sync.Mutex
	over  bool      // the attempt has succeeded, or was given up
	seen  []string  // the given addresses that were dialed
	to    place     // the server that was dialed last
	last  time.Time // when the last connection was made
	conns []net.Conn
}

// place is a server, and how it is dialed. Sentinels may be dialed in another way than other servers.
type place struct {
	address string
	dialer  *net.Dialer
	config  *tls.Config // nil: without TLS
}

type dialing = func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error)

// watch makes a client dial through the opening that it returns.
func watch(o *rueidis.ClientOption) *opening {
	w := &opening{given: o.InitAddress}
	w.ctx, w.end = context.WithCancel(context.Background())
	dial := dialingOf(o)
	o.DialCtxFn = func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		return w.dial(ctx, dial, address, d, c)
	}
	return w
}

// dialingOf returns how a client with these options dials.
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
	defer context.AfterFunc(w.ctx, cancel)()
	w.note(place{address, d, c})
	conn, err := dial(ctx, address, d, c)
	if err != nil {
		return nil, undialed{err, address}
	}
	if err = w.keep(conn); err != nil {
		_ = conn.Close() // not under the mutex: the user's function may have made it, and its Close may block
		return nil, err
	}
	return conn, nil
}

// note notes which server is dialed. A client for Sentinel that has failed may begin anew before it is closed, with a Sentinel
// that was dialed before. That is not noted, so that the error names the server that has failed.
func (w *opening) note(to place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Contains(w.seen, to.address) {
		return
	}
	if w.to = to; slices.Contains(w.given, to.address) {
		w.seen = append(w.seen, to.address)
	}
}

// newest returns the server that was dialed last.
func (w *opening) newest() place {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to
}

// undialed is why a connection to an address could not be made.
type undialed struct {
	error
	address string
}

func (u undialed) Unwrap() error { return u.error }

// keep notes a connection that was made. It fails when the client was given up.
func (w *opening) keep(conn net.Conn) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.conns, w.last = append(w.conns, conn), time.Now()
	}
	return w.ctx.Err()
}

// succeed leaves the connections to the client, and returns how long ago the last one was made.
func (w *opening) succeed() time.Duration {
	w.mu.Lock()
	greeting := time.Since(w.last)
	w.mu.Unlock()
	_ = w.finish()
	return greeting
}

// finish returns the connections that were made so far. Later ones are not noted.
func (w *opening) finish() (made []net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	made, w.conns, w.over = w.conns, nil, true
	return made
}

// close closes the connections, and prevents further ones. It reports whether there was one.
func (w *opening) close() (reached bool) {
	w.end() // first: from now on dial closes the connection that it has made
	made := w.finish()
	for _, c := range made {
		_ = c.Close()
	}
	return len(made) > 0
}
