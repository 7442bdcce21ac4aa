// Package drain is the time from when a registry is told to shut down until it is closed: calls of those that hold a lock of it
// go on, and no others.
package drain

import (
	"sync"
	"sync/atomic"

	"github.com/lockregistry/lockregistry/internal/owner"
)

// Set has owners.
type Set map[owner.ID]bool

// Drain is that time.
type Drain struct {
	holders  func() Set
	begun    atomic.Bool
	start    chan struct{}
	arrivals atomic.Uint64

	mu      sync.Mutex // held while the holders are asked for
	covered uint64     // the arrivals for which those are good that were asked for last
	last    Set
}

// Init is called before all else. Holders says who holds a lock now. It may take a while, where there are many.
func (d *Drain) Init(holders func() Set) {
	d.holders, d.start = holders, make(chan struct{})
}

// Begin begins it. A call that has not seen that is in use by then, if it is told to be before it asks [Drain.Begun].
func (d *Drain) Begin() {
	if d.begun.CompareAndSwap(false, true) {
		close(d.start)
	}
}

// Begun tells whether it has begun.
func (d *Drain) Begun() bool { return d.begun.Load() }

// Start is closed when it begins.
func (d *Drain) Start() <-chan struct{} { return d.start }

// Holders are those that hold a lock, as they were after the call of Holders began, or later. Many calls at once share an answer:
// one that comes while they are asked for waits for the next one.
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
