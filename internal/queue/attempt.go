package queue

import (
	"context"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// attempt is what all tries of a call have in common.
type attempt struct {
	path  *Path
	hold  *hold.Hold
	under string          // to read: the value of the hold with which the same owner writes already
	ctx   context.Context // the caller's
	sent  bool            // a try has begun
	asked bool            // and one has ended
	cut   bool            // the last one has not, because ctx ended
	again bool            // the last one was told late that the lock is taken, and asked again
	won   bool            // the hold is granted
	fast  bool            // the call ends when Redis cannot be asked, although its wait is not over
	began clock.Instant   // when the last one was sent
	at    protocol.Reply  // what the last one that was answered has shown
	// failure is why the last one that ended said nothing about the lock; nil when it said that another owner has it.
	failure error
}

// answerGrace is how much longer than its wait a call may take when the server does not answer.
const answerGrace = 250 * time.Millisecond

// bid is what a try asks for.
func (a *attempt) bid(w protocol.Queueing) protocol.Request {
	return protocol.Request{
		Key: a.path.Key, Value: a.hold.Value(), Lease: a.hold.Term(), Under: a.under, Side: a.path.side, Queueing: w,
	}
}

// mode is what a try asks for that has no ticket. Polls tells that it has been trying, and goes on so for now: it leaves a trace,
// so that those with tickets let it in. So does one that does not wait, when one just before had not got the lock either, see
// tries; it keeps nobody out. A reader that waits anyway does not overtake a writer that waits, although others read already; and
// who reads is not to keep out for ever a writer that only polls.
func (a *attempt) mode(patient, polls bool) protocol.Mode {
	switch {
	case a.path.many: // nobody overtakes those that wait
		return protocol.ModeTry
	case !a.path.MayQueue() || !patient && !polls:
		return protocol.ModeNone
	case polls && patient:
		return protocol.ModeReserve
	case polls:
		return protocol.ModeSeen
	case a.path.side == Reads:
		return protocol.ModeTry
	default:
		return protocol.ModeNone
	}
}

// passing tells whether a call that waits tries again after err.
func (a *attempt) passing(err error) bool { return !a.cut && fault.Transient(err) } // mutant: failure ends the wait

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
	reply := a.path.all.Transport.Do(&p, &c)
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
		reply := a.path.all.Transport.Do(p, &c)
		err = a.judge(&c, &reply, deadline)
		if a.cut || p.Left(a.path.Clock) <= 0 {
			break
		}
	}
	return err
}

//go:noinline
func (a *attempt) prepare(c *protocol.Call, w protocol.Queueing, quick bool) {
	*c = a.path.Format.Obtain(a.bid(w), quick)
	c.DropIfAbandoned = true
	a.path.all.Demand(c, grants)
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
	a.won = true
	a.path.local.Won(a.hold, since)
}

// commandWait is how long to wait for the answer to a command that is sent now.
func (a *attempt) commandWait(deadline clock.Instant) transport.Wait {
	reg, to := a.path.all, a.path.Shard()
	p := reg.CommandWait(a.ctx, to)
	p.Lease, p.Obtains, p.Observer = a.hold.Term().Length, true, (*silence)(a.path.whole())
	if a.fast {
		if limit := clock.Plus(to.Patience(), reg.acknowledging()); limit < p.Limit {
			p.Limit, p.Near = limit, 0
		}
	}
	if deadline != clock.Never {
		if left := reg.Clock.Now().Until(deadline.Add(to.RoundTrip().Plus(answerGrace))); left < p.Limit {
			p.Limit, p.Near = left, 0
		}
	}
	return p
}

// confirmGrant makes sure of a grant whose answer came late, and has the hold count from then.
func (a *attempt) confirmGrant(deadline clock.Instant, doubtful bool) error {
	h := a.hold
	sent, granted, err := a.confirm(deadline, doubtful)
	if granted && h.Grant(sent, a.path.Clock.Now()) {
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
	of, h := a.path, a.hold
	p, c := a.commandWait(deadline), of.Format.Renew(of.Key, h.Value(), h.Term())
	if of.Fencing { // a token of a master that is none any more would be worth nothing
		c = of.Format.Fence(of.Key, h.Value(), h.Term())
	}
	p.Obtains, p.Since = false, of.Clock.Now() // all tries have one limit
	end := p.Since.Add(p.Limit)
	of.all.Demand(&c, Renews)
	for {
		reply := of.all.Transport.Do(&p, &c)
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
	left := a.path.local.Abandoned(a.hold)
	left.MayArrive = a.hold.MayArrive()
	a.path.all.CleanUp(left) // mutant: short grant kept
	a.hold, a.at = a.path.local.NewHold(a.hold.Terms()), protocol.Reply{}
	return why
}

// explained adds to the reason for which a call gives up that Redis could not be asked, if so. The last try that ended
// decides; when none has, Redis has not answered at all.
func (a *attempt) explained(why error) error {
	failure := a.failure
	if a.sent && !a.asked {
		failure = fault.AsUnavailable(fault.NoAnswer)
	}
	return fault.Explain(why, failure)
}
