package local

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Evictions are the owners of a lock that were evicted because the hold was lost, and have yet to unlock, each with how often it
// had locked. They learn of the loss when they lock or unlock. The zero value has none. The lock's mutex guards them.
//
// It is not known whether such an owner will ever unlock: its goroutine may have ended. So their number is limited. All owners of
// the newest loss stay, since they were in memory until then, too. Of the owners of earlier losses, only the newest stay.
type Evictions struct{ all map[owner.ID]*eviction } // nil: none

type eviction struct {
	times int32
	why   fault.Loss
	nth   uint64 // of all in this process
}

// evicted counts evictions, to tell which came first.
var evicted atomic.Uint64

const mostEvictions = 1000 // of earlier losses

// Add remembers the owners of one more hold that is lost, and how often each had locked. An owner that is evicted was not let in
// again until it has unlocked, so it is not there yet.
func (e *Evictions) Add(why fault.Loss, owners iter.Seq2[owner.ID, int32]) {
	if more := len(e.all) - mostEvictions; more > 0 {
		for _, o := range slices.SortedFunc(maps.Keys(e.all), e.order)[:more] {
			delete(e.all, o)
		}
	}
	if e.all == nil {
		e.all = map[owner.ID]*eviction{}
	}
	for o, times := range owners {
		e.all[o] = &eviction{times, why, evicted.Add(1)}
	}
}

func (e *Evictions) order(a, b owner.ID) int { return cmp.Compare(e.all[a].nth, e.all[b].nth) }

// Why returns why an owner's hold was lost, until the owner has unlocked.
func (e *Evictions) Why(o owner.ID) fault.Loss {
	if e.all == nil { // nearly always
		return fault.NotLost
	}
	if gone := e.all[o]; gone != nil {
		return gone.why
	}
	return fault.NotLost
}

// Exit undoes one lock of an owner that was evicted.
func (e *Evictions) Exit(o owner.ID) (Departure, fault.Loss) {
	gone := e.all[o]
	if gone == nil {
		return NotIn, fault.NotLost
	}
	if gone.times--; gone.times == 0 {
		delete(e.all, o)
	}
	if len(e.all) == 0 {
		e.all = nil
	}
	return Lost, gone.why
}
