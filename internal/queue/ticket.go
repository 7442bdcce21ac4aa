package queue

import (
	"container/list"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// ticket is what a call knows about its ticket in the queue.
type ticket struct {
	asked    clock.Instant // when it was asked for, if it still has the place from then; else 0
	newest   string        // the newest ticket asked for, which may be there; empty: none
	place    string        // its place; empty if not known
	zeros    string        // its zeros, see zerosFor
	base     clock.Instant // when the last command was sent whose reply showed it in the queue
	notified clock.Instant // from then on a message says when it is the next one; until then the call must look, see firstLook
	woken    bool          // the call looks because of a message
	sees     bool          // the server reports any change of the key, until something wakes the call
	moving   clock.Instant // since when key and queue are known to be at two nodes; 0: they are not
	seat     *list.Element // in the line of a semaphore; nil: none
}

// renumber begins another attempt: for a new ticket, and for tries between tickets, while the queue cannot be reached.
func (a *acquisition) renumber() {
	a.abandon()
	a.hold = a.path.lock.NewHold(a.hold.Terms())
}

// abandon gives up an attempt whose outcome is not known: whenever it is executed, it is removed in the background, also from
// the queue. From now on messages for its number are not for this call.
func (a *acquisition) abandon() {
	a.box.open("")
	if a.hold.MayArrive() {
		left := a.path.remains(a.hold)
		left.Leaving = a.path.rules.leaving(a.ticket.newest)
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
	left.Leaving.Ticket, left.MayArrive = a.ticket.newest, false
	a.path.all.cleanUp(left)
}

// ask asks the queue for a ticket, or looks after it.
func (a *acquisition) ask(s state) error {
	what := protocol.ModeEnqueue
	if s == stateLook {
		what = protocol.ModeCheck
	}
	if what == protocol.ModeEnqueue {
		a.ticket.zeros = zerosFor(a.path.Shard().RoundTrip(), a.hold.Term().Length)
	}
	w := protocol.Queueing{Mode: what, Zeros: a.ticket.zeros}
	if what == protocol.ModeEnqueue {
		if a.progress != nothingSent { // otherwise the attempt is new
			a.renumber() // mutant: one number twice
		}
		w.Place, w.Replaces = a.ticket.place, a.ticket.newest
		w.Short = a.path.Format.HasShortWay() && w.Place == "" && w.Replaces == "" && w.Zeros == "" && a.path.busy()
		a.ticket.newest = a.bid(w).Ticket()
		a.box.open(a.hold.Number())
	}
	err := a.try(w, false, a.deadline)
	if a.won() && w.Short && !a.again { // no other call waited
		a.hold.SetQueued(a.sentAt)
	}
	if err == nil && a.at.State == protocol.StateFailing {
		if a.path.NoQueue(a.at.Why); fault.Passes(a.at.Why, true) {
			a.failure = fault.AsUnavailable(fault.Whole("Redis cannot serve now: " + a.at.Why))
			err = a.failure
		}
	}
	queued := err == nil && a.at.State == protocol.StateQueued
	if queued {
		if what == protocol.ModeEnqueue {
			a.ticket.asked, a.ticket.notified = a.sentAt, a.path.Clock.Now().Add(firstLook)
			if w.Place != "" || a.again { // a former place, or a look, says nothing about the server's clock
				a.ticket.asked = 0
			}
		}
		a.ticket.place, a.ticket.base = a.at.Place, a.sentAt
	}
	switch {
	case what != protocol.ModeEnqueue: // a late look does nothing: it needs the ticket
		a.hold.SetMayArrive(false)
	case err != nil && !a.hold.MayArrive() && !a.again: // the command has changed nothing
		a.ticket.newest = w.Replaces
	}
	if err == nil || what == protocol.ModeEnqueue {
		a.queued.Store(queued)
	}
	return err
}
