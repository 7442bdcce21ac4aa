package locktest

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// Disconnect breaks the connections of this registry to the server, and prevents new ones until [Registry.Reconnect]. Calls that
// need Redis return an error that matches [lockregistry.ErrUnavailable], at once unless they wait.
//
// Locks that the registry holds stay held until their leases are over. Peers stay connected: to simulate a server that is down,
// also disconnect them.
func (r *Registry) Disconnect() { r.network.disconnect() }

// Hang makes Redis silent for this registry until [Registry.Reconnect], like a frozen server or a network that drops everything:
// connections stay, new ones can be made, and nothing is answered. Peers are not affected.
//
// Calls that need Redis return an error that matches [lockregistry.ErrUnavailable] after [lockregistry.WithCommandTimeout], by
// default 5 s or a third of the lease. Set it to a few milliseconds for a test in real time.
func (r *Registry) Hang() { r.network.hang() }

// Reconnect ends [Registry.Disconnect] or [Registry.Hang]. When it returns, the registry is connected again.
//
// Commands that were lost in between are not repeated, so a lock may be lost. A lock whose Unlock failed is removed a moment
// later.
func (r *Registry) Reconnect() {
	r.tb.Helper()
	r.network.connect()
	var err error
	for range 10 { // the client may not have noticed yet that a connection was broken
		if err = r.client.Do(context.Background(), r.client.B().Ping().Build()).Error(); err == nil {
			return
		}
	}
	r.tb.Errorf("locktest: reconnect: %v", err)
}

// network is between a client and the server.
type network struct {
	server func() (net.Conn, error)

	mu    sync.Mutex
	state state
	conns map[*conn]bool // the open ones
}

type state int

const (
	connected state = iota
	disconnected
	hanging
)

var errDown = &net.OpError{Op: "dial", Net: "locktest", Err: errors.New("disconnected by the test")}

func (n *network) dial(ctx context.Context) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if n.state == disconnected {
		return nil, errDown
	}
	pipe, err := n.server()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: pipe, network: n}
	c.mute.Store(n.state == hanging)
	if n.conns == nil {
		n.conns = map[*conn]bool{}
	}
	n.conns[c] = true
	return c, nil
}

func (n *network) connect() {
	n.change(connected, func(c *conn) {
		if c.mute.Load() { // commands were lost, so later answers would belong to the wrong ones
			_ = c.shut()
		}
	})
}

func (n *network) disconnect() { n.change(disconnected, func(c *conn) { _ = c.shut() }) }

func (n *network) hang() { n.change(hanging, func(c *conn) { c.mute.Store(true) }) }

func (n *network) change(to state, each func(*conn)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = to
	for c := range n.conns {
		each(c)
	}
}

// conn is a connection that can become mute: from then on everything sent by either side is lost.
type conn struct {
	net.Conn

	network *network
	mute    atomic.Bool
	closed  atomic.Bool
}

func (c *conn) Read(b []byte) (n int, err error) {
	for {
		if n, err = c.Conn.Read(b); err != nil || !c.mute.Load() {
			return n, err
		}
	}
}

func (c *conn) Write(b []byte) (int, error) {
	if c.mute.Load() && !c.closed.Load() { // the client's writer ends only with an error
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *conn) Close() error {
	c.network.mu.Lock()
	delete(c.network.conns, c)
	c.network.mu.Unlock()
	return c.shut()
}

func (c *conn) shut() error {
	c.closed.Store(true)
	return c.Conn.Close()
}
