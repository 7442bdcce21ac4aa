package lockregistry

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockregistry/lockregistry/internal/lease"
)

// AtMost bounds for how long the lock is held: its lease is no longer than d, and no renewal, [Lock.Renew] included, has the key
// live longer than d from when it was granted, but for the time that the renewal takes to arrive. Contexts of the hold end before
// that, by the margin for clocks, with [ErrLockLost], and a wait for another process may count, for half a second mostly. The key
// is not removed before its lease must have ended. It is ShedLock's lockAtMostFor, and AtMost(10*time.Second) is Redisson's
// leaseTime. It counts anew for each owner to whom the lock goes. D must be at least two milliseconds, and not shorter than that
// of [AtLeast]. Default: the lock is held for as long as it is renewed.
//
// It is for plain locks, writers and semaphores; readers refuse it, and so does a call of an owner that holds the lock already.
func AtMost(d time.Duration) LockOption {
	return LockOption{"AtMost", d, func(q *request, d time.Duration) { q.atMost = d }}
}

// bound has a call ask for no longer a lease than AtMost allows.
func bound(q *request) {
	if q.atMost > 0 && q.atMost < q.lease.Length {
		q.lease = lease.NewTerm(q.atMost)
	}
}

// checkAtMost judges AtMost beside the other options of a call.
func checkAtMost(q *request) error {
	switch {
	case q.atMost == 0:
		return nil
	case q.atMost < leastLease:
		return leasable("AtMost", q.atMost)
	case q.atMost < q.atLeast:
		return fmt.Errorf("AtMost(%v): it is shorter than AtLeast(%v)", q.atMost, q.atLeast)
	default:
		return nil
	}
}

var (
	errAtMostRead = errors.New("AtMost: it is for plain locks and writers only")
	errAtMostHeld = errors.New("AtMost: the owner holds the lock already")
)
