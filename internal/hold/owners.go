package hold

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Held is what others than its owner ask about a hold.
type Held struct {
	Owned time.Duration // how long the owner has had it
	Had   time.Duration // how long the process has had the key
	Fresh bool          // see [Hold.Fresh]
	Leads bool          // the owner is a leader
}

// Held returns how the hold stands.
func (h *Hold) Held(now clock.Instant) Held {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held(now)
}

// held is Held for a caller that holds the mutex.
func (h *Hold) held(now clock.Instant) Held {
	return Held{h.had.owned.Until(now), h.had.since.Until(now), h.lease.Fresh(now), h.Leads}
}

// SetTerms gives a hold the terms of the owner to whom it was handed. The lease counts from the next renewal on. SetTerms
// reports false when the hold is lost.
func (h *Hold) SetTerms(t Terms) bool {
	now := h.path.Clock.Now()
	h.mu.Lock()
	if !h.lease.Fresh(now) {
		h.mu.Unlock()
		return false
	}
	h.Leads, h.had.owned = t.Leads, now
	if h.extra().orphans != nil { // the former owner was an orphan, and another goroutine unlocked for it
		h.own().orphans = nil
	}
	h.ask(t)
	h.keep(now)
	h.unlockPlanned(h.lease.SetTerms(t.Lease, t.Renewed, h.bound(now), now))
	return true
}

// HandOff is for an owner that unlocks while others of this process wait. Can: the hold may go to the next one, with the running
// lease, since it is fresh, at least half of its lease is left, and the process has had the key for less than limit. Then the
// owner's contexts have ended. Due: the limit is reached, or less than half of the lease is left, so other processes get their
// turn first.
func (h *Hold) HandOff(limit time.Duration) (can, due bool, running time.Duration) {
	h.mu.Lock()
	now := h.path.Clock.Now()
	may, due := h.lease.MayHandOff(now, h.had.since.Until(now), limit)
	if !may || h.stays || now < h.extra().kept {
		h.mu.Unlock() // End or a loss decides the cause of its contexts
		return false, due, 0
	}
	if !due && !h.nextToken() {
		h.mu.Unlock()
		return false, false, 0
	}
	h.renewing = 0 // the function of a Do that unlocked too often may still run
	h.had.taker = owner.Nobody
	h.lease.RenewAnyway(false)
	h.lease.Handoff()
	ends, running := h.ends.all(), h.lease.Effective(h.lease.Term)
	h.mu.Unlock()
	cancelAll(ends, context.Canceled)
	return !due, due, running
}

// TakenBy notes the goroutine that acquired the hold for a lockregistry.Hold, and returns the owner's token.
func (h *Hold) TakenBy(o owner.ID) (token uint64) {
	goroutine := owner.Calling()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.path.Shared {
		h.had.taker = goroutine
		return h.extra().token
	}
	e := h.own()
	if e.takers == nil {
		e.takers = map[owner.ID]owner.ID{}
	}
	e.takers[o] = goroutine
	return e.token
}

// Taker returns the goroutine that acquired the hold for a lockregistry.Hold; [owner.Nobody] when it is not known.
func (h *Hold) Taker(o owner.ID) owner.ID {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.path.Shared {
		return h.had.taker
	}
	return h.extra().takers[o]
}

// Leave ends the contexts of an owner that unlocks while others still share the hold. It reports whether the hold was valid
// until then.
func (h *Hold) Leave(o owner.ID) bool {
	h.mu.Lock()
	if h.lease.Over() { // meanwhile the others have unlocked, too
		sound := h.lease.Sound()
		h.mu.Unlock()
		return sound
	}
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return false
	}
	ends := h.ends.of(o)
	e := h.extra()
	delete(e.takers, o)
	delete(e.orphans, o) // another goroutine unlocked for it
	h.unlockPlanned(h.lease.Leave(uint64(o), h.path.Clock.Now()))
	cancelAll(ends, context.Canceled)
	return true
}

// Join adds an owner that shares the hold and asks for the lease t. Keeps says that this owner expects the hold to be renewed
// until its end. Ok reports whether the hold is valid. Renew reports whether the hold must be renewed, with the lease that it has
// after Join, before the new owner relies on it; see [lease.State.Join].
func (h *Hold) Join(t *lease.Term, keeps bool) (ok, renew bool) {
	h.mu.Lock()
	now := h.path.Clock.Now()
	if !h.lease.Fresh(now) {
		h.mu.Unlock()
		return false, false
	}
	renew, sooner := h.lease.Join(t, keeps, now)
	h.unlockPlanned(sooner)
	return true, renew
}

// StartRenewing renews the hold until StopRenewing has been called as often, even if its owner has not asked for renewal. It is
// for calls that know when their work ends.
func (h *Hold) StartRenewing() {
	h.mu.Lock()
	h.renewing++
	h.unlockPlanned(h.lease.RenewAnyway(true))
}

// StopRenewing undoes one StartRenewing.
func (h *Hold) StopRenewing() {
	h.mu.Lock()
	h.stopRenewing()
	h.mu.Unlock()
}

// stopRenewing is StopRenewing for a caller that holds the mutex.
func (h *Hold) stopRenewing() {
	if h.renewing > 0 {
		h.renewing--
	}
	h.lease.RenewAnyway(h.renewing > 0)
}

// Nest notes that a call of an owner nests in the hold, and asks for the lease t; nil: for none. See [lease.State.Nest]. The call
// then renews the hold, with the lease that the hold has after Nest.
func (h *Hold) Nest(o owner.ID, t *lease.Term) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lease.Nests(t) {
		h.lease.Nest(t, caller(o))
	}
}

// Unnest notes that a nested call has unlocked. If that call had asked for a longer lease, a renewal soon gives the key the
// longest lease that the remaining calls ask for.
func (h *Hold) Unnest(o owner.ID) {
	h.mu.Lock()
	h.unlockPlanned(h.lease.Nests(nil) && h.lease.Unnest(caller(o), h.path.Clock.Now()))
}

func caller(o owner.ID) lease.Caller {
	return lease.Caller{Owner: uint64(o), Goroutine: uint64(owner.Calling())}
}

// Stay prevents handoff of the hold.
func (h *Hold) Stay() {
	h.mu.Lock()
	h.stays = true
	h.mu.Unlock()
}

// Part is an owner's part of a hold.
type Part struct {
	Hold  *Hold
	Owner owner.ID
}

// Unreachable is called by the garbage collector when the program can no longer reach the part.
func (p Part) Unreachable() { p.Hold.path.Unreachable(func() { p.Hold.Orphan(p.Owner) }) }

// mayBeLeft reports whether the owner has had the hold, which is renewed, for longer than its lease.
func (h *Hold) mayBeLeft() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.path.Clock.Now()
	return h.lease.Renewed && h.lease.Outlasts(now, h.had.owned.Until(now), 1)
}

// Orphan ends the contexts of an owner that will never release its part of the hold, because the part is unreachable or its
// goroutine has ended. Its work may still be running, so the hold goes on for the rest of its lease, or longer if others share
// it. Then it is lost.
//
// If an unreachable owner has contexts, its hold is still renewed until their parents have ended.
func (h *Hold) Orphan(o owner.ID) {
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return
	}
	if h.extra().orphans[o] {
		h.mu.Unlock()
		return
	}
	key := slog.String("key", h.path.Key)
	if o.IsHold() && h.ends.orphan(o) {
		h.mu.Unlock()
		h.path.Log(slog.LevelWarn,
			"a hold was dropped without Release: it is still renewed, since its contexts may be in use", key)
		return
	}
	e := h.own()
	if e.orphans == nil {
		e.orphans = map[owner.ID]bool{}
	}
	e.orphans[o] = true
	if o.IsHold() && h.path.Shared {
		h.stopRenewing()
	}
	ends := h.ends.of(o)
	h.mu.Unlock()
	if o.IsGoroutine() && !h.path.Above.Has(h.value, o) { // another goroutine has unlocked for it
		h.mu.Lock()
		delete(h.extra().orphans, o)
		h.mu.Unlock()
		cancelAll(ends, context.Canceled)
		return
	}
	if o.IsGoroutine() {
		cancelAll(ends, fault.GoroutineGone.Err())
		h.path.Log(slog.LevelWarn, "a goroutine ended without Unlock: the key of its lock stays until the lease ends",
			key, slog.Uint64("goroutine", uint64(o)))
		return
	}
	cancelAll(ends, fault.Unreachable.Err())
	h.path.Log(slog.LevelWarn, "a hold was dropped without Release: its key stays until its lease ends", key)
}

// isOrphan reports whether the owner will never release its part.
func (h *Hold) isOrphan(o owner.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.extra().orphans[o]
}

// RenewalLease returns the lease that renewals set, every third of it; 0 if there are no further renewals.
func (h *Hold) RenewalLease() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.deserted() {
		return 0
	}
	return h.lease.RenewalLease(h.path.Clock.Now())
}

// deserted reports whether no owner will release the hold. The caller holds the mutex.
func (h *Hold) deserted() bool {
	orphans := int64(len(h.extra().orphans))
	return orphans > 0 && orphans >= h.path.Above.Count()
}
