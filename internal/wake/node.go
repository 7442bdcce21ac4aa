package wake

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// node is the listening to one server: what its waiters want, and what is known about the connection. It decides, and sends
// nothing: [runner] has the connection, asks the node what to send, and tells it what came of that. What the server sends without
// being asked comes to the node from the goroutine that reads the connection.
//
//	down ──a call waits, and the runner has a connection──▶ up ──lost or suspected, or no user is served by it──▶ down
//	any ──the last listener is closed, or the server left the cluster──▶ ended
//
// From down it connects again only after a pause, which grows, and only for a waiting call whose user was not refused. The
// server refuses a user if it allows none of its ways; that stays so until the listener is closed.
type node struct {
	address   string // of a server of a cluster
	start     func() // starts the runner's goroutine
	endRunner context.CancelCauseFunc
	wakeup    signal // of it: there is something to do
	echo      signal // of it: a probe has arrived
	moved     signal // of the hub's goroutine: a slot may be at another server now

	mu *sync.Mutex // the hub's, which guards the rest, see the package's comment
	link
	parts map[*user]*part // of the open listeners
	peers peers
	mail  mail
}

// link is what a node knows about its connections. Each has a number.
type link struct {
	state         state
	started       bool   // the goroutine runs
	number        uint64 // of the present connection; 0: none
	endConnection context.CancelCauseFunc
	since         time.Time // when it was made
	suspected     bool      // a message was missed on it, and none has arrived since
	lost          uint64    // connections
}

type state uint8

const (
	down state = iota
	up
	ended
)

// part is what a node knows about a user.
type part struct {
	waiters int
	refused bool // the server allows no way to listen for it
}

// trusted, plus two round trips, is how long a new connection is not suspected: the missed message may have been lost before
// the connection was made.
const trusted = time.Second

func newNode(mu *sync.Mutex, address string, users map[*user]struct{}) *node {
	n := &node{
		address: address, wakeup: newSignal(), echo: newSignal(), mu: mu,
		parts: map[*user]*part{}, peers: newPeers(), mail: newMail(),
	}
	for u := range users {
		n.parts[u] = &part{}
	}
	return n
}

// The hub calls the following methods. It holds the mutex.

// removeUser is called when a listener is closed.
func (n *node) removeUser(u *user) {
	delete(n.parts, u)
	n.mail.removeUser(u)
	for o := range n.parts {
		if o.Common == u.Common {
			return
		}
	}
	if n.peers.channels.removeCommon(u.Common) {
		n.wakeup.wake()
	}
}

// end ends the connection and the goroutine.
func (n *node) end(reason error) {
	n.state = ended
	n.endRunner(reason)
}

// add adds a waiter.
func (n *node) add(w *Waiter) {
	if p := n.parts[w.user]; p != nil {
		p.waiters++
	}
	n.peers.add(w)
}

func (n *node) remove(w *Waiter) {
	idle, untidy := n.mail.remove(w), n.peers.remove(w)
	if p := n.parts[w.user]; p != nil {
		p.waiters--
	}
	if idle || untidy {
		n.wakeup.wake()
	}
}

// idle reports whether the node has no waiters.
func (n *node) idle() bool { return len(n.peers.waiting) == 0 }

// serves reports whether there may be wake-ups for a user.
func (n *node) serves(u *user) bool {
	p := n.parts[u]
	return p != nil && !p.refused
}

// watch asks for a waiter to be watched. It reports false if there is no reply to wait for.
func (n *node) watch(w *Waiter) bool {
	w.watches = true
	if w.paused != nil || !n.serves(w.user) || !n.isUp() {
		return false
	}
	if w.watched { // there is an answer only if an earlier call has not waited for it
		return w.asking == asksForCall || len(w.ready) > 0 // mutant: late watch is forgotten
	}
	if n.peers.ask(w) {
		n.wakeup.wake()
	}
	return true
}

// resume asks for a waiter whose pause is over.
func (n *node) resume(w *Waiter) {
	if n.peers.resume(w) {
		n.wakeup.wake()
	}
}

// subscribe adds a waiter to its own channel. Asked: the waiter must wait for an answer.
func (n *node) subscribe(w *Waiter) (is Subscription, asked bool) {
	switch p := n.parts[w.user]; {
	case p != nil && p.refused:
		return Deaf, false
	case p == nil || !n.isUp():
		return NotYet, false
	}
	is, asked, wanted := n.mail.subscribe(w)
	if wanted {
		n.wakeup.wake()
	}
	return is, asked
}

// subscription returns what a waiter that has waited for an answer learns.
func (n *node) subscription(w *Waiter) Subscription {
	if p := n.parts[w.user]; p != nil && p.refused {
		return Deaf
	}
	return n.mail.answer(w)
}

// isUp reports whether there is a connection. If not, one will be made, and then all waiters wake.
func (n *node) isUp() bool {
	if n.state != down {
		return n.state == up
	}
	if !n.started {
		n.started = true
		n.start()
	}
	n.wakeup.wake()
	return false
}

// suspect notes that a message was missed. A connection younger than old is not suspected.
func (n *node) suspect(now time.Time, old time.Duration) {
	if n.number == 0 || now.Sub(n.since) < old {
		return
	}
	if n.suspected {
		n.endConnection(errSuspect)
	}
	n.suspected = true
}

// stateFor returns what [Listener.States] reports about the node, if a call has waited for it.
func (n *node) stateFor(u *user) (s State, ok bool) {
	p := n.parts[u]
	if p == nil || !n.started {
		return State{}, false
	}
	s = State{Node: n.address, Lost: n.lost, Waiters: p.waiters}
	if n.state == up {
		s.Up, s.Since, s.Tracks = true, n.since, n.peers.tracks && u.Track
	}
	return s, true
}

// The runner calls the following methods, which take the mutex, and with the mutex those of peers and mail.

// begin notes that a connection serves, unless the node is ended.
func (n *node) begin(number uint64, end context.CancelCauseFunc) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.state == ended {
		return false
	}
	n.state, n.number, n.endConnection, n.since = up, number, end, time.Now()
	for w := range n.peers.all { // they could not be watched so far
		w.wakeup.wake()
	}
	return true
}

// loseConnection resets what is known of a connection, and wakes the waiters that relied on it.
func (n *node) loseConnection() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.number != 0 {
		n.lost++
	}
	if n.state != ended {
		n.state = down
	}
	n.number, n.endConnection, n.suspected = 0, nil, false
	n.peers.lost()
	n.mail = newMail()
}

// served returns the users that have waiting calls and are not refused.
func (n *node) served() (users []*user) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for u, p := range n.parts {
		if p.waiters > 0 && !p.refused {
			users = append(users, u)
		}
	}
	return users
}

// users returns the users of the open listeners.
func (n *node) users() []*user {
	n.mu.Lock()
	defer n.mu.Unlock()
	users := make([]*user, 0, len(n.parts))
	for u := range n.parts {
		users = append(users, u)
	}
	return users
}

// refuse notes that no way to listen works for a user.
func (n *node) refuse(u *user) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.parts[u]; p != nil {
		p.refused = true
	}
	n.mail.deafen(u)
	for w := range n.peers.all {
		if w.user == u {
			w.answerSubscribe()
		}
	}
}

// notifies reports whether to notify a user that a way does not work for it, and notes that. Of several users with one sink,
// only one is notified.
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

// The goroutine that reads a connection calls the following methods. What comes on a former connection does not count.

// published handles a message. On an own channel it is for that channel's user, or the proof that messages arrive.
func (n *node) published(connection uint64, m rueidis.PubSubMessage) {
	var to *user
	n.mu.Lock()
	switch o := n.mail.channels[m.Channel]; {
	case n.number != connection: // the same message may come on the present connection
	case o == nil:
		n.peers.published(m.Channel, m.Message)
	case m.Message == probe:
		n.suspected = false
		n.mail.proven(o)
		n.echo.wake()
	default:
		n.suspected = false
		to = o.user
	}
	n.mu.Unlock()
	if to != nil && to.Message != nil && !to.isClosed() {
		to.Message(m.Channel, m.Message)
	}
}

// announced handles what the server says about subscriptions to own channels. On a cluster it ends one when the slot moves, or
// when it becomes a replica.
func (n *node) announced(connection uint64, s rueidis.PubSubSubscription) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.number != connection:
	case s.Kind == "subscribe", s.Kind == "ssubscribe":
		n.mail.subscribed(s.Channel)
	case s.Kind == "sunsubscribe" && n.mail.ended(s.Channel):
		n.moved.wake()
	}
}

// invalidated handles the server's report that keys that the connection has read have changed; nil: all may have.
func (n *node) invalidated(connection uint64, keys []rueidis.RedisMessage) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.number != connection {
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
