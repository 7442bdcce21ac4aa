package queue

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

// zerosFor returns the zeros in front of the lease in a ticket. They name the short lease that a release grants, and that this
// process then lengthens: 1 s × 2^zeros, which is longer than 4 × round trip, but at most 8 s. Older versions ignore the zeros.
func zerosFor(t transport.RoundTrip, lease time.Duration) string {
	const most = "000"
	if !t.Known || lease <= shortLease { // a grant gives the whole lease
		return ""
	}
	n := 0
	for n < len(most) && shortLease<<n <= 4*t.Base {
		n++
	}
	return most[:n]
}

// tooLittleTime is the error of a call that has sent nothing, because less time was left than one round trip takes.
func tooLittleTime(trip transport.RoundTrip) error {
	return fault.AsUnavailable(fmt.Errorf("there was no time for an answer: %v", trip))
}

// TooShort returns an error if a lease is too short to be useful, because the server is far away: it could be over before its
// owner has done anything.
func TooShort(t *lease.Term, way *transport.Node) error {
	trip := way.RoundTrip()
	if t == nil || t.Length >= trip.ShortestLease() {
		return nil
	}
	way.Relearn()
	least := trip.ShortestLease()
	return fault.AsLasting(fmt.Errorf("a lease of %v is too short: %v, and it must be at least %v", t.Length, trip, least))
}

// tooFar returns an error if a try must not be sent because the server is far away: the lease is too short to be of use, or the
// reply would come after the call is over. The key that such a try obtained would belong to nobody, and keep others out until its
// removal arrives. In the second case tooFar waits for the end of the call.
func (a *attempt) tooFar(w *transport.Wait) error {
	way := a.path.Node()
	if err := TooShort(a.hold.Term(), way); err != nil {
		return err
	}
	trip, left := way.RoundTrip(), w.Left(a.path.Clock)
	if !trip.Useless(left) {
		return nil
	}
	way.Relearn()
	if err := a.path.all.outwait(w.Ctx, left); err != nil {
		return err
	}
	return a.outwaited(tooLittleTime(trip))
}

// outwaited returns the error of a call that has sent nothing more, and has waited until its end.
func (a *attempt) outwaited(failure error) error {
	if a.progress != answered { // otherwise failure has the outcome of the last try
		a.failure = failure
	}
	why := fault.Ended(a.ctx)
	if why == nil && a.path.all.isPast(a.ctx) {
		why = context.DeadlineExceeded // the context does not say so itself
	}
	if why == nil {
		return failure
	}
	a.cut = true
	return fault.Explain(why, a.failure)
}

// Prolong renews a hold now: with the lease t, if its owner asks for another one, or with the hold's own term, if t is nil. After
// a late answer it renews the hold once more, to be sure, until the call's time is over.
func (p *Path) Prolong(ctx context.Context, h hold.Part, t *lease.Term, until Limits) error {
	w := p.commandWait(ctx, until)
	w.Since = p.Clock.Now()
	for {
		if err := p.tooFarFor(h.Hold, &w, t); err != nil {
			return err
		}
		if err := h.Renew(&w, t); !errors.Is(err, fault.Late) || !w.Again(p.Clock) {
			return err
		}
	}
}

// tooFarFor is tooFar for a renewal, with the lease that its owner asks for, if any.
func (p *Path) tooFarFor(h *hold.Hold, w *transport.Wait, asked *lease.Term) error {
	if w.Ctx.Err() != nil || !h.Valid() {
		return nil //nolint:nilerr // the renewal itself fails at once
	}
	way := p.Node()
	if err := TooShort(asked, way); err != nil {
		return err
	}
	trip, left := way.RoundTrip(), w.Left(p.Clock)
	if !trip.Useless(left) {
		return nil
	}
	way.Relearn()
	useless := tooLittleTime(trip)
	switch err := p.all.outwait(w.Ctx, left); {
	case err != nil:
		return err
	case !h.Valid():
		return fault.WithEnd(w.Ctx, h.RenewErr(asked != nil))
	case w.Ctx.Err() == nil:
		return useless
	default:
		return fault.Explain(fault.Ended(w.Ctx), useless)
	}
}

// isPast reports whether the deadline of a context has passed, even if the context does not say so.
func (all *Shared) isPast(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && all.Transport.Clock.Now() >= all.Transport.Clock.At(deadline)
}

// outwait waits for the end of a call that sends nothing, and returns its error. It fails when the registry is closed first.
func (all *Shared) outwait(ctx context.Context, left time.Duration) error {
	end := time.NewTimer(left)
	defer end.Stop()
	select {
	case <-ctx.Done():
	case <-end.C:
		if all.isPast(ctx) {
			end.Reset(answerGrace)
			select {
			case <-ctx.Done(): // its own timer fires a little later
			case <-end.C: // or never, depending on its type
			case <-all.Closed:
				return fault.Closed
			}
		}
	case <-all.Closed:
		return fault.Closed
	}
	return nil
}
