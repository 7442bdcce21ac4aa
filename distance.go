package lockregistry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// shard is the way to the master that has the lock's key.
func (l *Lock) shard() *transport.Shard { return l.reg.transport.Shard(l.place.Key) }

// armLimit is how long a waiter waits for the connection for wake-ups.
func (l *Lock) armLimit() time.Duration { return l.shard().RoundTrip().Connect() }

// commandWait is how long a command of the registry waits for its answer.
func (r *Registry) commandWait(ctx context.Context, l *transport.Shard) transport.Wait {
	if r.usual {
		return transport.Wait{Ctx: ctx, Limit: l.Plus(r.limit), Near: r.limit}
	}
	return transport.Wait{Ctx: ctx, Limit: r.limit}
}

// zeros stand in front of the lease in a ticket. A release gives it a short lease, until this process lengthens that: a
// second, and twice as long for each zero, so that it is more than four round trips, up to eight seconds. Versions that do
// not know this read the same lease.
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

// tooLittleTimeError: less time was left than one round trip takes, so that nothing was sent.
type tooLittleTimeError struct{ trip transport.RoundTrip }

func (e tooLittleTimeError) Error() string {
	return fmt.Sprintf("there was no time for an answer: %v", e.trip)
}

// tooShort is why a lease is of no use, if so, because the server is far away.
func tooShort(t *lease.Term, way *transport.Shard) error {
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
	reg := a.lock.reg
	way := a.lock.shard()
	if err := tooShort(a.hold.Term(), way); err != nil {
		return err
	}
	trip := way.RoundTrip()
	left := p.Left(reg.clock)
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

// prolong sets the lease of a hold anew, now, with t or with the term that it has. When the answer comes late it does so once
// more, to be sure, until the call's time is over.
func (l *Lock) prolong(ctx context.Context, h *hold.Hold, t *lease.Term) error {
	p := l.reg.commandWait(ctx, l.shard())
	p.Since = l.reg.clock.Now()
	for {
		if err := l.tooFar(h, &p, t); err != nil {
			return err
		}
		if err := h.Renew(&p, t); !errors.Is(err, fault.Late) || p.Left(l.reg.clock) <= 0 || ctx.Err() != nil {
			return err
		}
	}
}

// tooFar is why a renewal is not sent, if so: the lease that its owner asks for, if any, is too short to be of use, or the answer
// would come when the call is over. The call waits for its end then.
func (l *Lock) tooFar(h *hold.Hold, p *transport.Wait, asked *lease.Term) error {
	reg, way := l.reg, l.shard()
	if p.Ctx.Err() != nil || !h.Valid() {
		return nil //nolint:nilerr // the call tells of its end itself, at once
	}
	if err := tooShort(asked, way); err != nil {
		return err
	}
	trip, left := way.RoundTrip(), p.Left(reg.clock)
	if !trip.Useless(left) {
		return nil
	}
	way.Relearn()
	if err := reg.outwait(p.Ctx, left); err != nil {
		return err
	}
	if !h.Valid() {
		return fault.WithEnd(p.Ctx, h.Err())
	}
	failure := fault.AsUnavailable(tooLittleTimeError{trip})
	if p.Ctx.Err() == nil {
		return failure
	}
	return explain(fault.Ended(p.Ctx), failure)
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
