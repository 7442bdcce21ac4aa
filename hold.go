package lockregistry

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

// hold is this process's possession of a lock's key, from the command that asked for it to its end. What it may believe about
// the key, and the states, are those of its lease.
type hold struct {
	path  *holdPath
	value string // what the key contains: names this very hold

	inLine clock.Instant // when it was asked for in the queue, which others in there now have joined later; 0: that is not known
	waited uint32        // for how many milliseconds its call waited in the queue, at least; written as lease.Late is
	leads  bool          // it is a leader's: renewed, and its release leaves no long window; written before its owner has it

	// The mutex guards the rest.
	awaited bool          // another goroutine of this process waits for its end
	stays   bool          // it is not handed over
	planned bool          // the scheduler knows the hold
	watched atomic.Bool   // it is live, and the scheduler looks at it for those that wait
	place   int32         // among the holds that are due; guarded by their mutex,
	due     clock.Instant // as is when the scheduler looks at the hold

	mu     sync.Mutex
	lease  lease.State
	owner  clock.Instant          // since when its owner has it
	since  clock.Instant          // when this process got the key; hand-over does not change it
	taker  owner.ID               // the goroutine that has acquired it, if a Hold is the owner
	ends   endings                // the contexts that end with this hold
	extras atomic.Pointer[extras] // nil in most; whether it is may be asked without the mutex
}

// extras is what few holds have. The hold's mutex guards it.
type extras struct {
	kept     clock.Instant         // the path is to stay taken until then; 0 when it is not
	atLeast  time.Duration         // see [AtLeast]
	found    clock.Instant         // until when the message of the grant may come although the hold is live
	token    uint64                // the owner's fencing token; 0: it has none
	spare    int32                 // how many more of them there are, for the owners to which the hold is handed
	takers   map[owner.ID]owner.ID // of a reader's: the goroutines that have acquired it, by Hold
	stranded map[owner.ID]bool     // its owners that will never release it, see strand
}

// extra is what a hold has of that, to be read. The caller holds the mutex.
func (h *hold) extra() extras {
	if e := h.extras.Load(); e != nil {
		return *e
	}
	return extras{}
}

// own is the same, to be changed. The caller holds the mutex, or nobody else knows the hold yet.
func (h *hold) own() *extras {
	e := h.extras.Load()
	if e == nil {
		e = &extras{}
		h.extras.Store(e)
	}
	return e
}

// grant makes the hold live, with the answer that came to a command that was sent at sent. It reports false when the
// answer came too late to be one.
func (h *hold) grant(sent, came clock.Instant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.lease.Grant(sent, came) {
		return false
	}
	h.begin(sent, came)
	return true
}

// grantShort makes a hold live that another process's release has made the owner, with a lease that counts from base; see
// [lease.State.GrantShort].
func (h *hold) grantShort(base clock.Instant, length time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.path.clock.Now()
	if !h.lease.GrantShort(base, now, length, h.path.shard().RoundTrip().Base) {
		return false
	}
	h.begin(now, now)
	return true
}

// begin notes since when the process has the key, and its owner the hold. The caller holds the mutex.
func (h *hold) begin(since, now clock.Instant) {
	h.since, h.owner = since, now
	h.keep(now)
	h.plan()
}

// wanted is for how long the hold had the key, and its call waited for it before.
func (h *hold) wanted(now clock.Instant) time.Duration {
	return h.since.Until(now) + time.Duration(h.waited)*time.Millisecond
}

// keep notes until when the path is to stay taken for an owner that has obtained it now.
func (h *hold) keep(now clock.Instant) {
	switch e := h.extra(); {
	case e.atLeast > 0:
		h.own().kept = now.Add(e.atLeast)
	case e.kept != 0: // by the owner before
		h.own().kept = 0
	}
}

// unkeep has the path free when the hold is over.
func (h *hold) unkeep() {
	h.mu.Lock()
	if e := h.extras.Load(); e != nil {
		e.atLeast, e.kept = 0, 0
	}
	h.mu.Unlock()
}

// awaitMessage notes until when the message of the hold's grant may come, which a look has found before.
func (h *hold) awaitMessage(until clock.Instant) {
	h.mu.Lock()
	h.own().found = until
	h.mu.Unlock()
}

// regranted is for a grant that arrives for a live hold. Unless it is the one that a look has found before, another server,
// which is the master now, has granted the hold once more, with a lease that this process does not know.
func (h *hold) regranted() {
	h.mu.Lock()
	if e := h.extras.Load(); e != nil {
		until := e.found
		e.found = 0
		if h.path.clock.Now() < until {
			h.mu.Unlock()
			return
		}
	}
	h.unlockLose(fault.GrantedTwice)
}

// fresh tells whether the hold is live and its time is not over. The caller holds the mutex.
func (h *hold) fresh() bool { return h.lease.Fresh(h.path.clock.Now()) }

// goesOn tells whether the hold is neither lost nor over.
func (h *hold) goesOn() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease.Live()
}

// valid tells whether the hold is live and its time is not over. When the time is over, it is lost from now on.
func (h *hold) valid() bool {
	h.mu.Lock()
	if h.fresh() {
		h.mu.Unlock()
		return true
	}
	h.unlockLose(fault.LeaseOver)
	return false
}

// unlockLose turns live into lost, and unlocks the mutex.
func (h *hold) unlockLose(why fault.Loss) {
	if !h.lease.Lose(why) {
		h.mu.Unlock()
		return
	}
	h.watched.Store(false) // before it looks whether somebody waits; see attend
	awaited, held := h.awaited, h.owner.Until(h.path.clock.Now())
	ends := h.ends.all()
	h.planClear(why)
	h.mu.Unlock()
	cancelAll(ends, why.Err())
	h.path.log(slog.LevelWarn, "lock lost", slog.String("key", h.path.key), slog.String("reason", why.String()))
	h.path.above.Lost(h, why, held, awaited)
}

// planClear has the scheduler look at a lost hold once more, to remove its key, unless Redis has said that it is gone: nobody
// knows when the owner releases the hold.
func (h *hold) planClear(why fault.Loss) {
	if why.KeepsKey() {
		late := h.path.shard().RoundTrip().Late(h.lease.Longest())
		h.planned = h.path.due.set(h, h.lease.PlanRemoval(late, h.extra().kept))
	} else if h.planned {
		h.planned = false
		h.path.due.drop(h)
	}
}

// clear has the key of a lost hold removed in the background, when it is time. The owner that releases the hold has that done as
// well; the first of the two that is confirmed is enough, since a renewal that arrives later finds no key. The caller holds the
// mutex: so this comes before the end of the hold, and before whatever a later hold leaves.
func (h *hold) clear() {
	if !h.lease.Remove(h.path.clock.Now()) { // it was due before, as a live one
		return
	}
	h.planned = false
	h.path.above.Clear(h)
}

// end turns any state into over: the owner releases the lock. It reports whether the hold was valid until then.
func (h *hold) end(now clock.Instant) bool {
	h.mu.Lock()
	sound := h.lease.End(now) // those that share it ask, too
	if sound {
		h.unlockEnds(context.Canceled)
	} else {
		h.unlockEnds(h.lease.Why().Err())
	}
	return sound
}

// lossOf is why the hold was lost.
func (h *hold) lossOf() fault.Loss {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.lease.Why(), fault.Somehow)
}

// adopt makes a hold that was handed to another owner what that one asked for: of this length from the next renewal on,
// renewed or not, kept, and a leader's or not. It reports false when the hold was lost on the way.
func (h *hold) adopt(t *lease.Term, atLeast time.Duration, renewed, leads bool) bool {
	now := h.path.clock.Now()
	h.mu.Lock()
	if !h.lease.Fresh(now) {
		h.mu.Unlock()
		return false
	}
	h.leads, h.owner = leads, now
	if h.extra().stranded != nil { // the owner before was, and yet another goroutine has unlocked for it
		h.own().stranded = nil
	}
	if h.extra().atLeast != atLeast {
		h.own().atLeast = atLeast
	}
	h.keep(now)
	if h.lease.Adopt(t, renewed, now) {
		h.unlockPlanned()
	} else {
		h.mu.Unlock()
	}
	return true
}

// relinquish ends what the owner that leaves has of the hold, which may go to another owner of this process: its contexts.
// It tells whether it may go on: it is fresh, with at least half of its lease left, and the process has had the key for
// less than limit; and what its lease is then. Due tells that the process has had it long enough, so that others must have
// their chance before its own next waiter.
func (h *hold) relinquish(limit time.Duration) (can, due bool, running time.Duration) {
	h.mu.Lock()
	now := h.path.clock.Now()
	half := h.lease.Half(now)
	due = h.since.Until(now) >= limit || half // mutant: handed on without end
	if !h.lease.Fresh(now) || half || h.stays || now < h.extra().kept {
		h.mu.Unlock() // its end is near, and decides the cause of its contexts
		return false, due, 0
	}
	if !due && !h.nextToken() {
		h.mu.Unlock()
		return false, false, 0
	}
	ends, running := h.ends.all(), h.lease.Effective(h.lease.Term)
	h.mu.Unlock()
	cancelAll(ends, context.Canceled)
	return !due, due, running
}

// taken notes the goroutine that has acquired the hold for a [Hold], and returns the owner's token.
func (h *hold) taken(o owner.ID) (token uint64) {
	goroutine := owner.Calling()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.path.shared {
		h.taker = goroutine
		return h.extra().token
	}
	e := h.own()
	if e.takers == nil {
		e.takers = map[owner.ID]owner.ID{}
	}
	e.takers[o] = goroutine
	return e.token
}

// takerOf is the goroutine that has acquired the hold for a [Hold]; nobody when that is not known.
func (h *hold) takerOf(o owner.ID) owner.ID {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.path.shared {
		return h.taker
	}
	return h.extra().takers[o]
}

// stands tells whether the hold is neither lost nor over, as valid does, but does nothing about it.
func (h *hold) stands() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fresh()
}

// longest is the longest lease that a new owner of the hold can have asked for.
func (h *hold) longest() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lease.Effective(h.lease.Term)
}

// dismiss ends the contexts of an owner that leaves while others stay. It reports whether the hold was valid until then.
func (h *hold) dismiss(o owner.ID) bool {
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

// keepRenewed has the hold renewed from now on: an owner that shares it expects that. It reports whether the hold must be
// renewed at once, because it was not so far, the renewals are behind, or its lease is shorter than the one asked for.
func (h *hold) keepRenewed(asked time.Duration) (atOnce bool) {
	h.mu.Lock()
	now := h.path.clock.Now()
	if h.lease.Keep(now) {
		h.unlockPlanned()
		return true
	}
	atOnce = h.lease.Behind(asked, now)
	h.mu.Unlock()
	return atOnce
}

// shared tells whether one more owner may share the hold now, and whether it must be renewed first so that at least nine
// tenths of the lease that the owner asks for are left.
func (h *hold) shared(asked time.Duration) (ok, renew bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.path.clock.Now()
	return h.lease.Fresh(now), h.lease.Shares(asked, now)
}

// left is for how long the hold can still be relied on.
func (h *hold) left() time.Duration {
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return 0
	}
	left := h.lease.Left(h.path.clock.Now())
	h.mu.Unlock()
	return left
}

// stay sees to it that the hold is not handed over.
func (h *hold) stay() {
	h.mu.Lock()
	h.stays = true
	h.mu.Unlock()
}

// forget ends the contexts of an owner that is no longer one.
func (h *hold) forget(o owner.ID) {
	h.mu.Lock()
	ends := h.ends.of(o)
	h.mu.Unlock()
	cancelAll(ends, context.Canceled)
}

// strand is for an owner that will never release its part of the hold, because nobody can reach it, or since its goroutine has
// ended: its contexts end. Its work may still be running, so the hold goes on for as long as its lease, or longer if others
// share it; then it is lost.
func (h *hold) strand(o owner.ID) {
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
	ends := h.ends.of(o)
	h.mu.Unlock()
	if o.IsGoroutine() && !h.path.above.Has(h, o) { // another one has unlocked for it meanwhile; see strandGone
		h.mu.Lock()
		delete(h.extra().stranded, o)
		h.mu.Unlock()
		cancelAll(ends, context.Canceled)
		return
	}
	key := slog.String("key", h.path.key)
	if o.IsGoroutine() {
		cancelAll(ends, fault.GoroutineGone.Err())
		h.path.log(slog.LevelWarn, "a goroutine has ended without Unlock: the key of its lock is left to its lease",
			key, slog.Uint64("goroutine", uint64(o)))
		return
	}
	cancelAll(ends, fault.Unreachable.Err())
	h.path.log(slog.LevelWarn, "a hold was not released, and nobody can reach it: its key is left to its lease", key)
}

func (h *hold) isStranded(o owner.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.extra().stranded[o]
}

// deserted tells whether no owner will release the hold. The number of owners needs no mutex: see several.
func (h *hold) deserted() bool {
	stranded := int64(len(h.extra().stranded))
	return stranded > 0 && stranded >= h.path.above.Owners()
}

// age is how long this process has had the key.
func (h *hold) age() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since.Until(h.path.clock.Now())
}

// forsake leaves the hold to its lease, because the registry is closed and nobody would announce its loss any more.
func (h *hold) forsake() {
	h.mu.Lock()
	h.unlockEnds(fault.Closed)
}

// unlockEnds stops watching over the hold and cancels its contexts. It unlocks the mutex before it does.
func (h *hold) unlockEnds(cause error) {
	ends := h.ends.all()
	if h.planned {
		h.planned = false
		h.path.due.drop(h)
	}
	h.mu.Unlock()
	cancelAll(ends, cause)
}

// watch returns a child of base that ends with the hold. Base is what parent becomes when it carries the hold; when the last
// one for the owner was for the same parent, it is that one again: so a program that asks for one before each of its steps does
// not fill the memory. It fails when the hold is lost or nobody watches over it.
//
// The context is made without the mutex, since that calls methods of parent. What was true of the hold and of the last context
// may be over then, so both are looked at again.
func (h *hold) watch(parent, base context.Context, o owner.ID) (context.Context, error) {
	var made *ending
	for {
		h.mu.Lock()
		if !h.fresh() {
			h.unlockLose(fault.LeaseOver)
			made.discard()
			return nil, h.lostError()
		}
		if last := h.ends.last(parent, o); last != nil {
			ctx := last.given()
			h.mu.Unlock()
			made.discard()
			return ctx, nil
		}
		if made != nil {
			break
		}
		h.mu.Unlock()
		made = newEnding(parent, base, o, h)
	}
	if !made.over { // else nobody would take it out
		h.ends.add(made)
	}
	if !h.plan() {
		h.unlockEnds(fault.Closed)
		made.discard()
		return nil, fault.Closed
	}
	ctx := made.given()
	h.mu.Unlock()
	return ctx, nil
}

// attend is for another owner that finds the lock held. It tells whether the hold is lost, so that its owners are to be evicted.
// Otherwise, if the other one waits, the scheduler watches over the hold from now on, so that they are evicted when it is lost.
// If it does already there is nothing to do: what finds the hold lost looks for waiters after watched is false again.
func (h *hold) attend(waits bool) (over bool) {
	if h == nil || waits && h.watched.Load() {
		return false
	}
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return true
	}
	if waits && !h.awaited {
		h.awaited = true
		h.watched.Store(h.plan())
	}
	h.mu.Unlock()
	return false
}

// plan tells the scheduler when to look at the hold next: when to renew it, and when to announce that it is
// lost. It reports false when nobody will look, because the registry is closed. The caller holds the mutex.
func (h *hold) plan() bool {
	due, looks := h.lease.Due(len(h.ends) > 0 || h.awaited)
	if !looks {
		return true
	}
	h.planned = h.path.due.set(h, due)
	return h.planned
}

// tick is what the scheduler calls when the hold is due. It returns what is to be sent, if it is time for something.
func (h *hold) tick() (t task) {
	h.mu.Lock()
	if h.lease.Lost() {
		h.clear()
		h.mu.Unlock()
		return nil
	}
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return nil
	}
	switch now := h.path.clock.Now(); h.lease.Tick(now, h.deserted()) {
	case lease.Renew:
		r := renewal{h, h.lease.Begin(now, h.lease.Term)}
		r.Scheduled = true
		t = r
	case lease.Verify:
		t = verification{h}
	case lease.Nothing:
	}
	h.unlockPlanned()
	return t
}

// doubtServer is for when the server may be the master no more: a hold that is renewed is renewed at once, and of another one
// the server is asked whether it is there. So a failover that has lost the key is announced at once.
func (h *hold) doubtServer() {
	h.mu.Lock()
	if !h.lease.Doubt(h.path.clock.Now()) {
		h.mu.Unlock()
		return
	}
	h.unlockPlanned()
}

// unlockPlanned plans, and unlocks the mutex. When nobody will look at the hold any more, because the registry was closed in
// the meantime, its contexts end here.
func (h *hold) unlockPlanned() {
	if h.plan() {
		h.mu.Unlock()
		return
	}
	h.unlockEnds(fault.Closed)
}

func (h *hold) lostError() error { return h.lossOf().Err() }

// lose turns live into lost.
func (h *hold) lose(why fault.Loss) {
	h.mu.Lock()
	h.unlockLose(why)
}

// held is for how long the owner has had the hold, and the process the key; fresh tells that it has them still.
func (h *hold) held(now clock.Instant) (owned, had time.Duration, fresh bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.owner.Until(now), h.since.Until(now), h.lease.Fresh(now)
}

// keeps is until when the path is to stay taken, and until when the message of its grant may come; 0: it is not, or not any more.
func (h *hold) keeps() (kept, found clock.Instant) {
	if h.extras.Load() == nil { // what concerns this was noted before the owner had the hold, if at all
		return 0, 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.extra()
	return e.kept, e.found
}

// number is that of a hold, as text.
func (h *hold) number() string { return h.value[h.path.values:] }

func (h *hold) numbered(number string) bool { return h.number() == number }
