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
// replicas follow, or its failover-timeout is over, although it names the successor from the promotion on to everybody who asks.
// One that is cut off from the others does not publish it at all. So while the client uses the former master, it gets
// connections only to Sentinels that name the successor. One that names the former master still would be asked again. One that
// does not answer may be on the machine that has gone with the master, or announce an address that leads nowhere from here: to
// dial it may take seconds, and the client tries one after the other.
type prompter struct {
	mu    sync.Mutex
	conns map[*trackedConn]bool // of the client, to Sentinels
	at    time.Time             // when it was last prompted
	only  []string              // the addresses of the Sentinels to which it gets connections; empty: to all
}

const promptEvery = time.Second

var errBarred = errors.New("this Sentinel does not name the new master, and others do")

// Tracked returns how a client is to dial so that it can be prompted.
//
// When a Sentinel publishes that it has found another one, rueidis takes the rest of the message, "PORT @ NAME IP PORT", for the
// port. Without that address a client would reach no Sentinel any more once all others have been replaced.
func (w *Watch) Tracked(dial Dial) Dial {
	return func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		p := &w.prompter
		address, _, _ = strings.Cut(address, " @ ") // mutant: found Sentinels not dialed
		if p.bars(address) && w.knows(address) {
			return nil, errBarred
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
	return slices.Contains(w.first, address) || w.council.members[address] != nil || w.council.announced(address)
}

// bars reports whether the client gets no connection to an address, if a Sentinel has it.
func (p *prompter) bars(address string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.only) > 0 && !slices.Contains(p.only, address)
}

// prompt ends the connections if there is a successor, unless it has done so a moment ago. Only are the Sentinels that name it.
func (p *prompter) prompt(successor string, only []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.only = only; successor == "" || time.Since(p.at) < promptEvery {
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

// successor returns the server that a majority of the Sentinels names instead of one that is in use, and the addresses of these
// Sentinels; empty if there is none, or it is not certain. Others may lag for a moment, or be cut off.
func successor(using string, answers []Answer) (address string, by []string) {
	if Judge(using, answers) != Replaced {
		return "", nil
	}
	for _, a := range answers {
		if v := Judge(a.Names, answers); a.Names != using && (v == Vouched || v == Disputed) { // mutant: lagging Sentinel followed
			return a.Names, naming(a.Names, answers)
		}
	}
	return "", nil
}
