package wake

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// node is the listening to one server.
//
//	off ──a call waits──▶ connecting ──▶ on ──lost or suspected, or no user is served by it──▶ off
//	                          └──fails──▶ off
//	any ──the last user leaves──▶ closed
//
// From off it connects again only after a pause, which grows, and only for a waiting call whose user was not refused. The
// server refuses a user if it allows none of its ways; that stays so until the user is closed.
//
// One goroutine, run, lives from the first waiting call until the node is closed. Only run sends on the connection, so that
// subscriptions begin and end in the order in which they were asked for, many in one command.
type node struct {
	hub     *hub
	address string // of a server of a cluster
	client  rueidis.Client
	ctx     context.Context
	stop    context.CancelCauseFunc
	wakeup  signal // there is something to do
	dialer  dialer // for run

	mu *sync.Mutex // the hub's, which guards the rest
	link
	parts map[*user]*part // of the open listeners
	peers peers
	mail  mail
}

// link is what a node knows of its current and earlier connections.
type link struct {
	state     state
	running   bool        // the goroutine exists
	current   *connection // while the state is on
	since     time.Time   // when it was made
	suspected *connection // a message was missed on it, and none has arrived since
	lost      uint64      // connections
}

type state uint8

const (
	off state = iota
	connecting
	on
	closed
)

// part is what a node knows of a user.
type part struct {
	waiters  int
	refused  bool        // the server allows no way to listen for it
	prepared *connection // the connection that is prepared for it
	heard    *connection // the connection on which a channel of its calls is or was subscribed
}

const (
	longestPause = 3 * time.Second
	lasting      = 10 * time.Second // a peer that breaks connections sooner is treated like one that refuses them
)

// newNode makes a node with the hub's users. The caller holds the mutex.
func newNode(h *hub, client rueidis.Client, address string) *node {
	ctx, stop := context.WithCancelCause(h.ctx)
	n := &node{
		hub:     h,
		address: address,
		client:  client,
		ctx:     ctx,
		stop:    stop,
		wakeup:  newSignal(),
		mu:      &h.mu,
		parts:   map[*user]*part{},
		peers:   newPeers(),
		mail:    newMail(),
	}
	n.dialer.node = n
	for l := range h.users {
		n.parts[l] = &part{}
	}
	return n
}

// leave removes a user. The caller holds the mutex.
func (n *node) leave(l *user) {
	delete(n.parts, l)
	name := l.Common
	for o := range n.parts {
		if o.Common == name {
			return
		}
	}
	if n.peers.channels.removeCommon(name) {
		n.wakeup.wake()
	}
}

// end ends the connection and the goroutine. The caller holds the mutex.
func (n *node) end(reason error) {
	n.state = closed
	n.stop(reason)
}

// serves reports whether there may be wake-ups for a user. The caller holds the mutex.
func (n *node) serves(u *user) bool {
	p := n.parts[u]
	return p != nil && !p.refused
}

// add adds a waiter. It reports false if the waiter would get no wake-ups. The caller holds the mutex.
func (n *node) add(w *Waiter) bool {
	if !n.serves(w.user) {
		return false
	}
	n.parts[w.user].waiters++
	n.peers.add(w)
	return true
}

// remove removes a waiter. The caller holds the mutex.
func (n *node) remove(w *Waiter) {
	unheard, untidy := n.mail.remove(w), n.peers.remove(w)
	if p := n.parts[w.user]; p != nil {
		p.waiters--
	}
	if unheard || untidy {
		n.wakeup.wake()
	}
}

// arm asks for a waiter to be armed. It reports false if there is no reply to wait for. The caller holds the mutex.
func (n *node) arm(w *Waiter) bool {
	w.arms = true
	if w.armed || w.paused != nil || !n.serves(w.user) || !n.up() {
		return false
	}
	if n.peers.ask(w) {
		n.wakeup.wake()
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
		n.hub.tasks.Go(n.run)
	}
	if n.state == off {
		n.wakeup.wake()
	}
	return false
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
		case <-n.wakeup:
		case <-n.ctx.Done():
			return false
		}
		if rested && len(n.served()) > 0 {
			return true
		}
	}
}

// served returns the users that have waiting calls and are not refused.
func (n *node) served() (users []*user) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for l, p := range n.parts {
		if p.waiters > 0 && !p.refused {
			users = append(users, l)
		}
	}
	return users
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
		n.hub.moved() // it may be another server's turn
		if n.become(off) && !errors.Is(err, errRefused) {
			n.log(slog.LevelWarn, "the connection for wake-ups is lost; it is made again", slog.Any("error", fault.Plain(err)))
		}
		n.tell(Connection{Node: n.address, Err: fault.Plain(err)})
	}
	if errors.Is(err, errSuspect) { // closing it may take a second
		n.hub.tasks.Go(c.end)
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
	for w := range n.peers.all { // they could not be armed so far
		w.wakeup.wake()
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
	n.current, n.suspected = nil, nil
	n.peers.lost()
	n.mail = newMail()
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
		n.peers.allChanged(now)
	}
	for _, key := range keys {
		if name, err := key.ToString(); err == nil {
			n.peers.changed(name, now)
		}
	}
}

// published handles a message. On a key's channel it is about that key, on a common channel it names the key, on a user's
// own channel it is for that user.
func (c *connection) published(m rueidis.PubSubMessage) {
	n := c.node
	n.mu.Lock()
	if n.current != c { // the same message may come on the current one
		n.mu.Unlock()
		return
	}
	if o := n.mail.channels[m.Channel]; o != nil {
		n.suspected = nil
		if m.Message == probe {
			n.mail.proven(o)
			n.mu.Unlock()
			c.echoes()
			return
		}
		n.mu.Unlock()
		o.user.take(m)
		return
	}
	defer n.mu.Unlock()
	n.peers.published(m.Channel, m.Message)
}

// log writes a line to all users, once to each sink.
func (n *node) log(level slog.Level, message string, attributes ...slog.Attr) {
	seen := map[any]bool{}
	for _, l := range n.all() {
		if !seen[l.Sink] {
			seen[l.Sink] = true
			l.Log(level, message, attributes...)
		}
	}
}

// missing logs to a user that a way to listen does not work for it.
func (n *node) missing(l *user, way string, err error) {
	if n.notifies(l, way) {
		l.Log(slog.LevelInfo, "the server does not allow a way to wake up waiting calls",
			slog.String("way", way), slog.Any("error", fault.Plain(err)))
	}
}

func (n *node) tell(news Connection) {
	for _, l := range n.all() {
		if l.Connection != nil {
			l.Connection(news)
		}
	}
}

func (n *node) all() []*user {
	n.mu.Lock()
	defer n.mu.Unlock()
	users := make([]*user, 0, len(n.parts))
	for l := range n.parts {
		users = append(users, l)
	}
	return users
}

// refuse notes that no way to listen works for a user. It returns errRefused unless another waiting user still has one.
func (n *node) refuse(l *user) error {
	n.mu.Lock()
	if p := n.parts[l]; p != nil {
		p.refused = true
	}
	n.mail.deafen(l)
	for w := range n.peers.all {
		if w.user == l {
			w.answerHear()
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

// notifies notes that a user is notified of a way that does not work for it. It reports false if another one with the same sink
// was notified before.
func (n *node) notifies(u *user, way string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for o := range n.parts {
		if o.notified[way] && o.Sink == u.Sink {
			return false
		}
	}
	u.notified[way] = true
	return n.parts[u] != nil // otherwise it was closed meanwhile
}

// suspect notes that a message was missed. Old is how old the connection must be. The caller holds the mutex.
func (n *node) suspect(now time.Time, old time.Duration) {
	if n.current == nil || now.Sub(n.since) < old {
		return
	}
	if n.suspected == n.current {
		n.current.drop(errSuspect)
	}
	n.suspected = n.current
}

// resume asks for a waiter whose pause is over. The caller holds the mutex.
func (n *node) resume(w *Waiter) {
	if n.peers.resume(w) {
		n.wakeup.wake()
	}
}

// stateFor returns what [Listener.States] tells of the node, if a call has waited for it. The caller holds the mutex.
func (n *node) stateFor(u *user) (s State, ok bool) {
	p := n.parts[u]
	if p == nil || !n.running {
		return State{}, false
	}
	s = State{Node: n.address, Lost: n.lost, Waiters: p.waiters}
	if n.state == on {
		s.Up, s.Since, s.Tracks = true, n.since, n.peers.tracks && u.Track
	}
	return s, true
}

// idle reports whether the node has no waiters. The caller holds the mutex.
func (n *node) idle() bool { return len(n.peers.waiting) == 0 }
