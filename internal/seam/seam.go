// Package seam gives other packages of this module access to functions that package lockregistry does not export. Lockregistry
// sets them before they can be used.
package seam

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/drain"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/tenure"
)

// Lockregistry has these functions.
var Lockregistry struct {
	// Leads is a lockregistry.LockOption: the hold is renewed even if the registry does not renew, and its release serves the
	// queue at once, without the window of 110 ms for calls that poll.
	Leads any

	// Unlogged is a lockregistry.AcquireOption: it is not logged that the lock is held for ten leases.
	Unlogged any

	// CheckOption returns why an option of a call makes no sense, or nil.
	CheckOption func(option any) error

	// Wakeup returns a lockregistry.Option: waiting calls wake in one way only, "poll", "pubsub" or "tracking", or by "auto".
	Wakeup func(how string) any

	// Lockable returns why no plain lock of the registry can have a path, or nil.
	Lockable func(registry any, path string) error

	// InRegistry and InLock are for the tests of this module.
	InRegistry func(registry any) InRegistry
	InLock     func(lock any) InLock
}

// LeaderOption is what package leader takes as an option: its own, and a lease of package lockregistry.
type LeaderOption interface{ ofLeader() }

// ForLeader makes an option of package leader of what embeds it.
type ForLeader struct{}

func (ForLeader) ofLeader() {}

// InRegistry is what tests look at within a registry, or set.
type InRegistry struct {
	Cached, Calls func() int // locks, and what a registry knows of semaphores
	Stall         func()     // see background.Work
	Drain         *drain.Drain
	Gone          *hold.GoneWatch
	Replicas      *protocol.Replicas
}

// InLock is the same for a lock.
type InLock struct {
	Half    local.Half
	Held    *tenure.Held
	Handoff time.Duration
	Unpin   func()
}
