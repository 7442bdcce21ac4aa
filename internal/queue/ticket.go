package queue

import (
	"container/list"
	"errors"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// ticket is what a call knows of its ticket in the queue.
type ticket struct {
	asked  clock.Instant // when it was asked for, if it is at the place that it got then; else 0
	newest string        // that was asked for, if any: it may be there
	place  string        // of it; empty when that is not known
	zeros  string        // in it, see zerosFor
	base   clock.Instant // when the last command was sent whose reply showed it there
	fresh  bool          // the call has not looked after it yet
	woken  bool          // it looks because of a message
	sees   bool          // the server tells of any change of the key, as long as nothing wakes the call
	moving clock.Instant // since when the key and the queue are at two nodes; 0: they are not, as far as is known
	seat   *list.Element // in the line of a semaphore; nil: it has none
}

// renumber begins another attempt.
func (a *acquisition) renumber() {
	a.abandon()
	a.hold = a.path.local.NewHold(a.request.Terms)
}

// abandon gives up an attempt whose outcome is not known: whenever it may be executed, it is removed in the background, from
// the queue too. From now on a message for its number is about a hold that is none of this call's.
func (a *acquisition) abandon() {
	a.box.open("")
	if a.hold.MayArrive() {
		left := a.path.local.Abandoned(a.hold)
		left.Leaving = a.leaving()
		a.path.all.CleanUp(left) // mutant: abandoned ticket left
		a.hold.SetMayArrive(false)
	}
}

// leaving is what an abandoned attempt may have left in the queue. Where other calls of the process wait, too, it is named.
func (a *acquisition) leaving() protocol.Leaving {
	if a.path.many {
		return protocol.Leaving{Ticket: a.ticket.newest}
	}
	return protocol.Leaving{All: true}
}

// leave is for a call that gives up: its ticket is removed, or, when it was granted just now, its hold is released.
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
	left := a.path.local.Abandoned(a.hold)
	left.Leaving.Ticket, left.MayArrive = a.ticket.newest, false
	a.path.all.CleanUp(left)
}

// ask asks something of the queue: for a ticket, or what became of it.
func (a *acquisition) ask(what protocol.Mode) error {
	if what == protocol.ModeEnqueue {
		a.ticket.zeros = zerosFor(a.path.Shard().RoundTrip(), a.hold.Term().Length)
	}
	w := protocol.Queueing{Mode: what, Zeros: a.ticket.zeros}
	if what == protocol.ModeEnqueue {
		if a.sent { // else the attempt is new
			a.renumber() // mutant: one number twice
		}
		w.Place, w.Replaces = a.ticket.place, a.ticket.newest
		w.Fast = a.path.Format.Brief() && w.Place == "" && w.Replaces == "" && w.Zeros == "" && a.path.busy()
		a.ticket.newest, a.ticket.fresh = a.bid(w).Ticket(), true
		a.box.open(a.hold.Number())
	}
	err := a.try(w, false, a.deadline)
	if a.won && w.Fast && !a.again { // nobody waited
		a.hold.SetQueued(a.began)
	}
	if err == nil && a.at.State == protocol.StateFailing {
		if a.path.NoQueue(a.at.Why); fault.Passes(a.at.Why, true) {
			a.failure = fault.AsUnavailable(errors.New(a.at.Why))
			err = a.failure
		}
	}
	queued := err == nil && a.at.State == protocol.StateQueued
	if queued {
		if what == protocol.ModeEnqueue {
			a.ticket.asked = a.began
			if w.Place != "" || a.again { // which says nothing about the server's clock
				a.ticket.asked = 0
			}
		}
		a.ticket.place, a.ticket.base = a.at.Place, a.began
	}
	switch {
	case what != protocol.ModeEnqueue: // a look that is late does nothing: it needs the ticket
		a.hold.SetMayArrive(false)
	case err != nil && !a.hold.MayArrive(): // it has changed nothing
		a.ticket.newest = w.Replaces
	}
	if err == nil || what == protocol.ModeEnqueue {
		a.queued.Store(queued)
	}
	return err
}
