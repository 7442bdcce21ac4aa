package lockregistry

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockregistry/lockregistry/internal/lease"
)

// AtMost limits how long the lock is held. Its lease is at most d, and no renewal, [Lock.Renew] included, lets the key live
// longer than d from when it was granted, except for the time that the renewal takes to arrive. Contexts of the hold end
// before d is over, by the margin for clocks, with [ErrLockLost]. If the call waited for another process, d may begin before
// the call returns, usually by half a second at most. The registry does not remove the key before its lease must have ended.
// When the lock is handed to another owner, that owner's own AtMost applies from then on. It is ShedLock's lockAtMostFor, and
// AtMost(10*time.Second) is Redisson's leaseTime. D must be at least two milliseconds, and not less than [AtLeast]. Default:
// the lock is held for as long as it is renewed.
//
// It is for plain locks, writers and semaphores. A reader returns an error, and so does a call of an owner that already holds
// the lock.
func AtMost(d time.Duration) LockOption {
	return LockOption{"AtMost", d, func(q *request, d time.Duration) { q.atMost = d }}
}

// bound limits the lease that a call asks for to AtMost.
func bound(q *request) {
	if q.atMost > 0 && q.atMost < q.lease.Length {
		q.lease = lease.NewTerm(q.atMost)
	}
}

// checkAtMost validates AtMost together with the other options of a call.
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
