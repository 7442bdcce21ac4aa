// Package drain is the phase from the beginning of a registry's shutdown until it is closed: only calls of owners that hold one
// of its locks go on.
package drain

import (
	"sync"
	"sync/atomic"

	"github.com/lockregistry/lockregistry/internal/owner"
)

// Set is a set of owners.
type Set map[owner.ID]bool

// Drain is the shutdown phase of a registry.
type Drain struct {
	holders  func() Set
	begun    atomic.Bool
	start    chan struct{}
	arrivals atomic.Uint64

	mu      sync.Mutex // held while holders runs
	covered uint64     // the arrivals that the last answer covers
	last    Set
}

// Init must be called first. Holders returns the owners that hold a lock now. It may take a while if there are many. Start is
// closed when the shutdown begins.
func (d *Drain) Init(holders func() Set) (start <-chan struct{}) {
	d.holders, d.start = holders, make(chan struct{})
	return d.start
}

// Begin begins the shutdown. A call must mark itself as in use before it asks [Drain.Begun]: so either the call sees the
// shutdown, or the shutdown sees the call.
func (d *Drain) Begin() {
	if d.begun.CompareAndSwap(false, true) {
		close(d.start)
	}
}

// Begun reports whether the shutdown has begun.
func (d *Drain) Begun() bool { return d.begun.Load() }

// Holders returns the owners that hold a lock, as of after the call of Holders began. Concurrent calls share an answer: a call
// that comes while holders runs waits for the next answer.
func (d *Drain) Holders() Set {
	ticket := d.arrivals.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.covered < ticket {
		d.covered = d.arrivals.Load()
		d.last = d.holders()
	}
	return d.last
}
