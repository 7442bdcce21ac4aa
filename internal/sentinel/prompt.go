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

// Dial makes a connection, like the DialCtxFn of a client.
type Dial = func(ctx context.Context, address string, d *net.Dialer, c *tls.Config) (net.Conn, error)

// prompter makes a client ask its Sentinels again who is master, by ending the client's own connections to them.
//
// A client follows one Sentinel, and changes to a new master when that Sentinel publishes the change. That may be late:
//
//   - The Sentinel that leads a failover publishes it last: when the replicas follow the new master, or its failover-timeout is
//     over. If it is asked, it names the successor from the promotion on.
//   - A Sentinel that is cut off from the others does not publish it at all.
//
// So while the client uses the former master, it gets connections only to Sentinels that name the successor. It tries one
// Sentinel after the other, and the others would hold it up: one that still names the former master would be followed again;
// one that does not answer may take seconds to dial, since it went down with the master's machine, or announces an address that
// leads nowhere from here.
type prompter struct {
	mu    sync.Mutex
	conns map[*wrapped]bool // of the client, to Sentinels
	at    time.Time         // when the client was last prompted
	only  []string          // the addresses of the Sentinels to which the client gets connections; empty: all
}

const promptEvery = time.Second

var errBarred = errors.New("this Sentinel does not name the new master, and others do")

// Tracked returns the function with which a client must dial so that it can be prompted.
//
// The function also repairs an address. When a Sentinel publishes that it has found another one, rueidis takes the rest of the
// message, "PORT @ NAME IP PORT", for the port. Without the repair a client would reach no Sentinel any more once all those
// that it knew have been replaced.
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
		tracked := &wrapped{Conn: conn}
		tracked.closes = func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.conns, tracked)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.conns == nil {
			p.conns = map[*wrapped]bool{}
		}
		p.conns[tracked] = true
		return tracked, nil
	}
}

// knows reports whether a Sentinel has an address.
func (w *Watch) knows(address string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.first, address) || w.council.members[address] != nil || w.council.announced(address)
}

// bars reports whether the client gets no connection to an address, provided that it is a Sentinel's.
func (p *prompter) bars(address string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.only) > 0 && !slices.Contains(p.only, address)
}

// prompt ends the connections if there is a successor, at most once per promptEvery. Only has the Sentinels that name it.
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

// wrapped is a connection with a function that is called before it is closed.
type wrapped struct {
	net.Conn
	closes func()
}

func (w *wrapped) Close() error {
	w.closes()
	return w.Conn.Close()
}

// successor returns the server that a majority of the Sentinels names instead of the one that is in use, and the addresses of
// these Sentinels. It is empty if there is none, or if that is not certain. The other Sentinels may lag for a moment, or be cut
// off.
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
