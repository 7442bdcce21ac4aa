package hold

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Hold is this process's possession of a lock's key, from the command that asked for it to its end. What it may believe about
// the key, and the states, are those of its lease.
//
// A Hold takes 160 bytes, which is a size of the allocator. The order of its fields leaves no gap.
type Hold struct {
	path  *Path
	value string // what the key contains: names this very hold
	look  look

	queued clock.Instant // see Queued
	leads  bool          // see Leads

	// The mutex guards the rest.
	awaited bool // another goroutine of this process waits for its end
	stays   bool // it is not handed over
	planned bool // the schedule knows the hold

	mu     sync.Mutex
	upheld uint32 // for how many it is renewed at least, see Uphold
	lease  lease.State
	had    possession
	ends   endings                // the contexts that end with this hold
	extras atomic.Pointer[extras] // nil in most; whether it is may be asked without the mutex
}

// possession is since when a hold is had, and by whom. The hold's mutex guards it.
type possession struct {
	owned clock.Instant // since when its owner has it
	since clock.Instant // since when this process has the key; hand-over does not change it
	taker owner.ID      // the goroutine that has acquired it, if a lockregistry.Hold is the owner
}

// Terms are what an owner asks for.
type Terms struct {
	Lease   *lease.Term
	AtLeast time.Duration // for how long the path stays taken, at least
	AtMost  time.Duration // for how long the hold is had, at most; 0: for as long as it is renewed
	Renewed bool          // the lease is renewed until the hold is over
	Leads   bool          // the owner is a leader
	Quiet   bool          // it is not logged that the hold is had for long: it is of another one that is
}

// New is a hold that is about to be asked for, with a value that no other one has.
func New(p *Path, value string, t Terms) *Hold {
	h := &Hold{path: p, value: value, lease: lease.State{Term: t.Lease, Renewed: t.Renewed}, leads: t.Leads}
	if t.AtLeast > 0 {
		h.own().atLeast = t.AtLeast
	}
	if t.AtMost > 0 || t.Quiet {
		h.own().atMost, h.own().quiet = t.AtMost, t.Quiet
	}
	return h
}

// The following methods take no mutex. They are for the goroutine that obtains the hold, while nobody else knows it, and for the
// one that has ended it. Value, Number and Above are for all.

// Value names the hold: it is what the key contains.
func (h *Hold) Value() string { return h.value }

// Number is the hold's, as text: the end of its value.
func (h *Hold) Number() string { return h.value[h.path.NumberAt:] }

// Above is the path's lock.
func (h *Hold) Above() Above { return h.path.Above }

// Term is the lease that is asked for.
func (h *Hold) Term() *lease.Term { return h.lease.Term }

// Terms are all that is asked for.
func (h *Hold) Terms() Terms {
	e := h.extra()
	return Terms{h.lease.Term, e.atLeast, e.atMost, h.lease.Renewed, h.leads, e.quiet}
}

// MayArrive reports whether a grant may arrive after the end of the call that obtains the hold.
func (h *Hold) MayArrive() bool { return h.lease.MayArrive }

// SetMayArrive notes whether it may.
func (h *Hold) SetMayArrive(may bool) { h.lease.MayArrive = may }

// Leads reports whether the owner is a leader.
func (h *Hold) Leads() bool { return h.leads }

// Queued is when the hold was asked for in the queue of Redis, which all that wait there now have joined later; 0: not known.
func (h *Hold) Queued() clock.Instant { return h.queued }

// SetQueued notes that.
func (h *Hold) SetQueued(at clock.Instant) { h.queued = at }

// Since is since when this process has had the key.
func (h *Hold) Since() clock.Instant { return h.had.since }

// Grant turns asked into live, with the reply that came to a command that was sent at sent. It reports false when the reply
// came too late to be one.
func (h *Hold) Grant(sent, came clock.Instant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.lease.Grant(sent, came) {
		return false
	}
	h.begin(sent, sent, came)
	return true
}

// GrantShort turns asked into live for a hold that another process's release has made the owner, with a lease that counts from
// base; see [lease.State.GrantShort].
func (h *Hold) GrantShort(base clock.Instant, length time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.path.Clock.Now()
	if !h.lease.GrantShort(base, now, length, h.path.roundTrip().Base) {
		return false
	}
	h.begin(base, now, now)
	return true
}

// HadSince notes since when the process has had the key, with holds before this one that it has asked for; 0: since this one. It
// is for the call that obtains the hold.
func (h *Hold) HadSince(at clock.Instant) { h.had.since = at }

// begin notes since when this process has the key, which was granted no sooner than at granted, and its owner the hold. The
// caller holds the mutex.
func (h *Hold) begin(granted, since, now clock.Instant) {
	h.had.owned = now
	if h.had.since == 0 {
		h.had.since = since
	}
	h.keep(now)
	h.lease.Bound(h.bound(granted))
	h.plan()
}

// fresh is Fresh for a caller that holds the mutex.
func (h *Hold) fresh() bool { return h.lease.Fresh(h.path.Clock.Now()) }

// Fresh reports whether the hold is live and its time is not over. It does nothing about it.
func (h *Hold) Fresh() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fresh()
}

// Live reports whether the hold is neither lost nor over.
func (h *Hold) Live() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease.Live()
}

// Valid reports whether the hold is live and its time is not over. When its time is over, the hold is lost from now on.
func (h *Hold) Valid() bool {
	h.mu.Lock()
	if h.fresh() {
		h.mu.Unlock()
		return true
	}
	h.unlockLose(fault.LeaseOver)
	return false
}

// Expired reports whether the lease was over by some time, of a hold that is over, too.
func (h *Hold) Expired(at clock.Instant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease.Left(at) <= 0
}

// Left is for how long the hold can still be relied on. When its time is over, the hold is lost from now on.
func (h *Hold) Left() time.Duration {
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return 0
	}
	left := h.lease.Left(h.path.Clock.Now())
	h.mu.Unlock()
	return left
}

// Lose turns live into lost.
func (h *Hold) Lose(why fault.Loss) {
	h.mu.Lock()
	h.unlockLose(why)
}

// unlockLose turns live into lost, and unlocks the mutex.
func (h *Hold) unlockLose(why fault.Loss) {
	if !h.lease.Lose(why) {
		h.mu.Unlock()
		return
	}
	h.look.watched.Store(false) // before it looks whether somebody waits; see Attend
	awaited, held := h.awaited, h.had.owned.Until(h.path.Clock.Now())
	ends := h.ends.all()
	h.planClear(why)
	h.mu.Unlock()
	cancelAll(ends, why.Err())
	h.path.Log(slog.LevelWarn, "lock lost", slog.String("key", h.path.Key), slog.String("reason", why.String()))
	h.path.Above.Lost(why, held, awaited)
}

// Loss is why the hold was lost.
func (h *Hold) Loss() fault.Loss {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.lease.Why(), fault.Somehow)
}

// Err is the error of a call that finds the hold lost.
func (h *Hold) Err() error { return h.Loss().Err() }

// End turns any state into over: the owner releases the lock. It reports whether the hold was valid until then.
func (h *Hold) End(now clock.Instant) bool {
	h.mu.Lock()
	sound := h.lease.End(now) // those that share it ask, too
	if sound {
		h.unlockEnds(context.Canceled)
	} else {
		h.unlockEnds(h.lease.Why().Err())
	}
	return sound
}

// forsake leaves the hold to its lease, because the registry is closed and nobody would announce its loss any more.
func (h *Hold) forsake() {
	h.mu.Lock()
	h.unlockEnds(fault.Closed)
}

// unlockEnds stops watching over the hold and cancels its contexts. It unlocks the mutex before it does.
func (h *Hold) unlockEnds(cause error) {
	ends := h.ends.all()
	if h.planned {
		h.planned = false
		h.path.Schedule.drop(h)
	}
	h.mu.Unlock()
	cancelAll(ends, cause)
}

// Held is for how long the owner has had the hold, and the process the key; fresh reports whether they still have.
func (h *Hold) Held(now clock.Instant) (owned, had time.Duration, fresh bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.had.owned.Until(now), h.had.since.Until(now), h.lease.Fresh(now)
}

// Remains are what may be left of a hold in Redis.
type Remains struct {
	Value   string
	Longest time.Duration // the longest lease that the hold has had
	Term    time.Duration // the lease that was asked for last
	Kept    clock.Instant // the path is to stay taken until then; 0: it is not
}

// Remains are what may be left of the hold.
func (h *Hold) Remains() Remains {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.remains()
}

// remains is Remains for a caller that holds the mutex.
func (h *Hold) remains() Remains {
	return Remains{h.value, h.lease.Longest(), h.lease.Term.Length, h.extra().kept}
}

// planClear has the scheduler look at a lost hold once more, to remove its key, unless Redis has said that it is gone: nobody
// knows when the owner releases the hold.
func (h *Hold) planClear(why fault.Loss) {
	if why.KeepsKey() {
		late := h.path.roundTrip().Late(h.lease.Longest())
		h.planned = h.path.Schedule.set(h, h.lease.PlanRemoval(late, h.extra().kept))
	} else if h.planned {
		h.planned = false
		h.path.Schedule.drop(h)
	}
}

// clear has the key of a lost hold removed in the background, when it is time. The owner that releases the hold has that done as
// well; the first of the two that is confirmed is enough, since a renewal that arrives later finds no key. The caller holds the
// mutex: so this comes before the end of the hold, and before whatever a later hold leaves.
func (h *Hold) clear() {
	if !h.lease.Remove(h.path.Clock.Now()) { // it was due before, as a live one
		return
	}
	h.planned = false
	h.path.Above.Clear(h.remains())
}
