package lockregistry

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// hold is this process's possession of a lock's key, from the command that asked for it to its end:
//
//	asked ──grant──▶ live ──end──▶ over
//	                  └──lose──▶ lost ──end──▶ over
//
// A hold that is lost stays lost: a renewal that is answered later does not revive it.
//
// What it knows about Redis is honest, because it counts from before a command was sent, when the server cannot have
// executed it yet, and takes a margin off for clocks that run at slightly different rates. So until never lies after
// the moment at which the key expires.
//
// A command that may be executed after another one, and sets a shorter lease, cuts the longer one that this process would
// believe in. From the moment at which it is executed the key lives for the lease that it carries, and that moment is not
// before the other one. So after a command that was sent at some time, the key lives at least until that time plus the
// shortest lease among this command and those that may come after it. Two kinds may:
//
//   - renewals that were under way at the same time (flights). When all of them are answered none can come any more, and
//     the next one, which is sent after that, is executed after all of them.
//   - commands that will never be answered (doubt). They may come at any time, until the hold is over.
type hold struct {
	lock  *Lock
	value string // what the key contains: names this very hold

	inLine  clock.Instant // when it was asked for in the queue, which others in there now have joined later; 0: that is not known
	waited  uint32        // for how many milliseconds its call waited in the queue, at least; written as late is
	renewed bool          // the scheduler renews it
	late    bool          // a grant of this hold may still arrive; written only by the call that obtains it
	leads   bool          // it is a leader's: renewed, and its release leaves no long window; written before its owner has it

	// The mutex guards the rest.
	state      holdState
	awaited    bool       // another goroutine of this process waits for its end
	sound      bool       // when over: it was valid until then
	stays      bool       // it is not handed over
	planned    bool       // the scheduler knows the hold
	questioned bool       // the server is to be asked whether it has its key still
	why        fault.Loss // why it was lost
	failed     failedInARow
	watched    atomic.Bool   // it is live, and the scheduler looks at it for those that wait
	place      int32         // among the holds that are due; guarded by their mutex,
	due        clock.Instant // as is when the scheduler looks at the hold

	mu     sync.Mutex
	until  clock.Instant          // the hold is valid before this
	lease  *protocol.Lease        // that of the next renewal: what the owner asked for last, of what was granted
	chosen clock.Instant          // when the command was sent that set lease
	owner  clock.Instant          // since when its owner has it
	since  clock.Instant          // when this process got the key; hand-over does not change it
	next   clock.Instant          // when to renew; never without renewal, and while the scheduler's is under way; lost: see clear
	short  time.Duration          // the lease that a release of another process has given it, until it is lengthened; 0 then
	taker  owner.ID               // the goroutine that has acquired it, if a Hold is the owner
	ends   endings                // the contexts that end with this hold
	flying *flights               // the renewals that are under way; nil while none is
	extras atomic.Pointer[extras] // nil in most; whether it is may be asked without the mutex
}

// flights are renewals that are under way at the same time.
type flights struct {
	number  int32
	several bool          // there were two at once
	lease   time.Duration // the shortest among all since none was under way
	sure    clock.Instant // what until is again when the server has refused all of them
}

// extras is what few holds have. The hold's mutex guards it.
type extras struct {
	kept     clock.Instant         // the path is to stay taken until then; 0 when it is not
	atLeast  time.Duration         // see [AtLeast]
	doubt    time.Duration         // the shortest lease among commands that will never be answered; 0 when there is none
	most     time.Duration         // the longest lease that was asked for, if that was longer than the hold's lease is now
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

// failedInARow counts renewals of the scheduler that were not answered.
type failedInARow uint16

func (f *failedInARow) another() int {
	if *f < math.MaxUint16 {
		*f++
	}
	return int(*f)
}

type holdState uint8

const (
	asked holdState = iota
	live
	lost
	over
)

// margin is what a lease is shortened by, so that this process sees its end before the server does: clocks that differ
// by up to 1 % in rate, and the server's counting in whole milliseconds.
func margin(lease time.Duration) time.Duration { return lease/100 + time.Millisecond } // mutant: no margin

// effective is the lease that the hold may count on, from when it was sent, when a command with l was executed.
func (h *hold) effective(l *protocol.Lease) time.Duration {
	length := l.Length
	if h.flying != nil {
		length = min(length, h.flying.lease)
	}
	if doubt := h.extra().doubt; doubt > 0 {
		length = min(length, doubt)
	}
	return length
}

func (h *hold) distrust(l time.Duration) {
	if e := h.own(); e.doubt == 0 || l < e.doubt {
		e.doubt = l
	}
}

// prolong takes in that the server has executed a command with l that was sent at sent. What was true before stays so.
func (h *hold) prolong(sent clock.Instant, l *protocol.Lease) {
	length := h.effective(l)
	h.until = max(h.until, sent.Add(length-margin(length))) // mutant: lease from the reply
	h.next, h.short, h.questioned = clock.Never, 0, false
	if h.renewed {
		h.next = sent.Add(length / 3)
	}
}

// grant turns asked into live, with the answer that came to a command that was sent at sent. It reports false when the
// answer came too late to be one.
func (h *hold) grant(sent, came clock.Instant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.late { // mutant: late grant forgotten
		h.distrust(h.lease.Length)
	}
	h.prolong(sent, h.lease)
	if came >= h.until {
		return false
	}
	h.state, h.since, h.owner, h.chosen = live, sent, came, sent
	h.keep(came)
	h.plan()
	return true
}

// grantShort turns asked into live, for a hold that another process's release has made the owner, with a lease that counts
// from base. It is lengthened a little later, if the hold is not over by then. It reports false when less than half of the
// lease is certain.
func (h *hold) grantShort(base clock.Instant, lease time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.lock.reg.clock.Now()
	until := base.Add(lease - margin(lease))
	if now.Until(until) < lease/2 {
		return false
	}
	h.until = until
	h.state, h.since, h.owner, h.chosen = live, now, now, base
	h.keep(now)
	h.next = clock.Never
	if lease < h.lease.Length {
		h.short = lease
		h.next = lengthening(now, until, h.lock.shard().RoundTrip()) // mutant: grant not lengthened
	} else if h.renewed {
		h.next = base.Add(lease / 3)
	}
	h.plan()
	return true
}

// lengthening is when to lengthen the short lease of a hold that is granted now: at once where it is over after three round
// trips.
func lengthening(now, until clock.Instant, t transport.RoundTrip) clock.Instant {
	left := now.Until(until)
	if left < 3*t.Base {
		return now
	}
	return now.Add(left / lengthenPart)
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
		if h.lock.reg.clock.Now() < until {
			h.mu.Unlock()
			return
		}
	}
	h.unlockLose(fault.GrantedTwice)
}

// tended tells whether the scheduler is to send something for the hold.
func (h *hold) tended() bool { return h.renewed || h.short > 0 || h.questioned }

// fresh tells whether the hold is live and its time is not over. The caller holds the mutex.
func (h *hold) fresh() bool { return h.freshAt(h.lock.reg.clock.Now()) }

func (h *hold) freshAt(now clock.Instant) bool { return h.state == live && now < h.until }

// goesOn tells whether the hold is neither lost nor over.
func (h *hold) goesOn() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state == live
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
	if h.state != live {
		h.mu.Unlock()
		return
	}
	h.state, h.why = lost, why
	h.watched.Store(false) // before it looks whether somebody waits; see attend
	awaited, held := h.awaited, h.owner.Until(h.lock.reg.clock.Now())
	ends := h.ends.all()
	h.planClear()
	h.mu.Unlock()
	cancelAll(ends, lostBecause(why))
	if why == fault.KeyGone {
		h.lock.reg.presence.Doubt()
	}
	if awaited && h.lock.half().Contended() {
		h.lock.evict()
	}
	h.lock.reg.dispatch.Log(slog.LevelWarn, "lock lost", slog.String("key", h.lock.key), slog.String("reason", string(losses[why])))
	h.tellLost(held, losses[why])
}

// planClear has the scheduler look at a lost hold once more, to remove its key, unless Redis has said that it is gone. A key
// can outlive its lease by far, when the server's clock was set back, and nobody knows when the owner releases the hold.
//
// The owner may be at work until the lease ends on the server. That is after until, by no more than the margin and by what the
// answer took on which until relies; the other margin is for the clocks. What is to stay taken for longer is left until then.
func (h *hold) planClear() {
	l := h.lock
	h.next = clock.Never
	if h.why.KeepsKey() {
		longest := h.longestEver()
		late := l.shard().RoundTrip().Late(longest)
		h.next = max(h.until.Add(2*margin(longest)).Add(late), h.extra().kept)
		h.planned = l.reg.background.holds.set(h, h.next)
	} else if h.planned {
		h.planned = false
		l.reg.background.holds.drop(h)
	}
}

// clear has the key of a lost hold removed in the background, when it is time. The owner that releases the hold has that done as
// well; the first of the two that is confirmed is enough, since a renewal that arrives later finds no key. The caller holds the
// mutex: so this comes before the end of the hold, and before whatever a later hold leaves.
func (h *hold) clear() {
	if h.next > h.lock.reg.clock.Now() { // it was due before, as a live one
		return
	}
	h.next, h.planned = clock.Never, false
	s := h.leftover()
	s.late = false
	h.lock.reg.background.strays.sweep(s)
}

// end turns any state into over: the owner releases the lock. It reports whether the hold was valid until then.
func (h *hold) end(now clock.Instant) bool {
	h.mu.Lock()
	h.sound = h.state == live && now < h.until // those that share it ask, too
	if h.state == live && !h.sound {
		h.why = fault.LeaseOver
	}
	sound := h.sound
	h.state = over
	if sound {
		h.unlockEnds(context.Canceled)
	} else {
		h.unlockEnds(lostBecause(h.why))
	}
	return sound
}

// lossOf is why the hold was lost.
func (h *hold) lossOf() fault.Loss {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.why, fault.Somehow)
}

// adopt makes a hold that was handed to another owner what that one asked for: of this length from the next renewal on,
// renewed or not, kept, and a leader's or not. It reports false when the hold was lost on the way.
func (h *hold) adopt(q *request, renewed bool) bool {
	l, now := q.lease, h.lock.reg.clock.Now()
	h.lock.anchor().lockedAt.Store(int64(now))
	h.mu.Lock()
	if !h.freshAt(now) {
		h.mu.Unlock()
		return false
	}
	h.leads, h.owner = q.leads, now
	if h.extra().stranded != nil { // the owner before was, and yet another goroutine has unlocked for it
		h.own().stranded = nil
	}
	if h.extra().atLeast != q.atLeast {
		h.own().atLeast = q.atLeast
	}
	h.keep(now)
	if h.lease.Length == l.Length && h.renewed == renewed {
		h.mu.Unlock()
		return true
	}
	former := h.lease
	h.lease, h.renewed = l, renewed
	h.exceed(former)
	switch {
	case h.short > 0: // to be lengthened soon
	case !renewed:
		h.next = clock.Never
	default: // when a third of a lease of that length would be over
		h.next = h.until.Add(l.Length/3 - l.Length)
	}
	if h.questioned { // the answer is still to come, whoever has the hold
		h.next = now
	}
	h.unlockPlanned()
	return true
}

// relinquish ends what the owner that leaves has of the hold, which may go to another owner of this process: its contexts.
// It tells whether it may go on: it is fresh, with at least half of its lease left, and the process has had the key for
// less than limit; and what its lease is then. Due tells that the process has had it long enough, so that others must have
// their chance before its own next waiter.
func (h *hold) relinquish(limit time.Duration) (can, due bool, running time.Duration) {
	h.mu.Lock()
	now := h.lock.reg.clock.Now()
	length := h.lease.Length
	if h.short > 0 {
		length = h.short
	}
	half := now.Until(h.until) < length/2
	due = h.since.Until(now) >= limit || half // mutant: handed on without end
	if h.state != live || now >= h.until || half || h.stays || now < h.extra().kept {
		h.mu.Unlock() // its end is near, and decides the cause of its contexts
		return false, due, 0
	}
	if !due && !h.nextToken() {
		h.mu.Unlock()
		return false, false, 0
	}
	ends, running := h.ends.all(), h.effective(h.lease)
	h.mu.Unlock()
	cancelAll(ends, context.Canceled)
	return !due, due, running
}

// taken notes the goroutine that has acquired the hold for a [Hold], and returns the owner's token.
func (h *hold) taken(o owner.ID) (token uint64) {
	goroutine := owner.Calling()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lock.kind.side != "r" {
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

// taker is the goroutine that has acquired the lock for a [Hold]; nobody when that is not known.
func (l *Lock) taker(o owner.ID) owner.ID {
	h := l.hold.Load()
	if h == nil {
		return owner.Nobody
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if l.kind.side != "r" {
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
	return h.effective(h.lease)
}

// dismiss ends the contexts of an owner that leaves while others stay. It reports whether the hold was valid until then.
func (h *hold) dismiss(o owner.ID) bool {
	h.mu.Lock()
	if h.state == over { // the others have left as well, in the meantime
		sound := h.sound
		h.mu.Unlock()
		return sound
	}
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return false
	}
	ends := h.ends.of(o)
	delete(h.extra().takers, o)
	h.mu.Unlock()
	cancelAll(ends, context.Canceled)
	return true
}

// keepRenewed has the hold renewed from now on: an owner that shares it expects that. It reports whether the hold must be
// renewed at once, because it was not so far, the renewals are behind, or its lease is shorter than the one asked for.
func (h *hold) keepRenewed(asked time.Duration) (atOnce bool) {
	h.mu.Lock()
	if h.state == live && !h.renewed {
		h.renewed = true
		h.next = h.lock.reg.clock.Now()
		h.unlockPlanned()
		return true
	}
	left := h.lock.reg.clock.Now().Until(h.until)
	length := asked
	if h.short > 0 { // to be lengthened soon
		length = h.short
	}
	atOnce = left < length/2 || h.effective(h.lease) < asked
	h.mu.Unlock()
	return atOnce
}

// shared tells whether one more owner may share the hold now, and whether it must be renewed first so that at least nine
// tenths of the lease that the owner asks for are left.
func (h *hold) shared(asked time.Duration) (ok, renew bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := h.lock.reg.clock.Now().Until(h.until)
	if renew = h.effective(h.lease) < asked; h.short > 0 { // to be lengthened soon
		return h.fresh(), renew || left < h.short/2
	}
	return h.fresh(), renew || left < asked-asked/10
}

// left is for how long the hold can still be relied on.
func (h *hold) left() time.Duration {
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return 0
	}
	left := h.lock.reg.clock.Now().Until(h.until)
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
	key := slog.String("key", h.lock.key)
	if o.IsGoroutine() {
		cancelAll(ends, lostBecause(fault.GoroutineGone))
		h.lock.reg.dispatch.Log(slog.LevelWarn, "a goroutine has ended without Unlock: the key of its lock is left to its lease",
			key, slog.Uint64("goroutine", uint64(o)))
		return
	}
	cancelAll(ends, lostBecause(fault.Unreachable))
	h.lock.reg.dispatch.Log(slog.LevelWarn, "a hold was not released, and nobody can reach it: its key is left to its lease", key)
}

func (h *hold) isStranded(o owner.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.extra().stranded[o]
}

// deserted tells whether no owner will release the hold. The number of owners needs no mutex: see several.
func (h *hold) deserted() bool {
	stranded := int64(len(h.extra().stranded))
	return stranded > 0 && stranded >= h.lock.owners()
}

// age is how long this process has had the key.
func (h *hold) age() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since.Until(h.lock.reg.clock.Now())
}

// forsake leaves the hold to its lease, because the registry is closed and nobody would announce its loss any more.
func (h *hold) forsake() {
	h.mu.Lock()
	h.unlockEnds(ErrClosed)
}

// unlockEnds stops watching over the hold and cancels its contexts. It unlocks the mutex before it does.
func (h *hold) unlockEnds(cause error) {
	ends := h.ends.all()
	if h.planned {
		h.planned = false
		h.lock.reg.background.holds.drop(h)
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
		h.unlockEnds(ErrClosed)
		made.discard()
		return nil, ErrClosed
	}
	ctx := made.given()
	h.mu.Unlock()
	return ctx, nil
}

// attend is for another owner that finds the lock held. When the hold is lost, its owners are evicted. Otherwise, if the
// other one waits, the scheduler watches over the hold from now on, so that they are when it is lost. If it does already there
// is nothing to do: whoever finds the hold lost looks for waiters after watched is false again. It reports whether it has
// evicted the owners.
func (h *hold) attend(waits bool) (evicted bool) {
	if h == nil || waits && h.watched.Load() {
		return false
	}
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return h.lock.evict()
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
	due := h.until
	if h.tended() {
		due = min(due, h.next)
	} else if len(h.ends) == 0 && !h.awaited {
		return true
	}
	h.planned = h.lock.reg.background.holds.set(h, due)
	return h.planned
}

// tick is what the scheduler calls when the hold is due. It returns what is to be sent, if it is time for something.
func (h *hold) tick() (t task) {
	h.mu.Lock()
	if h.state == lost {
		h.clear()
		h.mu.Unlock()
		return nil
	}
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return nil
	}
	if h.next <= h.lock.reg.clock.Now() {
		h.next = clock.Never
		switch {
		case h.short > 0 || h.renewed && !h.deserted():
			r := h.takeOff(h.lease)
			r.scheduled = true
			t = r
		case h.renewed: // another owner may share it yet
			h.next = h.lock.reg.clock.Now().Add(h.lease.Length / 3)
		default:
			t = verification{h}
		}
	}
	h.unlockPlanned()
	return t
}

// doubtServer is for when the server may be the master no more: a hold that is renewed is renewed at once, and of another one
// the server is asked whether it is there. So a failover that has lost the key is announced at once.
func (h *hold) doubtServer() {
	h.mu.Lock()
	if h.state != live {
		h.mu.Unlock()
		return
	}
	h.questioned = true
	h.next = min(h.next, h.lock.reg.clock.Now())
	h.unlockPlanned()
}

// unlockPlanned plans, and unlocks the mutex. When nobody will look at the hold any more, because the registry was closed in
// the meantime, its contexts end here.
func (h *hold) unlockPlanned() {
	if h.plan() {
		h.mu.Unlock()
		return
	}
	h.unlockEnds(ErrClosed)
}

// renewal is one command that renews a hold.
type renewal struct {
	hold      *hold
	lease     *protocol.Lease
	sent      clock.Instant
	scheduled bool // sent by the scheduler
	chosen    bool // the owner wants this lease, for the renewals that follow too
}

// takeOff notes that a renewal is about to be sent, and when. The server may execute it long before it is answered, and
// then a shorter lease than the running one counts.
func (h *hold) takeOff(l *protocol.Lease) renewal {
	sent := h.lock.reg.clock.Now()
	if h.flying == nil {
		h.flying = &flights{lease: l.Length, sure: h.until}
	}
	h.flying.number++
	h.flying.several = h.flying.number > 1 || h.flying.several
	h.flying.lease = min(h.flying.lease, l.Length)
	h.exceed(l)
	h.until = min(h.until, sent.Add(l.Length-margin(l.Length)))
	if h.next != clock.Never { // the scheduler does not wait for the answer to the owner's renewal
		h.next = min(h.next, sent.Add(l.Length/3))
	}
	return renewal{hold: h, lease: l, sent: sent}
}

// exceed notes that l was asked for, in case it is longer than the hold's lease.
func (h *hold) exceed(l *protocol.Lease) {
	if longest := h.longestEver(); l.Length > longest {
		h.own().most = l.Length
	}
}

// longestEver is the longest lease that was ever asked for. The caller holds the mutex.
func (h *hold) longestEver() time.Duration { return max(h.lease.Length, h.extra().most) }

// renew sets the lease anew, now. When the answer comes late it does so once more, to be sure, until the call's time is over.
func (h *hold) renew(ctx context.Context, l *protocol.Lease) error {
	p := h.lock.reg.commandWait(ctx, h.lock.shard())
	p.Since = h.lock.reg.clock.Now()
	for {
		if err := h.tooFar(&p); err != nil {
			return err
		}
		if err := h.renewOnce(&p, l); !errors.Is(err, fault.Late) || p.Left(h.lock.reg.clock) <= 0 || ctx.Err() != nil {
			return err
		}
	}
}

func (h *hold) renewOnce(p *transport.Wait, l *protocol.Lease) error {
	ctx := p.Ctx
	stopped := ctx.Err() != nil // not under the mutex: a context may be of any type
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return fault.WithEnd(ctx, h.lostError())
	}
	if stopped {
		h.mu.Unlock()
		return fault.Ended(ctx)
	}
	chosen := l != nil
	if !chosen || l.Length < h.lease.Length && h.lock.several() {
		l = h.lease // as long as it was: others that share the hold may rely on it
	}
	r := h.takeOff(l)
	r.chosen = chosen
	h.unlockPlanned()

	c := r.call()
	p.Lease = l.Length
	reply := h.lock.reg.transport.Do(p, &c)
	n, err := protocol.Confirmed(reply.RedisResult)
	if err == nil {
		err = reply.ReplicaErr // mutant: short renewal
	}
	err = h.answered(r, n, err, reply.Late)
	switch {
	case errors.Is(err, ErrLockLost):
		return fault.WithEnd(ctx, err)
	case reply.Cut:
		return explain(fault.Ended(ctx), fault.AsUnavailable(fault.NoAnswer))
	default:
		return fault.Classify(err)
	}
}

// answered takes in the answer to a renewal: whether the key was the hold's, or what went wrong. A late answer does not
// prolong the hold, since a master that is none any more may have given it; the hold is renewed again. Nor does a renewal that
// was done, with an error: too few replicas have it.
func (h *hold) answered(r renewal, n int64, err error, late bool) error {
	was := n > 0
	open := fault.OutcomeUnknown(err) // a client's hook may return any type: not under the mutex // mutant: renewal forgotten
	h.mu.Lock()
	flying := h.flying
	// An answer that comes after the old validity is over cannot revive the hold, even if the new one would reach further.
	if err == nil && was && h.fresh() {
		if !late {
			h.prolong(r.sent, r.lease)
			h.failed = 0
		}
		flying.sure = h.until
		if r.chosen && r.sent >= h.chosen {
			former := h.lease
			h.lease, h.chosen = r.lease, r.sent
			if late || flying.several || h.extra().doubt > 0 { // else the key has this lease, and no longer one comes
				h.exceed(former)
			}
		}
	}
	if flying.number--; flying.number == 0 {
		h.flying = nil
	}
	now := h.lock.reg.clock.Now()
	switch {
	case h.state != live:
		h.mu.Unlock()
		return h.lostError()
	case err != nil:
		switch {
		case was: // it may have shortened the lease
			flying.sure = h.until
		case open: // it may shorten the lease yet
			h.distrust(r.lease.Length)
			flying.sure = h.until
		case h.flying == nil: // none that may is left
			h.until = flying.sure
		}
		if h.tended() && (r.scheduled || h.next != clock.Never) {
			h.next = min(h.next, now.Add(clock.Backoff(h.failed.another(), r.lease.Length)))
		}
		h.unlockPlanned()
		return err
	case !was:
		h.unlockLose(without(n))
		return h.lostError()
	case now >= h.until:
		h.unlockLose(fault.RenewedTooLate)
		return h.lostError()
	case late:
		if h.tended() && (r.scheduled || h.next != clock.Never) {
			h.next = now
		}
		h.unlockPlanned()
		return fault.Late
	default:
		h.unlockPlanned()
		return nil
	}
}
