package queue

import (
	"context"
	"errors"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// Obtain gets the hold in Redis for a call that has the local half, or frees the local half. When it fails, nothing stays in
// Redis: a grant that may have happened, or may still happen, is removed in the background.
func Obtain(ctx context.Context, p *Path, q *Request) error {
	first := attempt{path: p, hold: p.lock.NewHold(q.Terms), ctx: ctx, failFast: q.FailFast}
	if p.side == Reads {
		first.under = p.lock.Under() // mutant: writer not told
	}
	var err error
	if !q.patient() || first.under != "" || !p.Contested() { // most locks are free
		err = first.try(protocol.Queueing{Mode: first.mode(q.patient(), false)}, true, q.Deadline)
	}
	if first.won() {
		return nil
	}
	return obtainLater(&first, err, q)
}

// obtainLater continues when the first try did not get the hold.
func obtainLater(first *attempt, err error, q *Request) error {
	p := first.path
	if err == nil && !q.patient() {
		err = first.askOnce(q.Deadline)
	}
	// A call with a limited wait, or one that has queued, tries again after a transient failure; others return it.
	if q.patient() && (err == nil || !q.FailFast && (q.Wait > 0 || q.Queued) && first.passing(err)) {
		err = keepTrying(*first, q)
	} else if first.hold.MayArrive() { // mutant: grant left behind
		p.all.cleanUp(p.remains(first.hold))
	}
	if err != nil {
		if errors.Is(err, fault.Busy) { // also for calls that wait only for this reply
			p.lock.Taken()
		}
		p.lock.Free()
	}
	return err
}

// askOnce asks once more for a call that does not wait: the first command may have found only what an earlier call of this
// process has left. It leaves a trace if such calls are repeated, unless the server refuses that.
func (a *attempt) askOnce(deadline clock.Instant) error {
	mode := a.mode(false, a.path.contention().barging.Tried(a.path.Clock.Now()))
	err := a.try(protocol.Queueing{Mode: mode}, false, deadline)
	if mode == protocol.ModeSeen && a.refusal(err) != 0 {
		a.failure = nil // it says nothing about the lock
		err = a.try(protocol.Queueing{Mode: a.mode(false, false)}, false, deadline)
	}
	if err != nil || a.won() {
		return err
	}
	if err = a.path.all.Stopped(a.ctx); err == nil {
		err = fault.Busy
	}
	return a.explained(err)
}

// keepTrying goes on until the hold is granted, or the call fails.
func keepTrying(first attempt, q *Request) error {
	p := first.path
	a := &acquisition{
		attempt: first, deadline: q.Deadline, draining: p.all.Draining.Begins, waitKit: p.all.waitKit(),
	}
	defer a.end(q)
	if now := p.Clock.Now(); a.deadline <= now { // it asks once more, as a call that does not wait; that may take as long again
		a.deadline = min(now, a.deadline.Add(answerGrace))
		return a.run(statePoll)
	}
	return a.run(a.begin(q))
}

// begin shows the call to others, and returns how it begins.
func (a *acquisition) begin(q *Request) state {
	p := a.path
	a.listener = p.all.Waker.listener(p)
	queues := a.listener != nil && p.mayQueue()
	if queues && p.all.Cluster && protocol.QueueKey(p.all.Prefix, p.Key) == "" {
		p.NoQueue("a cluster would keep it in another slot than the lock, because of the braces in the path")
		queues = false
	}
	p.lock.Block(a.ctx, &a.blocked, q.Waiting)
	a.leads, a.waitsSince = q.Terms.Leads, p.Clock.Now()
	if !queues {
		p.whole().active.Store(&a.activeWait)
		return stateBackOff
	}
	a.mail = &a.box
	p.whole().active.Store(&a.activeWait)
	a.ticket.seat = p.rules.join(p)
	return stateAsk
}

// end ends the call's wait as others see it, and says how it went. If the call gives up, nothing of it stays in Redis.
func (a *acquisition) end(q *Request) {
	if a.waitsSince != 0 {
		a.path.lock.EndWait(&a.blocked)
	}
	if a.ticket.seat != nil {
		a.path.contention().line.leave(a.ticket.seat)
	}
	if !a.won() {
		a.leave()
	}
	a.path.whole().active.Store(nil)
	if m := a.box.close(); a.won() && m.granted > 0 { // it came after the last read
		a.hold.Regranted()
	}
	a.listener.Close()
	q.How, q.Woken = a.course.how(a.sentAt), a.course.wakeups
	a.path.all.putBack(a.waitKit)
}
