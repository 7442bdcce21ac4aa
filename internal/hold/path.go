package hold

import (
	"log/slog"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Path is what all holds of a path share. It is a part of the path's lock.
type Path struct {
	*Kind
	Key   string
	Above Above
}

// Kind is what all locks of one kind in a registry share.
type Kind struct {
	Format *protocol.Format
	Shared bool // several owners may share a hold
	*Env
}

// Env is what a registry provides to its holds.
type Env struct {
	Clock    clock.Clock
	Server   Server
	Schedule *Schedule
	NumberAt int                    // where the number of a hold begins in its value
	Demand   func(c *protocol.Call) // makes a renewal wait for replicas
	Log      func(level slog.Level, message string, about ...slog.Attr)

	// Unreachable is called by the garbage collector when the program can no longer reach an owner's part of a hold. It makes
	// another goroutine call announce.
	Unreachable func(announce func())
}

// Server sends commands to Redis, as [transport.Client] does.
type Server interface {
	// Do sends a command and waits for the reply as p says.
	Do(p *transport.Wait, c *protocol.Call) transport.Reply

	// RoundTrip returns the round trip to a key's master.
	RoundTrip(key string) transport.RoundTrip
}

// Above is the lock of a path, as seen by its holds.
type Above interface {
	// Lost is called once when a hold is lost. Held is how it stood then. Awaited says that another goroutine waits for the hold's
	// end.
	Lost(why fault.Loss, held Held, awaited bool)

	// Clear removes in the background what may be left of a lost hold. It is called with the hold's mutex held.
	Clear(r Remains)

	// Has reports whether the owner has the hold that has this value.
	Has(value string, o owner.ID) bool

	// Count returns how many owners share the hold. It is called with the hold's mutex held.
	Count() int64

	// Owners returns the owners that share it.
	Owners() []owner.ID

	// Delegated reports whether another goroutine may unlock for an owner.
	Delegated(o owner.ID) bool
}
