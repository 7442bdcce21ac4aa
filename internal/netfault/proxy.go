// Package netfault is a network between Redis clients and servers for tests, which fails in every way that a network can.
package netfault

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// Proxy is the network between some clients and a server. It understands commands, replies and pushed messages, and gives each
// the fate that a test has chosen. It carries everything else unchanged, in order and pipelined as it came.
//
// A connection has two ends. A cut breaks only the client's end: the server executes what it has received, and a command that
// is still under way arrives later, as on a network that has lost only the way back.
type Proxy struct {
	name     func(args []string) string
	listener net.Listener // nil when all clients are in this process
	running  sync.WaitGroup
	closed   chan struct{}

	mu     sync.Mutex
	server Dial // where new connections lead
	next   []rule
	always []rule // the latest first
	decide func(Command) Fate
	down   bool
	thawed chan struct{} // closed unless the network is frozen
	links  map[*Link]bool
	seen   []Command
}

// Dial connects to a server.
type Dial func(context.Context) (net.Conn, error)

type rule struct {
	match Match
	fate  Fate
}

var errDown = &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("the network is down")}

// New returns a proxy to a server for clients in this process, which connect with [Proxy.Dial]. Name returns what a command
// does to a lock, empty if nothing.
func New(server Dial, name func(args []string) string) *Proxy {
	p := &Proxy{server: server, name: name, closed: make(chan struct{}), thawed: make(chan struct{}), links: map[*Link]bool{}}
	close(p.thawed)
	return p
}

// Listen is New for clients in any process, which connect to [Proxy.Addr]. The argument server is an address.
func Listen(server string, name func(args []string) string) (*Proxy, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := New(to(server), name)
	p.listener = listener
	p.running.Go(p.accept)
	return p, nil
}

func to(address string) Dial {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	return func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", address) }
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Lead leads new connections to the server at another address. Existing connections stay as they are.
func (p *Proxy) Lead(server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = to(server)
}

// Next gives fates to the next commands that match, one each.
func (p *Proxy) Next(m Match, fates ...Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range fates {
		p.next = append(p.next, rule{m, f})
	}
}

// All gives a fate to every command that matches, unless Next or a later All gives it another one.
func (p *Proxy) All(m Match, f Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.always = slices.DeleteFunc(p.always, func(r rule) bool { return r.match == m })
	p.always = slices.Insert(p.always, 0, rule{m, f})
}

// Decide sets the function that decides the fates of commands that match no rule; nil: all are delivered. It is called under
// the proxy's mutex.
func (p *Proxy) Decide(decide func(Command) Fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decide = decide
}

// Forget drops all rules, and lets clients connect. Connections stay as they are, mute ones too.
func (p *Proxy) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.always, p.decide, p.down = nil, nil, nil, false
}

// Heal drops all rules, thaws the network, lets clients connect, and breaks existing connections, mute ones among them.
func (p *Proxy) Heal() {
	p.Forget()
	p.Thaw()
	p.CutAll()
}

// CutAll breaks every connection.
func (p *Proxy) CutAll() {
	for _, l := range p.Links() {
		l.Cut()
	}
}

// Down breaks every connection and prevents new ones until [Proxy.Heal] or [Proxy.Forget].
func (p *Proxy) Down() {
	p.shut()
	p.CutAll()
}

// Hang makes every connection mute, in both directions, without breaking it, and prevents new ones until [Proxy.Heal] or
// [Proxy.Forget].
func (p *Proxy) Hang() {
	p.shut()
	for _, l := range p.Links() {
		l.mu.Lock()
		l.mute, l.deaf = true, true
		l.mu.Unlock()
	}
}

func (p *Proxy) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
}

// Freeze stops everything under way, in both directions. Connections stay open.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.thawed:
		p.thawed = make(chan struct{})
	default:
	}
}

// Thaw ends a Freeze: everything continues.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.thawed:
	default:
		close(p.thawed)
	}
}

// Seen returns the matching commands among the latest that it has seen.
func (p *Proxy) Seen(m Match) (all []Command) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.seen {
		if m.matches(&p.seen[i]) {
			all = append(all, p.seen[i])
		}
	}
	return all
}

// Links returns the existing connections.
func (p *Proxy) Links() []*Link {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.links))
}

// Close breaks everything, and waits until nothing of the proxy is left. What is held back is never delivered.
func (p *Proxy) Close() {
	p.mu.Lock()
	select {
	case <-p.closed:
		p.mu.Unlock()
		return
	default:
	}
	close(p.closed)
	if p.listener != nil {
		_ = p.listener.Close()
	}
	for l := range p.links {
		l.Cut()
		_ = l.server.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
}

const mostSeen = 1 << 16

// fate records a command and decides what happens to it.
func (p *Proxy) fate(c Command, over *Link) Fate {
	c.Sent, c.Over = time.Now(), over
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) == mostSeen {
		p.seen = append(p.seen[:0], p.seen[mostSeen/2:]...)
	}
	p.seen = append(p.seen, c)
	takes := func(r rule) bool { return r.match.matches(&c) && (!c.Pushed || r.match != Match{}) }
	if i := slices.IndexFunc(p.next, takes); i >= 0 {
		f := p.next[i].fate
		p.next = slices.Delete(p.next, i, i+1)
		return f
	}
	if i := slices.IndexFunc(p.always, takes); i >= 0 {
		return p.always[i].fate
	}
	if p.decide != nil {
		return p.decide(c)
	}
	return Fate{}
}

// flow waits while the network is frozen.
func (p *Proxy) flow() {
	p.mu.Lock()
	thawed := p.thawed
	p.mu.Unlock()
	select {
	case <-thawed:
	case <-p.closed:
	}
}

// pause waits for a while, or until the proxy is closed.
func (p *Proxy) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.closed:
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() {
			if p.connect(context.Background(), client) != nil {
				_ = client.Close()
			}
		})
	}
}

// Dial connects a client in this process to the server.
func (p *Proxy) Dial(ctx context.Context) (net.Conn, error) {
	if ctx.Err() != nil { // a server in this process would not notice
		return nil, ctx.Err()
	}
	client, inner := net.Pipe()
	if err := p.connect(ctx, inner); err != nil {
		return nil, err
	}
	return client, nil
}

// connect carries a client's traffic from then on.
func (p *Proxy) connect(ctx context.Context, client net.Conn) error {
	p.flow()
	p.mu.Lock()
	down, dial := p.down, p.server
	p.mu.Unlock()
	if down {
		return errDown
	}
	server, err := dial(ctx)
	if err != nil {
		return err
	}
	l := newLink(p, client, server)
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
		down = true
	default:
		down = p.down
	}
	if down {
		_ = server.Close()
		return errDown
	}
	p.links[l] = true
	p.running.Go(l.forth)
	p.running.Go(l.back)
	return nil
}
