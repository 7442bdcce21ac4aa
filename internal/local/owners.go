package local

import (
	"iter"
	"sync"
	"sync/atomic"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// owners are those that hold a [Side], and how often each does. Most sides have one owner at a time, for which there is no map:
// a lock that nobody holds any more, and that is cached for long, takes no memory for its former owners. The zero value has none.
// The lock's mutex guards them, but for count.
type owners struct {
	one   owner.ID
	more  map[owner.ID]int32 // besides one, who may have left; nil for most
	times int32              // how often one holds the side; 0: there is no such owner
	count atomic.Int32       // how many there are, readable without the mutex
}

// spare has empty maps. Two readers that come and go would make one each time.
var spare sync.Pool

// of returns how often o holds the side.
func (s *owners) of(o owner.ID) int32 {
	if s.times > 0 && s.one == o {
		return s.times
	}
	return s.more[o]
}

func (s *owners) add(o owner.ID) {
	switch {
	case s.times > 0 && s.one == o:
		s.times++
		return
	case s.more[o] > 0:
		s.more[o]++
		return
	case s.times == 0:
		s.one, s.times = o, 1
	default:
		if s.more == nil {
			if s.more, _ = spare.Get().(map[owner.ID]int32); s.more == nil {
				s.more = map[owner.ID]int32{}
			}
		}
		s.more[o] = 1
	}
	s.count.Add(1)
}

// undo undoes one add of an owner, and returns how many are left.
func (s *owners) undo(o owner.ID) (left int32) {
	if s.times > 0 && s.one == o {
		s.times--
		left = s.times
	} else {
		left = s.more[o] - 1
		s.more[o] = left
		if left == 0 {
			delete(s.more, o)
		}
	}
	if left == 0 && s.count.Add(-1) == 0 {
		s.drop()
	}
	return left
}

// clear drops all owners.
func (s *owners) clear() {
	clear(s.more)
	s.times = 0
	s.count.Store(0)
	s.drop()
}

func (s *owners) drop() {
	if s.more != nil {
		spare.Put(s.more)
		s.more = nil
	}
}

// all iterates over the owners, in no order.
func (s *owners) all() iter.Seq2[owner.ID, int32] {
	return func(yield func(owner.ID, int32) bool) {
		if s.times > 0 && !yield(s.one, s.times) {
			return
		}
		for o, times := range s.more {
			if !yield(o, times) {
				return
			}
		}
	}
}

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
