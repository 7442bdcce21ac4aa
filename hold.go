package lockregistry

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"
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
// Commands whose outcome is unknown may be executed later, after a command that follows. One that sets a shorter lease
// would then cut the longer one that this process believes in. Hence doubt: the shortest lease that any such command
// carried. Whenever one of them arrives, the key lives at least that long from then on, so a validity of at most doubt
// from each renewal on is one that it cannot cut.
type hold struct {
	lock    *Lock
	value   string // what the key contains: names this very hold
	renewed bool   // the scheduler renews it

	mu          sync.Mutex
	state       holdState
	lease       lease         // as last granted or renewed
	until       instant       // the hold is valid before this
	doubt       time.Duration // see above; 0 when every outcome is known
	flying      int           // renewals that are under way
	flyingLease time.Duration // the shortest lease among them
	before      instant       // until, without those
	most        time.Duration // the longest lease that was ever asked for
	next        instant       // when to renew; never without renewal, and while one is under way
	ends        []ending      // the contexts that end with this hold

	planned bool    // the scheduler knows the hold
	since   instant // when this process got the key; hand-over does not change it

	due   instant // when the scheduler looks at the hold; guarded by the scheduler's mutex, as is index
	index int     // in the scheduler's heap, -1 when it is not there

	late bool // a grant of this hold may still arrive; written only by the call that obtains it
}

type holdState uint8

const (
	asked holdState = iota
	live
	lost
	over
)

const never = instant(math.MaxInt64)

// A renewal that failed is tried again after this fraction of the lease, or the poll interval if that is longer.
const renewalRetry = 30

type ending struct {
	owner  owner
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// margin is what a lease is shortened by, so that this process sees its end before the server does: clocks that differ
// by up to 1 % in rate, and the server's counting in whole milliseconds.
func margin(lease time.Duration) time.Duration { return lease/100 + time.Millisecond }

// effective is the lease that the hold may count on when a command with l was executed.
func (h *hold) effective(l lease) time.Duration {
	if h.doubt > 0 {
		return min(h.doubt, l.length)
	}
	return l.length
}

func (h *hold) distrust(l time.Duration) {
	if h.doubt == 0 || l < h.doubt {
		h.doubt = l
	}
}

// prolong sets the validity that a command gave that was sent at sent. It reports false, and sets nothing, when that
// time is over already.
func (h *hold) prolong(sent instant, l lease) bool {
	length := h.effective(l)
	until := sent.add(length - margin(length))
	if until <= h.lock.reg.clock.now() {
		return false
	}
	h.lease, h.until, h.next = l, until, never
	if h.renewed {
		h.next = sent.add(length / 3)
	}
	return true
}

// grant turns asked into live, with the answer to a command that was sent at sent. It reports false when the answer came
// too late to be one.
func (h *hold) grant(sent instant) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.late {
		h.distrust(h.lease.length)
	}
	if !h.prolong(sent, h.lease) {
		return false
	}
	h.state, h.since = live, sent
	h.plan()
	return true
}

// fresh tells whether the hold is live and its time is not over. The caller holds the mutex.
func (h *hold) fresh() bool {
	return h.state == live && h.lock.reg.clock.now() < h.until
}

// valid tells whether the hold is live and its time is not over. When the time is over, it is lost from now on.
func (h *hold) valid() bool {
	h.mu.Lock()
	if h.fresh() {
		h.mu.Unlock()
		return true
	}
	h.unlockLose("the lease is over")
	return false
}

// unlockLose turns live into lost, and unlocks the mutex.
func (h *hold) unlockLose(why string) {
	if h.state != live {
		h.mu.Unlock()
		return
	}
	h.state = lost
	h.unlockEnds(ErrLockLost)
	h.lock.reg.log.Warn("lock lost", "key", h.lock.key, "reason", why)
}

// end turns any state into over: the owner gives the lock back.
func (h *hold) end() {
	h.mu.Lock()
	h.state = over
	h.unlockEnds(context.Canceled)
}

// relinquish ends what the owner that leaves has of the hold, which may go to another owner of this process: its contexts.
// It tells whether it may go on: it is fresh, with at least half of its lease left, and the process has had the key for
// less than limit. Due tells that the process has had it long enough, so that others must have their chance before its own
// next waiter.
func (h *hold) relinquish(limit time.Duration) (can, due bool) {
	h.mu.Lock()
	now := h.lock.reg.clock.now()
	half := now.until(h.until) < h.lease.length/2
	due = h.since.until(now) >= limit || half
	if !h.fresh() || half {
		h.mu.Unlock() // its end is near, and decides what its contexts are told
		return false, due
	}
	ends := h.ends
	h.ends = nil
	h.mu.Unlock()
	for _, e := range ends {
		e.cancel(context.Canceled)
	}
	return !due, due
}

// longest is the longest lease that a new owner of the hold can have asked for.
func (h *hold) longest() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.effective(h.lease)
}

// dismiss ends the contexts of an owner that leaves while others stay. It reports whether the hold was valid until then.
func (h *hold) dismiss(o owner) bool {
	h.mu.Lock()
	if h.state == over { // the others have left as well, in the meantime
		h.mu.Unlock()
		return true
	}
	if !h.fresh() {
		h.unlockLose("the lease is over")
		return false
	}
	var gone []ending
	h.ends = slices.DeleteFunc(h.ends, func(e ending) bool {
		if e.owner == o {
			gone = append(gone, e)
		}
		return e.owner == o
	})
	h.mu.Unlock()
	for _, e := range gone {
		e.cancel(context.Canceled)
	}
	return true
}

// keepRenewed has the hold renewed from now on: one who shares it expects that.
func (h *hold) keepRenewed() {
	h.mu.Lock()
	if h.state == live && !h.renewed {
		h.renewed = true
		h.next = h.lock.reg.clock.now()
		h.unlockPlanned()
		return
	}
	h.mu.Unlock()
}

// shared tells whether one more owner may share the hold now, and whether it must be renewed first so that at least half
// of the lease that the owner asks for is left.
func (h *hold) shared(l lease) (ok, renew bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	left := h.lock.reg.clock.now().until(h.until)
	return h.fresh(), left < l.length/2 || h.effective(h.lease) < l.length
}

// age is how long this process has had the key.
func (h *hold) age() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.since.until(h.lock.reg.clock.now())
}

// forsake leaves the hold to its lease, because the registry is closed and nobody would announce its loss any more.
func (h *hold) forsake() {
	h.mu.Lock()
	h.unlockEnds(ErrClosed)
}

// unlockEnds stops watching over the hold and cancels its contexts. It unlocks the mutex before it does, because what
// hangs on a context is not this package's code.
func (h *hold) unlockEnds(cause error) {
	ends := h.ends
	h.ends = nil
	if h.planned {
		h.planned = false
		h.lock.reg.scheduler.drop(h)
	}
	h.mu.Unlock()
	for _, e := range ends {
		e.cancel(cause)
	}
}

// watch makes cancel end with the hold. It fails when the hold is lost or nobody watches over it.
func (h *hold) watch(ctx context.Context, o owner, cancel context.CancelCauseFunc) error {
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose("the lease is over")
		return ErrLockLost
	}
	if len(h.ends) == cap(h.ends) { // before it grows, forget those that ended by themselves
		h.ends = slices.DeleteFunc(h.ends, func(e ending) bool { return e.ctx.Err() != nil })
	}
	h.ends = append(h.ends, ending{o, ctx, cancel})
	planned := h.plan()
	h.mu.Unlock()
	if !planned {
		return ErrClosed
	}
	return nil
}

// plan tells the scheduler when to look at the hold next: when it is to be renewed, and when somebody is to be told that
// it is lost. It reports false when nobody will look, because the registry is closed. The caller holds the mutex.
func (h *hold) plan() bool {
	due := h.until
	if h.renewed {
		due = min(due, h.next)
	} else if len(h.ends) == 0 {
		return true
	}
	h.planned = h.lock.reg.scheduler.set(h, due)
	return h.planned
}

// tick is what the scheduler calls when the hold is due. It returns the lease to renew with, if it is time for that.
func (h *hold) tick() (l lease, renew bool) {
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose("the lease is over")
		return lease{}, false
	}
	if renew = h.next <= h.lock.reg.clock.now(); renew {
		h.next = never
		h.takeOff(h.lease)
	}
	l = h.lease
	h.unlockPlanned()
	return l, renew
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

// takeOff notes that a renewal is about to be sent, and when. The server may execute it long before it is answered, and
// then a shorter lease than the running one counts. When another renewal with a different lease is under way, nobody
// knows which of them the server executes last.
func (h *hold) takeOff(l lease) (sent instant) {
	sent = h.lock.reg.clock.now()
	if h.flying == 0 {
		h.before = h.until
	}
	h.most = max(h.most, l.length)
	h.until = min(h.until, sent.add(l.length-margin(l.length)))
	if h.flying == 0 {
		h.flyingLease = l.length
	} else if l.length != h.flyingLease {
		h.flyingLease = min(h.flyingLease, l.length)
		h.distrust(h.flyingLease)
	}
	h.flying++
	return sent
}

// renew sets the lease anew, now.
func (h *hold) renew(ctx context.Context, l lease) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose("the lease is over")
		return ErrLockLost
	}
	if l.ms == "" { // as long as it was
		l = h.lease
	}
	sent := h.takeOff(l)
	h.unlockPlanned()

	reg := h.lock.reg
	n, err := confirmed(h.lock.kind.layout.renew(h.lock.key, h.value, l).do(cancellable(ctx), reg.client))
	if err = h.answered(sent, l, n > 0, err); err != nil && ctx.Err() != nil && !errors.Is(err, ErrLockLost) {
		return ended(ctx)
	}
	return err
}

// answered takes in the answer to a renewal that was sent at sent.
func (h *hold) answered(sent instant, l lease, was bool, err error) error {
	h.mu.Lock()
	h.flying--
	if h.state != live {
		h.mu.Unlock()
		return ErrLockLost
	}
	if err != nil {
		switch {
		case unknown(err): // it may shorten the lease yet
			h.distrust(l.length)
		case h.flying == 0: // and it never will
			h.until = h.before
		}
		if h.renewed && h.flying == 0 {
			h.next = h.lock.reg.clock.now().add(max(h.lock.reg.poll, l.length/renewalRetry))
		}
		h.unlockPlanned()
		return err
	}
	if !was {
		h.unlockLose("the key is no longer this hold's")
		return ErrLockLost
	}
	// An answer that comes after the old validity is over cannot revive the hold, even if the new one would reach further.
	if h.lock.reg.clock.now() >= h.until || !h.prolong(sent, l) {
		h.unlockLose("the lease was over before its renewal was answered")
		return ErrLockLost
	}
	h.unlockPlanned()
	return nil
}
