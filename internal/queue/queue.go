package queue

import (
	"errors"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/wake"
)

// The queue of a path in Redis has a ticket for each waiting call. Of a lock that is one for a process at most, since a call
// asks Redis only while it has the local half. A release makes the hold of the first ticket the owner of the key, and tells its
// process by a message; see internal/protocol/lua/queue.lua. specs/PROTOCOL.md says what each side does, and specs/handover.tla
// is checked.
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
// The number of a hold names one attempt: the tries without a queue, or one command that asks for a ticket. Whatever such a
// command may do when its reply is lost, the next one has a higher number; see abandon.

// How the waiting in a queue is timed.
const (
	// refreshing is how often a call looks after its ticket at least. The queue expires when nobody has for 2 minutes. Those who
	// are near the head look more often, by lookEvery for each ticket in front: nobody tells them when the queue goes away.
	refreshing = 30 * time.Second
	lookEvery  = 5 * time.Second

	// firstLook is when a call looks after its ticket for the first time, and how much later for each ticket in front of it,
	// ten at most. Until then a release does not tell it that it is the next one: see internal/protocol/lua/queue.lua.
	firstLook = time.Second
	lookStep  = 100 * time.Millisecond

	// mostPatient is how many calls of other processes look before a call for permits when a lease is over.
	mostPatient = 10

	// watchAfterFirst is for how long the next in the queue relies on the release of whoever has the key. Then it has the
	// server tell it of changes of the key too, which costs a command and a wake-up.
	watchAfterFirst = 10 * time.Millisecond

	// longWindow is the longest window that a release leaves to those without a ticket.
	longWindow = 110 * time.Millisecond

	// shortLease is that of a grant to a process that is not far away, see zerosFor.
	shortLease = time.Second

	// suspicion is for how long the message of a grant that was found by looking may still come, and two round trips.
	suspicion = time.Second
)

// errNoQueue: there is no queue to be had.
var errNoQueue = errors.New("no queue to wait in")

// waitInQueue waits in the queue until the hold is granted, or not to be had. It returns errNoQueue when there is no queue.
func (a *acquisition) waitInQueue() error {
	for next := protocol.ModeEnqueue; ; {
		if err := a.over(); err != nil {
			return err
		}
		heard := a.ear.Hear(a.ctx, a.listening())
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

// step asks once, and goes on as the reply says. It returns what to ask next.
func (a *acquisition) step(ask protocol.Mode) (next protocol.Mode, err error) {
	if ask != protocol.ModeEnqueue { // of two things that woke the call, the other may have been a grant
		if m := a.read(); m.granted > 0 {
			return a.granted(m)
		}
	}
	if err := a.ask(ask); err != nil {
		return a.refused(ask, err)
	}
	a.ticket.moving = 0
	switch a.at.State {
	case protocol.StateFailing:
		return "", errNoQueue
	case protocol.StateOwner:
		return a.found(a.at.Left)
	case protocol.StateQueued:
		return a.asleep()
	default: // missing: it was granted and the grant is over, or it was taken out
		return protocol.ModeEnqueue, nil
	}
}

// read takes what messages have said, and counts them as one.
func (a *acquisition) read() mail {
	m := a.box.take()
	if m.granted > 0 || m.isNext || m.look {
		a.course.wakeups.Messages++
	}
	return m
}

// refused is for a command of which nothing is known, or that the server has refused.
func (a *acquisition) refused(ask protocol.Mode, why error) (next protocol.Mode, err error) {
	if !a.passing(why) {
		return "", why
	}
	if ask == protocol.ModeEnqueue { // it may be executed yet
		a.abandon()
	}
	if a.halfMoved(why) {
		return protocol.ModeEnqueue, a.unqueued()
	}
	return ask, a.recover(why)
}

// listening is how long a call waits for the connection on which grants are announced.
func (a *acquisition) listening() time.Duration {
	reg := a.path.all
	return min(reg.Poll, a.path.Shard().RoundTrip().Connect(), reg.Clock.Now().Until(a.deadline))
}

// unheard tries once without the queue, because the connection for messages is not there, and waits for it.
func (a *acquisition) unheard() error {
	a.drop()
	if a.path.Contested() { // there may be a window for others
		why, err := a.pause(min(longWindow, max(0, a.path.Clock.Now().Until(a.deadline))), a.ear.Wakeup(), nil)
		if err != nil || why == byWakeup {
			return err
		}
	}
	return a.tryOnce(protocol.Queueing{Mode: a.mode(true, a.course.slept && !a.path.all.Cluster)})
}

// movingFor is for how long a slot of a cluster may be at two nodes before calls go on without the queue. A slot of many
// keys is for some seconds; one whose move was given up is until somebody mends it.
const movingFor = 500 * time.Millisecond

// halfMoved tells whether the server has refused to look for so long because the lock's key is at one node and its queue at
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

// unqueued tries once with a command that needs no key but the lock's, which the client finds at either node. The call keeps its
// place: it asks for it again after each try. Its ticket may stay where it cannot be reached now. If that is granted later nobody
// waits for it, and it is passed on at once, see Registry.told.
func (a *acquisition) unqueued() error {
	a.drop()
	return a.tryOnce(protocol.Queueing{Mode: a.mode(false, false)})
}

// drop gives up the ticket, but not the place, and begins another attempt.
func (a *acquisition) drop() {
	a.leave()
	a.ticket.newest = ""
	a.renumber()
}

// tryOnce tries once without the queue, and waits until it is time for the next look.
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
	_, err = a.sleep(a.at.Left)
	return err
}

// lookTimes is when a call that sleeps looks, or has the server tell it of changes, if nothing wakes it before.
type lookTimes struct {
	due      clock.Instant // the lease in the way is over
	refresh  clock.Instant // to keep the ticket, and in case that no message came
	watch    clock.Instant // from then on the server tells of changes of the key
	patience time.Duration // how much later than the end of the lease: those in front look first
	window   bool          // the key is left to those without a ticket for now
}

// whenToLook is what follows from the reply that has shown the ticket in the queue.
func (a *acquisition) whenToLook() lookTimes {
	at, now, poll := &a.at, a.path.Clock.Now(), a.path.all.Poll
	l := lookTimes{due: clock.Never, refresh: now.Add(refreshing), watch: clock.Never}
	first, rank := at.Rank, at.Rank // of those in front so many look first, when a lease is over and when it is not known whether
	if a.path.many {                // they may all be calls of one process, which stands still
		own := a.path.contention().line.before(a.ticket.seat)
		first, rank = min(rank, mostPatient+own), min(rank, 1+own) // mutant: patient with each call
	}
	l.patience = clock.Plus(clock.Times(first, poll), time.Millisecond)
	if at.Left > 0 {
		l.due = a.ticket.base.Add(clock.Plus(at.Left, l.patience))
	}
	switch {
	case at.Rank > 0 && a.ticket.fresh:
		l.refresh = now.Add(firstLook + time.Duration(min(at.Rank, 10))*lookStep)
	case at.Rank > 0:
		l.refresh = now.Add(min(refreshing, time.Duration(rank)*lookEvery))
	case a.path.many: // the key changes whenever anybody's lease does, and no holder passes over those that wait
		l.refresh = now.Add(lookEvery)
	case !at.Foreign:
		l.watch = now.Add(watchAfterFirst)
	}
	if at.Foreign && at.Rank < 2 { // its release passes nobody over whose process is dead: the second one does
		l.watch = 0
	}
	return l
}

// isNext is for a ticket that is the next one, and may look when so long is over.
func (l *lookTimes) isNext(now clock.Instant, after time.Duration) {
	l.patience, l.window = time.Millisecond, after <= longWindow
	l.due, l.watch = now.Add(clock.Plus(after, l.patience)), now.Add(watchAfterFirst)
}

// isNext takes in that the ticket is the next one. For permits another lease may be over sooner, and see whenToLook.
func (a *acquisition) isNext(l *lookTimes, now clock.Instant, after time.Duration) {
	due := l.due
	l.isNext(now, after)
	a.course.lapses = 0
	switch {
	case a.path.many:
		l.due, l.watch, l.window = min(due, l.due), clock.Never, false
		l.refresh = min(l.refresh, now.Add(lookEvery))
	case l.window:
		a.path.all.Windows.Add(1)
	}
}

// asleep waits until it is time to look, or the hold is granted.
func (a *acquisition) asleep() (next protocol.Mode, err error) {
	defer func() { a.ticket.fresh = false }()
	reg, shard := a.path.all, a.path.Shard()
	shard.KeepAlive()
	defer shard.EndKeepAlive()
	a.retries, a.ticket.woken = retries{}, false
	a.course.sleeps(a.ticket.base, a.at.Left)
	a.note(nil)
	for l := a.whenToLook(); ; {
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
			a.isNext(&l, now, m.next)
		}
		switch {
		case min(l.due, l.refresh) <= now:
			reg.Polls.Add(1)
			return protocol.ModeCheck, nil
		case l.watch <= now:
			l.watch = clock.Never
			if !a.ticket.sees && a.watch(&l, now) {
				return protocol.ModeCheck, nil
			}
			continue
		}
		due := min(l.due, l.refresh, l.watch, a.deadline)
		why, err := a.pause(now.Until(due), a.ear.Wakeup(), a.box.came)
		if err != nil {
			return "", err
		}
		a.course.woke(why)
		if why == byWakeup { // the key has changed, or the connection
			a.ticket.woken, a.ticket.sees = true, false
			return protocol.ModeCheck, nil
		}
	}
}

// watch has the server tell of changes of the key from now on, and tells whether the call is to look at once: the key is not
// there, or nobody has looked whether it is, or it may be free for a reader. So it is when somebody has taken it in a window, who
// is seen by the look if it is one without a ticket.
func (a *acquisition) watch(l *lookTimes, now clock.Instant) (look bool) {
	switch seen := a.arm(); {
	case seen.armed && (!seen.taken || l.window || !a.exclusive()):
		a.ticket.sees = seen.taken
		return true
	case seen.armed:
		a.ticket.sees = true
		if seen.left > 0 {
			a.course.lapses = now.Add(seen.left)
			l.due = a.path.Clock.Now().Add(clock.Plus(seen.left, l.patience))
		}
	case l.patience == time.Millisecond: // it is the next one, and nothing tells of a key that goes away in silence
		l.refresh = min(l.refresh, a.path.Clock.Now().Add(a.path.all.Poll))
	}
	return false
}

// granted takes a grant that a message announced. It counts from the last command whose reply showed the ticket in the queue:
// the server has served it later. When too little of it is certain, it is renewed before anybody relies on it; so too when
// a server may have told it that is the master no more, when the hold is to have a fencing token, and when replicas must have it:
// the release that granted it does not wait for them, and WAIT counts what its own connection has written.
func (a *acquisition) granted(m mail) (next protocol.Mode, err error) {
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

// found takes a hold that a look has shown to be the owner, with a lease of so long. When nothing but its time made the call
// look, the message has gone astray: the connection is suspect.
func (a *acquisition) found(left time.Duration) (next protocol.Mode, err error) {
	a.path.all.Grants.Add(1)
	if a.box.take().granted == 0 { // it may still come, once
		patience := a.path.Shard().RoundTrip().Plus(suspicion)
		due := a.path.Clock.Now().Add(clock.Plus(a.path.all.acknowledging(), patience))
		a.hold.AwaitMessage(due) // mutant: found hold lost
		if !a.ticket.woken {
			a.ear.Suspect()
		}
	}
	if !a.writes() && a.hold.GrantShort(a.began, left) {
		a.course.served = true
		a.win(a.began)
		return "", nil
	}
	return a.sure()
}

// writes tells whether the holder of a grant by another process is to write something of its own before it counts.
func (a *acquisition) writes() bool { return a.path.Fencing || a.path.all.Replicas != nil } // mutant: no token

// sure renews a hold that is the owner, or was, and has it draw its fencing token.
func (a *acquisition) sure() (next protocol.Mode, err error) {
	h := a.hold
	sent, granted, err := a.confirm(a.deadline, false)
	if granted && h.Grant(sent, a.path.Clock.Now()) {
		a.course.served = true
		a.win(sent)
		return "", nil
	}
	h.SetMayArrive(true) // it may be the owner still
	switch {
	case a.hold != h && a.passing(err): // it was given back
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
