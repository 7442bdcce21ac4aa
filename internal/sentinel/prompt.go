package sentinel

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"time"
)

// Dial makes a connection, as the DialCtxFn of a client.
type Dial = func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error)

// prompter has a client ask its Sentinels again who is master: it ends the client's own connections to them.
//
// A client follows one Sentinel, and changes when that publishes the change. The one that leads a failover does so last: when the
// replicas follow, or its failover-timeout is over, although it names the successor from the promotion on to everybody who asks.
type prompter struct {
	mu    sync.Mutex
	conns map[*trackedConn]bool // of the client, to Sentinels
	at    time.Time             // when it was last prompted
}

const promptEvery = time.Second

// Tracked returns how a client is to dial so that it can be prompted.
func (w *Watch) Tracked(dial Dial) Dial {
	return func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		conn, err := dial(ctx, address, d, c)
		if err != nil || !w.knows(address) {
			return conn, err
		}
		p := &w.prompter
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

// prompt ends the connections, unless it has done so a moment ago.
func (p *prompter) prompt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) < promptEvery {
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

// outdated reports whether a majority of the Sentinels, and each that answers, names the same other server than the one that is
// in use. Sooner a client that asks again might be told of the former master, and wait for that.
func outdated(using string, answers []Answer) bool {
	return len(answers) > 0 && answers[0].Names != using && Judge(using, answers) == Replaced &&
		Judge(answers[0].Names, answers) == Vouched
}
