// Package wake tells waiting calls that their key may be free. All users of one rueidis client share one connection for it,
// opened when the first call waits; on a cluster, one to each master with a key that calls wait for.
//
// A waiting call sees three things:
//
//   - it registers, with [Listener.Waiter], for a key and a channel of its own;
//   - its [Waiter] wakes it when the key may be free, after [Waiter.Watch], or when messages may have been missed;
//   - a message for it goes to the function of its listener, after [Waiter.Subscribe].
//
// A wake-up is a hint. It may be missing, for instance without a connection, so callers also poll. It may come for no reason:
// then the caller tries in vain, and [throttle] keeps that rare. A message is more than a hint: a call asks for a ticket only
// once messages are proven to arrive, and reports one that did not with [Waiter.Suspect].
//
// There are two ways to be woken for a key. A call uses the first one that its listener asks for and the server and the user's
// permissions allow:
//
//   - tracking: the server itself reports, once, that a key that the connection has read has changed (CLIENT TRACKING),
//     including changes that are not published, and expiry;
//   - subscribing: to the channel on which changes of the key are published.
//
// It does not use both: every change would wake a call twice, and the second wake-up only delays it.
//
// # Pieces
//
// The pieces that decide do no I/O, and are tested with tables of events. The pieces that send do not decide.
//
//	call ──▶ Listener, Waiter ──requests──▶ hub ──▶ node ──▶ peers, mail
//	                                                 ▲
//	                                         runner, dialer ──▶ connection ──▶ Redis
//
// An arrow leads from a piece to one that it knows. Otherwise a piece is handed values and functions: a waiter gets six requests,
// a node the function that starts its runner.
//
//   - hub: what the listeners of one client share, and which node has which waiter. The requests of waiters come in, and on a
//     cluster the masters of the slots; waiters go out, to the node of their key.
//   - node: the listening to one server. Requests come in, what became of the connection and of what was sent, and what the
//     server sends without being asked; a wake-up of the runner goes out when there is something to send.
//   - peers: the keys that calls wait for. Waiters come in, replies, messages and reports; keys to read, channels to subscribe to
//     and to leave, answers and wake-ups go out.
//   - mail: the channels for messages to one listener. The same comes in; what to subscribe to and to prove goes out, and whose
//     messages arrive.
//   - runner: the life of a node's connection, from dial to loss. It sends what the node wants, and tells it what came of that.
//   - dialer: makes connections, and has what the server sends without being asked go to the node.
//   - connection: commands go in, what the server has replied comes out. It knows no waiter.
//   - user: what all of them know of a listener.
//
// One mutex, the hub's, guards all state, since a lost connection and a slot that moves concern a waiter, its key and its own
// channel together. It is never held while something is sent, or while a function of a user is called.
//
// # A lost connection
//
//  1. The runner tells the node. All waiters that relied on the connection wake: a change, or a message, may have been missed.
//  2. It tells the users, which verify their holds: the server may be another one now.
//  3. The waiters look at their keys and ask again, which has the runner dial, after a pause that grows.
//  4. On the new connection nothing is known: ways are tried, keys are read, and channels are subscribed and proven again.
//
// A connection that is up but delivers no messages is ended when that is noticed for the second time.
//
// This package knows nothing about locks.
package wake
