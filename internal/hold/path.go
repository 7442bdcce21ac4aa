package hold

import (
	"log/slog"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Path is what the holds of a path have in common. It is a part of the path's lock.
type Path struct {
	*Kind
	Key   string
	Above Above
}

// roundTrip is what is known of the way to the master that has the key.
func (p *Path) roundTrip() transport.RoundTrip { return p.Server.RoundTrip(p.Key) }

// Kind is what the paths of a registry have in common whose locks work in the same way.
type Kind struct {
	Format  *protocol.Format
	Fencing bool // holds have tokens
	Shared  bool // several owners may share a hold
	*Env
}

// Env is what a registry gives its holds.
type Env struct {
	Clock    clock.Clock
	Server   Server
	Schedule *Schedule
	NumberAt int                    // where the number of a hold begins in its value
	Demand   func(c *protocol.Call) // has replicas have what a renewal writes
	Log      func(level slog.Level, message string, about ...slog.Attr)

	// Unreachable is told that nobody can reach what an owner has of a hold. The garbage collector calls it.
	Unreachable func(Part)
}

// Server is how a call asks Redis.
type Server interface {
	// Do sends a command and waits for the reply as p says; see [transport.Reply.Confirmed].
	Do(p *transport.Wait, c *protocol.Call) (reply transport.Reply, n int64, err error)

	// RoundTrip is what is known of the way to the master that has a key.
	RoundTrip(key string) transport.RoundTrip
}

// Above is the lock of a path, as its holds see it.
type Above interface {
	// Lost is told, once, that a hold is lost that its owner has had for so long. Awaited tells that another goroutine waits
	// for its end.
	Lost(why fault.Loss, held time.Duration, awaited bool)

	// Clear has what may be left of a lost hold removed in the background. It is called with the mutex of the hold.
	Clear(r Remains)

	// Has reports whether the hold is the one of an owner.
	Has(h *Hold, o owner.ID) bool

	// Count is how many share the hold that is there.
	Count() int64

	// Owners are those.
	Owners() []owner.ID

	// Lent tells whether another goroutine may unlock for an owner.
	Lent(o owner.ID) bool
}
