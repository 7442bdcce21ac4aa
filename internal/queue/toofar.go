package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// zerosFor makes the zeros that stand in front of the lease in a ticket. A release gives it a short lease, until this process
// lengthens that: a second, and twice as long for each zero, so that it is more than four round trips, up to eight seconds.
// Versions that do not know this read the same lease.
func zerosFor(t transport.RoundTrip, lease time.Duration) string {
	const most = "000"
	if !t.Known || lease <= shortLease { // which is what it gets
		return ""
	}
	n := 0
	for n < len(most) && shortLease<<n <= 4*t.Base {
		n++
	}
	return most[:n]
}

// shortLeaseError: a lease is so short that it could be over before its owner has done anything.
type shortLeaseError struct {
	lease time.Duration
	trip  transport.RoundTrip
}

func (e shortLeaseError) Error() string {
	return fmt.Sprintf("a lease of %v is too short: %v, and it must be at least %v", e.lease, e.trip, e.trip.ShortestLease())
}

// Is has no call wait for the lease to become long enough.
func (shortLeaseError) Is(target error) bool { return target == fault.Lasting }

// TooLittleTimeError is that less time was left than one round trip takes, so that nothing was sent.
type TooLittleTimeError struct{ Trip transport.RoundTrip }

func (e TooLittleTimeError) Error() string {
	return fmt.Sprintf("there was no time for an answer: %v", e.Trip)
}

// TooShort is why a lease is of no use, if so, because the server is far away.
func TooShort(t *lease.Term, way *transport.Shard) error {
	trip := way.RoundTrip()
	if t == nil || t.Length >= trip.ShortestLease() {
		return nil
	}
	way.Relearn()
	return shortLeaseError{t.Length, trip}
}

// tooFar is why nothing is sent, if so, because the server is far away: the lease is too short to be of use, or the answer
// would come when the call is over. What that obtained would be nobody's, and keep others out until its removal arrives. In
// that case the call waits for its end, of which its caller has been told nothing but that Redis could not be asked.
func (a *attempt) tooFar(p *transport.Wait) error {
	way := a.path.Shard()
	if err := TooShort(a.hold.Term(), way); err != nil {
		return err
	}
	trip := way.RoundTrip()
	left := p.Left(a.path.Clock)
	if !trip.Useless(left) {
		return nil
	}
	way.Relearn()
	return a.outwait(left, trip)
}

// outwait waits for the end of a call that sends nothing.
//
//go:noinline
func (a *attempt) outwait(left time.Duration, t transport.RoundTrip) error {
	if err := a.path.all.Outwait(a.ctx, left); err != nil {
		return err
	}
	failure := fault.AsUnavailable(TooLittleTimeError{t})
	if !a.asked { // else something is known of the lock
		a.failure = failure
	}
	why := fault.Ended(a.ctx)
	if deadline, ok := a.ctx.Deadline(); why == nil && ok && a.path.all.Clock.Now() >= a.path.all.Clock.At(deadline) {
		why = context.DeadlineExceeded // it never says so itself
	}
	if why == nil {
		return failure
	}
	a.cut = true
	return fault.Explain(why, a.failure)
}

// Outwait waits for the end of a call that sends nothing. It fails when the registry is closed first.
func (all *Shared) Outwait(ctx context.Context, left time.Duration) error {
	end := time.NewTimer(left)
	defer end.Stop()
	select {
	case <-ctx.Done():
	case <-end.C:
		if deadline, ok := ctx.Deadline(); ok && all.Clock.Now() >= all.Clock.At(deadline) {
			end.Reset(answerGrace)
			select {
			case <-ctx.Done(): // its own timer is about to fire
			case <-end.C: // or never does, whatever its type says
			case <-all.Closed:
				return fault.Closed
			}
		}
	case <-all.Closed:
		return fault.Closed
	}
	return nil
}
