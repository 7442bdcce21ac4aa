// Package wake tells waiting calls that the key which they wait for may be free. All users of one rueidis client share one
// connection for it, opened when the first call waits; of a cluster, one to each master that has a key that is waited for.
//
// There are two ways to listen. A waiting call uses the first of them that its [Listener] asks for and that the server and
// the user's permissions allow:
//
//   - tracking: the server itself says, once, that a key changed which the connection has read (CLIENT TRACKING). So it also
//     tells of changes that nobody publishes, and of expiry;
//   - subscribing: to the channel on which changes of the key are published.
//
// It does not use both: every change would wake a call twice, and the second time only delays it.
//
// A wake-up is a hint. It may be missing, while there is no connection for instance: callers poll as well. It may come for
// nothing: then the caller tries in vain, and [doubt] sees to it that this does not happen again and again.
//
// The pieces, from the outside in:
//
//   - [Listener]: what one user of a client listens for, and how;
//   - [Waiter]: one waiting call of a listener;
//   - hub: what the listeners of one client share, and which server has which keys;
//   - node: the connection to one server, and the states of it;
//   - dialer: how a node gets a connection;
//   - connection: the commands on it;
//   - channels: those that a connection is subscribed to, on which wake-ups are published;
//   - ownChannels: those on which messages for one listener are published, which are no hints.
//
// One mutex, the hub's, guards all that is not sent: a change of a key, of the connection, or of the master of a slot touches a
// waiter, its node and its channels together.
//
// Nothing in this package knows of locks. No function that it is given is called while a mutex is held.
package wake

import (
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// Options is what one user of a client wants of listening.
type Options struct {
	Track     bool   // listen by tracking where that works
	Subscribe bool   // else by subscribing
	Common    string // a channel on which the changes of all keys may be published, the key being the message; may be empty

	// Poll is how often the waiting calls look at their keys without wake-ups. Wake-ups that come for nothing are slowed
	// down to that.
	Poll time.Duration

	// RoundTrip, when set, is how far away the farthest server of the client is, as far as that is known: what waits for an answer
	// waits for longer. It must be the same for all listeners of a client, and must not block.
	RoundTrip func() time.Duration

	// Log takes a line for the user. What is the same for several listeners is told once to each Sink, which is what a
	// line ends up in: a *slog.Logger, for instance. Log must not block.
	Log  func(level slog.Level, message string, attributes ...slog.Attr)
	Sink any

	// Connection, when set, is told when the connection to the server works, and when it is lost, until Close. It is called
	// by the goroutine that listens, in order, and must not block.
	Connection func(Connection)

	// Message, when set, takes what is published on the [Wait.Own] channels of the listener's waiters, also when no waiter
	// is left, until Close. It is called by the goroutine that reads the connection, in the order in which the server sent
	// the messages; on a cluster by one for each server. It must return soon.
	Message func(channel, message string)
}

// Connection is news of the connection to a server.
type Connection struct {
	Node string // the address of the server, in a cluster
	Up   bool
	Err  error // why it is lost
}

// Listener is one user's share of the listening on a client.
type Listener struct {
	options Options
	hub     *hub
	closing sync.Once
	closed  chan struct{}

	messages, invalidations uint64 // that woke its waiters; guarded by the hub's mutex
}

// Listen begins to listen for one user of a client. It sends nothing: the first [Waiter] does. Close must be called.
func Listen(client rueidis.Client, options Options) *Listener {
	l := &Listener{options: options, closed: make(chan struct{})}
	l.hub = join(client, l)
	return l
}

// Close ends the listening; waiters get no more wake-ups. The last listener of a client ends its connection. Close does not
// wait for that; the function that it returns does.
func (l *Listener) Close() (wait func()) {
	wait = func() {}
	l.closing.Do(func() {
		close(l.closed)
		wait = l.hub.leave(l)
	})
	return wait
}

// Wait is what a call waits for.
type Wait struct {
	Key     string
	Channel string // where changes of the key are published

	// Own is a channel of the listener alone, where scripts publish messages for its calls; see [Waiter.Hear]. It may be
	// empty. All waiters of a listener have the same, but for a cluster: there the channel is in the slot of the key.
	Own string
}

// Waiter returns a waiter that is not armed, or nil when there will be no wake-ups: the server allows none of the ways that
// the listener asks for. The methods of a nil Waiter do nothing.
func (l *Listener) Waiter(wait Wait) *Waiter {
	w := &Waiter{Wait: wait, listener: l, wake: make(chan struct{}, 1)}
	w.doubt.poll = l.options.Poll
	if !l.hub.add(w) {
		return nil
	}
	return w
}
