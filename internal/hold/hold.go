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

// Hold is this process's possession of a lock's key, from the command that asked for it to its end. Its states, and what it may
// believe about the key, come from its lease.
//
// A Hold takes 160 bytes, which is one of the allocator's size classes. The order of its fields leaves no gap.
type Hold struct {
	path   *Path
	value  string // what the key contains; unique to this hold
	timing timing

	// The goroutine that obtains the hold, or has ended it, uses these two without the mutex.
	Queued bool // it comes from the queue, in which others may wait
	Leads  bool // the owner is a leader

	// The mutex guards the rest.
	awaited bool // another goroutine of this process waits for its end
	stays   bool // it is not handed off
	planned bool // the schedule knows the hold

	mu       sync.Mutex
	renewing uint32 // how many calls of StartRenewing have not been undone
	lease    lease.State
	had      possession
	ends     endings                // the contexts that end with this hold
	extras   atomic.Pointer[extras] // nil in most; may be compared with nil without the mutex
}

// possession says who has a hold, and since when. The hold's mutex guards it.
type possession struct {
	owned clock.Instant // when its owner got it
	since clock.Instant // when this process got the key; handoff does not change it
	taker owner.ID      // the goroutine that has acquired it, if a lockregistry.Hold is the owner
}

// Terms are what an owner asks for.
type Terms struct {
	Lease    *lease.Term
	AtLeast  time.Duration // for how long the path stays taken, at least
	AtMost   time.Duration // for how long an owner has the hold, at most; 0: as long as it is renewed
	Renewed  bool          // the lease is renewed until the hold is over
	Leads    bool          // the owner is a leader
	Unlogged bool          // a long hold is not logged: another hold of the same call logs it
}

// New makes a hold that is about to be asked for. No other hold may have its value.
func New(p *Path, value string, t Terms) *Hold {
	h := &Hold{path: p, value: value, lease: lease.State{Term: t.Lease, Renewed: t.Renewed}, Leads: t.Leads}
	if t.AtLeast > 0 || t.AtMost > 0 || t.Unlogged { // few
		h.ask(t)
	}
	return h
}

// The following methods take no mutex. They are for the goroutine that obtains the hold, before others know it, and for the
// goroutine that has ended it. Any goroutine may call Value, Number and Above.

// Value returns the hold's name, which the key contains.
func (h *Hold) Value() string { return h.value }

// Number returns the hold's number: the end of its value.
func (h *Hold) Number() string { return h.value[h.path.NumberAt:] }

// Above returns the path's lock.
func (h *Hold) Above() Above { return h.path.Above }

// Term returns the lease that is asked for.
func (h *Hold) Term() *lease.Term { return h.lease.Term }

// Terms returns all that is asked for.
func (h *Hold) Terms() Terms {
	e := h.extra()
	return Terms{h.lease.Term, e.atLeast, e.atMost, h.lease.Renewed, h.Leads, e.unlogged}
}

// MayArrive reports whether a grant may arrive after the end of the call that obtains the hold.
func (h *Hold) MayArrive() bool { return h.lease.MayArrive }

// SetMayArrive sets what MayArrive returns.
func (h *Hold) SetMayArrive(may bool) { h.lease.MayArrive = may }

// Since returns when this process got the key.
func (h *Hold) Since() clock.Instant { return h.had.since }

// Grant turns asked into live, with the reply to the command that asks: it was sent at sent and answered at came. Grant reports
// false when the reply came after the lease had ended.
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
	if !h.lease.GrantShort(base, now, length, h.path.Server.RoundTrip(h.path.Key).Base) {
		return false
	}
	h.begin(base, now, now)
	return true
}

// begin notes when the owner got the hold (now), when this process got the key (since), and the earliest time of the grant
// (granted), from which a bound counts. The caller holds the mutex.
func (h *Hold) begin(granted, since, now clock.Instant) {
	h.had.since, h.had.owned = since, now
	if h.extras.Load() != nil { // otherwise it has neither AtLeast nor AtMost
		h.keep(now)
		h.lease.Bound(h.bound(granted))
	}
	h.plan()
}

// bound returns until when AtMost lets the key live, for an owner that got the hold at since; 0: as long as it is renewed. The
// caller holds the mutex.
func (h *Hold) bound(since clock.Instant) clock.Instant {
	if most := h.extra().atMost; most > 0 {
		return since.Add(most)
	}
	return 0
}

// fresh is Fresh for a caller that holds the mutex.
func (h *Hold) fresh() bool { return h.lease.Fresh(h.path.Clock.Now()) }

// Fresh reports whether there is a hold, it is live, and its time is not over. It changes nothing.
func (h *Hold) Fresh() bool {
	if h == nil {
		return false
	}
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

// Valid reports whether the hold is live and its time is not over. If its time is over, Valid makes the hold lost.
func (h *Hold) Valid() bool {
	h.mu.Lock()
	if h.fresh() {
		h.mu.Unlock()
		return true
	}
	h.unlockLose(fault.LeaseOver)
	return false
}

// Expired reports whether the lease had ended at a time, also for a hold that is over.
func (h *Hold) Expired(at clock.Instant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease.Left(at) <= 0
}

// Unverified reports whether the server may no longer be the one that granted the hold, and has not confirmed it since, also for
// a hold that is over.
func (h *Hold) Unverified() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease.Unverified()
}

// Left returns how long the hold stays valid. If its time is over, Left makes the hold lost.
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
	h.unlockLost()()
}

// unlockLost is for a hold that has just become lost. It unlocks the mutex, and ends the contexts. The caller then calls tell,
// which informs the log and the lock.
func (h *Hold) unlockLost() (tell func()) {
	h.timing.watched.Store(false) // before Lost looks for waiters, see Attend
	awaited, held, why := h.awaited, h.held(h.path.Clock.Now()), h.lease.Why()
	ends := h.ends.all()
	h.planClear(why)
	h.mu.Unlock()
	cancelAll(ends, why.Err())
	return func() {
		h.path.Log(slog.LevelWarn, "lock lost", slog.String("key", h.path.Key), slog.String("reason", why.String()))
		h.path.Above.Lost(why, held, awaited)
	}
}

// lookAt checks the lease for a context of the hold. It returns why the context must have ended; nil if the hold is valid.
//
// The caller may hold any mutex of the program or of the Redis client: the client's pool asks contexts under its own mutex. So
// lookAt waits only for the hold's mutex, under which only the schedule's is taken, and a separate goroutine informs the log and
// the lock. As with any loss, that also finds a waiter that has queued in the meantime.
func (h *Hold) lookAt(now clock.Instant) (cause error) {
	h.mu.Lock()
	valid, ended := h.lease.Look(now)
	if valid {
		h.mu.Unlock()
		return nil
	}
	if cause = max(h.lease.Why(), fault.Somehow).Err(); h.lease.Over() && h.lease.Sound() {
		cause = context.Canceled
	}
	if ended {
		tell := h.unlockLost()
		go tell()
	} else { // another goroutine may be about to end its contexts
		h.mu.Unlock()
	}
	return cause
}

// Loss returns why the hold was lost.
func (h *Hold) Loss() fault.Loss {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.lease.Why(), fault.Somehow)
}

// Err returns the error of a call that finds the hold lost.
func (h *Hold) Err() error { return h.Loss().Err() }

// RenewErr returns the error of a renewal that finds the hold lost or over. If its owner has released a valid hold, nothing was
// lost: a call that chooses a lease gets [fault.NotOwner]. A nested call, which does not choose, has been left without its hold.
func (h *Hold) RenewErr(chooses bool) error {
	h.mu.Lock()
	released := h.lease.Over() && h.lease.Sound()
	h.mu.Unlock()
	if chooses && released {
		return fault.NotOwner
	}
	return h.Err()
}

// End turns any state into over: the owner releases the lock. Sound: the hold was valid until then. Noticed: its time was over,
// and End is the first to see that, so its loss has not been reported yet.
func (h *Hold) End(now clock.Instant) (sound, noticed bool) {
	h.mu.Lock()
	sound, noticed = h.lease.End(now) // the state is kept: others that share the hold ask for it
	if sound {
		h.unlockEnds(context.Canceled)
	} else {
		h.unlockEnds(h.lease.Why().Err())
	}
	return sound, noticed
}

// endContexts ends the contexts and leaves the hold to its lease: the registry is closed, so a loss could not be reported.
func (h *Hold) endContexts() {
	h.mu.Lock()
	h.unlockEnds(fault.Closed)
}

// unlockEnds takes the hold out of the schedule, unlocks the mutex, and cancels the contexts.
func (h *Hold) unlockEnds(cause error) {
	if h.planned {
		h.planned = false
		h.path.Schedule.drop(h)
	}
	if len(h.ends) == 0 {
		h.mu.Unlock()
		return
	}
	ends := h.ends.all()
	h.mu.Unlock()
	cancelAll(ends, cause)
}

// Lasts returns how long the key may still be in Redis if the process dies now: the rest of the lease, or a whole lease if the
// hold is renewed, since a renewal may just have been sent.
func (h *Hold) Lasts(now clock.Instant) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.lease.Left(now), h.lease.RenewalLease(now)) + lease.Margin(h.lease.Longest())
}

// Remains describes what may be left of a hold in Redis.
type Remains struct {
	Value   string
	Longest time.Duration // the longest lease that the key can have
	Term    time.Duration // the lease that was asked for last
	Kept    clock.Instant // AtLeast keeps the path until then; 0: it does not
}

// Remains returns what may be left of the hold in Redis.
func (h *Hold) Remains() Remains {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.remains()
}

// remains is Remains for a caller that holds the mutex.
func (h *Hold) remains() Remains {
	return Remains{h.value, h.lease.Longest(), h.lease.Term.Length, h.extra().kept}
}

// planClear schedules the removal of a lost hold's key, since the owner may release the hold late or never. If Redis has said
// that the key is gone, it schedules nothing.
func (h *Hold) planClear(why fault.Loss) {
	if why.KeepsKey() {
		late := h.path.Server.RoundTrip(h.path.Key).Late(h.lease.Longest())
		h.planned = h.path.Schedule.set(h, h.lease.PlanRemoval(late, h.extra().kept))
	} else if h.planned {
		h.planned = false
		h.path.Schedule.drop(h)
	}
}

// clear removes the key of a lost hold in the background, when it is time. The owner's release removes the key, too. Either is
// enough, since a renewal that arrives later finds no key. The caller holds the mutex, so this comes before the end of the hold,
// and before removals of later holds.
func (h *Hold) clear() {
	if !h.lease.Remove(h.path.Clock.Now()) { // the hold was due while it was live
		return
	}
	h.planned = false
	h.path.Above.Clear(h.remains())
}

// extras has the fields that few holds need. The hold's mutex guards it.
type extras struct {
	kept       clock.Instant         // AtLeast keeps the path until then; 0: it does not
	atLeast    time.Duration         // see Terms
	found      clock.Instant         // until then the grant's message may come although the hold is live
	token      uint64                // the owner's fencing token; 0: it has none
	tokensLeft int32                 // how many tokens are left for owners to whom the hold is handed
	unlogged   bool                  // a long hold is not logged, or was logged; see Terms
	atMost     time.Duration         // see Terms
	takers     map[owner.ID]owner.ID // of a reader's hold: the goroutines that acquired it, by Hold
	orphans    map[owner.ID]bool     // owners that will never release it, see Orphan
}

// extra returns the extras for reading. The caller holds the mutex.
func (h *Hold) extra() extras {
	if e := h.extras.Load(); e != nil {
		return *e
	}
	return extras{}
}

// own returns the extras for writing. The caller holds the mutex, or is the only one that knows the hold.
func (h *Hold) own() *extras {
	e := h.extras.Load()
	if e == nil {
		e = &extras{}
		h.extras.Store(e)
	}
	return e
}

// ask notes what an owner asks for besides its lease.
func (h *Hold) ask(t Terms) {
	if e := h.extra(); e.atLeast != t.AtLeast || e.atMost != t.AtMost || e.unlogged != t.Unlogged {
		e := h.own()
		e.atLeast, e.atMost, e.unlogged = t.AtLeast, t.AtMost, t.Unlogged
	}
}

// keep sets until when AtLeast keeps the path, for an owner that has obtained the hold now.
func (h *Hold) keep(now clock.Instant) {
	switch e := h.extra(); {
	case e.atLeast > 0:
		h.own().kept = now.Add(e.atLeast)
	case e.kept != 0: // the former owner's
		h.own().kept = 0
	}
}

// Unkeep drops AtLeast: the path is free when the hold is over.
func (h *Hold) Unkeep() {
	h.mu.Lock()
	if e := h.extras.Load(); e != nil {
		e.atLeast, e.kept = 0, 0
	}
	h.mu.Unlock()
}

// Keeps returns until when AtLeast keeps the path, and until when the grant's message may come; 0 for neither.
func (h *Hold) Keeps() (kept, found clock.Instant) {
	if h.extras.Load() == nil { // both are set before the owner has the hold, if at all
		return 0, 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.extra()
	return e.kept, e.found
}

// AwaitMessage notes that a look has found a grant whose message may still come, until then.
func (h *Hold) AwaitMessage(until clock.Instant) {
	h.mu.Lock()
	h.own().found = until
	h.mu.Unlock()
}

// GrantAgain handles the message of a grant for a live hold. If a look has found that grant before, the message is late, and
// nothing happens. Otherwise a new master has granted the hold again, with a lease that this process does not know: the hold is
// lost.
func (h *Hold) GrantAgain() {
	h.mu.Lock()
	if e := h.extras.Load(); e != nil {
		until := e.found
		e.found = 0
		if h.path.Clock.Now() < until {
			h.mu.Unlock()
			return
		}
	}
	h.unlockLose(fault.GrantedTwice)
}

// tokensDrawn is how many tokens the scripts draw at a time. It is so small that the counter does not overtake the clock, which
// counts microseconds, at up to 10 000 draws a second, the most for one path.
const tokensDrawn = 100

// Draw gives the hold its tokens, beginning with first. Only the call that obtains the hold knows it yet.
func (h *Hold) Draw(first uint64) {
	if h.path.Format.Fencing {
		e := h.own() // mutant: tokens used up
		e.token, e.tokensLeft = first, tokensDrawn-1
	}
}

// Token returns the owner's token; 0 if it has none.
func (h *Hold) Token() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.extra().token
}

// nextToken gives the next token to the next owner. It reports false when none is left. The caller holds the mutex.
func (h *Hold) nextToken() bool {
	if !h.path.Format.Fencing {
		return true
	}
	if h.extra().tokensLeft == 0 {
		return false
	}
	e := h.own()
	e.token++ // mutant: same token
	e.tokensLeft--
	return true
}
