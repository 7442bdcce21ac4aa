package queue

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
	"github.com/lockregistry/lockregistry/internal/wake"
	"github.com/lockregistry/lockregistry/observe"
)

// Obtain gets the hold in Redis for a call that has the local half, or frees the local half. When it fails, nothing stays in
// Redis: a grant that may have happened, or may still happen, is removed in the background. The same is true when code of the
// user panics: a method of ctx, or a hook of the client.
func Obtain(ctx context.Context, p *Path, q *Request) (err error) {
	first := attempt{path: p, hold: p.lock.NewHold(q.Terms), ctx: ctx, failFast: q.FailFast}
	if p.side == Reads {
		first.under = p.lock.Under() // mutant: writer not told
	}
	returned := false
	defer func() {
		if !returned {
			first.forsake() // mutant: panic keeps the local half
		}
	}()
	waits := q.Wait != 0
	if !waits && q.Since != 0 { // it has waited for the reply to another call: the time for its own reply counts from then
		w := p.commandWait(ctx, Limits{clock.Never, q.FailFast})
		q.Deadline = min(q.Deadline, q.Since.Add(w.Limit))
	}
	if !waits || first.under != "" || !p.Contested() { // most locks are free
		err = first.try(protocol.Queueing{Mode: first.mode(waits, false)}, true, q.Deadline)
	}
	if err == nil && !waits && !first.won() {
		err = first.askOnce(q.Deadline)
	}
	switch {
	case first.won(): // mutant: grant removed
	case waits && (err == nil || !q.FailFast && (q.Wait > 0 || q.Queued) && first.passing(err)):
		// A call with a limited wait, or one that has waited in this process, tries again after a transient failure.
		err = keepTrying(&first, q)
	default:
		if first.hold.MayArrive() { // mutant: grant left behind
			p.all.cleanUp(p.remains(first.hold))
		}
		err = first.gaveUp(err)
	}
	if errors.Is(err, fault.Busy) { // also for calls that wait only for this reply; it may call methods of a context's cause
		p.lock.Taken()
	}
	returned = true
	if err != nil {
		p.lock.Free()
	}
	return err
}

// forsake ends the call of an attempt in which code of the user has panicked. After a grant nothing panics.
func (a *attempt) forsake() {
	defer a.path.lock.Free()
	if a.hold != nil && a.progress != nothingSent { // the command may be under way
		a.path.all.cleanUp(a.path.remains(a.hold))
	}
}

// gaveUp returns the error of a call that does not go on after err. The program may have closed the client together with the
// registry: then the command failed because of that. If the context of the call has ended, too, err stays as it is.
func (a *attempt) gaveUp(err error) error {
	if errors.Is(err, fault.Unavailable) && a.path.all.Stopped(a.ctx) == fault.Closed { //nolint:errorlint // never wrapped
		return fault.Closed
	}
	return err
}

// askOnce asks once more for a call that does not wait: the first command may have found only what an earlier call of this
// process has left. It leaves a trace if such calls are repeated, unless the server refuses that.
func (a *attempt) askOnce(deadline clock.Instant) error {
	mode := a.mode(false, a.path.anchor.contention().barging.Tried(a.path.Clock.Now()))
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

// keepTrying goes on until the hold is granted, or the call fails. It removes what may be left, in place of the first attempt.
func keepTrying(first *attempt, q *Request) error {
	p := first.path
	a := &acquisition{
		attempt: *first, deadline: q.Deadline, draining: p.all.Draining.Begins, waitKit: p.all.waitKit(),
	}
	first.hold = nil
	returned := false
	defer func() {
		if !returned && a.progress != nothingSent { // code of the user has panicked: the command may be under way
			a.hold.SetMayArrive(true)
		}
		a.end(q)
	}()
	next := statePoll
	if now := p.Clock.Now(); a.deadline <= now { // the call asks once more, like one that does not wait, and may take as long again
		a.deadline = min(now, a.deadline.Add(answerGrace))
	} else {
		next = a.begin(q)
	}
	err := a.run(next)
	returned = true
	return err
}

// begin shows the call to others, and returns its first state.
func (a *acquisition) begin(q *Request) state {
	p, all := a.path, a.path.all
	if all.Listening != nil { // to changes of the key, which is not watched yet, and to messages to this registry
		w := wake.Wait{Key: p.Key, Channel: p.Format.Channel(p.Key), Own: all.Own}
		if all.Cluster { // a channel in the slot of each key
			w.Own = ownChannel(all.Prefix, p.Key, strings.TrimSuffix(all.Values, ":"))
		}
		a.listener = all.Listening.Waiter(w)
	}
	queues := a.listener != nil && p.mayQueue()
	if queues && p.Format.Queue(p.Key) == "" {
		p.noQueue("a cluster would keep it in another slot than the lock, because of the braces in the path")
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
	if p.Format.Many() {
		a.ticket.seat = p.anchor.contention().line.join()
	}
	return stateAsk
}

// end ends the call's wait as others see it, and records how it went. If the call gives up, nothing of it stays in Redis.
func (a *acquisition) end(q *Request) {
	p, kit := a.path, a.waitKit
	if a.waitsSince != 0 {
		p.lock.EndWait(&a.blocked)
	}
	if kit.ticket.seat != nil {
		p.anchor.contention().line.leave(kit.ticket.seat)
	}
	if !a.won() {
		a.leave()
	}
	p.whole().active.Store(nil)
	if m := kit.box.open(""); a.won() && m.granted > 0 { // it came after the last read
		a.hold.GrantAgain()
	}
	a.listener.Close()
	q.Woken = a.course.wakeups
	switch c := &kit.course; {
	case c.served:
		q.How = observe.HowGranted
	case c.lapses != 0 && c.lapses <= a.sentAt:
		q.How = observe.HowFoundExpired
	case c.slept:
		q.How = observe.HowFoundFree
	}
	kit.timer.Stop()
	select {
	case <-kit.box.came:
	default:
	}
	kit.ticket, kit.course = ticket{}, course{}
	p.all.kits.Put(kit)
}

// attempt is what all tries of a call share.
type attempt struct {
	path     *Path
	hold     *hold.Hold
	under    string          // for a reader: the value of the writer's hold that its owner has
	ctx      context.Context // of the caller
	proved   bool            // the call has asked whether it may release, see prove
	progress progress        // how far its tries have come
	cut      bool            // the last try was not answered before ctx ended
	again    bool            // the last try asked again, after a late reply that the lock is taken
	failFast bool            // the call fails when Redis cannot be asked, see FailFast
	sentAt   clock.Instant   // when the last try was sent
	at       protocol.Reply  // the last reply
	// failure is why the last finished try failed, and at the end why the call failed; nil if another owner has the lock.
	failure error
}

// progress is how far the tries of a call have come.
type progress uint8

const (
	nothingSent progress = iota
	unanswered           // one has begun
	answered             // one has ended: with a reply, or an error that was not the end of the call's context
	granted              // the hold is live
)

// answerGrace is how much longer than its wait a call may take when the server does not answer.
const answerGrace = 250 * time.Millisecond

// bid returns what a try asks for.
func (a *attempt) bid(w protocol.Queueing) protocol.Request {
	return protocol.Request{
		Key: a.path.Key, Value: a.hold.Value(), Lease: a.hold.Term(), Under: a.under, Side: a.path.side, Queueing: w,
	}
}

// mode returns the mode of a try without a ticket.
//
// Polls asks for a try that leaves a trace. The trace of a call that waits, and has tried before, makes calls with tickets let it
// in. A call that does not wait leaves one if another such call failed shortly before, see [barging.State.Tried]; its trace keeps
// no call out.
//
// A waiting reader does not overtake a waiting writer, even while others read. Otherwise readers could keep a polling writer out
// forever.
func (a *attempt) mode(patient, polls bool) protocol.Mode {
	switch p := a.path; {
	case p.Format.Many(): // no call overtakes waiting calls
		return protocol.ModeTry
	case !p.mayQueue() || !patient && !polls:
		return protocol.ModeNone
	case polls && patient:
		return protocol.ModePoll
	case polls:
		return protocol.ModeSeen
	case p.side == Reads:
		return protocol.ModeTry
	default:
		return protocol.ModeNone
	}
}

// passing reports whether a waiting call tries again after err.
func (a *attempt) passing(err error) bool { return !a.cut && fault.Transient(err) } // mutant: failure ends the wait

// try asks Redis once, quickly if the key is most likely free; see [protocol.Format]. It waits for the answer until a little
// after the deadline. The steps before and after are functions of their own, to keep the stack of a waiting call small: with
// thousands of calls its size decides how much of the processor's cache is left.
func (a *attempt) try(w protocol.Queueing, quick bool, deadline clock.Instant) error {
	if a.ctx.Err() != nil {
		a.cut = true
		return a.explained(fault.Ended(a.ctx))
	}
	if err := a.prove(deadline); err != nil { // mutant: release not proven
		return err
	}
	p := a.commandWait(deadline)
	if err := a.tooFar(&p); err != nil {
		return err
	}
	var c protocol.Call
	a.prepare(&c, w, quick)
	reply := a.path.all.Transport.Do(&p, &c)
	err := a.judge(&c, &reply, deadline)
	if a.again && !a.cut { // a function of its own, since most tries do not need its stack
		return a.askAgain(&p, w, quick, deadline)
	}
	return err
}

// askAgain asks again after a late reply that the lock is taken: the server may no longer be the master. If the try asked for a
// ticket, askAgain looks at that ticket. It must not ask for a second one with the same number:
//
//  1. The first command queues the ticket. Its reply is late.
//  2. The ticket is granted. The message of the grant is on its way, and the grant may soon be over.
//  3. A second command queues the number again. The lease of a grant would count from this command.
//  4. The message comes, and seems to be about a grant after step 3.
func (a *attempt) askAgain(p *transport.Wait, w protocol.Queueing, quick bool, deadline clock.Instant) (err error) {
	defer func() { a.again = true }()
	if w.Mode == protocol.ModeEnqueue {
		w = protocol.Queueing{Mode: protocol.ModeCheck, Zeros: w.Zeros}
	}
	for p.Since = a.sentAt; a.again; {
		if err = a.tooFar(p); err != nil {
			return err
		}
		var c protocol.Call
		a.prepare(&c, w, quick)
		reply := a.path.all.Transport.Do(p, &c)
		err = a.judge(&c, &reply, deadline)
		if !a.again || a.cut || p.Left(a.path.Clock) <= 0 { // Left calls a method of ctx, which may panic: not after a grant
			break
		}
	}
	return err
}

func (a *attempt) prepare(c *protocol.Call, w protocol.Queueing, quick bool) {
	*c = a.path.Format.Obtain(a.bid(w), quick)
	c.DropIfAbandoned = true
	c.Replicas, c.Wrote = a.path.all.Replicas, grants
	a.progress = max(a.progress, unanswered)
}

// judge handles the reply to a try. It decides whether the hold is live, and whether the caller still waits.
func (a *attempt) judge(c *protocol.Call, reply *transport.Reply, deadline clock.Instant) (err error) {
	h, came := a.hold, reply.Came
	a.sentAt, a.again = reply.Sent, false
	a.at, err = c.Decode(reply.RedisResult)
	h.Draw(a.at.Token)
	if a.at.Number != 0 {
		a.path.Found(a.at.Number)
	}
	switch {
	case err == nil && reply.ReplicaErr != nil:
		err = a.giveBack(reply.ReplicaErr) // mutant: short grant
	case err != nil || !reply.Late: // mutant: late grant believed
	case a.at.Granted:
		if err = a.confirmGrant(deadline, reply.Doubtful); err == nil {
			return nil
		}
		a.at.Granted = false
	case c.Script != nil: // perhaps from a former master; after a plain SET a script asks anyway
		err, a.again = fault.Late, true
	}
	if a.at.Granted {
		if h.Grant(a.sentAt, came) {
			a.win(a.sentAt)
			return nil
		}
		a.at.Granted, err = false, fault.Late // its lease may be over
	}
	h.SetMayArrive(h.MayArrive() || fault.OutcomeUnknown(err))

	if !reply.Cut {
		a.progress, a.failure = answered, fault.Classify(err)
	}
	a.cut = reply.Cut || err != nil && (reply.ReplicaErr != nil || reply.Late) && a.ctx.Err() != nil
	if a.cut {
		return a.explained(fault.Ended(a.ctx))
	}
	return a.failure
}

// won reports whether the lock has the hold.
func (a *attempt) won() bool { return a.progress == granted }

// win gives the lock the hold, which is live.
func (a *attempt) win(since clock.Instant) {
	a.progress = granted
	a.path.lock.Won(a.hold, since)
}

// commandWait returns how long to wait for the reply to a command that is sent now.
func (a *attempt) commandWait(deadline clock.Instant) transport.Wait {
	p := a.path.commandWait(a.ctx, Limits{deadline, a.failFast})
	p.Lease, p.Obtains, p.Observer = a.hold.Term().Length, true, (*silence)(a.path.whole())
	return p
}

// Limits say how long a call waits for a reply, besides its context.
type Limits struct {
	Deadline clock.Instant // of the call, which waits a little longer for a reply under way; Never: it has none
	FailFast bool          // the call ends once the server is silent
}

// commandWait returns how long a call with these limits waits for the reply to a command that is sent now.
func (p *Path) commandWait(ctx context.Context, until Limits) transport.Wait {
	to := p.Node()
	w := p.all.CommandWait(ctx, to)
	if w.FailFast = until.FailFast; w.FailFast {
		limit := clock.Plus(to.Patience()+time.Millisecond, p.all.acknowledging()) // a silence is noticed before
		if limit < w.Limit {
			w.Limit, w.Near = limit, 0
		}
	}
	if until.Deadline != clock.Never {
		if left := p.Clock.Now().Until(until.Deadline.Add(to.RoundTrip().Plus(answerGrace))); left < w.Limit {
			w.Limit, w.Near = left, 0
		}
	}
	return w
}

// Unanswered reports whether a call would have given up by now if it had sent a command at that time.
func (p *Path) Unanswered(ctx context.Context, failFast bool, sent clock.Instant) bool {
	w := p.commandWait(ctx, Limits{clock.Never, failFast})
	w.Since = sent
	return w.Over(p.Clock)
}

// confirmGrant renews the hold of a grant that may be over, or whose reply came late. The hold's lease counts from the last
// renewal.
func (a *attempt) confirmGrant(deadline clock.Instant, doubtful bool) error {
	of, h := a.path, a.hold
	p, c := a.commandWait(deadline), of.Format.Renew(of.Key, h.Value(), h.Term())
	if of.Format.Fencing { // a token from a former master would be worthless
		c = of.Format.Fence(of.Key, h.Value(), h.Term())
	}
	p.Obtains, p.Since = false, of.Clock.Now() // one limit for all tries
	end := p.Since.Add(p.Limit)
	c.Replicas, c.Wrote = of.all.Replicas, Renews
	for {
		reply := of.all.Transport.Do(&p, &c)
		n, err := protocol.Confirmed(reply.RedisResult)
		h.Draw(uint64(max(n, 0)))
		switch {
		case err != nil:
		case reply.ReplicaErr != nil:
			err = a.giveBack(reply.ReplicaErr)
		case reply.Late && !reply.Doubtful && n > 0 && reply.Came < end && a.ctx.Err() == nil:
			continue // the round trip is long, or this process stood still, but the server is not suspect: ask it again
		case reply.Late, n <= 0, doubtful && !reply.Fresh: // the former master may answer again
			err = fault.Late
		case h.Grant(reply.Sent, of.Clock.Now()):
			a.win(reply.Sent)
			return nil
		default:
			err = fault.Late
		}
		h.SetMayArrive(true) // the key may be there in any case
		return err
	}
}

// giveBack releases a hold that only the master has, not enough replicas: after a failover others could have the lock, too. The
// release needs no replica. The next try asks for a new hold, which a late release does not touch.
func (a *attempt) giveBack(why error) error {
	left := a.path.remains(a.hold)
	left.MayArrive = a.hold.MayArrive()
	a.path.all.cleanUp(left) // mutant: short grant kept
	a.hold, a.at = a.path.lock.NewHold(a.hold.Terms()), protocol.Reply{}
	return why
}

// explained returns the error of a call that gives up for the reason why. The last finished try decides what explained adds:
// that another owner has the lock, or that Redis could not be asked. If no try has finished, Redis has not answered at all.
func (a *attempt) explained(why error) error {
	switch held := a.progress == answered && a.failure == nil; {
	case a.progress == unanswered:
		return fault.Explain(why, fault.AsUnavailable(fault.NoAnswer))
	case held && why != fault.Busy && !errors.Is(why, fault.Closed): //nolint:errorlint // never wrapped
		return fault.HeldError{End: why}
	default:
		return fault.Explain(why, a.failure)
	}
}
