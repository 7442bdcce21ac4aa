package local

import (
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Evictions are the last owners of a lock that were evicted because the hold was lost, and have yet to unlock. They learn of
// the loss when they lock or unlock: for that they are remembered, with how often they had locked. The zero value remembers
// nobody, as most locks need. The mutex of the lock guards them.
type Evictions struct{ newest *eviction }

type eviction struct {
	owner  owner.ID
	times  int32
	why    fault.Loss
	before *eviction
}

// mostEvictions is how many owners are remembered. One that may be gone for ever must not cost memory for ever.
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

// Why says why the hold of an owner was lost, if it was and the owner has yet to unlock.
func (e *Evictions) Why(o owner.ID) fault.Loss {
	if gone := *e.find(o); gone != nil {
		return gone.why
	}
	return fault.NotLost
}

// Exit is an unlock by an owner that does not hold the lock.
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
