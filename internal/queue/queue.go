package queue

import (
	"errors"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/wake"
)

// The queue of a path in Redis has a ticket for each waiting call: of a lock at most one per registry, since a call asks Redis
// only while it has the local half. A release makes the hold of the first ticket the owner of the key, and sends its process a
// message; see internal/protocol/lua/queue.lua. test/specs/PROTOCOL.md says what each side does, and test/specs/handover.tla is
// its checked model.
//
// A waiting call is in one of these states:
//
//	ask ──queued──▶ asleep ──its time has come, or a message says that something happened──▶ look
//	 │ ▲              │  ▲                                                                  │ │ │
//	 │ └──────────────┼──┴──queued──────────────────────────────────────────────────────────┘ │ │
//	 │  missing: a new number ────────────────────────────────────────────────────────────────┘ │
//	 ▼                ▼ a message: granted                                                      ▼
//	held ◀────────────┴─▶ sure ──renewed──▶ held                                        held, sure
//
// The number of a hold names one attempt: all tries without a queue, or one command that asks for a ticket. If its reply is
// lost, that command may still be executed at any time; the next one has a higher number, see abandon.

// The times of waiting in a queue.
const (
	// longWindow is the longest window that a release leaves to calls without a ticket.
	longWindow = 110 * time.Millisecond

	// shortLease is the lease of a grant to a process that is not far away, see zerosFor.
	shortLease = time.Second

	// suspicion, plus two round trips, is for how long the message of a grant may still come after a look has found the grant.
	suspicion = time.Second
)

// errNoQueue: the server provides no queue.
var errNoQueue = errors.New("no queue to wait in")

// waitInQueue waits in the queue until the hold is granted, or the call fails. It returns errNoQueue if there is no queue.
func (a *acquisition) waitInQueue() error {
	for next := protocol.ModeEnqueue; ; {
		if err := a.over(); err != nil {
			return err
		}
		heard := a.listener.Hear(a.ctx, a.listening())
		a.path.deaf(heard == wake.Deaf)
		var err error
		switch heard {
		case wake.Heard:
			next, err = a.step(next)
		case wake.Deaf:
			return errNoQueue
		case wake.NotYet:
			next, err = protocol.ModeEnqueue, a.unheard()
		}
		if err != nil || a.won {
			return err
		}
	}
}

// step asks once, and acts on the reply. It returns what to ask next.
func (a *acquisition) step(ask protocol.Mode) (next protocol.Mode, err error) {
	if ask != protocol.ModeEnqueue { // a grant may have come together with what woke the call
		if m := a.read(); m.granted > 0 {
			return a.granted(m)
		}
	}
	if err := a.ask(ask); err != nil {
		return a.refused(ask, err)
	}
	a.ticket.moving = 0
	switch {
	case a.won:
		return "", nil
	case a.at.State == "": // taken: the server has refused the queue as a key, and was asked again without it
		a.path.NoQueue(a.path.Format.Unqueued())
		return "", errNoQueue
	}
	switch a.at.State {
	case protocol.StateFailing:
		return "", errNoQueue
	case protocol.StateOwner:
		return a.found(a.at.Left)
	case protocol.StateQueued:
		return a.asleep()
	default: // missing: the ticket was granted and the grant is over, or it was taken out
		return protocol.ModeEnqueue, nil
	}
}

// read takes the mail, and counts it as one message. It also counts a window here, since a change of the key may wake the call
// before the message does: then a look follows, which needs no message.
func (a *acquisition) read() mail {
	m := a.box.take()
	if m.granted > 0 || m.isNext || m.look {
		a.course.wakeups.Messages++
	}
	if m.window() && !a.path.Many() {
		a.path.all.Windows.Add(1)
	}
	return m
}

// refused handles a command without a reply, or one that the server has refused. A look that is refused for good was refused for
// its queue: without permission for anything else the call would have no ticket. It goes on without a queue, with another number,
// whatever becomes of its ticket.
func (a *acquisition) refused(ask protocol.Mode, why error) (next protocol.Mode, err error) {
	if looked := ask == protocol.ModeCheck || a.again; looked && fault.Refusal(a.refusal(why)) {
		a.path.NoQueue(why.Error())
		return "", errNoQueue
	}
	if !a.passing(why) {
		return "", why
	}
	if ask == protocol.ModeEnqueue { // it may still be executed
		a.abandon()
	}
	if a.halfMoved(why) {
		return protocol.ModeEnqueue, a.unqueued()
	}
	return ask, a.recover(why)
}

// listening returns how long a call waits for the connection on which grants are announced.
func (a *acquisition) listening() time.Duration {
	reg := a.path.all
	return min(reg.Poll, a.path.Shard().RoundTrip().Connect(), reg.Clock.Now().Until(a.deadline))
}

// unheard tries once without the queue, because there is no connection for messages, and waits for one. At the last release of
// this process there may have been a window for others: then it waits until that is over. A call that has found the key taken
// since then has no reason to: with a pause before each try it would miss windows that are for itself.
func (a *acquisition) unheard() error {
	a.drop()
	if a.path.Contested() && !a.course.slept {
		why, err := a.pause(min(longWindow, max(0, a.path.Clock.Now().Until(a.deadline))), a.listener.Wakeup(), nil)
		if err != nil || why == byWakeup {
			return err
		}
	}
	return a.tryOnce(protocol.Queueing{Mode: a.mode(true, a.course.slept && !a.path.all.Cluster)})
}

// movingFor is for how long a slot of a cluster may be at two nodes before calls go on without the queue. The move of a slot
// with many keys takes some seconds; an aborted move lasts until an operator repairs it.
const movingFor = 500 * time.Millisecond

// halfMoved reports whether the server has refused looks for movingFor, because the lock's key is at one node and its queue at
// another.
func (a *acquisition) halfMoved(err error) bool {
	if !a.path.all.Cluster || !fault.BetweenNodes(err) {
		a.ticket.moving = 0
		return false
	}
	now := a.path.Clock.Now()
	if a.ticket.moving == 0 {
		a.ticket.moving = now
	}
	return a.ticket.moving.Until(now) >= movingFor
}

// unqueued tries once with a command that needs only the lock's key, which the client finds at either node. The call keeps its
// place: it asks for it again after each try. Its old ticket may stay where it cannot be reached now. If that is granted later,
// no call waits for it, and it is passed on at once, see Registry.deliver.
func (a *acquisition) unqueued() error {
	a.drop()
	return a.tryOnce(protocol.Queueing{Mode: a.mode(false, false)})
}

// drop gives up the ticket but keeps the place, and begins another attempt. A wake-up may end the pause that follows, and is
// not noted there: so with its next ticket the call asks the server anew to report changes.
func (a *acquisition) drop() {
	a.leave()
	a.ticket.newest, a.ticket.sees = "", false
	a.renumber()
}

// tryOnce tries once without the queue, then waits until the next look.
func (a *acquisition) tryOnce(w protocol.Queueing) error {
	err := a.try(w, false, a.deadline)
	switch {
	case a.won:
		return nil
	case err != nil && a.passing(err):
		a.abandon()
		return a.recover(err)
	case err != nil:
		return err
	}
	return a.sleep(a.at.Left)
}

// lookTimes computes when the call looks, from the reply that has shown its ticket in the queue.
func (a *acquisition) lookTimes() lookTimes {
	s := standing{
		rank: a.at.Rank, left: a.at.Left, foreign: a.at.Foreign, shown: a.ticket.base, told: a.ticket.told,
		poll: a.path.all.Poll, permits: a.path.Many(),
	}
	if s.permits {
		s.ahead = a.path.contention().line.before(a.ticket.seat)
	}
	return s.times(a.path.Clock.Now())
}

// asleep waits until it is time to look, or the hold is granted.
func (a *acquisition) asleep() (next protocol.Mode, err error) {
	reg, shard := a.path.all, a.path.Shard()
	shard.KeepAlive()
	defer shard.EndKeepAlive()
	shard.Expect(a, a.ticket.newest, a.ticket.base)
	defer shard.Expected(a)
	a.retries, a.ticket.woken = retries{}, false
	a.course.sleeps(a.ticket.base, a.at.Left)
	a.path.noteEndless(a.at.Left)
	a.note(nil)
	for l := a.lookTimes(); ; {
		if err := a.over(); err != nil {
			return "", err
		}
		now := reg.Clock.Now()
		switch m := a.read(); {
		case m.granted > 0:
			return a.granted(m)
		case m.look:
			a.ticket.woken = true
			return protocol.ModeCheck, nil
		case m.isNext:
			a.course.lapses = 0
			l.isNext(now, m, a.path.Many())
		}
		what, until := l.chore(now)
		switch what {
		case rests:
		case looks:
			reg.Polls.Add(1)
			return protocol.ModeCheck, nil
		case watches:
			if !a.ticket.sees && a.watch(&l, now) {
				return protocol.ModeCheck, nil
			}
			continue
		}
		why, err := a.pause(now.Until(min(until, a.deadline)), a.listener.Wakeup(), a.box.came)
		if err != nil {
			return "", err
		}
		a.course.woke(why)
		if why == byWakeup { // the key or the connection has changed
			a.ticket.woken, a.ticket.sees = true, false
			return protocol.ModeCheck, nil
		}
	}
}

// Queue returns the key of the queue.
func (a *acquisition) Queue() string { return a.path.Format.Queue(a.path.Key) }

// Look makes the call look, since its ticket is most likely gone. If the call has ended meanwhile, nobody reads that.
func (a *acquisition) Look() { a.box.stir() }

// watch asks the server to report changes of the key from now on. It reports whether the call must look at once: the key is not
// there, its state is not known, or it may be free for a reader. The call also looks when the key was taken in a window: the
// look shows an owner without a ticket.
func (a *acquisition) watch(l *lookTimes, now clock.Instant) (look bool) {
	switch seen := a.arm(); {
	case seen.Armed && (!seen.Taken || l.window || !a.exclusive()):
		a.ticket.sees = seen.Taken
		return true
	case seen.Armed:
		a.ticket.sees = true
		if seen.Left > 0 {
			a.course.lapses = now.Add(seen.Left)
		}
		l.isWatched(a.path.Clock.Now(), seen.Left)
	default:
		l.isUnwatched(a.path.Clock.Now(), a.path.all.Poll)
	}
	return false
}

// granted takes a grant that a message announced. Its lease counts from the last command whose reply showed the ticket in the
// queue: the server granted it later. The grant is renewed before the owner relies on it if too little of the lease is certain,
// if the message may come from a former master, if the hold needs a fencing token, and if replicas must have it: the release
// that granted it did not wait for them, and WAIT counts only what its own connection has written.
func (a *acquisition) granted(m mail) (next protocol.Mode, err error) {
	a.path.Shard().Granted(a) // mutant: granted ticket is lost
	a.path.all.Grants.Add(1)
	certain := !a.path.Shard().IsSuspect(a.path.Clock.Now()) && !a.writes() // mutant: unwritten grant
	a.hold.SetQueued(a.ticket.asked)
	if certain && a.hold.GrantShort(a.ticket.base, m.granted) { // mutant: grant counts from its message
		a.course.served = true
		a.win(a.ticket.base)
		return "", nil
	}
	return a.sure()
}

// found takes a hold that a look has shown to be the owner, with the given lease. If nothing woke the call, the message of the
// grant is lost: the connection is suspect.
func (a *acquisition) found(left time.Duration) (next protocol.Mode, err error) {
	if a.box.take().granted > 0 {
		a.path.all.Grants.Add(1) // the look was too early
	} else { // the message may still come, once
		patience := a.path.Shard().RoundTrip().Plus(suspicion)
		due := a.path.Clock.Now().Add(clock.Plus(a.path.all.acknowledging(), patience))
		a.hold.AwaitMessage(due) // mutant: found hold lost
		if !a.ticket.woken {
			a.listener.Suspect()
		}
	}
	if !a.writes() && a.hold.GrantShort(a.began, left) {
		a.course.served = true
		a.win(a.began)
		return "", nil
	}
	return a.sure()
}

// writes reports whether a grant by another process counts only after a write of this process.
func (a *acquisition) writes() bool { return a.path.Format.Fencing || a.path.all.Replicas != nil } // mutant: no token

// sure renews a hold that is or was the owner, and draws its fencing token.
func (a *acquisition) sure() (next protocol.Mode, err error) {
	h := a.hold
	sent, granted, err := a.confirm(a.deadline, false)
	if granted && h.Grant(sent, a.path.Clock.Now()) {
		a.course.served = true
		a.win(sent)
		return "", nil
	}
	h.SetMayArrive(true) // it may still be the owner
	switch {
	case a.hold != h && a.passing(err): // it was released
		a.failure = fault.Classify(err)
		return protocol.ModeEnqueue, a.recover(err)
	case err == nil || errors.Is(err, fault.Late):
		if a.course.late++; a.course.late == 1 {
			return protocol.ModeEnqueue, nil
		}
		return protocol.ModeEnqueue, a.recover(nil) // the lease may be too short for this process
	case a.passing(err):
		a.failure = fault.Classify(err)
		return protocol.ModeCheck, a.recover(err)
	default:
		return "", fault.Classify(err)
	}
}
