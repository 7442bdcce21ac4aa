package lockregistry

import (
	"context"
	"errors"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/tenure"
	"github.com/lockregistry/lockregistry/observe"
)

// ContextWithOwner returns a child of ctx that carries a new owner. Calls with this context, or with children of it, lock and
// unlock as that owner, whichever goroutine makes them. So one goroutine can unlock what another one has locked, and several can
// nest within one hold. Without ContextWithOwner, the calling goroutine is the owner, as the thread is in Java.
//
// # Details
//
// If ctx is a context of [Registry.Do] or [Lock.Context], the new owner does not hold its lock.
//
// Go code called back from C (cgo) may run under the number of the goroutine that called C, or of one that has ended. Such code
// should lock with an owner of its own, made by ContextWithOwner.
func ContextWithOwner(ctx context.Context) context.Context {
	if ctx == nil {
		ctx = context.Background()
	}
	return tenure.NewOwner(ctx)
}

// acquire is Lock and TryLock, and the first part of Do and Acquire. It gets the local half, then the half in Redis. Bad is the
// error of the call's options. Its stack must stay small, for the reason that queue's attempt.try gives.
func (l *Lock) acquire(ctx context.Context, op string, q *request, bad error) (got bool, err error) {
	if ctx != nil {
		q.in = tenure.CarriedBy(ctx)
	}
	if q.By == owner.Nobody {
		q.By = q.in.Caller()
	}
	switch {
	case q.Terms.AtLeast > 0 && l.pair != nil:
		bad = fault.Join(bad, errors.New("AtLeast: it is for plain locks only"))
	case q.Terms.AtMost > 0 && l.reads():
		bad = fault.Join(bad, errors.New("AtMost: it is for plain locks and writers only"))
	}
	began := l.reg.observed()
	err = fault.Join(bad, l.check(ctx))
	asked := false
	if err == nil {
		var now *Lock
		if now, err = l.enter(ctx, q); now != nil {
			asked, err = true, queue.Obtain(ctx, &now.redis, &q.Request)
		}
	}
	switch {
	case err == nil:
		got = true
	case err == fault.Busy && (op == "trylock" || q.By.IsOnce()): //nolint:errorlint // never wrapped
		err = nil
	default:
		err = l.gaveUp(op, err, q.Wait, asked)
	}
	if began != 0 {
		l.tellOfCall(ctx, op, q, began, got, err)
	}
	return got, err
}

// observed returns the time, for an observer of Acquired; 0 without one.
func (r *Registry) observed() clock.Instant {
	if r.reports.observer.Acquired == nil {
		return 0
	}
	return r.now()
}

// tellOfCall is tellAcquired for a call that may have the lock. If the observer ends the goroutine, the call does not return, so
// its caller would never unlock the lock: tellOfCall does.
func (l *Lock) tellOfCall(ctx context.Context, op string, q *request, began clock.Instant, got bool, err error) {
	returned := false
	defer func() {
		if !returned && got { // mutant: lock of an ended goroutine kept
			_ = l.undo(queue.NoTime, q)
		}
	}()
	l.tellAcquired(ctx, op, q, began, got, err)
	returned = true
}

// enter gets the local half of the path's lock in the cache, and the half in Redis if this process already has it. Otherwise it
// returns that lock: the caller must obtain a hold for it, with the rest of the request, or free the local half.
func (l *Lock) enter(ctx context.Context, q *request) (now *Lock, err error) {
	if err := l.reg.queues.Stopped(ctx); err != nil {
		return nil, err
	}
	if l.reg.turnsAway(q.in.Carried) { // without a pin, for which Shutdown would wait
		return nil, ErrClosed
	}
	now, err = l.reg.cache.pin(l)
	if err != nil {
		return nil, err
	}
	pinned := now // until a hold has the pin
	defer func() {
		if pinned != nil { // also when a method of ctx panics
			pinned.unpin()
		}
	}()
	q.Deadline, q.Ends = clock.Never, q.Wait > 0
	if q.Ends {
		q.Deadline = l.reg.now().Add(q.Wait)
	}
	if l.reg.turnsAway(q.in.Carried) { // after the pin: this call sees the shutdown, or Shutdown sees the pin
		return nil, ErrClosed
	}
	l.reg.chooseTerms(q, l.reads())
	if q.in.Carried != nil {
		q.Holds = holds{q.in.Carried}
		if decided, err := now.enterByContext(ctx, q); decided {
			return nil, err
		}
	}
	for {
		how, err := now.enterLocal(ctx, q)
		switch how {
		case local.Entered: // the pin now belongs to the hold
			pinned, q.How = nil, observe.HowFree
			return now, nil
		case local.HandedOff: // likewise
			pinned, q.How = nil, observe.HowHandedOver
			if got, err := now.acceptHandoff(q); got || err != nil {
				return nil, err
			}
			if now, err = l.reg.cache.pin(l); err != nil {
				return nil, err
			}
			pinned = now
		case local.Reentered, local.Joined: // the hold has a pin already
			err = now.enterHold(ctx, q, how)
			if how == local.Joined && errors.Is(err, ErrLockLost) {
				continue // lost before this call had it
			}
			return nil, err
		default:
			return nil, now.notAdmitted(how, q, err)
		}
	}
}

// turnsAway reports whether a call must not go on, in a registry that shuts down or is closed. C comes from its context. Close
// begins to drain before it closes the registry, so most calls look no further.
func (r *Registry) turnsAway(c *tenure.Carried) bool {
	return r.drain.Begun() && (r.isClosed() || !r.goesOn(r.drain.Holders, holds{c}, owner.Calling(), c.Caller()))
}

// enterByContext decides a call by its context: the call nests in a hold that the context carries, or fails because it would
// wait for that hold forever.
func (l *Lock) enterByContext(ctx context.Context, q *request) (decided bool, err error) {
	o := q.By
	if t := q.in.Deadlock(o, l.shares); t != nil {
		if o.IsOnce() && t.Owner.IsOnce() { // no deadlock: Once reports that the job runs already
			return true, fault.Busy
		}
		return true, ErrDeadlock
	}
	t := q.in.At(&l.hold)
	if t == nil || t.Owner == o || o.IsHold() { // an acquisition waits for the end of a hold that is lost
		return false, nil
	}
	if !t.Nest(l.half()) {
		return false, nil
	}
	q.How = observe.HowAgain // the hold has a pin already
	q.nested = t
	if err = l.refresh(ctx, t.Owner, q, local.Reentered); err != nil {
		err = l.retreat(t.Owner, err)
	}
	return true, err
}

// enterLocal enters the local half, and waits for its turn if it must and may. The error is nil when the call is refused only
// because another owner has the local half.
func (l *Lock) enterLocal(ctx context.Context, q *request) (how local.Admission, err error) {
	how, w := l.half().Enter(q.By, q.Terms.Lease.Length, q.Wait != notAtAll, l.reg.waiters)
	if how == local.Refused && l.attend(w != nil) && w == nil {
		// The owners of a lost hold were evicted. If the call is refused again, another one was quicker.
		how, w = l.half().Enter(q.By, q.Terms.Lease.Length, false, l.reg.waiters)
	}
	if w == nil {
		return how, nil
	}
	q.Queued = true
	since := l.reg.observed()
	if q.Since == 0 {
		q.Since = l.reg.now()
	}
	w.Began(q.Since)
	how, err = l.awaitTurn(ctx, w, q)
	if l.pair == nil {
		l.reg.waiters.Put(w)
	}
	if since != 0 {
		q.here += since.Until(l.reg.now())
	}
	return how, err
}

// enterHold renews a hold of this process that the owner of a call has entered.
func (l *Lock) enterHold(ctx context.Context, q *request, how local.Admission) error {
	if q.How = observe.HowAgain; how == local.Joined {
		q.How = observe.HowShared
	}
	err := l.refresh(ctx, q.By, q, how)
	switch {
	case err == nil:
	case how == local.Reentered:
		err = l.retreat(q.By, err)
	default:
		_ = l.unlock(queue.NoTime, q.By) // its time may be over, and the others may have left
	}
	return err
}

// forsake ends the wait of a call in which a method of its context has panicked, as if the call had not been made. Its caller has
// a pin.
func (l *Lock) forsake(w *local.Waiter, o owner.ID, t *waitEnd) {
	if !t.came { // otherwise the waiter has left the queue
		t.how = l.half().Wait(queue.NoTime, w, passed)
	}
	(*forQueue)(l).EndWait(&w.Call)
	switch t.how {
	case local.Entered:
		l.half().Free()
	case local.HandedOff: // the hold ends with a pin, which would be the caller's
		l.entry().Pin()
		_ = l.unlock(queue.NoTime, o)
	case local.Reentered, local.Joined:
		_ = l.unlock(queue.NoTime, o)
	default: // it was not let in
	}
}

// notAdmitted returns the error of a call that did not get the local half. Why says why it stopped waiting, if known.
func (l *Lock) notAdmitted(how local.Admission, q *request, why error) error {
	switch {
	case how == local.Upgrade:
		return fault.Upgrade
	case how == local.Evicted:
		return max(l.half().Lost(q.By), fault.Somehow).Err()
	case why == nil:
		why = fault.Busy
	case errors.Is(why, ErrUnavailable): // see FailFast
		return why
	}
	return fault.Explain(why, l.redis.LastFailure(q.Wait != notAtAll))
}

// acceptHandoff sets the terms of a hold that was handed over: those that its new owner's call asked for. It reports false after
// an error, or when the hold was lost before the owner had it. Then the owner has left again, and the pin is gone with the hold.
// The observer is not told of a release, and the call, whose time may be over, does not wait for one.
func (l *Lock) acceptHandoff(q *request) (got bool, err error) {
	if err = queue.TooShort(q.Terms.Lease, l.redis.Node()); err == nil {
		if h := l.heldBy(q.By); h != nil && l.setTerms(h, q.Terms) {
			return true, nil
		}
	}
	if last, _ := l.leave(q.By); last {
		_, _ = l.release(queue.NoTime)
	}
	return false, err
}

// setTerms sets the terms of a hold that was handed over: those that its new owner asks for. It reports false when the hold is
// lost.
func (l *Lock) setTerms(h *hold.Hold, t hold.Terms) bool {
	l.entry().Use(l.reg.now())
	return h.SetTerms(t)
}

// retreat unlocks once after a nested lock has failed, and joins the errors. The call's time may be over, and the other calls of
// its owner may have unlocked: then retreat releases the lock, and waits no longer than a call whose context is done.
func (l *Lock) retreat(o owner.ID, failure error) error {
	leaving := l.unlock(queue.NoTime, o)
	if leaving == nil || errors.Is(failure, ErrLockLost) && errors.Is(leaving, ErrLockLost) {
		return failure
	}
	return fault.Join(failure, leaving)
}

// refresh renews the hold for an owner that has entered it. If a method of the context panics, refresh unlocks for the owner.
func (l *Lock) refresh(ctx context.Context, o owner.ID, q *request, how local.Admission) (err error) {
	returned := false
	defer func() {
		if !returned {
			_ = l.unlock(queue.NoTime, o)
		}
	}()
	err = l.renewEntered(ctx, o, q, how)
	returned = true
	return err
}

func (l *Lock) renewEntered(ctx context.Context, o owner.ID, q *request, how local.Admission) error {
	h, asked := l.heldBy(o), q.Terms.Lease
	if q.plain { // with the lease that the hold has
		asked = nil
	}
	if h != nil && how == local.Reentered { // first: a call that fails below retreats, and its unlock undoes this
		h.Nest(o, asked) // mutant: nested call shortens
	}
	if q.Terms.AtLeast > 0 {
		return errors.New("AtLeast: the owner already holds the lock")
	}
	if q.Terms.AtMost > 0 {
		return errors.New("AtMost: the owner already holds the lock")
	}
	if h == nil { // another goroutine of this owner unlocked too often
		return ErrLockLost
	}
	if how == local.Reentered && ctx.Err() == nil && h.Valid() { // otherwise Prolong says why not
		if err := queue.TooShort(asked, l.redis.Node()); err != nil {
			return err
		}
	}
	l.entry().Use(l.reg.now())
	if how == local.Joined {
		ok, renew := h.Join(q.Terms.Lease, q.plain) // a reader that names no lease is renewed, see chooseTerms
		if !ok {
			return ErrLockLost
		}
		if !renew {
			return nil
		}
	}
	// With the lease that the hold has now, which is as long as Nest or Join was asked for.
	return l.redis.Prolong(ctx, hold.Part{Hold: h, Owner: o}, nil, queue.Limits{Deadline: q.Deadline, FailFast: q.FailFast})
}

// passed is a timer channel that has fired.
var passed = func() <-chan time.Time {
	c := make(chan time.Time)
	close(c)
	return c
}()

// waitEnd is how the wait in the queue of the local half ended, once it has.
type waitEnd struct {
	how  local.Admission
	came bool
}

// awaitTurn waits in the queue of the local half.
func (l *Lock) awaitTurn(ctx context.Context, w *local.Waiter, q *request) (how local.Admission, err error) {
	var t waitEnd
	returned := false
	defer func() {
		if !returned {
			l.forsake(w, q.By, &t) // mutant: waiter that panicked stays
		}
	}()
	how, err = l.takeTurn(ctx, w, q, &t)
	returned = true
	return how, err
}

// takeTurn is awaitTurn, and notes how the wait has ended before it calls further methods of ctx.
func (l *Lock) takeTurn(ctx context.Context, w *local.Waiter, q *request, t *waitEnd) (local.Admission, error) {
	l.beginWait(ctx, &w.Call, q.Waiting)
	var timeout <-chan time.Time
	if q.Deadline != clock.Never {
		timer := time.NewTimer(l.reg.now().Until(q.Deadline))
		defer timer.Stop()
		timeout = timer.C
	}
	refusal := waiting.Enter(&w.Call) // if it closes a cycle
	// Close and Shutdown refuse the calls that they find in the graph; this call may have come too late for them.
	if refusal != nil || l.reg.turnsAway(q.in.Carried) {
		timeout = passed
	}
	until, failing := ctx, func() error { return nil }
	if q.FailFast {
		until, failing = l.redis.WhileReachable(ctx)
	}
	t.how = l.half().Wait(until, w, timeout)
	t.came = true
	why := failing()
	(*forQueue)(l).EndWait(&w.Call)
	// A reader that does not wait has waited for the reply to another reader for as long as for one of its own, in vain.
	if why == nil && t.how == local.Entered && q.Wait == notAtAll && l.redis.Unanswered(ctx, q.FailFast, q.Since) {
		why = fault.AsUnavailable(fault.NoAnswer)
	}
	// A call that gave up has let this one in: before Close could refuse this one, or because of a failure that ends this one, too.
	if t.how == local.Entered && (l.reg.isClosed() || why != nil) {
		l.half().Free()
		t.how = local.Refused
	}
	if t.how != local.Refused {
		return t.how, nil
	}
	switch err := l.reg.queues.Stopped(ctx); {
	case err != nil:
		return local.Refused, err
	case refusal != nil:
		return local.Refused, refusal
	case why == nil && l.reg.drain.Begun() && l.reg.now() < q.Deadline: // only Shutdown refuses a call before its deadline
		return local.Refused, ErrClosed
	default:
		return local.Refused, why
	}
}
