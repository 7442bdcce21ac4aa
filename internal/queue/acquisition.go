package queue

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/wake"
)

// acquisition is a call that has the local half and did not get the hold at its first try. It listens first, then tries, then
// sleeps until it is woken, the holder's lease ends, or the poll interval is over. Where there is no queue all its tries ask for
// the same hold, so the next try makes up for a lost reply; see renumber for where there is one.
type acquisition struct {
	attempt
	activeWait
	patient  bool
	deadline clock.Instant // the last moment to begin a try, but for the first
	listener *wake.Waiter  // nil: there are no wake-ups
	kit      *waitKit      // has its timer; nil before the first pause
	retries  retries
	course   course
	ticket   ticket
	blocked  deadlock.Call
	draining <-chan struct{} // nil once the call may go on
}

// retries counts consecutive failed tries.
type retries struct {
	failed  int
	closing clock.Instant // since when they fail because the client seems closed; 0: they do not
}

// course records how a call went, for its result.
type course struct {
	waits   bool          // the local half knows that this call waits
	served  bool          // another process granted the hold
	slept   bool          // the call has waited for another owner's hold
	late    int           // grants that were over before they counted
	lapses  clock.Instant // when that hold's lease ends, as last seen; 0: not known
	wakeups Woken
}

// Turnaround is enough for a waiter in another process to wake up and take a released lock, even on a busy machine.
const Turnaround = 10 * time.Millisecond

// notSentPause is the longest pause after a try that sent nothing to Redis.
const notSentPause = 200 * time.Millisecond

// closingGrace is for how long the client may seem closed before a call asks whether it is. Rueidis returns the same error for
// commands that were pending on a connection that is replaced; a client that replaces one says so of a PING, too, for a moment.
const closingGrace = time.Second

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
	if first.won {
		return nil
	}
	return obtainLater(&first, err, q)
}

// obtainLater continues when the first try did not get the hold.
func obtainLater(first *attempt, err error, q *Request) error {
	p := first.path
	// A call with a limited wait, or one that has queued, tries again after a transient failure; others return it.
	if err == nil || q.patient() && !q.FailFast && (q.Wait > 0 || q.Queued) && first.passing(err) {
		err = keepTrying(*first, q)
	} else if first.hold.MayArrive() { // mutant: grant left behind
		p.all.cleanUp(p.abandoned(first.hold))
	}
	if err != nil {
		if errors.Is(err, fault.Busy) { // also for calls that wait only for this reply
			p.lock.Taken()
		}
		p.lock.Free()
	}
	return err
}

// keepTrying goes on until the hold is granted, or the call fails.
func keepTrying(first attempt, q *Request) (err error) {
	p := first.path
	a := &acquisition{attempt: first, patient: q.patient(), deadline: q.Deadline, draining: p.all.Draining.Begins}
	defer func() { q.How, q.Woken = a.course.how(a.began), a.course.wakeups }()
	over := a.patient && a.deadline <= p.Clock.Now()
	if over { // the second command may take as long again
		a.deadline = min(p.Clock.Now(), a.deadline.Add(answerGrace))
	}
	// Such a call also asks again: the first command may have found only what an earlier call of this process has left.
	if !a.patient || over {
		defer a.end()
		return a.poll()
	}
	a.listener = p.all.Waker.listener(p)
	queues := a.listener != nil && p.mayQueue()
	if queues && p.all.Cluster && protocol.QueueKey(p.all.Prefix, p.Key) == "" {
		p.NoQueue("a cluster would keep it in another slot than the lock, because of the braces in the path")
		queues = false
	}
	if queues {
		a.kit = p.all.waitKit()
		a.box.came = a.kit.came
	}
	p.lock.Block(a.ctx, &a.blocked, q.Waiting)
	a.call, a.leads, a.begun = true, q.Terms.Leads, p.Clock.Now()
	p.whole().active.Store(&a.activeWait)
	if queues && p.Many() {
		a.ticket.seat = p.contention().line.join()
	}
	defer a.end()
	if queues {
		if err = a.waitInQueue(); !errors.Is(err, errNoQueue) {
			return err
		}
		a.drop()
	}
	if err := a.standBack(); err != nil {
		return err
	}
	return a.poll()
}

// how returns how a call got the lock, by a try that began at began.
func (c *course) how(began clock.Instant) Outcome {
	switch {
	case c.served:
		return Granted
	case c.lapses != 0 && c.lapses <= began:
		return FoundExpired
	case c.slept:
		return FoundFree
	default:
		return Free
	}
}

// sleeps notes that the call waits for another hold. Left is the rest of its lease at seen; 0: no end.
func (c *course) sleeps(seen clock.Instant, left time.Duration) {
	c.slept, c.lapses = true, 0
	if left > 0 {
		c.lapses = seen.Add(left)
	}
}

// woke counts what ended a wait for another owner's hold. Messages are counted when they are read: one may come before the call
// sleeps.
func (c *course) woke(why reason) {
	switch why {
	case byMail:
	case byWakeup:
		c.wakeups.Changes++
	case byTime:
		c.wakeups.Polls++
	}
}

// poll tries without a queue until the hold is granted: whenever the call is woken, the holder's lease ends, or the poll
// interval is over.
func (a *acquisition) poll() error {
	a.arm()
	polls := a.path.Clock.Now() < a.deadline // otherwise this is the last try
	if !a.patient {
		polls = a.path.tries()
	}
	for {
		if a.failure != nil {
			if err := a.recover(a.failure); err != nil {
				return err
			}
		}
		asks := a.mode(a.patient, polls)
		err := a.try(protocol.Queueing{Mode: asks}, false, a.deadline)
		if a.won {
			return nil
		}
		if (asks == protocol.ModePoll || asks == protocol.ModeSeen) && a.refusesQueue(err) {
			polls, a.failure = false, nil
			continue
		}
		if err != nil {
			if err = a.fatal(err); err != nil {
				return err
			}
			continue
		}
		if a.patient {
			seen := a.arm()
			if seen.Armed && (!seen.Taken || !a.exclusive()) { // the key may have changed before, or may not exclude this call
				if err := a.over(); err != nil {
					return err
				}
				continue
			}
			if seen.Armed {
				a.at.Left = seen.Left
			}
		}
		if err := a.sleep(a.at.Left); err != nil {
			return err
		}
	}
}

// refusesQueue reports whether the server refuses commands of the queue: permissions lack, or its slot moves.
func (a *acquisition) refusesQueue(err error) bool {
	refusal := a.refusal(err)
	return refusal != nil && (fault.Refusal(refusal) || fault.BetweenNodes(refusal))
}

// refusal returns what the server has replied to the last command that failed with err; nil if it has not.
func (a *acquisition) refusal(err error) error {
	var refusal *rueidis.RedisError
	if a.cut || !errors.As(err, &refusal) {
		return nil
	}
	return refusal
}

// recover waits until the next try, after one that failed with why; why may be nil.
func (a *acquisition) recover(why error) error {
	if err := a.unsent(why); err != nil {
		return err
	}
	now := a.path.Clock.Now()
	switch {
	case !errors.Is(a.failure, rueidis.ErrClosing):
		a.retries.closing = 0
	case a.retries.closing == 0:
		a.retries.closing = now
	case a.retries.closing.Until(now) >= closingGrace && a.path.all.Transport.Closed():
		return a.failure
	}
	a.retries.failed++
	a.note(a.failure)
	if err := a.over(); err != nil {
		return err
	}
	if a.failFast && a.failure != nil {
		return a.failure
	}
	pause := min(clock.Backoff(a.retries.failed, a.hold.Term().Length), now.Until(a.deadline))
	if errors.Is(a.failure, fault.NotSent) { // the next try costs the server nothing
		pause = min(pause, notSentPause)
	}
	_, err := a.pause(pause, nil, a.box.came)
	return err
}

// exclusive reports whether an existing key surely excludes this call. Readers share the key, and so do holders of permits;
// after a try whose reply is lost it may be this very hold's.
func (a *acquisition) exclusive() bool {
	return !a.hold.MayArrive() && a.path.side != Reads && !a.path.Many()
}

// fatal returns the error with which the call ends after a try that failed with err; nil if it goes on.
func (a *acquisition) fatal(err error) error {
	if !a.patient || !a.passing(err) {
		return err
	}
	return a.unsent(err)
}

// unsent handles a try that failed with err. If nothing was sent because there was no time, the call may be over, since the
// process may have stood still; unsent then returns why. Otherwise err becomes the failure, and the next try waits for a while.
func (a *acquisition) unsent(err error) (over error) {
	if a.failure == nil {
		if over = a.over(); over == nil {
			a.failure = fault.Classify(err)
		}
	}
	return over
}

// over returns why the call must not try again; nil if it may.
func (a *acquisition) over() error {
	if err := a.path.all.Stopped(a.ctx); err != nil {
		return a.explained(err)
	}
	if a.drained() {
		return fault.Closed
	}
	if a.patient && a.path.Clock.Now() < a.deadline {
		return nil
	}
	return a.explained(fault.Busy)
}

// drained reports whether the registry shuts down and the call may not go on.
func (a *acquisition) drained() bool {
	select {
	case <-a.draining:
		if !a.path.all.Draining.GoesOn(a.ctx) {
			return true
		}
		a.draining = nil
	default:
	}
	return false
}

// end ends the call's wait as others see it. If the call gives up, nothing of it stays in Redis.
func (a *acquisition) end() {
	if a.call {
		a.path.lock.EndWait(&a.blocked)
	}
	if a.ticket.seat != nil {
		a.path.contention().line.leave(a.ticket.seat)
	}
	if !a.won {
		a.leave()
	}
	a.path.whole().active.Store(nil)
	if m := a.box.close(); a.won && m.granted > 0 { // it came after the last read
		a.hold.Regranted()
	}
	a.listener.Close()
	if a.kit != nil {
		a.path.all.putBack(a.kit)
	}
}

// arm makes every change of the key from now on wake the call; see [wake.Waiter.Arm].
func (a *acquisition) arm() wake.KeyState {
	return a.listener.Arm(a.ctx, min(a.path.all.Poll, a.path.Shard().RoundTrip().Connect(), a.path.Clock.Now().Until(a.deadline)))
}

// sleep waits until the next try. It fails when there is none.
func (a *acquisition) sleep(left time.Duration) error {
	a.retries = retries{}
	a.note(nil)
	if err := a.over(); err != nil {
		return err
	}
	pause := min(a.path.all.Poll, a.path.Clock.Now().Until(a.deadline))
	if left > 0 {
		pause = min(pause, clock.Plus(left, afterEnd))
	}
	a.course.sleeps(a.began, left)
	a.path.noteEndless(left)
	why, err := a.pause(pause, a.listener.Wakeup(), nil)
	if err == nil {
		a.course.woke(why)
		if why == byTime {
			a.path.all.Polls.Add(1)
		}
	}
	return err
}

// reason is what ended a pause.
type reason uint8

const (
	byTime reason = iota
	byWakeup
	byMail
)

// failEvery is how often a call that is to fail fast looks whether Redis can be asked.
const failEvery = 100 * time.Millisecond

// pause waits for d, or until the call is woken or has mail. It fails when the context or the registry ends first, and, with
// FailFast, once the server is silent.
func (a *acquisition) pause(d time.Duration, wake, mail <-chan struct{}) (why reason, err error) {
	if !a.failFast {
		return a.rest(d, wake, mail)
	}
	now, shard := a.path.Clock.Now, a.path.Shard()
	shard.KeepAlive() // perhaps nothing else is sent meanwhile
	defer shard.EndKeepAlive()
	asked := now()
	for end := asked.Add(d); ; {
		left := now().Until(end)
		why, err = a.rest(min(left, failEvery), wake, mail)
		if err != nil || why != byTime || left <= failEvery {
			return why, err
		}
		if !shard.Silent(asked) {
			continue
		}
		select {
		case <-wake:
			return byWakeup, nil
		case <-mail: // it may be a grant
			return byMail, nil
		default:
			a.failure = fault.AsUnavailable(fault.NoAnswer)
			return byTime, a.failure
		}
	}
}

// rest is pause without FailFast.
func (a *acquisition) rest(d time.Duration, wake, mail <-chan struct{}) (why reason, err error) {
	if !a.course.waits {
		a.course.waits = true
		a.path.lock.Taken()
	}
	if a.kit == nil {
		a.kit = a.path.all.waitKit()
	}
	a.kit.timer.Reset(d)
	for {
		select {
		case <-a.kit.timer.C:
			return byTime, nil
		case <-wake:
			return byWakeup, nil
		case <-mail:
			return byMail, nil
		case <-a.ctx.Done():
			return byTime, a.explained(fault.Ended(a.ctx))
		case <-a.path.all.Closed:
			return byTime, fault.Closed
		case <-a.draining:
			if a.drained() {
				return byTime, fault.Closed
			}
		}
	}
}
