// Package transport sends commands. A call waits for its reply in bounded time, whatever the server does, and learns whether the
// reply can be believed.
//
//	comes in                                               goes out
//	[Client.Do], [Client.DoAll]: a command, a [Wait]       a [Reply]: late, doubtful, fresh, cut, refused
//	[Node.Ask], [Client.Ask]: a question                   what the server says
//	[Node.KeepAlive]: a call waits for a message           its ticket is lost: [Queued].Look
//	[Client.Watch]: Sentinels                              a line of the log, once, and when it is over
//	[Client.Demoted]: for parts with their own connections when the address leads to another master
//
// A command leaves in one of three ways:
//
//	         Client.Do
//	             │  the node has just been heard from, and there is room in the connections
//	             ├─────────────no──────────────────────────────┐
//	             │yes                                          │
//	it comes by itself, near a single server ──yes──▶ alone    │
//	             │no                                           │
//	many are under way ──yes────────────────────────────▶ queue ◀── questions, renewals, removals
//	             │no                                           │
//	             ▼                                     a driver chooses the road, then takes what waits:
//	            few                                      the client's own connections
//	                                                     suspect: a fresh connection; with Sentinels, once they vouch
//	                                                     suspect, in a cluster: to the master that the nodes name
//
// No caller waits longer than it may:
//
//	alone   The caller writes and reads a dedicated connection itself, see ownConn. Its time limit closes the connection.
//	few     The caller sends through the client, where that respects contexts, and its connections have room.
//	queue   The caller leaves the command to a driver, and waits, see queue. Only drivers hang.
//
// The judge of the command's server takes each reply, or its absence, to package belief, which says how far the reply is
// believed, and what to do; the node does that.
//
// The client and its nodes know all parts. Of the other parts, each knows those to which its arrow leads:
//
//	keepAlive, ownConns, freshConns, dialer ─▶ judge ─▶ belief
//	ownConns, freshConns ────────────────────▶ dialer
//	queue ─▶ entry ─▶ bound ─────────────────▶ judge
//	boundPool ──────▶ bound
//
// Each has a function or a value for each other thing that it needs.
//
// Commands that replicas must acknowledge go another way: over a connection of their sender, followed by a WAIT (replicas.go).
//
// There are three kinds of dedicated connections, each used by one part alone. They come from dial.go, which knows how long
// making one may hang, and which connections of the client's pool fit:
//
//   - the lone caller's, used for [belief.Old] at most
//   - the fresh one, used while the node is suspect. It may grow older: with Sentinels a new one would have to wait until they
//     vouch for its server
//   - the sender's for replicas, used for seconds
//
// Each of them lives as follows:
//
//	wanted ─▶ dialling ──new, of the right database──▶ in use ──suspect, broken, old, or not needed──▶ closed
//	              ├──does not fit──▶ given back, or closed; the next one
//	              └──not in time───▶ none; a connection that comes later is closed
//
// In the background keepalive.go and prober.go ask the server questions on behalf of calls that wait or gave up: whether it
// answers, whether it is a master, which scripts it knows. tickets.go asks whether the tickets of waiting calls are still
// there.
package transport
