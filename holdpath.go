package lockregistry

import (
	"log/slog"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// holdPath is what the holds of a path have in common. It is a part of the path's lock.
type holdPath struct {
	*holdKind
	key   string
	above holdAbove
}

// shard is the way to the master that has the key.
func (p *holdPath) shard() *transport.Shard { return p.transport.Shard(p.key) }

// holdKind is what the paths of a registry have in common whose locks work in the same way.
type holdKind struct {
	format  *protocol.Format
	fencing bool // holds have tokens
	shared  bool // several owners may share a hold
	*holdEnv
}

// holdEnv is what a registry gives its holds.
type holdEnv struct {
	clock     clock.Clock
	transport *transport.Client
	due       *dueHolds
	values    int                    // how long what all values begin with is: the number of a hold comes behind it
	demand    func(c *protocol.Call) // has replicas have what a renewal writes
	log       func(level slog.Level, message string, about ...slog.Attr)
	stranded  func(h *hold, o owner.ID) // tells that nobody can reach a part of a hold; the garbage collector calls it
}

// holdAbove is the lock of a path, as its holds see it.
type holdAbove interface {
	// Lost is told, once, that a hold is lost that its owner has had for so long. Awaited tells that another goroutine waits for its
	// end.
	Lost(h *hold, why fault.Loss, held time.Duration, awaited bool)

	// Clear has the key of a lost hold removed in the background. It is called with the mutex of the hold.
	Clear(h *hold)

	// Has tells whether the hold is the one of an owner.
	Has(h *hold, o owner.ID) bool

	// Owners is how many share the hold that is there.
	Owners() int64
}
