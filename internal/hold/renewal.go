package hold

import (
	"errors"
	"slices"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// renewal is a command that renews a hold.
type renewal struct {
	hold renewable
	lease.Renewal
}

// renewable is a hold, as its tasks see it.
type renewable interface {
	Live() bool
	renewal(t *lease.Term) protocol.Call
	answered(r lease.Renewal, n int64, err error, late bool) error
	sayLong(now clock.Instant)
	verification() protocol.Call
	term() time.Duration
	verified(n int64, err error, late bool)
}

// Renew renews the lease, with t or, if t is nil, with its current term, and waits for the reply as w says. After a late reply
// the error is [fault.Late], and the lease is not prolonged. With t the error is [fault.NotOwner] when the owner has left; nobody
// may choose t for whoever has the hold.
func (p Part) Renew(w *transport.Wait, t *lease.Term) error {
	h, ctx := p.Hold, w.Ctx
	stopped := ctx.Err() != nil // not under the mutex: a context may be of any type
	has, alone := p.lock(t != nil)
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return fault.WithEnd(ctx, h.Err())
	}
	if !has {
		h.mu.Unlock()
		return fault.NotOwner
	}
	if stopped {
		h.mu.Unlock()
		return fault.Ended(ctx)
	}
	now, chosen := h.path.Clock.Now(), t != nil
	if chosen && t.Length < h.lease.Term.Length && !alone { // mutant: leaving reader shortens
		chosen = false // not shortened: others that share the hold may rely on it
		h.lease.Rely(t)
	}
	if chosen {
		h.lease.Choose(now)
	} else {
		t = h.lease.Term
	}
	r := h.lease.Begin(now, t)
	r.Chosen = chosen && r.Term == t // else AtMost has shortened it: the term stays for renewals
	h.unlockPlanned()

	c := h.renewal(r.Term)
	w.Lease = r.Term.Length
	reply := h.path.Server.Do(w, &c)
	n, err := reply.Confirmed()
	err = h.answered(r, n, err, reply.Late)
	switch {
	case errors.Is(err, fault.Lost):
		return fault.WithEnd(ctx, err)
	case reply.Cut:
		return fault.Join(fault.Ended(ctx), fault.AsUnavailable(fault.NoAnswer))
	default:
		return fault.Classify(err)
	}
}

// lock locks the mutex. For a call that chooses a lease it reports whether the owner has the live hold, and whether nobody shares
// it.
//
// Another goroutine of the owner may unlock at any time, and the hold go on for others, whose lease the call must not change.
// Only the local half knows who has the hold, and it must not be asked with the mutex held. So it is asked before, and the
// generation of the lease tells whether its answer is old:
//
//	this call                   Generation    Has               Generation has changed: again
//	another goroutine of its owner                     Exit
//	the hold's mutex                                           HandOver, Leave or Join
//
// If it is the same, nobody relies on the hold yet who gets it after the answer: HandOver is still to come, and forgets what is
// chosen now, or Join is, and sees it. An owner that has left the local half, but not the hold, chooses as it could just before;
// it shortens only what it had alone, so that no other owner is left behind.
func (p Part) lock(chooses bool) (has, alone bool) {
	h := p.Hold
	h.mu.Lock()
	if !chooses {
		return true, true
	}
	for asked := h.lease.Generation(); ; {
		h.mu.Unlock()
		has, alone = p.has()
		h.mu.Lock()
		before := asked
		if asked = h.lease.Generation(); asked == before || !has {
			return has, alone
		}
	}
}

// has asks the local half for lock.
func (p Part) has() (has, alone bool) {
	above := p.Hold.path.Above
	if p.Owner == owner.Nobody { // anybody may choose for a plain lock
		return true, true
	}
	alone = !p.Hold.path.Shared || slices.Equal(above.Owners(), []owner.ID{p.Owner})
	return above.Has(p.Hold.value, p.Owner), alone
}

// answered handles the reply to a renewal; see [lease.State.Reply].
func (h *Hold) answered(r lease.Renewal, n int64, err error, late bool) error {
	open := fault.OutcomeUnknown(err) // a client's hook may return any type: not under the mutex // mutant: renewal forgotten
	h.mu.Lock()
	o := lease.Outcome{Ours: n > 0, Failed: err != nil, Unknown: open, Late: late}
	switch h.lease.Reply(r, h.path.Clock.Now(), o) {
	case lease.NotLive:
		h.mu.Unlock()
		return h.Err()
	case lease.NotOurs:
		h.unlockLose(fault.Without(n))
		return h.Err()
	case lease.TooLate:
		h.unlockLose(fault.RenewedTooLate)
		return h.Err()
	case lease.Unconfirmed:
		err = fault.Late
	case lease.Extended, lease.Failed:
	}
	h.unlockPlanned()
	return err
}

// The following methods are for renewals that workers send.

func (r renewal) Call() protocol.Call { return r.hold.renewal(r.Term) }

func (h *Hold) renewal(t *lease.Term) protocol.Call {
	c := h.path.Format.Renew(h.path.Key, h.value, t)
	h.path.Demand(&c)
	return c
}

func (r renewal) Length() time.Duration { return r.Term.Length }

// A hold that is lost or over is not renewed. The owner may unlock just when a renewal is sent. That is harmless, since the
// renewal names the hold's value: executed before the removal, it does not keep the removal from removing the key; executed
// after it, it finds no key, or another hold's. Until a removal is confirmed a renewal may prolong the key, but the removal is
// repeated until then.
func (r renewal) Wanted() bool { return r.hold.Live() }

func (r renewal) Writes() bool { return true }

func (r renewal) Done(a transport.Reply, n int64, err error) {
	r.Sent = a.Sent
	_ = r.hold.answered(r.Renewal, n, err, a.Late) // the hold itself retries a failure and announces a loss
	r.hold.sayLong(a.Came)
}

// verification is a task that asks whether a hold still has its key.
type verification struct{ hold renewable }

func (v verification) Call() protocol.Call { return v.hold.verification() }

func (h *Hold) verification() protocol.Call { return h.path.Format.Holds(h.path.Key, h.value) }

func (v verification) Length() time.Duration { return v.hold.term() }

func (h *Hold) term() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease.Term.Length // the owner may be changing it
}

func (v verification) Wanted() bool { return v.hold.Live() }

func (v verification) Writes() bool { return false }

func (v verification) Done(a transport.Reply, n int64, err error) { v.hold.verified(n, err, a.Late) }

// verified handles the reply to a verification; see [lease.State.Verified].
func (h *Hold) verified(n int64, err error, late bool) {
	refused := err != nil && !fault.Transient(err) // an error of a client's hook may be of any type: not under the mutex
	h.mu.Lock()
	o := lease.Outcome{Ours: n > 0, Failed: err != nil, Late: late}
	switch h.lease.Verified(h.path.Clock.Now(), o, refused) {
	case lease.NotLive:
		h.mu.Unlock()
	case lease.NotOurs:
		h.unlockLose(fault.Without(n))
	default:
		h.unlockPlanned()
	}
}
