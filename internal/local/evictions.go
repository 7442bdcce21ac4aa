package local

import (
	"iter"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Evictions are the owners of a lock that were evicted because the hold was lost, and have yet to unlock, each with how often it
// had locked. They learn of the loss when they lock or unlock. The zero value has none. The lock's mutex guards them.
//
// It is not known whether such an owner will ever unlock: its goroutine may have ended. So their number is limited. All owners of
// the newest loss stay, since they were in memory until then, too. Of the owners of earlier losses, only the newest stay.
type Evictions struct{ all *evictions }

// evictions are those of a lock that has some.
type evictions struct {
	newest, oldest *eviction
	count          int
	index          map[owner.ID]*eviction // nil while there are few
}

type eviction struct {
	owner         owner.ID
	times         int32
	why           fault.Loss
	before, after *eviction // the next older and newer one
}

const (
	mostEvictions = 1000 // of earlier losses
	fewEvictions  = 16   // are found without an index
)

// Add remembers the owners of one more hold that is lost, and how often each had locked.
func (e *Evictions) Add(why fault.Loss, owners iter.Seq2[owner.ID, int32]) {
	if e.all == nil {
		e.all = &evictions{}
	}
	for e.all.count > mostEvictions {
		e.all.remove(e.all.oldest)
	}
	for o, times := range owners {
		e.all.add(&eviction{owner: o, times: times, why: why})
	}
}

// Why returns why an owner's hold was lost, until the owner has unlocked.
func (e *Evictions) Why(o owner.ID) fault.Loss {
	if e.all == nil { // nearly always
		return fault.NotLost
	}
	if gone := e.all.find(o); gone != nil {
		return gone.why
	}
	return fault.NotLost
}

// Exit undoes one lock of an owner that was evicted.
func (e *Evictions) Exit(o owner.ID) (Departure, fault.Loss) {
	if e.all == nil {
		return NotIn, fault.NotLost
	}
	gone := e.all.find(o)
	if gone == nil {
		return NotIn, fault.NotLost
	}
	if gone.times--; gone.times == 0 {
		e.all.remove(gone)
	}
	if e.all.count == 0 {
		e.all = nil
	}
	return Lost, gone.why
}

// add adds the newest one. An owner that is evicted was not let in again until it has unlocked, so it is not there yet.
func (e *evictions) add(gone *eviction) {
	if gone.before = e.newest; gone.before == nil {
		e.oldest = gone
	} else {
		gone.before.after = gone
	}
	e.newest = gone
	e.count++
	switch {
	case e.index != nil:
		e.index[gone.owner] = gone
	case e.count > fewEvictions:
		e.index = map[owner.ID]*eviction{}
		for at := gone; at != nil; at = at.before {
			e.index[at.owner] = at
		}
	}
}

func (e *evictions) remove(gone *eviction) {
	if gone.before == nil {
		e.oldest = gone.after
	} else {
		gone.before.after = gone.after
	}
	if gone.after == nil {
		e.newest = gone.before
	} else {
		gone.after.before = gone.before
	}
	e.count--
	delete(e.index, gone.owner)
}

func (e *evictions) find(o owner.ID) *eviction {
	if e.index != nil {
		return e.index[o]
	}
	gone := e.newest
	for gone != nil && gone.owner != o {
		gone = gone.before
	}
	return gone
}
