// Package wake tells waiting calls that their key may be free. All users of one rueidis client share one connection for it,
// opened when the first call waits; on a cluster, one to each master with a key that calls wait for.
//
// There are two ways to listen. A waiting call uses the first one that its [Listener] asks for and the server and the user's
// permissions allow:
//
//   - tracking: the server itself reports, once, that a key that the connection has read has changed (CLIENT TRACKING),
//     including changes that are not published, and expiry;
//   - subscribing: to the channel on which changes of the key are published.
//
// It does not use both: every change would wake a call twice, and the second wake-up only delays it.
//
// A wake-up is a hint. It may be missing, for instance without a connection, so callers also poll. It may come without a
// reason: then the caller tries in vain, and [doubt] prevents that from happening again and again.
//
// The pieces, from the outside in:
//
//   - [Listener]: what one user of a client listens for, and how;
//   - [Waiter]: one waiting call of a listener;
//   - hub: what the listeners of one client share, and which server has which key;
//   - node: the connection to one server, and its states;
//   - dialer: how a node gets a connection;
//   - connection: the commands on it;
//   - channels: a connection's channels on which wake-ups are published;
//   - ownChannels: a connection's channels for messages to one listener, which are not hints.
//
// One mutex, the hub's, guards all state: a change of a key, of the connection, or of a slot's master concerns a waiter, its
// node and its channels together.
//
// This package knows nothing of locks. It calls no function that it was given while it holds a mutex.
package wake

import (
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/topology"
)

// Options say how one user of a client listens.
type Options struct {
	Track     bool   // listen by tracking if that works
	Subscribe bool   // otherwise by subscribing
	Common    string // a channel on which the changes of all keys may be published, the key being the message; may be empty

	// Poll is how often waiting calls look at their keys without wake-ups. Wake-ups without a reason are slowed down to that.
	Poll time.Duration

	// RoundTrip, if set, returns the round trip to the client's farthest server, as far as it is known: waits for answers become
	// longer with it. It must be the same for all listeners of a client, and must not block.
	RoundTrip func() time.Duration

	// Demoted, if set, returns whether a master of the client was demoted so far, and a channel that is closed at the next time: a
	// connection that was made before may lead to a replica, and hear nothing of what the new master does. As RoundTrip, it must be
	// the same for all listeners of a client, and must not block.
	Demoted func() (ever bool, next <-chan struct{})

	// Slots returns who has which slots of a cluster; nil while that is not known. As RoundTrip, it must be the same for all
	// listeners of a client. It may block for some round trips.
	Slots func() topology.Map

	// Log logs a line for the user. Sink identifies where the line is written, such as a *slog.Logger: a line for several
	// listeners is logged once per Sink. Log must not block.
	Log  func(level slog.Level, message string, attributes ...slog.Attr)
	Sink any

	// Connection, if set, is called when the connection to the server works, and when it is lost, until Close. The goroutine that
	// listens calls it, in order; it must not block.
	Connection func(Connection)

	// Message, if set, gets the messages on the [Wait.Own] channels of the listener's waiters, even if no waiter is left, until
	// Close. The goroutine that reads the connection calls it, in the order in which the server sent the messages; on a cluster
	// there is one for each server. It must return soon.
	Message func(channel, message string)
}

// Connection reports a change of the connection to a server.
type Connection struct {
	Node string // the address of the server, in a cluster
	Up   bool
	Err  error // why it was lost
}

// Listener is one user's part of the listening on a client.
type Listener struct {
	options Options
	hub     *hub
	last    func() bool // ends the use of the hub, and reports whether nobody else uses it
	closing sync.Once
	closed  chan struct{}

	messages, invalidations uint64 // how many woke its waiters; guarded by the hub's mutex
}

// Listen begins to listen for one user of a client. It sends nothing; the first [Waiter] does. The caller must call Close.
func Listen(client rueidis.Client, options Options) *Listener {
	l := &Listener{options: options, closed: make(chan struct{})}
	l.hub, l.last = hubs.Join(client, func() *hub { return newHub(client, options) })
	l.hub.join(l)
	return l
}

// Close ends the listening; waiters get no more wake-ups. The last listener of a client ends its connection. Close does not
// wait for that; the returned function does.
func (l *Listener) Close() (wait func()) {
	wait = func() {}
	l.closing.Do(func() {
		close(l.closed)
		l.hub.leave(l)
		if l.last() {
			l.hub.close()
			wait = l.hub.done.Wait
		}
	})
	return wait
}

// Wait is what a call waits for.
type Wait struct {
	Key     string
	Channel string // on which changes of the key are published

	// Own is a channel of this listener alone, on which scripts publish messages for its calls; see [Waiter.Hear]. It may be
	// empty. All waiters of a listener have the same channel, except on a cluster, where it is in the slot of the key.
	Own string
}

// Waiter returns a waiter that is not armed, or nil if there will be no wake-ups because the server allows none of the ways
// that the listener asks for. The methods of a nil Waiter do nothing.
func (l *Listener) Waiter(wait Wait) *Waiter {
	w := &Waiter{Wait: wait, listener: l, wake: make(chan struct{}, 1)}
	w.doubt = doubt{poll: l.options.Poll}
	if !l.hub.add(w) {
		return nil
	}
	return w
}
