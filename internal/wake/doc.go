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
//   - user: what the other pieces know of a listener;
//   - [Waiter]: one waiting call of a listener; it knows the hub by its requests alone;
//   - hub: what the listeners of one client share, and which server has which key;
//   - node: the connection to one server, and its states;
//   - dialer: how a node gets a connection;
//   - connection: the commands on it;
//   - peers: the keys that calls wait for, and the channels on which wake-ups are published;
//   - mail: the channels for messages to one listener, which are not hints.
//
// Peers and mail decide, and send nothing: their tests are tables of events.
//
// One mutex, the hub's, guards all state: a change of a key, of the connection, or of a slot's master concerns a waiter, its
// node and its channels together.
//
// This package knows nothing of locks. It calls no function that it was given while it holds a mutex.
package wake
