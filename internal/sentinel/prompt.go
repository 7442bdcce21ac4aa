package sentinel

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// Dial makes a connection, as the DialCtxFn of a client.
type Dial = func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error)

// prompter has a client ask its Sentinels again who is master: it ends the client's own connections to them.
//
// A client follows one Sentinel, and changes when that publishes the change. The one that leads a failover does so last: when the
// replicas follow, or its failover-timeout is over, although it names the successor to all that ask from the promotion on. One
// that is cut off from the others does not publish it at all. So while the client uses the former master, it gets no connection
// to a Sentinel that still names that master: it would ask that one again.
type prompter struct {
	mu    sync.Mutex
	conns map[*trackedConn]bool // of the client, to Sentinels
	at    time.Time             // when it was last prompted
	lag   []string              // the addresses of Sentinels to which it gets none
}

const promptEvery = time.Second

var errLags = errors.New("this Sentinel names a former master")

// Tracked returns how a client is to dial so that it can be prompted.
//
// When a Sentinel publishes that it has found another one, rueidis takes the rest of the message, "PORT @ NAME IP PORT", for the
// port. Without that address a client would reach no Sentinel any more once all others have been replaced.
func (w *Watch) Tracked(dial Dial) Dial {
	return func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		p := &w.prompter
		address, _, _ = strings.Cut(address, " @ ") // mutant: found Sentinels not dialed
		if p.lags(address) {
			return nil, errLags
		}
		conn, err := dial(ctx, address, d, c)
		if err != nil || !w.knows(address) {
			return conn, err
		}
		t := &trackedConn{conn, p}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.conns == nil {
			p.conns = map[*trackedConn]bool{}
		}
		p.conns[t] = true
		return t, nil
	}
}

// knows reports whether a Sentinel has an address.
func (w *Watch) knows(address string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.first, address) || w.council.members[address] != nil
}

// lags reports whether the client gets no connection to an address.
func (p *prompter) lags(address string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.lag, address)
}

// prompt ends the connections if there is a successor, unless it has done so a moment ago. Lag has the addresses of Sentinels
// that do not name the successor.
func (p *prompter) prompt(successor string, lag []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lag = lag; successor == "" || time.Since(p.at) < promptEvery {
		return
	}
	p.at = time.Now()
	for c := range p.conns {
		go c.Conn.Close() //nolint:errcheck // as when it breaks
	}
}

type trackedConn struct {
	net.Conn
	of *prompter
}

func (c *trackedConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// successor returns the server that a majority of the Sentinels names instead of one that is in use, and the addresses of those
// that do not; empty if there is none, or it is not certain. They may lag for a moment, or be cut off from the others.
func successor(using string, answers []Answer) (address string, lag []string) {
	if Judge(using, answers) != Replaced {
		return "", nil
	}
	for _, a := range answers {
		if v := Judge(a.Names, answers); a.Names != using && (v == Vouched || v == Disputed) { // mutant: lagging Sentinel followed
			return a.Names, against(a.Names, answers)
		}
	}
	return "", nil
}
