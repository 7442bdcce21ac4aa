package lockregistry

import (
	"context"
	"fmt"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// patience is how long a command of the registry waits for its answer.
func (r *Registry) patience(ctx context.Context, l *lane) patience {
	if r.usual {
		return patience{ctx: ctx, limit: l.plus(r.limit), near: r.limit}
	}
	return patience{ctx: ctx, limit: r.limit}
}

// zeros stand in front of the lease in a ticket. A release gives it a short lease, until this process lengthens that: a
// second, and twice as long for each zero, so that it is more than four round trips, up to eight seconds. Versions that do
// not know this read the same lease.
func zerosFor(t trip, lease time.Duration) string {
	const most = "000"
	if !t.known || lease <= shortLease { // which is what it gets
		return ""
	}
	n := 0
	for n < len(most) && shortLease<<n <= 4*t.base {
		n++
	}
	return most[:n]
}

// shortLeaseError: a lease is so short that it could be over before its owner has done anything.
type shortLeaseError struct {
	lease time.Duration
	trip  trip
}

func (e shortLeaseError) Error() string {
	return fmt.Sprintf("a lease of %v is too short: %v, and it must be at least %v", e.lease, e.trip, e.trip.shortest())
}

// Is has no call wait for the lease to become long enough.
func (shortLeaseError) Is(target error) bool { return target == fault.Lasting }

// tooLittleTimeError: less time was left than one round trip takes, so that nothing was sent.
type tooLittleTimeError struct{ trip trip }

func (e tooLittleTimeError) Error() string {
	return fmt.Sprintf("there was no time for an answer: %v", e.trip)
}

// tooFar is why nothing is sent, if so, because the server is far away: the lease is too short to be of use, or the answer
// would come when the call is over. What that obtained would be nobody's, and keep others out until its removal arrives. In
// that case the call waits for its end, of which its caller has been told nothing but that Redis could not be asked.
func (a *attempt) tooFar(p *patience) error {
	reg := a.lock.reg
	way := reg.transport.lane(a.lock.key)
	trip := way.trip()
	if lease := a.hold.lease.Length; lease < trip.shortest() {
		way.relearn()
		return shortLeaseError{lease, trip}
	}
	left := p.left(reg.clock)
	if !trip.useless(left) {
		return nil
	}
	way.relearn()
	return a.outwait(left, trip)
}

// outwait waits for the end of a call that sends nothing.
//
//go:noinline
func (a *attempt) outwait(left time.Duration, t trip) error {
	if err := a.lock.reg.outwait(a.ctx, left); err != nil {
		return err
	}
	failure := fault.AsUnavailable(tooLittleTimeError{t})
	if !a.asked { // else something is known of the lock
		a.failure = failure
	}
	if a.ctx.Err() == nil {
		return failure
	}
	a.cut = true
	return explain(fault.Ended(a.ctx), a.failure)
}

// tooFar is why a renewal is not sent, if so: its answer would come when the call is over. The call waits for its end then.
func (h *hold) tooFar(p *patience) error {
	reg := h.lock.reg
	way := reg.transport.lane(h.lock.key)
	trip, left := way.trip(), p.left(reg.clock)
	over := p.ctx.Err() != nil
	if over || !trip.useless(left) || !h.valid() { // of which it is to tell at once
		return nil //nolint:nilerr // the call tells of its end itself
	}
	way.relearn()
	if err := reg.outwait(p.ctx, left); err != nil {
		return err
	}
	if !h.valid() {
		return fault.WithEnd(p.ctx, h.lostError())
	}
	failure := fault.AsUnavailable(tooLittleTimeError{trip})
	if p.ctx.Err() == nil {
		return failure
	}
	return explain(fault.Ended(p.ctx), failure)
}

// outwait waits for the end of a call that sends nothing. It fails when the registry is closed first.
func (r *Registry) outwait(ctx context.Context, left time.Duration) error {
	end := time.NewTimer(left)
	defer end.Stop()
	select {
	case <-ctx.Done():
	case <-end.C:
		if deadline, ok := ctx.Deadline(); ok && r.clock.Now() >= r.clock.At(deadline) {
			<-ctx.Done() // its own timer is about to fire
		}
	case <-r.closed:
		return ErrClosed
	}
	return nil
}
