package lockregistry

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// acquisition is one call's way to the hold in Redis, with the local half held, once it is not to be had at the first
// try. It listens first, then tries, then sleeps until it is woken, the holder's lease ends, or the poll interval is over.
// All its tries without a queue ask for the same hold, so one whose answer is lost is made good by the next one.
type acquisition struct {
	attempt
	pursuit
	request  request
	patient  bool
	deadline clock.Instant // the last moment to begin a try, but for the first
	ear      listener
	spare    *spare        // its timer; nil before the first pause
	failed   int           // tries in a row that failed
	closing  clock.Instant // since when they do because the client is closed; 0 when they do not
	waits    bool          // the local half knows that this call waits
	served   bool          // the hold was granted, by another process
	slept    bool          // the call has waited for somebody else's hold
	lapses   clock.Instant // when the lease of that is over, as it was seen last; 0 when that is not known
	wakeups  Wakeups
	blocked  deadlock.Call

	// In a queue.
	asked  clock.Instant // when it was asked for, if it is at the place that it got then; else 0
	older  string        // the newest ticket that was asked for, if any: it may be there
	place  string        // of it; empty when that is not known
	zeros  string        // in it, see zerosFor
	base   clock.Instant // when the last command was sent whose reply showed it there
	woken  bool          // it looks because of a message
	moving clock.Instant // since when the key and the queue are at two nodes; 0: they are not, as far as is known
	sees   bool          // the server tells of any change of the key, as long as nothing wakes the call
	fresh  bool          // it has not looked after its ticket yet
}

// pursuit is the part of an acquisition that others see.
type pursuit struct {
	trouble
	box    mailbox
	call   bool          // it waits for the lock, not for an answer alone
	begun  clock.Instant // since when it does
	ticket atomic.Bool   // in the queue
}

// attempt is what all tries of a call have in common.
type attempt struct {
	lock  *Lock
	hold  *hold.Hold
	under string          // to read: the value of the hold with which the same owner writes already
	ctx   context.Context // the caller's
	sent  bool            // a try has begun
	asked bool            // and one has ended
	cut   bool            // the last one has not, because ctx ended
	again bool            // the last one was told late that the lock is taken, and asked again
	won   bool            // the hold is granted
	as    owner.ID        // for whom; set only where several are obtained at once
	began clock.Instant   // when the last one was sent
	at    protocol.Reply  // what the last one that was answered has shown
	// failure is why the last one that ended said nothing about the lock; nil when it said that another owner has it.
	failure error
}

// turnaround is long enough for a waiter in another process to wake up and take a released lock, even on a busy machine.
const turnaround = 10 * time.Millisecond

// answerGrace is how much longer than its wait a call may take when the server does not answer.
const answerGrace = 250 * time.Millisecond

// notSentPause is the longest pause after a try of which nothing was sent to Redis.
const notSentPause = 200 * time.Millisecond

// closingGrace is how long the client may be closed before a call gives up. Rueidis says so, too, of commands that were
// pending on a connection that it replaces.
const closingGrace = time.Second

// obtain gets the hold in Redis for the holder of the local half, or frees that. When it fails nothing stays behind in Redis:
// if a grant may have happened, or may happen yet, the scheduler removes it. Queued says that the call has waited in this
// process before.
func (l *Lock) obtain(ctx context.Context, q *request, deadline clock.Instant, queued bool) error {
	first := attempt{lock: l, hold: l.newHold(q), ctx: ctx}
	if l.pair != nil && l == &l.pair.reader {
		first.under = l.pair.under() // mutant: writer not told
	}
	var err error
	patient := q.wait != notAtAll
	if !patient || first.under != "" || !l.contested() { // most locks are free
		err = first.try(protocol.Queueing{Mode: first.plainly(patient, false)}, true, deadline)
	}
	if first.won {
		return nil
	}
	return l.obtainLater(&first, err, q, deadline, queued)
}

// obtainLater is what follows when the first try has not got the hold.
func (l *Lock) obtainLater(first *attempt, err error, q *request, deadline clock.Instant, queued bool) error {
	patient := q.wait != notAtAll
	// A call that waits for a while tries again after a failure that passes, another one returns the first.
	if err == nil || patient && (q.wait > 0 || queued) && first.passing(err) {
		err = l.pursue(*first, q, patient, deadline)
	} else if first.hold.MayArrive() { // mutant: grant left behind
		l.reg.cleanUp(l.abandoned(first.hold))
	}
	if err != nil {
		if errors.Is(err, errBusy) { // for those, too, that came to hear the same answer
			l.half().Taken()
		}
		l.freeLocal()
	}
	return err
}

// pursue goes on until the hold is granted, or not to be had.
func (l *Lock) pursue(first attempt, q *request, patient bool, deadline clock.Instant) (err error) {
	a := &acquisition{attempt: first, request: *q, patient: patient, deadline: deadline}
	defer func() { q.how, q.wakeups = a.how(), a.wakeups }()
	if !patient {
		defer a.end()
		return a.patrol()
	}
	a.ear = l.reg.waker.listener(l)
	queues := a.ear.Waiter != nil && l.queues()
	if queues && l.reg.cluster && protocol.QueueKey(l.reg.prefix, l.place.Key) == "" {
		l.noQueue("a cluster would keep it in another slot than the lock, because of the braces in the path")
		queues = false
	}
	if queues {
		a.spare = l.reg.spare()
		a.box.came = a.spare.came
	}
	a.blocks(q)
	a.call, a.begun = true, l.reg.clock.Now()
	l.anchor().pursuit.Store(&a.pursuit)
	defer a.end()
	if queues {
		if err = a.inLine(); !errors.Is(err, errNoQueue) {
			return err
		}
		a.drop()
	}
	if err := a.standBack(); err != nil {
		return err
	}
	return a.patrol()
}

// how is how the call got the lock, if it did.
func (a *acquisition) how() How {
	switch {
	case a.served:
		return HowGranted
	case a.lapses != 0 && a.lapses <= a.began:
		return HowFoundExpired
	case a.slept:
		return HowFoundFree
	default:
		return HowFree
	}
}

// sleeps is for when the call waits for a hold whose lease was seen to have so much left at some time, if it has an end.
func (a *acquisition) sleeps(seen clock.Instant, left time.Duration) {
	a.slept, a.lapses = true, 0
	if left > 0 {
		a.lapses = seen.Add(left)
	}
}

// woke counts what ended the waiting for somebody else's hold, for now.
func (a *acquisition) woke(why reason) {
	switch why {
	case byMail:
		a.wakeups.Messages++
	case byWakeup:
		a.wakeups.Changes++
	case byTime:
		a.wakeups.Timeouts++
	}
}

// patrol tries until the hold is granted, whenever it is woken, the holder's lease ends, or the poll interval is over: where
// there is no queue.
func (a *acquisition) patrol() error {
	a.arm()
	var looked clock.Instant // when the last thorough try began
	polls := true
	for quick := false; ; {
		if a.failure != nil {
			if err := a.recover(); err != nil {
				return err
			}
			quick = false
		}
		if !quick {
			looked = a.lock.reg.clock.Now()
		}
		asks := a.plainly(a.patient, polls)
		err := a.try(protocol.Queueing{Mode: asks}, quick, a.deadline)
		if a.won {
			return nil
		}
		refusal := (*rueidis.RedisError)(nil)
		if asks == protocol.ModeReserve && a.lock.reg.cluster && errors.As(err, &refusal) && !a.cut {
			polls, a.failure = false, nil // the queue is refused, by permissions, or while its slot moves
			continue
		}
		if err != nil {
			if !a.patient || !a.passing(err) {
				return err
			}
			continue
		}
		if a.patient {
			seen := a.arm()
			certain := seen.armed && seen.taken && a.exclusive()
			if seen.armed != certain || quick && !certain {
				// The key may have changed before, or may not be in the way, or is not known to be there.
				if err := a.over(); err != nil {
					return err
				}
				quick = quick && seen.armed
				continue
			}
			if certain {
				a.at.Left = seen.left
			}
		}
		woken, err := a.sleep(a.at.Left)
		if err != nil {
			return err
		}
		// The key is free, most likely, or another waiter was quicker; then arming shows what is left of their lease. But
		// what only a thorough try finds out must not wait for longer than a poll interval.
		quick = woken && a.exclusive() && a.ear.Looks() && a.lock.reg.clock.Now() < looked.Add(a.lock.reg.poll)
	}
}

// bid is what a try asks for.
func (a *attempt) bid(w protocol.Queueing) protocol.Request {
	return protocol.Request{
		Key: a.lock.place.Key, Value: a.hold.Value(), Lease: a.hold.Term(), Under: a.under, Side: a.lock.kind.side, Queueing: w,
	}
}

// plainly is what a try asks for that has no ticket. Polls tells that it has been trying, and goes on so for now. A reader that
// waits anyway does not overtake a writer that waits, although others read already; and who reads is not to keep out for ever a
// writer that only polls.
func (a *attempt) plainly(patient, polls bool) protocol.Mode {
	side := a.lock.kind.side
	switch {
	case !patient || side == "" || !a.lock.queues():
		return protocol.ModeNone
	case side == "r":
		return protocol.ModeTry
	case polls:
		return protocol.ModeReserve
	default:
		return protocol.ModeNone
	}
}

// passing tells whether a call that waits tries again after err.
func (a *attempt) passing(err error) bool { return !a.cut && fault.Transient(err) } // mutant: failure ends the wait

// recover waits until it is time for another try after one that failed.
func (a *acquisition) recover() error {
	now := a.lock.reg.clock.Now()
	switch {
	case !errors.Is(a.failure, rueidis.ErrClosing):
		a.closing = 0
	case a.closing == 0:
		a.closing = now
	case a.closing.Until(now) >= closingGrace:
		return a.failure
	}
	a.failed++
	a.note(a.failure)
	if err := a.over(); err != nil {
		return err
	}
	pause := min(clock.Backoff(a.failed, a.hold.Term().Length), now.Until(a.deadline))
	if errors.Is(a.failure, fault.NotSent) { // nobody is bothered by the next try
		pause = min(pause, notSentPause)
	}
	_, err := a.pause(pause, nil, a.box.came)
	return err
}

// exclusive tells whether a key that is there is surely in the way. Readers share it with each other; and after a try whose
// answer is lost it may be this very hold's.
func (a *acquisition) exclusive() bool {
	return !a.hold.MayArrive() && (a.lock.pair == nil || a.lock == &a.lock.pair.writer)
}

// over is why there is to be no other try, if so.
func (a *acquisition) over() error {
	if err := a.lock.stopped(a.ctx); err != nil {
		return a.explained(err)
	}
	if a.patient && a.lock.reg.clock.Now() < a.deadline {
		return nil
	}
	return a.explained(errBusy)
}

// explained adds to the reason for which a call gives up that Redis could not be asked, if so. The last try that ended
// decides; when none has, Redis has not answered at all.
func (a *attempt) explained(why error) error {
	failure := a.failure
	if a.sent && !a.asked {
		failure = fault.AsUnavailable(fault.NoAnswer)
	}
	return explain(why, failure)
}

// explain adds to the reason for which a call gives up why Redis could not be asked, if it could not.
func explain(why, failure error) error {
	switch {
	case failure == nil || errors.Is(why, ErrClosed):
		return why
	case why == errBusy: //nolint:errorlint // never wrapped
		return overdue{failure}
	default:
		return fault.Join(why, failure)
	}
}

// overdue is that a call may not wait, or no longer, while nobody knows whether the lock is free.
type overdue struct{ error }

func (o overdue) Unwrap() error { return o.error }

// end takes the call out of where others see it. If it gives up, nothing of it stays in Redis.
func (a *acquisition) end() {
	if a.call {
		a.lock.endWait(&a.blocked)
	}
	if !a.won {
		a.leave()
	}
	a.lock.anchor().pursuit.Store(nil)
	if m := a.box.close(); a.won && m.granted > 0 { // it came after the last look into the box
		a.hold.Regranted()
	}
	a.ear.Close()
	if a.spare != nil {
		a.lock.reg.putBack(a.spare)
	}
}

// arm listens; see listener.arm.
func (a *acquisition) arm() sight {
	return a.ear.arm(a.ctx, min(a.lock.reg.poll, a.lock.armLimit(), a.lock.reg.clock.Now().Until(a.deadline)))
}

// try asks Redis once, quickly when the key is most likely free; see protocol.Format. It waits for the answer until a little
// after the deadline. What is done before and after that is apart, because the stack of a call that waits for an answer
// must be small: with thousands of them its size decides how much of the processor's cache is left.
func (a *attempt) try(w protocol.Queueing, quick bool, deadline clock.Instant) error {
	if a.ctx.Err() != nil {
		a.cut = true
		return a.explained(fault.Ended(a.ctx))
	}
	p := a.commandWait(deadline)
	if err := a.tooFar(&p); err != nil {
		return err
	}
	var c protocol.Call
	a.prepare(&c, w, quick)
	reply := a.lock.reg.transport.Do(&p, &c)
	err := a.judge(&c, &reply, deadline)
	if a.again && !a.cut { // on a stack that those do not need which were answered in time
		return a.askAgain(&p, w, quick, deadline)
	}
	return err
}

// askAgain is for when a server said late that the lock is taken: it may be the master no more. A ticket is looked after
// then, and not asked for once more: it may have been served in between, and one of the same number would make what the
// message says of that grant, which may be over by now, count from today.
//
//go:noinline
func (a *attempt) askAgain(p *transport.Wait, w protocol.Queueing, quick bool, deadline clock.Instant) (err error) {
	defer func() { a.again = true }()
	if w.Mode == protocol.ModeEnqueue {
		w = protocol.Queueing{Mode: protocol.ModeCheck, Zeros: w.Zeros}
	}
	for p.Since = a.began; a.again; {
		if err = a.tooFar(p); err != nil {
			return err
		}
		var c protocol.Call
		a.prepare(&c, w, quick)
		reply := a.lock.reg.transport.Do(p, &c)
		err = a.judge(&c, &reply, deadline)
		if a.cut || p.Left(a.lock.reg.clock) <= 0 {
			break
		}
	}
	return err
}

//go:noinline
func (a *attempt) prepare(c *protocol.Call, w protocol.Queueing, quick bool) {
	*c = a.lock.place.Format.Obtain(a.bid(w), quick)
	c.DropIfAbandoned = true
	a.lock.reg.demand(c, grants)
	a.sent = true
}

// judge takes in the answer to a try.
//
//go:noinline
func (a *attempt) judge(c *protocol.Call, reply *transport.Reply, deadline clock.Instant) (err error) {
	h, came := a.hold, reply.Came
	a.began, a.again = reply.Sent, false
	a.at, err = c.Decode(reply.RedisResult)
	h.Draw(a.at.Token)
	switch {
	case err == nil && reply.ReplicaErr != nil:
		err = a.giveBack(reply.ReplicaErr) // mutant: short grant
	case err != nil || !reply.Late: // mutant: late grant believed
	case a.at.Granted:
		if err = a.confirmGrant(deadline, reply.Doubtful); err == nil {
			return nil
		}
		a.at.Granted = false
	case c.Script != nil: // a server may have said so that is the master no more; after a plain SET a script asks anyway
		err, a.again = fault.Late, true
	}
	if a.at.Granted && h.Grant(a.began, came) {
		a.win(a.began)
		return nil
	}
	if a.at.Granted {
		a.at.Granted, err = false, fault.Late
	}
	h.SetMayArrive(h.MayArrive() || fault.OutcomeUnknown(err))
	if a.cut = reply.Cut; a.cut {
		return a.explained(fault.Ended(a.ctx))
	}
	a.asked, a.failure = true, fault.Classify(err)
	if a.cut = err != nil && (reply.ReplicaErr != nil || reply.Late) && a.ctx.Err() != nil; a.cut {
		return a.explained(fault.Ended(a.ctx))
	}
	return a.failure
}

// win makes the hold, which is live, the lock's.
func (a *attempt) win(since clock.Instant) {
	l := a.lock
	a.won = true
	if l.pair != nil && l == &l.pair.writer {
		l.pair.wrote = a.hold.Value() // mutant: writer forgotten
	}
	l.hold.Store(a.hold)
	l.anchor().lockedAt.Store(int64(since))
	if l.half().Granted() {
		l.attend(true)
	}
}

// commandWait is how long to wait for the answer to a command that is sent now.
func (a *attempt) commandWait(deadline clock.Instant) transport.Wait {
	reg, to := a.lock.reg, a.lock.shard()
	p := reg.commandWait(a.ctx, to)
	p.Lease, p.Obtains, p.Observer = a.hold.Term().Length, true, (*silence)(a.lock.anchor())
	if deadline != clock.Never {
		if left := reg.clock.Now().Until(deadline.Add(to.RoundTrip().Plus(answerGrace))); left < p.Limit {
			p.Limit, p.Near = left, 0
		}
	}
	return p
}

// confirmGrant makes sure of a grant whose answer came late, and has the hold count from then.
func (a *attempt) confirmGrant(deadline clock.Instant, doubtful bool) error {
	h := a.hold
	sent, granted, err := a.confirm(deadline, doubtful)
	if granted && h.Grant(sent, a.lock.reg.clock.Now()) {
		a.win(sent)
		return nil
	}
	h.SetMayArrive(true) // whatever the answer: the key may be there
	if granted {
		return fault.Late
	}
	return err
}

// confirm makes sure of a grant whose answer came late: it renews the hold by a command that is sent after that. The hold
// counts from then.
func (a *attempt) confirm(deadline clock.Instant, doubtful bool) (sent clock.Instant, granted bool, err error) {
	l, h := a.lock, a.hold
	p, c := a.commandWait(deadline), l.place.Format.Renew(l.place.Key, h.Value(), h.Term())
	if l.place.Fencing { // a token of a master that is none any more would be worth nothing
		c = l.place.Format.Fence(l.place.Key, h.Value(), h.Term())
	}
	p.Obtains, p.Since = false, l.reg.clock.Now() // all tries have one limit
	end := p.Since.Add(p.Limit)
	l.reg.demand(&c, renews)
	for {
		reply := l.reg.transport.Do(&p, &c)
		n, err := protocol.Confirmed(reply.RedisResult)
		h.Draw(uint64(max(n, 0)))
		switch {
		case err == nil && reply.ReplicaErr != nil:
			return reply.Sent, false, a.giveBack(reply.ReplicaErr)
		case err == nil && reply.Late && !reply.Doubtful && n > 0 && reply.Came < end && a.ctx.Err() == nil:
			// The way is long, or this process stood still, but the server is not suspect: it is asked once more.
		case err == nil && (reply.Late || n <= 0), err == nil && doubtful && !reply.Fresh:
			return reply.Sent, false, fault.Late // the deposed master may be the one that answers again
		default:
			return reply.Sent, err == nil, err
		}
	}
}

// giveBack is for a hold that is the owner by the word of the master alone: others may have the lock, too, after a failover. It
// is released, which needs no replica, and the next try asks for another one, which a late release does not touch.
func (a *attempt) giveBack(why error) error {
	left := a.lock.abandoned(a.hold)
	left.Late = a.hold.MayArrive()
	a.lock.reg.cleanUp(left) // mutant: short grant kept
	a.hold, a.at = a.lock.again(a.hold), protocol.Reply{}
	return why
}

// sleep waits until it is time for the next try, and tells whether a wake-up was the reason. It fails when there is to be
// none.
func (a *acquisition) sleep(left time.Duration) (woken bool, err error) {
	a.failed = 0
	a.note(nil)
	if err := a.over(); err != nil {
		return false, err
	}
	pause := min(a.lock.reg.poll, a.lock.reg.clock.Now().Until(a.deadline))
	if left > 0 { // Redis counts whole milliseconds, and removes a key after its last one
		pause = min(pause, clock.Plus(left, time.Millisecond))
	}
	a.sleeps(a.began, left)
	why, err := a.pause(pause, a.ear.Wakeup(), nil)
	if err == nil {
		a.woke(why)
		if why == byTime {
			a.lock.reg.counts.polls.Add(1)
		}
	}
	return why == byWakeup, err
}

// reason is why a pause is over.
type reason uint8

const (
	byTime reason = iota
	byWakeup
	byMail
)

// pause waits for a while, or until it is woken or has mail. It fails when the context or the registry ends first.
func (a *acquisition) pause(d time.Duration, wake, mail <-chan struct{}) (why reason, err error) {
	if !a.waits {
		a.waits = true
		a.lock.half().Taken()
	}
	if a.spare == nil {
		a.spare = a.lock.reg.spare()
	}
	a.spare.timer.Reset(d)
	select {
	case <-a.spare.timer.C:
		return byTime, nil
	case <-wake:
		return byWakeup, nil
	case <-mail:
		return byMail, nil
	case <-a.ctx.Done():
		return byTime, a.explained(fault.Ended(a.ctx))
	case <-a.lock.reg.closed:
		return byTime, ErrClosed
	}
}

// trouble is what the goroutine that asks Redis for a path tells the others of its process, which wait for it or try: why its
// last try failed, if it did. When it is about no more than the first try, which is not answered yet, it says since when.
type trouble struct {
	since   clock.Instant // 0: it is about more
	failure atomic.Pointer[error]
}

// silence is a lock to which it is noted that the first try is not answered. A pursuit takes the place of that note.
type silence Lock

func (s *silence) Unanswered(since clock.Instant) {
	s.pursuit.CompareAndSwap(nil, &pursuit{trouble: trouble{since: since}})
}

func (s *silence) Answered(since clock.Instant) {
	if noted := s.pursuit.Load(); noted != nil && noted.since == since {
		s.pursuit.CompareAndSwap(noted, nil)
	}
}

func (t *trouble) note(failure error) {
	if failure != nil {
		noted := failure // so that nil, which is usual, takes no memory
		t.failure.Store(&noted)
	} else if t.failure.Load() != nil {
		t.failure.Store(nil)
	}
}

// trouble is why the last try of the goroutine that asks Redis for the lock failed, nil when it did not. When none has ended,
// and the first one is not answered for a while, nobody is known to hold the lock either. It is nil, too, when that goroutine
// holds the lock to write, and asks for it to read.
func (l *Lock) trouble() error {
	a := l.anchor()
	if a.hold.Load() != nil {
		return nil
	}
	t := a.pursuit.Load()
	if t == nil {
		return nil
	}
	if failure := t.failure.Load(); failure != nil {
		return *failure
	}
	if t.since != 0 && l.shard().Overdue(t.since) {
		return fault.AsUnavailable(fault.NoAnswer)
	}
	return nil
}
