package lockregistry

import (
	"slices"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// evictions are the last owners of a lock that were evicted because the hold was lost, and have yet to unlock. They learn of
// the loss when they lock or unlock: for that they are remembered, the oldest first, with how often they had locked. Nil
// remembers nobody, as most locks need. The mutex of the lock guards them.
type evictions []eviction

type eviction struct {
	owner owner.ID
	holds int32
	why   fault.Loss
}

// mostEvictions is how many owners are remembered. One that may be gone for ever must not cost memory for ever.
const mostEvictions = 16

// add remembers one more owner, and forgets the oldest one when there is no room.
func (e *evictions) add(o owner.ID, holds int32, why fault.Loss) *evictions {
	if e == nil {
		e = &evictions{}
	}
	if len(*e) == mostEvictions {
		*e = slices.Delete(*e, 0, 1)
	}
	*e = append(*e, eviction{o, holds, why})
	return e
}

func (e *evictions) has(o owner.ID) bool { return e.find(o) >= 0 }

// why tells why the hold of an owner was lost.
func (e *evictions) why(o owner.ID) fault.Loss {
	if i := e.find(o); i >= 0 {
		return (*e)[i].why
	}
	return fault.NotLost
}

func (e *evictions) find(o owner.ID) int {
	if e == nil {
		return -1
	}
	return slices.IndexFunc(*e, func(gone eviction) bool { return gone.owner == o })
}

// exit is an unlock by an owner that does not hold the lock.
func (e *evictions) exit(o owner.ID) (departure, fault.Loss) {
	i := e.find(o)
	if i < 0 {
		return notIn, fault.NotLost
	}
	why := (*e)[i].why
	if (*e)[i].holds--; (*e)[i].holds == 0 {
		*e = slices.Delete(*e, i, i+1)
	}
	return evicted, why
}
