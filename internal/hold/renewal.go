package hold

import (
	"errors"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// renewal is one command that renews a hold.
type renewal struct {
	hold *Hold
	lease.Renewal
}

// Renew sets the lease anew, with t, or with the term that it has, and waits for the reply as p says. When the reply comes late
// the error is [fault.Late], and the lease is no longer than it was.
func (h *Hold) Renew(p *transport.Wait, t *lease.Term) error {
	ctx := p.Ctx
	stopped := ctx.Err() != nil // not under the mutex: a context may be of any type
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return fault.WithEnd(ctx, h.Err())
	}
	if stopped {
		h.mu.Unlock()
		return fault.Ended(ctx)
	}
	chosen := t != nil
	if !chosen || t.Length < h.lease.Term.Length && h.path.Above.Count() > 1 {
		t = h.lease.Term // as long as it was: others that share the hold may rely on it
	}
	r := renewal{h, h.lease.Begin(h.path.Clock.Now(), t)}
	r.Chosen = chosen && r.Term == t // else it is the last one
	h.unlockPlanned()

	c := r.Call()
	p.Lease = r.Term.Length
	reply, n, err := h.path.Server.Do(p, &c)
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

// answered takes in the answer to a renewal: whether the key was the hold's, or what went wrong; see [lease.State.Reply].
func (h *Hold) answered(r renewal, n int64, err error, late bool) error {
	open := fault.OutcomeUnknown(err) // a client's hook may return any type: not under the mutex // mutant: renewal forgotten
	h.mu.Lock()
	o := lease.Outcome{Ours: n > 0, Failed: err != nil, Unknown: open, Late: late}
	switch h.lease.Reply(r.Renewal, h.path.Clock.Now(), o) {
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

// The following is for a renewal that a worker sends.

func (r renewal) Call() protocol.Call {
	p := r.hold.path
	c := p.Format.Renew(p.Key, r.hold.value, r.Term)
	p.Demand(&c)
	return c
}

func (r renewal) Length() time.Duration { return r.Term.Length }

// What is lost or over is not renewed. But the owner may unlock at the moment at which the renewal leaves, and that is
// harmless, because it names the hold's value: when the server executes it before the removal, the removal removes the key
// all the same; when it comes after that, it finds no key, or that of another hold. While a removal has not been confirmed
// it may prolong the key, but the removal is tried until it has been.
func (r renewal) Wanted() bool { return r.hold.Live() }

func (r renewal) Writes() bool { return true }

func (r renewal) Done(a transport.Reply, n int64, err error) {
	r.Sent = a.Sent
	_ = r.hold.answered(r, n, err, a.Late) // a failure is tried again, a loss is announced by the hold itself
	r.hold.sayLong(a.Came)
}

// verification is a task: whether a hold still has its key.
type verification struct{ hold *Hold }

func (v verification) Call() protocol.Call {
	return v.hold.path.Format.Holds(v.hold.path.Key, v.hold.value)
}

func (v verification) Length() time.Duration {
	v.hold.mu.Lock()
	defer v.hold.mu.Unlock()
	return v.hold.lease.Term.Length // which its owner may be changing
}

func (v verification) Wanted() bool { return v.hold.Live() }

func (v verification) Writes() bool { return false }

func (v verification) Done(a transport.Reply, n int64, err error) {
	h, refused := v.hold, err != nil && !fault.Transient(err) // an error of a client's hook may be of any type: not under the mutex
	h.mu.Lock()
	o := lease.Outcome{Ours: n > 0, Failed: err != nil, Late: a.Late}
	switch h.lease.Verified(h.path.Clock.Now(), o, refused) {
	case lease.NotLive:
		h.mu.Unlock()
	case lease.NotOurs:
		h.unlockLose(fault.Without(n))
	default:
		h.unlockPlanned()
	}
}
