// Package queue is the half of a lock in Redis, for the call that obtains it: the first try, the waiting for another process, and
// who is next. It knows a [Path], its key, and of the lock above it a narrow [Local]; the goroutines of the process, and what a
// lock is to users, it does not know.
//
// A call has the local half, so a path has one at a time:
//
//	try ──granted──▶ held
//	 └─taken──▶ listen ──▶ wait in the queue ──▶ held        see queue.go
//	                   └─no queue──▶ poll ──▶ held           see acquisition.go
//
// What does not become a hold is removed in the background: a grant that may arrive yet, a ticket, see ticket.go. What others
// want with a path is kept beside it, see contention.go and fairness.go. [Group] asks for several paths with one script.
package queue
