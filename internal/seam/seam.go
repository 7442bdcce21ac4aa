// Package seam is how the other packages of this module reach what package lockregistry has for them and does not export.
// Lockregistry fills it in before anything can use it.
package seam

import "context"

// Lockregistry is what it has.
var Lockregistry struct {
	// Leads is a lockregistry.LockOption: the hold is renewed although the registry does not renew what it holds, and its release
	// serves the queue at once, without the window of 110 ms for those who only poll.
	Leads any

	// Quiet is a lockregistry.LockOption: it is not logged that the lock is held for ten leases.
	Quiet any

	// Wakeup returns a lockregistry.Option: waiting calls wake in one way alone, "poll", "pubsub" or "tracking", or "auto".
	Wakeup func(how string) any

	// Lockable says why no plain lock of the registry can have a path, if so.
	Lockable func(registry any, path string) error

	// Holder returns who has the plain lock of path in Redis, as it is there, or nothing. The registry is a
	// *lockregistry.Registry. Op is for the error.
	Holder func(ctx context.Context, registry any, path, op string) (string, error)
}
