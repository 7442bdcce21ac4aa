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
// What a call leaves is removed in the background: a grant that may still arrive, a ticket, see removal.go and queue.go. What
// is known of others that want a path is kept beside it, see contention.go; when they have their turn, package barging decides.
// What only semaphores have is in semaphores.go. [Group] asks for several paths with one script.
package queue
