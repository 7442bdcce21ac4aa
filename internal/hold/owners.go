package hold

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Adopt makes a hold that was handed to another owner what that one asked for: of this length from the next renewal on,
// renewed or not, kept, and a leader's or not. It reports false when the hold was lost on the way.
func (h *Hold) Adopt(t Terms) bool {
	now := h.path.Clock.Now()
	h.mu.Lock()
	if !h.lease.Fresh(now) {
		h.mu.Unlock()
		return false
	}
	h.leads, h.had.owned = t.Leads, now
	if h.extra().stranded != nil { // the owner before was, and yet another goroutine has unlocked for it
		h.own().stranded = nil
	}
	if h.extra().atLeast != t.AtLeast {
		h.own().atLeast = t.AtLeast
	}
	if e := h.extra(); e.atMost != t.AtMost || e.quiet != t.Quiet {
		h.own().atMost, h.own().quiet = t.AtMost, t.Quiet
	}
	h.keep(now)
	if h.lease.Adopt(t.Lease, t.Renewed, h.bound(now), now) {
		h.unlockPlanned()
	} else {
		h.mu.Unlock()
	}
	return true
}

// Relinquish ends what the owner that leaves has of the hold, which may go to another owner of this process: its contexts.
// It tells whether it may go on: it is fresh, with at least half of its lease left, and the process has had the key for
// less than limit; and what its lease is then. Due tells that the process has had it long enough, so that others must have
// their chance before its own next waiter.
func (h *Hold) Relinquish(limit time.Duration) (can, due bool, running time.Duration) {
	h.mu.Lock()
	now := h.path.Clock.Now()
	half := h.lease.Half(now)
	due = h.had.since.Until(now) >= limit || half // mutant: handed on without end
	if !h.lease.Fresh(now) || half || h.stays || now < h.extra().kept {
		h.mu.Unlock() // its end is near, and decides the cause of its contexts
		return false, due, 0
	}
	if !due && !h.nextToken() {
		h.mu.Unlock()
		return false, false, 0
	}
	h.upheld = 0 // a function that has unlocked too often runs on
	h.lease.Uphold(false)
	ends, running := h.ends.all(), h.lease.Effective(h.lease.Term)
	h.mu.Unlock()
	cancelAll(ends, context.Canceled)
	return !due, due, running
}

// TakenBy notes the goroutine that has acquired the hold for a lockregistry.Hold, and returns the owner's token.
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

// Taker is the goroutine that has acquired the hold for a lockregistry.Hold; nobody when that is not known.
func (h *Hold) Taker(o owner.ID) owner.ID {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.path.Shared {
		return h.had.taker
	}
	return h.extra().takers[o]
}

// Running is the lease that counts from the next renewal on: no new owner of the hold can have asked for a longer one.
func (h *Hold) Running() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease.Effective(h.lease.Term)
}

// Dismiss ends the contexts of an owner that leaves while others stay. It reports whether the hold was valid until then.
func (h *Hold) Dismiss(o owner.ID) bool {
	h.mu.Lock()
	if h.lease.Over() { // the others have left as well, in the meantime
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
	delete(e.stranded, o) // another goroutine has unlocked for it
	h.mu.Unlock()
	cancelAll(ends, context.Canceled)
	return true
}

// Shares tells whether one more owner may share the hold now, and whether it must be renewed first so that at least nine
// tenths of the lease that the owner asks for are left.
func (h *Hold) Shares(asked time.Duration) (ok, renew bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.path.Clock.Now()
	return h.lease.Fresh(now), h.lease.Shares(asked, now)
}

// KeepRenewed has the hold renewed from now on: an owner that shares it expects that. It reports whether the hold must be
// renewed at once, because it was not so far, the renewals are behind, or its lease is shorter than the one asked for.
func (h *Hold) KeepRenewed(asked time.Duration) (atOnce bool) {
	h.mu.Lock()
	now := h.path.Clock.Now()
	if h.lease.Keep(now) {
		h.unlockPlanned()
		return true
	}
	atOnce = h.lease.Behind(asked, now)
	h.mu.Unlock()
	return atOnce
}

// Uphold has the hold renewed until Unuphold is called as often, also where its owner has not asked for that: for those who know
// when their work ends.
func (h *Hold) Uphold() {
	h.mu.Lock()
	h.upheld++
	if h.lease.Uphold(true) {
		h.unlockPlanned()
		return
	}
	h.mu.Unlock()
}

// Unuphold undoes an Uphold.
func (h *Hold) Unuphold() {
	h.mu.Lock()
	h.unuphold()
	h.mu.Unlock()
}

// unuphold is Unuphold for a caller that holds the mutex.
func (h *Hold) unuphold() {
	if h.upheld > 0 {
		h.upheld--
	}
	h.lease.Uphold(h.upheld > 0)
}

// Stay sees to it that the hold is not handed over.
func (h *Hold) Stay() {
	h.mu.Lock()
	h.stays = true
	h.mu.Unlock()
}

// Forget ends the contexts of an owner that is no longer one.
func (h *Hold) Forget(o owner.ID) {
	h.mu.Lock()
	ends := h.ends.of(o)
	h.mu.Unlock()
	cancelAll(ends, context.Canceled)
}

// Part is what an owner has of a hold.
type Part struct {
	Hold  *Hold
	Owner owner.ID
}

// Unreachable tells that nobody can reach it, for the garbage collector.
func (p Part) Unreachable() { p.Hold.path.Unreachable(p) }

// mayBeLeft tells whether the owner has had the hold, which is renewed, for longer than its lease.
func (h *Hold) mayBeLeft() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.path.Clock.Now()
	return h.lease.Renewed && h.lease.Fresh(now) && h.had.owned.Until(now) >= h.lease.Term.Length
}

// Strand is for an owner that will never release its part of the hold, because nobody can reach it, or since its goroutine has
// ended: its contexts end. Its work may still be running, so the hold goes on for as long as its lease, or longer if others
// share it; then it is lost.
func (h *Hold) Strand(o owner.ID) {
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return
	}
	if h.extra().stranded[o] || o.IsHold() && h.ends.listened(o) {
		h.mu.Unlock()
		return
	}
	e := h.own()
	if e.stranded == nil {
		e.stranded = map[owner.ID]bool{}
	}
	e.stranded[o] = true
	if o.IsHold() && h.path.Shared {
		h.unuphold()
	}
	ends := h.ends.of(o)
	h.mu.Unlock()
	if o.IsGoroutine() && !h.path.Above.Has(h, o) { // another one has unlocked for it meanwhile
		h.mu.Lock()
		delete(h.extra().stranded, o)
		h.mu.Unlock()
		cancelAll(ends, context.Canceled)
		return
	}
	key := slog.String("key", h.path.Key)
	if o.IsGoroutine() {
		cancelAll(ends, fault.GoroutineGone.Err())
		h.path.Log(slog.LevelWarn, "a goroutine has ended without Unlock: the key of its lock is left to its lease",
			key, slog.Uint64("goroutine", uint64(o)))
		return
	}
	cancelAll(ends, fault.Unreachable.Err())
	h.path.Log(slog.LevelWarn, "a hold was not released, and nobody can reach it: its key is left to its lease", key)
}

// isStranded reports whether the owner will never release its part.
func (h *Hold) isStranded(o owner.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.extra().stranded[o]
}

// Upheld is the lease that renewals set each third of it; 0 when there is none to come.
func (h *Hold) Upheld() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.deserted() {
		return 0
	}
	return h.lease.Upheld(h.path.Clock.Now())
}

// deserted reports whether no owner will release the hold. The caller holds the mutex.
func (h *Hold) deserted() bool {
	stranded := int64(len(h.extra().stranded))
	return stranded > 0 && stranded >= h.path.Above.Count()
}
