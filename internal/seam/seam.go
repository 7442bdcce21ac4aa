// Package seam gives other packages of this module access to functions that package lockregistry does not export. Lockregistry
// sets them before they can be used.
package seam

// Lockregistry has these functions.
var Lockregistry struct {
	// Leads is a lockregistry.LockOption: the hold is renewed even if the registry does not renew, and its release serves the
	// queue at once, without the window of 110 ms for calls that poll.
	Leads any

	// Unlogged is a lockregistry.LockOption: it is not logged that the lock is held for ten leases.
	Unlogged any

	// Wakeup returns a lockregistry.Option: waiting calls wake in one way only, "poll", "pubsub" or "tracking", or by "auto".
	Wakeup func(how string) any

	// Lockable returns why no plain lock of the registry can have a path, or nil.
	Lockable func(registry any, path string) error
}
