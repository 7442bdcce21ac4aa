package deadlock

import (
	"iter"

	"github.com/lockregistry/lockregistry/internal/owner"
)

// Obstacle is what a call in a local queue waits for: an owner that has a lock, or a writer in front of a reader.
type Obstacle struct {
	Owner owner.ID
	Held  Lock  // the lock that the owner has
	Ahead *Call // the writer's call; it may not be in the graph yet, so only its Place may be read
}

// Obstacles are a few obstacles. It is a value, so that the usual ones need no allocation: each call asks for them when it
// begins to wait.
type Obstacles struct {
	few  [4]Obstacle
	more []Obstacle // from the fifth on
	size int
}

// Add adds an obstacle.
func (o *Obstacles) Add(one Obstacle) {
	if o.size < len(o.few) {
		o.few[o.size] = one
	} else {
		o.more = append(o.more, one)
	}
	o.size++
}

// Len returns the number of obstacles.
func (o *Obstacles) Len() int { return o.size }

// all iterates over the obstacles.
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
