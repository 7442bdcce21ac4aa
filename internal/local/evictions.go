package local

import (
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Evictions are the last owners of a lock that were evicted because the hold was lost, and have yet to unlock, each with how
// often it had locked. They learn of the loss when they lock or unlock. The zero value has none. The lock's mutex guards them.
type Evictions struct{ newest *eviction }

type eviction struct {
	owner  owner.ID
	times  int32
	why    fault.Loss
	before *eviction
}

// mostEvictions is how many owners are remembered: owners that never come back must not take memory forever.
const mostEvictions = 16

// Add remembers one more owner, and forgets the oldest one when there are too many.
func (e *Evictions) Add(o owner.ID, times int32, why fault.Loss) {
	e.newest = &eviction{o, times, why, e.newest}
	last := e.newest
	for range mostEvictions - 1 {
		if last = last.before; last == nil {
			return
		}
	}
	last.before = nil
}

// Why returns why an owner's hold was lost, until the owner has unlocked.
func (e *Evictions) Why(o owner.ID) fault.Loss {
	if gone := *e.find(o); gone != nil {
		return gone.why
	}
	return fault.NotLost
}

// Exit undoes one lock of an owner that was evicted.
func (e *Evictions) Exit(o owner.ID) (Departure, fault.Loss) {
	link := e.find(o)
	gone := *link
	if gone == nil {
		return NotIn, fault.NotLost
	}
	if gone.times--; gone.times == 0 {
		*link = gone.before
	}
	return Lost, gone.why
}

// find returns the link to an owner's eviction, or the one at the end, which is nil.
func (e *Evictions) find(o owner.ID) **eviction {
	link := &e.newest
	for *link != nil && (*link).owner != o {
		link = &(*link).before
	}
	return link
}
