package deadlock

import (
	"iter"

	"github.com/lockregistry/lockregistry/internal/owner"
)

// Obstacle is in the way of a call that waits in a local queue: an owner that has a lock, or a writer in front of a reader.
type Obstacle struct {
	Owner owner.ID
	Held  Lock  // that the owner has
	Ahead *Call // of the writer; it may have yet to enter the graph, so only its Place is to be looked at
}

// Obstacles are a few obstacles. It is a value, so that the usual ones take no memory: a call asks for them each time that it
// begins to wait.
type Obstacles struct {
	few  [4]Obstacle
	more []Obstacle // from the fifth one on
	size int
}

// Add adds one.
func (o *Obstacles) Add(one Obstacle) {
	if o.size < len(o.few) {
		o.few[o.size] = one
	} else {
		o.more = append(o.more, one)
	}
	o.size++
}

// Len is how many there are.
func (o *Obstacles) Len() int { return o.size }

// all goes through them.
func (o *Obstacles) all() iter.Seq[Obstacle] {
	return func(yield func(Obstacle) bool) {
		for _, one := range o.few[:min(o.size, len(o.few))] {
			if !yield(one) {
				return
			}
		}
		for _, one := range o.more {
			if !yield(one) {
				return
			}
		}
	}
}
