package wake

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// node is the listening to one server.
//
//	off ──a call waits──▶ connecting ──▶ on ──lost or suspected, or no listener is served by it──▶ off
//	                          └──fails──▶ off
//	any ──the last listener leaves──▶ closed
//
// From off it connects again only after a pause, which grows, and only for a waiting call whose listener was not refused. The
// server refuses a listener if it allows none of its ways; that stays so until the listener is closed.
//
// One goroutine, run, lives from the first waiting call until the node is closed. Only run sends on the connection, so that
// subscriptions begin and end in the order in which they were asked for, many in one command.
type node struct {
	hub     *hub
	address string // of a server of a cluster
	client  rueidis.Client
	ctx     context.Context
	stop    context.CancelCauseFunc
	nudge   chan struct{} // has room for one: there is something to do
	dialer  dialer        // for run

	mu *sync.Mutex // the hub's, which guards the rest
	link
	listeners map[*Listener]*part // the open ones
	waiting   map[string][]*Waiter
	asked     map[*Waiter]struct{} // waiters to be armed
	channels  channels
	owns      ownChannels
}

// link is what a node knows of its current and earlier connections.
type link struct {
	state     state
	running   bool        // the goroutine exists
	current   *connection // while the state is on
	since     time.Time   // when it was made
	suspected *connection // a message was missed on it, and none has arrived since
	lost      uint64      // connections
	tracks    bool        // the connection tracks
}

type state uint8

const (
	off state = iota
	connecting
	on
	closed
)

// part is what a node knows of a listener.
type part struct {
	waiters  int
	refused  bool        // the server allows no way to listen for it
	prepared *connection // the connection that is prepared for it
	heard    *connection // the connection on which a channel of its calls is or was subscribed
	hearing  Hearing     // on the current connection: Heard once proven, then not proven again
}

const (
	batch        = 512 // keys or channels in one command
	longestPause = 3 * time.Second
	lasting      = 10 * time.Second // a peer that breaks connections sooner is treated like one that refuses them
)

// newNode makes a node with the hub's listeners. The caller holds the mutex.
func newNode(h *hub, client rueidis.Client, address string) *node {
	ctx, stop := context.WithCancelCause(h.ctx)
	n := &node{
		hub:       h,
		address:   address,
		client:    client,
		ctx:       ctx,
		stop:      stop,
		nudge:     make(chan struct{}, 1),
		mu:        &h.mu,
		listeners: map[*Listener]*part{},
		waiting:   map[string][]*Waiter{},
		asked:     map[*Waiter]struct{}{},
		channels:  newChannels(),
		owns:      newOwnChannels(),
	}
	n.dialer.node = n
	for l := range h.listeners {
		n.listeners[l] = &part{}
	}
	return n
}

// dismiss removes a listener. The caller holds the mutex.
func (n *node) dismiss(l *Listener) {
	delete(n.listeners, l)
	name := l.options.Common
	for o := range n.listeners {
		if o.options.Common == name {
			return
		}
	}
	if n.channels.noCommon(name) {
		n.poke()
	}
}

// close ends the connection and the goroutine; the hub's done waits for them. The caller holds the mutex.
func (n *node) close(reason error) {
	n.state = closed
	n.stop(reason)
}

// add adds a waiter. It reports false if the waiter would get no wake-ups. The caller holds the mutex.
func (n *node) add(w *Waiter) bool {
	p := n.listeners[w.listener]
	if p == nil || p.refused {
		return false
	}
	p.waiters++
	w.node = n
	w.index = len(n.waiting[w.Key])
	n.waiting[w.Key] = append(n.waiting[w.Key], w)
	return true
}

// remove removes a waiter. The caller holds the mutex.
func (n *node) remove(w *Waiter) {
	w.node = nil
	delete(n.asked, w)
	n.quit(w)
	if p := n.listeners[w.listener]; p != nil {
		p.waiters--
	}
	all := n.waiting[w.Key]
	last := len(all) - 1
	all[w.index], all[last].index = all[last], w.index // the order does not matter, and there may be thousands
	all[last] = nil
	if n.waiting[w.Key] = all[:last]; last == 0 {
		delete(n.waiting, w.Key)
	}
	if n.channels.leave(w) {
		n.poke()
	}
}

func without(waiters []*Waiter, w *Waiter) []*Waiter {
	return slices.DeleteFunc(waiters, func(o *Waiter) bool { return o == w })
}

// ask asks for a waiter to be armed. It reports false if there is no reply to wait for. The caller holds the mutex.
func (n *node) ask(w *Waiter) bool {
	w.arms = true
	p := n.listeners[w.listener]
	if w.armed || w.paused != nil || p == nil || p.refused || !n.up() {
		return false
	}
	if w.arming.ask() {
		n.asked[w] = struct{}{}
		if w.Own == "" { // otherwise the wake-up may be about that channel
			select {
			case <-w.wake: // of a change that the look at the key will show
			default:
			}
		}
		n.poke()
	}
	return true
}

// up reports whether there is a connection. If not, one will be made, and then all waiters wake. The caller holds the mutex.
func (n *node) up() bool {
	if n.state == on || n.state == closed {
		return n.state == on
	}
	if !n.running {
		n.running = true
		n.hub.done.Go(n.run)
	}
	if n.state == off {
		n.poke()
	}
	return false
}

func (n *node) poke() {
	select {
	case n.nudge <- struct{}{}:
	default:
	}
}

// run makes a connection when one is needed, and serves it until it is lost.
func (n *node) run() {
	failed := 0
	for pause := time.Duration(0); n.rest(pause); {
		pause = pauseAfter(n.connect(), &failed)
	}
}

// pauseAfter returns the pause after a connection that worked for this long, or not at all.
func pauseAfter(worked time.Duration, failed *int) time.Duration {
	if worked >= lasting {
		*failed = 0
	}
	*failed++
	return clock.Pause(*failed, longestPause)
}

// rest waits until the pause is over and a waiting call needs a connection. It reports false when the node is closed.
func (n *node) rest(pause time.Duration) bool {
	over := time.NewTimer(pause)
	defer over.Stop()
	for rested := false; ; {
		select {
		case <-over.C:
			rested = true
		case <-n.nudge:
		case <-n.ctx.Done():
			return false
		}
		if rested && len(n.served()) > 0 {
			return true
		}
	}
}

// served returns the listeners that have waiting calls and are not refused.
func (n *node) served() (listeners []*Listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for l, p := range n.listeners {
		if p.waiters > 0 && !p.refused {
			listeners = append(listeners, l)
		}
	}
	return listeners
}

// connect makes a connection, serves it until it is lost, and returns for how long it worked.
func (n *node) connect() time.Duration {
	if !n.become(connecting) {
		return 0
	}
	c, err := n.dialer.dial()
	if err == nil {
		err = c.prepare(n.served())
	}
	if err != nil {
		c.end()
		n.forget()
		n.become(off)
		if n.ctx.Err() == nil && !errors.Is(err, errRefused) && !n.dialer.logged {
			n.dialer.logged = true
			n.log(slog.LevelWarn, "no connection for wake-ups; waiting calls poll until there is one",
				slog.Any("error", fault.Plain(err)))
		}
		return 0
	}
	n.dialer.logged = false
	start := time.Now()
	if n.begin(c) {
		n.tell(Connection{Node: n.address, Up: true})
		err = c.serve()
		if reason := context.Cause(c.ctx); reason != nil {
			err = reason
		}
		n.forget()
		n.hub.poke() // it may be another server's turn
		if n.become(off) && !errors.Is(err, errRefused) {
			n.log(slog.LevelWarn, "the connection for wake-ups is lost; it is made again", slog.Any("error", fault.Plain(err)))
		}
		n.tell(Connection{Node: n.address, Err: fault.Plain(err)})
	}
	if errors.Is(err, errSuspect) { // closing it may take a second
		n.hub.done.Go(c.end)
	} else {
		c.end()
	}
	return time.Since(start)
}

// become changes the state, unless the node is closed.
func (n *node) become(s state) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state == closed {
		return false
	}
	n.state = s
	return true
}

// begin changes the state to on, unless the node is closed.
func (n *node) begin(c *connection) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state == closed {
		return false
	}
	n.state, n.current, n.since = on, c, time.Now()
	for _, waiters := range n.waiting { // they could not be armed so far
		for _, w := range waiters {
			w.signal()
		}
	}
	return true
}

// forget resets the state of a lost connection, and wakes the waiters that relied on it.
func (n *node) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current != nil {
		n.lost++
	}
	n.current, n.suspected, n.tracks = nil, nil, false
	n.channels, n.owns = newChannels(), newOwnChannels()
	clear(n.asked)
	for _, p := range n.listeners {
		p.hearing = NotYet
	}
	for _, waiters := range n.waiting {
		for _, w := range waiters {
			w.disarm()
		}
	}
}

// invalidated handles the server's message that keys that the connection has read have changed; nil means all keys.
func (c *connection) invalidated(keys []rueidis.RedisMessage) {
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current != c {
		return
	}
	now := time.Now()
	if keys == nil {
		for _, waiters := range n.waiting {
			changed(waiters, now)
		}
	}
	for _, key := range keys {
		if name, err := key.ToString(); err == nil {
			changed(n.waiting[name], now)
		}
	}
}

func changed(waiters []*Waiter, now time.Time) {
	for _, w := range waiters {
		if w.armed && w.tracks {
			w.changed(now)
		}
	}
}

// published handles a message. On a key's channel it is about that key, on a common channel it names the key, on a listener's
// own channel it is for that listener.
func (c *connection) published(m rueidis.PubSubMessage) {
	n := c.node
	n.mu.Lock()
	if n.current != c { // the same message may come on the current one
		n.mu.Unlock()
		return
	}
	if o := n.owns.all[m.Channel]; o != nil {
		n.suspected = nil
		if m.Message == probe {
			o.echoed = true
			n.mu.Unlock()
			c.echoes()
			return
		}
		n.mu.Unlock()
		o.listener.take(m)
		return
	}
	defer n.mu.Unlock()
	if c := n.channels.all[m.Channel]; c != nil {
		for _, w := range c.waiters {
			if w.Channel == m.Channel && w.heeds() {
				w.message()
			}
		}
	}
	for _, w := range n.waiting[m.Message] {
		if w.listener.options.Common == m.Channel && w.heeds() {
			w.message()
		}
	}
}

// log writes a line to all listeners, once to each sink.
func (n *node) log(level slog.Level, message string, attributes ...slog.Attr) {
	seen := map[any]bool{}
	for _, l := range n.all() {
		if !seen[l.options.Sink] {
			seen[l.options.Sink] = true
			l.options.Log(level, message, attributes...)
		}
	}
}

// missing logs to a listener that a way to listen does not work for it.
func (n *node) missing(l *Listener, way string, err error) {
	if n.hub.untold(l, way) {
		l.options.Log(slog.LevelInfo, "the server does not allow a way to wake up waiting calls",
			slog.String("way", way), slog.Any("error", fault.Plain(err)))
	}
}

func (n *node) tell(news Connection) {
	for _, l := range n.all() {
		if l.options.Connection != nil {
			l.options.Connection(news)
		}
	}
}

func (n *node) all() []*Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	listeners := make([]*Listener, 0, len(n.listeners))
	for l := range n.listeners {
		listeners = append(listeners, l)
	}
	return listeners
}

// refuse notes that no way to listen works for a listener. It returns errRefused unless another waiting listener still has one.
func (n *node) refuse(l *Listener) error {
	n.mu.Lock()
	if p := n.listeners[l]; p != nil {
		p.refused = true
	}
	for _, waiters := range n.waiting {
		for _, w := range waiters {
			if w.listener == l {
				w.told()
			}
		}
	}
	n.mu.Unlock()
	if len(n.served()) == 0 {
		return errRefused
	}
	return nil
}

// errRefused: the server allows no way to listen for any waiting call.
var errRefused = errors.New("the server allows no way to wake up waiting calls")
