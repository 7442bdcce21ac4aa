package wake

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/shares"
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

	// Demoted, if set, reports whether a master of the client has been demoted so far, and returns a channel that is closed after
	// the next demotion. A connection that was made before may lead to a replica, and hear nothing of what the new master does.
	// Like RoundTrip, it must be the same for all listeners of a client, and must not block.
	Demoted func() (ever bool, next <-chan struct{})

	// Slots returns which master has which slots of a cluster, or what is known when ctx ends; nil if nothing is. Like RoundTrip,
	// it must be the same for all listeners of a client. It may block for some round trips.
	Slots func(context.Context) topology.Map

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

// Listener is one user's part of the listening on a client. Waiters register here, and messages go from here to its user.
type Listener struct {
	user    *user
	hub     *hub
	last    func() bool // ends the use of the hub, and reports whether nobody else uses it
	closing sync.Once
}

// user is what all pieces know about a listener. It calls nothing but the functions of its options.
type user struct {
	Options
	closed chan struct{}

	// The hub's mutex guards the rest.
	messages, invalidations uint64          // how many of them woke a waiter
	notified                map[string]bool // the ways that it was told do not work
}

var hubs shares.Of[*hub]

// Listen begins to listen for one user of a client. It sends nothing; the first [Waiter] does. The caller must call Close.
func Listen(client rueidis.Client, options Options) *Listener {
	l := &Listener{user: &user{Options: options, closed: make(chan struct{}), notified: map[string]bool{}}}
	l.hub, l.last = hubs.Join(client, func() *hub { return newHub(client, options) })
	l.hub.addUser(l.user)
	return l
}

// Close ends the listening; waiters get no more wake-ups. The last listener of a client ends its connection. Close does not
// wait for that; the returned function does.
func (l *Listener) Close() (wait func()) {
	wait = func() {}
	l.closing.Do(func() {
		close(l.user.closed)
		l.hub.removeUser(l.user)
		if l.last() {
			l.hub.end()
			wait = l.hub.tasks.Wait
		}
	})
	return wait
}

// Waiter returns a waiter whose key is not watched, or nil if there will be no wake-ups because the server allows none of the
// ways that the listener asks for. The methods of a nil Waiter do nothing.
func (l *Listener) Waiter(wait Wait) *Waiter {
	w := &Waiter{Wait: wait, user: l.user, hub: l.hub, wakeup: newSignal()}
	w.throttle = throttle{poll: l.user.Poll}
	if !l.hub.add(w) {
		return nil
	}
	return w
}

// isClosed reports whether the listener is closed.
func (u *user) isClosed() bool {
	select {
	case <-u.closed:
		return true
	default:
		return false
	}
}

// State is the state of a listener's listening to one server.
type State struct {
	Node    string    // its address, in a cluster
	Up      bool      // there is a connection
	Since   time.Time // when it was made
	Tracks  bool      // the server itself reports changes
	Lost    uint64    // connections to it that were lost
	Waiters int       // of the listener
}

// States returns the state of each server that a call has waited for, and how many of the listener's waiters woke because of
// messages, and because the server itself reported a change.
func (l *Listener) States() (states []State, messages, invalidations uint64) {
	l.hub.mu.Lock()
	defer l.hub.mu.Unlock()
	for _, n := range l.hub.nodes {
		if s, ok := n.stateFor(l.user); ok {
			states = append(states, s)
		}
	}
	return states, l.user.messages, l.user.invalidations
}
