package local

import (
	"iter"
	"sync"
	"sync/atomic"

	"github.com/lockregistry/lockregistry/internal/owner"
)

// owners are the owners that hold a [Side], and how often each of them does. Most sides have one owner at a time, for which there
// is no map: a lock that is no longer held, but stays in the cache, takes no memory for its former owners. The zero value has no
// owners. The lock's mutex guards all fields except count.
type owners struct {
	one   owner.ID
	more  map[owner.ID]int32 // besides one, which may have left; nil for most
	times int32              // how often one holds the side; 0: there is no such owner
	count atomic.Int32       // how many there are, readable without the mutex
}

// spare has empty maps for reuse. Two readers that come and go would otherwise make one each time.
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
