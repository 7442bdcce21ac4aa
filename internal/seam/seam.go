// Package seam gives other packages of this module access to functions that package lockregistry does not export. Lockregistry
// sets them before they can be used.
package seam

import (
	"log/slog"
	"time"

	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/drain"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/internal/tenure"
	"github.com/lockregistry/lockregistry/observe"
)

// Lockregistry has these functions.
var Lockregistry struct {
	// Leads is a lockregistry.LockOption: the hold is renewed even if the registry does not renew, and its release serves the
	// queue at once, without the window of 110 ms for calls that poll.
	Leads any

	// Unlogged is a lockregistry.AcquireOption: it is not logged that the lock is held for ten leases.
	Unlogged any

	// Unkeep drops what AtLeast asked for a lockregistry.Hold: the path is free once the hold is released.
	Unkeep func(hold any)

	// CheckOption returns why an option of a call makes no sense, or nil.
	CheckOption func(option any) error

	// Unchanged is a lockregistry.Option that changes nothing, for tables of tests.
	Unchanged any

	// Wakeup returns a lockregistry.Option: waiting calls wake in one way only, "poll", "pubsub" or "tracking", or by "auto".
	Wakeup func(how string) any

	// Lockable returns why no plain lock of the registry can have a path, or nil.
	Lockable func(registry any, path string) error

	// Parts returns what packages inspect and leader get of a registry.
	Parts func(registry any) Parts

	// Deadlock returns a cycle as users see it.
	Deadlock func(c detector.Cycle) observe.Deadlock

	// InRegistry and InLock are for the tests of this module.
	InRegistry func(registry any) InRegistry
	InLock     func(lock any) InLock
}

// LeaderOption is what package leader takes as an option: its own, and a lease of package lockregistry.
type LeaderOption interface{ ofLeader() }

// ForLeader makes an option of package leader of what embeds it.
type ForLeader struct{}

func (ForLeader) ofLeader() {}

// Parts are what packages inspect and leader get of a registry.
type Parts struct {
	*readonly.Reader

	Detector *detector.Detector
	Formats  protocol.Config
	Layout   observe.Layout // of plain locks
	Values   string         // the beginning of the values of the registry's holds
	Label    observe.Label
	Log      func(level slog.Level, message string, about ...slog.Attr)

	// Own returns what the registry's record says about a path, or has yet to say.
	Own func(path string) []presence.Lock

	// Held returns the registry's holds on a path, whatever the kind of its lock, by their names in Redis.
	Held func(path string) map[string]*hold.Hold
}

// InRegistry is what tests look at within a registry, or set.
type InRegistry struct {
	Cached, Calls func() int            // locks, and what a registry knows about semaphores
	Stall         func()                // see background.Work
	Sleep         func(d time.Duration) // see clock.Clock
	Drain         *drain.Drain
	Orphans       *hold.OrphanWatch
	Replicas      *protocol.Replicas
}

// InLock is the same for a lock.
type InLock struct {
	Key     string
	Half    local.Half
	Held    *tenure.Held
	Handoff time.Duration
	Unpin   func()
}
