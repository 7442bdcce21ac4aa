package queue

import (
	"github.com/lockregistry/lockregistry/internal/barging"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// backOff lets others go first, if it is their turn.
func (a *acquisition) backOff() state {
	if c := a.path.anchor.others.Load(); c != nil {
		if pause, due := c.barging.BackOff(a.path.all.Poll, a.path.all.Listening != nil); due {
			if _, err := a.pause(min(pause, a.left()), nil, nil); err != nil {
				return a.ends(err)
			}
		}
	}
	return statePoll
}

// poll begins to try without a queue: whenever the call is woken, the holder's lease ends, or the poll interval is over. All its
// tries ask for the same hold, so the next one makes up for a lost reply.
func (a *acquisition) poll() state {
	a.listener.Watch(a.ctx, a.connecting())
	if a.failure != nil { // of the try before
		if err := a.recover(a.failure); err != nil {
			return a.ends(err)
		}
	}
	if a.left() > 0 {
		return stateTrace
	}
	return stateTry // this is the last one
}

// tryNow tries, with a trace or without, and waits until the next try.
func (a *acquisition) tryNow(s state) state {
	asks := a.mode(true, s == stateTrace)
	if err := a.try(protocol.Queueing{Mode: asks}, false, a.deadline); err != nil {
		what := a.traitsOf(s, err)
		if asks != protocol.ModePoll && asks != protocol.ModeSeen {
			what &^= refused | betweenNodes
		}
		return a.failed(s, what, err)
	}
	if a.won() {
		return stateHold
	}
	seen := a.listener.Watch(a.ctx, a.connecting())
	if seen.Watched && (!seen.Taken || !a.exclusive()) { // the key may have changed before, or may not exclude this call
		if err := a.over(); err != nil {
			return a.ends(err)
		}
		return s
	}
	if seen.Watched {
		a.at.Left = seen.Left
	}
	return a.waitForNext(s)
}

// alone tries once with a command that needs only the lock's key, which the client finds at either of two nodes. The call keeps
// its place in the queue, and asks for it again after each try.
//
// The call's old ticket may stay on a node where it cannot be removed now. A later grant to that ticket finds no waiting call,
// and is passed on at once, see Registry.deliver.
func (a *acquisition) alone() state {
	a.leaveForNow()
	return a.tryOnce(protocol.Queueing{Mode: a.mode(false, false)})
}

// unsubscribed tries once without the queue, because there is no connection for messages yet.
//
// The last release of this process may have left a barging window for others: then the call first waits until that is over. Once
// the call has found the key taken, it no longer does: with a pause before each try it would miss windows that are for the call.
func (a *acquisition) unsubscribed() state {
	a.leaveForNow()
	if a.path.Contested() && !a.course.slept {
		why, err := a.pause(min(barging.Window, a.left()), a.listener.Wakeup(), nil)
		if err != nil {
			return a.ends(err)
		}
		if why == byWakeup {
			return stateAsk
		}
	}
	return a.tryOnce(protocol.Queueing{Mode: a.mode(true, a.course.slept && !a.path.all.Cluster)})
}

// tryOnce tries once between two tickets, then waits until it is time to ask for the next one.
func (a *acquisition) tryOnce(w protocol.Queueing) state {
	err := a.try(w, false, a.deadline)
	switch {
	case a.won():
		return stateHold
	case err != nil:
		return a.failed(stateAlone, a.traitsOf(stateAlone, err), err)
	default:
		return a.waitForNext(stateAsk)
	}
}

// waitForNext waits until the next try, after one that has found the lock taken. It returns next, unless there is none.
func (a *acquisition) waitForNext(next state) state {
	if err := a.over(); err != nil {
		return a.ends(err)
	}
	a.foundTaken(a.sentAt, a.at.Left)
	pause := min(a.path.all.Poll, a.left())
	if a.at.Left > 0 {
		pause = min(pause, clock.Plus(a.at.Left, afterEnd))
	}
	why, err := a.pause(pause, a.listener.Wakeup(), nil)
	if err != nil {
		return a.ends(err)
	}
	if why == byWakeup {
		a.course.wakeups.Changes++
	} else {
		a.course.wakeups.Polls++
		a.path.all.Polls.Add(1)
	}
	return next
}

// exclusive reports whether an existing key surely excludes this call. It may not, if readers or holders of permits share the
// key, or if the reply to a try is lost: the key may then be this hold's own.
func (a *acquisition) exclusive() bool {
	return !a.hold.MayArrive() && (a.path.side == "" || a.path.side == Writes)
}
