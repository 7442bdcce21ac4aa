package queue

import (
	"container/list"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/wake"
)

// The queue of a path in Redis has a ticket for each waiting call: of a lock at most one per registry, since a call asks Redis
// only while it has the local half. A release makes the hold of the first ticket the owner of the key, and sends its process a
// message; see internal/protocol/lua/queue.lua. test/specs/PROTOCOL.md says what each side does, and test/specs/handoff.tla is
// its checked model.
//
// The states of a waiting call are in acquisition.go.
//
// The number of a hold names one attempt: all tries without a queue, or one command that asks for a ticket. If its reply is
// lost, that command may still be executed at any time; the next one has a higher number, see abandon.

const (
	// shortLease is the lease of a grant to a process that is not far away, see zerosFor.
	shortLease = time.Second

	// The message of a grant may still come for messageGrace + 2 × round trip after a look has found the grant. messageGrace is the
	// lease of such a grant.
	messageGrace = shortLease
)

// inQueue asks for a ticket, or looks at it, once messages of grants can arrive.
func (a *acquisition) inQueue(s state) state {
	if err := a.over(); err != nil {
		return a.ends(err)
	}
	subscription := a.listener.Subscribe(a.ctx, a.connecting())
	a.path.deaf(subscription == wake.Deaf)
	switch subscription {
	case wake.Deaf:
		return a.withoutQueue()
	case wake.NotYet:
		return a.unsubscribed()
	case wake.Proven:
	}
	return a.step(s)
}

// step asks once, and acts on the reply.
func (a *acquisition) step(s state) state {
	if s == stateLook { // a grant may have come together with what woke the call
		if m := a.read(); m.granted > 0 {
			return a.granted(m)
		}
	}
	if err := a.ask(s); err != nil {
		return a.failed(s, a.traitsOf(s, err), err)
	}
	a.ticket.moving = 0
	if a.won() {
		return stateHold
	}
	switch a.at.State {
	case "": // taken: the server has refused the queue as a key, and was asked again without it
		a.path.noQueue(a.path.Format.Unqueued())
		return a.withoutQueue()
	case protocol.StateFailing:
		return a.withoutQueue()
	case protocol.StateOwner:
		return a.found(a.at.Left)
	case protocol.StateQueued:
		return stateSleep
	default: // missing: the ticket was granted and the grant is over, or the ticket was removed
		return stateAsk
	}
}

// read takes the mail, and counts it as one message. It counts a barging window here, too: a change of the key may wake the call
// before the message does, and the look that follows needs no message.
func (a *acquisition) read() mail {
	m := a.box.take()
	if m.granted > 0 || m.isNext || m.look {
		a.course.wakeups.Messages++
	}
	if m.window && !a.path.Format.Many() {
		a.path.all.Windows.Add(1)
	}
	return m
}

// withoutQueue goes on without a queue: the server provides none.
func (a *acquisition) withoutQueue() state {
	a.leaveForNow()
	return stateBackOff
}

// leaveForNow gives up the ticket but keeps the place, and begins another attempt. It resets sees, since a wake-up that ends the
// next pause does not: with its next ticket the call asks the server again to report changes.
func (a *acquisition) leaveForNow() {
	a.leave()
	a.ticket.newest, a.ticket.replaced, a.ticket.sees = "", "", false
	a.hold = a.path.lock.NewHold(a.hold.Terms())
}

// lookTimes computes when the call looks, from the reply that showed its ticket in the queue.
func (a *acquisition) lookTimes() lookTimes {
	s := standing{
		rank: a.at.Rank, left: a.at.Left, foreign: a.at.Foreign, shown: a.ticket.base, notified: a.ticket.notified,
		poll: a.path.all.Poll,
	}
	if a.ticket.seat != nil {
		s.permits, s.ahead = true, a.path.anchor.contention().line.before(a.ticket.seat)
	}
	return s.times(a.path.Clock.Now())
}

// sleep waits until it is time to look, or the hold is granted.
func (a *acquisition) sleep() state {
	node := a.path.Node()
	node.KeepAlive()
	defer node.EndKeepAlive()
	node.Expect(a, a.ticket.newest, a.ticket.base)
	defer node.Expected(a)
	a.ticket.woken = false
	a.foundTaken(a.ticket.base, a.at.Left)
	for l := a.lookTimes(); ; {
		if err := a.over(); err != nil {
			return a.ends(err)
		}
		now := a.path.Clock.Now()
		switch m := a.read(); {
		case m.granted > 0:
			return a.granted(m)
		case m.look:
			a.ticket.woken = true
			return stateLook
		case m.isNext:
			a.course.lapses = 0
			l.isNext(now, m)
		}
		what, until := l.chore(now)
		switch what {
		case rests:
		case looks:
			a.path.all.Polls.Add(1)
			return stateLook
		case watches:
			if !a.ticket.sees && a.watch(&l, now) {
				return stateLook
			}
			continue
		}
		why, err := a.pause(now.Until(min(until, a.deadline)), a.listener.Wakeup(), a.box.came)
		if err != nil {
			return a.ends(err)
		}
		switch why {
		case byWakeup: // the key or the connection has changed
			a.course.wakeups.Changes++
			a.ticket.woken, a.ticket.sees = true, false
			return stateLook
		case byTime:
			a.course.wakeups.Polls++
		case byMail: // counted when it is read: a message may come before the call sleeps
		}
	}
}

// Queue returns the key of the queue.
func (a *acquisition) Queue() string { return a.path.Format.Queue(a.path.Key) }

// Look makes the call look, since its ticket is most likely gone. If the call has already ended, a later call may try early.
func (a *acquisition) Look() { a.box.wakeToLook() }

// watch asks the server to report changes of the key from now on. It reports whether the call must look at once: the key is not
// there, its state is not known, or it may be free for a reader. The call also looks when the key was taken in a window: the
// look shows an owner without a ticket.
func (a *acquisition) watch(l *lookTimes, now clock.Instant) (look bool) {
	switch seen := a.listener.Watch(a.ctx, a.connecting()); {
	case seen.Watched && (!seen.Taken || l.window || !a.exclusive()):
		a.ticket.sees = seen.Taken
		return true
	case seen.Watched:
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

// granted takes a grant that a message announced. The lease counts from the last command whose reply showed the ticket in the
// queue, since the server granted it after that. The hold is renewed before its owner relies on it
//
//   - if too little of the lease is certain,
//   - if the message may come from a former master,
//   - if the hold needs a fencing token, or
//   - if replicas must have it: the release that granted it did not wait for them, and WAIT counts only what its own connection
//     has written.
func (a *acquisition) granted(m mail) state {
	a.path.Node().Granted(a) // mutant: granted ticket is lost
	a.path.all.Grants.Add(1)
	certain := !a.path.Node().IsSuspect(a.path.Clock.Now()) && !a.writes() // mutant: unwritten grant
	a.hold.Queued = true
	if certain && a.hold.GrantShort(a.ticket.base, m.granted) { // mutant: grant counts from its message
		a.course.served = true
		a.win(a.ticket.base)
		return stateHold
	}
	return stateSure
}

// found takes a hold that a look has shown to be the owner, with the given lease. If nothing woke the call, the message of the
// grant is lost: the connection is suspect.
func (a *acquisition) found(left time.Duration) state {
	if a.box.take().granted > 0 {
		a.path.all.Grants.Add(1) // the look was too early
	} else { // the message may still come, once
		patience := a.path.Node().RoundTrip().Plus(messageGrace)
		due := a.path.Clock.Now().Add(clock.Plus(a.path.all.acknowledging(), patience))
		a.hold.AwaitMessage(due) // mutant: found hold lost
		if !a.ticket.woken {
			a.listener.Suspect()
		}
	}
	if !a.writes() && a.hold.GrantShort(a.sentAt, left) {
		a.course.served = true
		a.win(a.sentAt)
		return stateHold
	}
	return stateSure
}

// writes reports whether a grant by another process counts only after a write of this process.
func (a *acquisition) writes() bool { return a.path.Format.Fencing || a.path.all.Replicas != nil } // mutant: no token

// sure renews a hold that is or was the owner, and draws its fencing token.
func (a *acquisition) sure() state {
	h := a.hold
	err := a.confirmGrant(a.deadline, false)
	if err == nil {
		a.course.served = true
		return stateHold
	}
	what := lasting
	switch {
	case a.hold != h && a.passing(err):
		what = passing | givenBack
	case errors.Is(err, fault.Late):
		what = notOwner
		if a.course.late++; a.course.late > 1 {
			what |= repeated
		}
		return a.failed(stateSure, what, nil)
	case a.passing(err):
		what = passing
	}
	a.failure = fault.Classify(err)
	return a.failed(stateSure, what, a.failure)
}

// ticket is what a call knows about its ticket in the queue.
type ticket struct {
	newest   string        // the newest one asked for, which may be there; empty: none
	replaced string        // the one that newest replaces, until a reply says so
	place    string        // its place; empty if not known
	zeros    string        // its zeros, see zerosFor
	base     clock.Instant // when the last command was sent whose reply showed it in the queue
	notified clock.Instant // from then on a message says when it is the next one; until then the call must look, see firstLook
	woken    bool          // the call looks because of a message
	sees     bool          // the server reports any change of the key, until something wakes the call
	moving   clock.Instant // when key and queue were first found at two nodes; 0: they are not
	seat     *list.Element // in the line of a semaphore; nil: none
}

// mayBeThere returns the tickets that the call may have in the queue. The cleaner removes those of abandoned attempts.
func (t *ticket) mayBeThere() (all []string) {
	for _, one := range [...]string{t.replaced, t.newest} {
		if one != "" {
			all = append(all, one)
		}
	}
	return all
}

// abandon gives up an attempt whose outcome is not known. Whenever its command is executed, what it leaves is removed in the
// background, also from the queue. From now on messages with its number are not for this call.
func (a *acquisition) abandon() {
	a.box.open("")
	if a.hold.MayArrive() {
		left := a.path.remains(a.hold)
		left.Leaving = a.ticket.mayBeThere()
		a.path.all.cleanUp(left) // mutant: abandoned ticket left
		a.hold.SetMayArrive(false)
	}
}

// leave removes the ticket of a call that gives up, or releases the hold if it was granted just now.
func (a *acquisition) leave() {
	a.queued.Store(false)
	if a.hold.MayArrive() {
		a.abandon()
		return
	}
	a.box.open("") // mutant: ticket left
	if a.ticket.newest == "" {
		return
	}
	left := a.path.remains(a.hold)
	left.Leaving, left.MayArrive = a.ticket.mayBeThere(), false
	a.path.all.cleanUp(left)
}

// clears reports whether a look also removes the tickets in front whose processes are gone. A look that is due does; a look after
// a wake-up does not. The wake-up may mean that the server was replaced, and that all processes have lost their connections. They
// are back in a moment, but those whose tickets were removed would have to ask for new ones.
//
// Clearing makes a look half as expensive again. Where thousands wait, most calls far back leave it to the others.
func (a *acquisition) clears() bool {
	far := a.at.Rank > mostClear && rand.N(seldomClears) > 0 //nolint:gosec // no secret
	return a.at.Rank > 0 && !a.ticket.woken && !far
}

const (
	mostClear    = 500 // with up to this many tickets in front, every look clears
	seldomClears = 16  // beyond that, one look in this many clears
)

// ask asks the queue for a ticket, or looks at it.
func (a *acquisition) ask(s state) error {
	asks, w := s == stateAsk, protocol.Queueing{Mode: protocol.ModeCheck, Zeros: a.ticket.zeros}
	if asks {
		if a.progress != nothingSent { // otherwise the attempt is new
			a.abandon()
			a.hold = a.path.lock.NewHold(a.hold.Terms()) // mutant: one number twice
		}
		a.ticket.zeros = zerosFor(a.path.Node().RoundTrip(), a.hold.Term().Length)
		w = protocol.Queueing{
			Mode: protocol.ModeEnqueue, Place: a.ticket.place, Replaces: a.ticket.newest, Zeros: a.ticket.zeros,
		}
		if a.path.Format.HasShortWay() && w.Place == "" && w.Replaces == "" && w.Zeros == "" {
			c := a.path.anchor.others.Load()
			w.Short = c != nil && c.barging.Busy(a.path.Clock.Now())
		}
		a.ticket.newest, a.ticket.replaced = a.bid(w).Ticket(), w.Replaces
		a.box.open(a.hold.Number())
	} else {
		w.Clears = a.clears()
	}
	err := a.try(w, false, a.deadline)
	a.hold.Queued = a.won()
	if err == nil && a.at.State == protocol.StateFailing {
		if a.path.noQueue(a.at.Why); fault.Passes(a.at.Why, true) {
			a.failure = fault.AsUnavailable(fault.Whole("Redis cannot serve now: " + a.at.Why))
			err = a.failure
		}
	}
	queued := err == nil && a.at.State == protocol.StateQueued
	if queued {
		if asks {
			a.ticket.notified = a.path.Clock.Now().Add(firstLook)
		}
		a.ticket.place, a.ticket.base, a.ticket.replaced = a.at.Place, a.sentAt, ""
	}
	switch {
	case !asks: // a late look does nothing: it needs the ticket
		a.hold.SetMayArrive(false)
	case err != nil && !a.hold.MayArrive() && !a.again: // the command has changed nothing
		a.ticket.newest, a.ticket.replaced = w.Replaces, ""
	}
	if err == nil || asks {
		a.queued.Store(queued)
	}
	return err
}
