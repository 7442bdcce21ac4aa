package hold

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// renew returns the command that renews a hold.
func (p *Path) renew(value string, t *lease.Term) protocol.Call {
	c := p.Format.Renew(p.Key, value, t)
	p.Demand(&c)
	return c
}

// Renew renews the lease and waits for the reply as w says: with t, which the owner chooses, or, if t is nil, with its current
// term. After a late reply the error is [fault.Late], and the lease is not prolonged. With t the error is [fault.NotOwner] when
// the owner has left, or has released the hold before the reply came; if the owner is nobody, any caller may choose.
func (p Part) Renew(w *transport.Wait, t *lease.Term) error {
	h, ctx, chooses := p.Hold, w.Ctx, t != nil
	stopped := ctx.Err() != nil // not under the mutex: a context may be of any type
	has, alone := p.lock(chooses)
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return fault.WithEnd(ctx, h.RenewErr(chooses))
	}
	if !has {
		h.mu.Unlock()
		return fault.NotOwner
	}
	if stopped {
		h.mu.Unlock()
		return fault.Ended(ctx)
	}
	now, chosen := h.path.Clock.Now(), chooses
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
	r.Chosen = chosen && r.Term == t // otherwise AtMost has shortened it: the term stays for renewals
	h.unlockPlanned(true)

	c := h.path.renew(h.value, r.Term)
	w.Lease = r.Term.Length
	reply := h.path.Server.Do(w, &c)
	n, err := reply.Confirmed()
	err = h.answered(r, n, err, reply.Late)
	switch {
	case errors.Is(err, fault.Lost):
		return fault.WithEnd(ctx, h.RenewErr(chooses))
	case reply.Cut:
		return fault.Join(fault.Ended(ctx), fault.AsUnavailable(fault.NoAnswer))
	default:
		return fault.Classify(err)
	}
}

// lock locks the mutex. For a call that chooses a lease, lock reports whether the owner has the live hold, and whether no other
// owner shares it.
//
// Another goroutine of the owner may unlock at any time, and the hold may go on for others, whose lease the call must not
// change. Only the local half knows which owners have the hold, and it must not be asked with the mutex held. So it is asked
// first, and the generation of the lease shows whether its answer is stale:
//
//	this call                   Generation    Has               Generation has changed: again
//	another goroutine of its owner                     Exit
//	the hold's mutex                                           Handoff, Leave or Join
//
// If the generation is the same, no owner that gets the hold after the answer relies on it yet:
//
//   - If Handoff is still to come, it forgets the lease that is chosen now.
//   - If Join is still to come, it sees that lease.
//   - If Leave is still to come, the owner has left the local half, but not the hold. It chooses as it could just before, and
//     shortens only what it had alone, so no other owner is left with less.
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
	h.unlockPlanned(true)
	return err
}

// about is what a task needs to know about a hold: what its command names, and where the outcome goes. A task is made with the
// hold's mutex held, and is sent without it.
type about struct {
	path  *Path
	value string
	hold  replied
}

// replied is a hold, as its tasks see it.
type replied interface {
	Live() bool
	renewed(r lease.Renewal, a transport.Reply, n int64, err error)
	verified(n int64, err error, late bool)
}

func (h *Hold) about() about { return about{h.path, h.value, h} }

// Wanted: a hold that is lost or over is not renewed. The owner may unlock just when a renewal is sent. That is harmless, since
// the renewal names the hold's value:
//
//   - Executed before the removal, the renewal does not keep the removal from removing the key.
//   - Executed after it, the renewal finds no key, or another hold's.
//
// Until a removal is confirmed, a renewal may prolong the key, but the removal is repeated until then.
func (a about) Wanted() bool { return a.hold.Live() }

// renewal is a task that renews a hold.
type renewal struct {
	about
	lease.Renewal
}

func (r renewal) Call() protocol.Call { return r.path.renew(r.value, r.Term) }

func (r renewal) Length() time.Duration { return r.Term.Length }

func (r renewal) Writes() bool { return true }

func (r renewal) Done(a transport.Reply, n int64, err error) {
	r.Sent = a.Sent
	r.hold.renewed(r.Renewal, a, n, err)
}

// renewed handles the reply to a renewal in the background: a failure is retried, and a loss announced, by the hold itself.
func (h *Hold) renewed(r lease.Renewal, a transport.Reply, n int64, err error) {
	_ = h.answered(r, n, err, a.Late)
	h.sayLong(a.Came)
}

// verification is a task that asks whether a hold still has its key.
type verification struct {
	about
	length time.Duration // of the lease when it was made: the owner may change that meanwhile
}

func (v verification) Call() protocol.Call { return v.path.Format.Holds(v.path.Key, v.value) }

func (v verification) Length() time.Duration { return v.length }

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
		h.unlockPlanned(true)
	}
}

// longLeases is the number of leases after which sayLong logs a hold.
const longLeases = 10

// sayLong logs that a renewed hold has been held for a long time, once for each owner.
func (h *Hold) sayLong(now clock.Instant) {
	h.mu.Lock()
	held := h.had.owned.Until(now)
	says := !h.Leads && !h.extra().unlogged && h.lease.Outlasts(now, held, longLeases)
	if says {
		h.own().unlogged = true
	}
	h.mu.Unlock()
	if says {
		h.path.Log(slog.LevelWarn, "a lock has been held for a long time", slog.String("key", h.path.Key), slog.Duration("held", held))
	}
}
