// Package queue is the half of a lock in Redis, for the call that obtains or releases it: the first try, waiting for other
// processes, deciding who is next, and the removal of the key. It knows a [Path], its key, and the lock above it as a narrow
// [Lock]; it knows neither the goroutines of the process nor the public API.
//
// A call has the local half, so a path has one call at a time:
//
//	try ──granted──▶ held
//	 └─taken──▶ listen ──▶ wait in the queue ──▶ held        see queue.go
//	                   └─no queue──▶ poll ──▶ held           see poll.go
//	held ──▶ release ──▶ free, or another owner's            see release.go
//
// Leftovers of a call are removed in the background: a grant that may still arrive, or a ticket, see removal.go and queue.go.
// contention.go keeps what is known of other processes that want a path; package barging decides when they have their turn.
// semaphores.go has what only semaphores need. [Group] asks for several paths with one script.
package queue
