// Package transport sends commands. A call waits for its reply in bounded time, whatever the server does, and learns whether the
// reply can be believed.
//
//	comes in                                               goes out
//	[Client.Do], [Client.DoAll]: a command, a [Wait]       a [Reply]: late, doubtful, fresh, cut, refused
//	[Shard.Ask], [Client.Ask]: a question                  what the server says
//	[Shard.KeepAlive]: a call waits for a message          its ticket is lost: [Queued].Look
//	[Client.Watch]: Sentinels                              a line of the log, once, and when it is over
//	[Client.Demoted]: who keeps a connection of their own  when the address leads to another master
//
// The way of a command:
//
//	key ─▶ [Shard], one for each master (routes.go)
//	         │  what is believed of it: healthy, idle, suspect (package belief; judge.go feeds it)
//	         ▼
//	       healthy, one command at a time ─▶ the dedicated connection, driven by its caller (own.go)
//	       else ─▶ sending: client.go, async.go, batcher.go, pipeline.go
//	                 │ suspect: the fresh connection (fresh.go), for which Sentinels vouch where there are some (vouch.go);
//	                 │          in a cluster, of the master that the nodes name
//	                 │ with replicas: a connection of their sender, with a WAIT behind the commands (replicas.go)
//	                 ▼
//	       the reply, or the end of the caller's wait (bound.go, watchdog.go)
//	         │  judge.go: believed, late or doubtful; then what follows from it, see [belief.Acts]
//	         ▼
//	       [Reply]. One that a replica refused is sent once more (demotion.go)
//
// Dedicated connections are those that one part alone uses: the lone caller's, the fresh one, the sender's for replicas. All come
// from dial.go, which knows how long making one may hang, and which connections of the client's pool fit. The lone caller's is
// used for [belief.Old] at most, the fresh one while the shard is suspect, the sender's for seconds:
//
//	wanted ─▶ dialling ──new, of the right database──▶ in use ──suspect, broken, old, or not needed──▶ closed
//	              ├──does not fit──▶ given back, or closed; the next one
//	              └──in no time────▶ none: nobody waits for it, and what comes is closed
//
// In the background keepalive.go and prober.go ask the server what calls that wait, or that gave up, do not: whether it answers,
// whether it is a master, which scripts it knows (tickets.go: whether tickets are there).
package transport
