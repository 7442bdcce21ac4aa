// Package transport sends commands. A call waits for its reply in bounded time, whatever the server does, and learns whether the
// reply can be believed.
//
//	comes in                                               goes out
//	[Client.Do], [Client.DoAll]: a command, a [Wait]       a [Reply]: late, doubtful, fresh, cut, refused
//	[Node.Ask], [Client.Ask]: a question                   what the server says
//	[Node.KeepAlive]: a call waits for a message           its ticket is lost: [Queued].Look
//	[Client.Watch]: Sentinels                              a line of the log, once, and when it is over
//	[Client.Demoted]: who keeps a connection of their own  when the address leads to another master
//
// A command leaves in one of three ways:
//
//	            Client.Do
//	                │  the node has just been heard from, and there is room in the connections
//	                ├─────────────no──────────────────────────────┐
//	                │yes                                          │
//	   it comes by itself, near a single server ──yes──▶ alone    │
//	                │no                                           │
//	   many are under way ──yes────────────────────────────▶ queue ◀── questions, renewals, removals
//	                │no                                           │
//	                ▼                                     a driver chooses the road, then takes what waits:
//	               few                                      the client's own connections
//	                                                        suspect: a fresh connection; with Sentinels, once they vouch
//	                                                        suspect, in a cluster: to the master that the nodes name
//
//	alone   The caller writes and reads a dedicated connection itself: see ownConn.
//	few     The caller sends through the client.
//	queue   The caller leaves the command to a driver, and waits: see queue.
//
// No caller waits longer than it may:
//
//   - alone: the caller's time limit closes the connection
//   - few: this way is taken only where the client respects contexts, and its connections have room
//   - queue: only drivers hang
//
// Each reply, or its absence, goes to the judge of the command's server. The judge tells the belief in that server, see package
// belief, which answers how far the reply is believed, and what to do; the node does that.
//
// Who knows whom, besides the client and its nodes, which know all:
//
//	ownConns, freshConns ─▶ dialer ─▶ belief        a function or a value for each other thing that they need
//	queue ─▶ entry ─▶ bound ─▶ judge ─▶ belief
//	boundPool ─────────▶ bound
//
// Commands that replicas must acknowledge go another way: over a connection of their sender, followed by a WAIT (replicas.go).
//
// A dedicated connection is used by one part alone: the lone caller's, the fresh one, the sender's for replicas. All come
// from dial.go, which knows how long making one may hang, and which connections of the client's pool fit. The lone caller's is
// used for [belief.Old] at most, the fresh one while the node is suspect, the sender's for seconds:
//
//	wanted ─▶ dialling ──new, of the right database──▶ in use ──suspect, broken, old, or not needed──▶ closed
//	              ├──does not fit──▶ given back, or closed; the next one
//	              └──in no time────▶ none: nobody waits for it, and what comes is closed
//
// In the background keepalive.go and prober.go ask the server for calls that wait or gave up: whether it answers, whether it is a
// master, which scripts it knows. For tickets.go they ask whether tickets are there.
package transport
