package queue

import (
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// What a waiting call does when one of its commands has failed: fates decides, failed acts.

// traits are the properties of a failure.
type traits uint16

const (
	passing      traits = 1 << iota // a waiting call tries again
	lasting                         // no call tries again: nothing will change, or the call's context has ended
	refused                         // the server does not know or does not permit the command
	followUp                        // the command asked again, after a late reply that the lock is taken
	betweenNodes                    // a slot of the cluster is moving, and the command's keys are at two nodes
	stuck                           // betweenNodes for movingFor
	notOwner                        // a grant was over before it counted: the lease may be too short for this process
	repeated                        // notOwner, and not for the first time in this call
	givenBack                       // the hold was given back, since too few replicas have the lock
)

// fate says what a call does when a command fails in one of the states at, with all the traits in what.
type fate struct {
	at       states
	what     traits
	abandons bool // the attempt: its command may still be executed
	pauses   bool // before it goes on
	next     state
}

// states is a set of states.
type states uint16

func in(all ...state) (set states) {
	for _, s := range all {
		set |= 1 << s
	}
	return set
}

const anywhere = ^states(0)

// fates has a row for each failure; the first one that fits decides.
var fates = [...]fate{
	// If a look is refused for good, the server refuses the queue: without permission for everything else, the call would have no
	// ticket. The call goes on without a queue, with another number, whatever becomes of the ticket.
	{in(stateLook), refused, false, false, stateBackOff},
	{in(stateAsk), refused | followUp, false, false, stateBackOff},
	// If a try with a trace is refused, the server refuses the trace. A try without one needs only the lock's key.
	{in(stateTrace), refused, false, false, stateTry},
	{in(stateTrace), betweenNodes, false, false, stateTry},

	{in(stateSure), notOwner | repeated, false, true, stateAsk},
	{in(stateSure), notOwner, false, false, stateAsk},

	{anywhere, lasting, false, false, stateEnded},

	{in(stateSure), givenBack, false, true, stateAsk},
	{in(stateSure), passing, false, true, stateLook},
	{in(stateAsk), stuck, true, false, stateAlone},
	{in(stateLook), stuck, false, false, stateAlone},
	{in(stateAsk, stateAlone), passing, true, true, stateAsk},
	{in(stateLook), passing, false, true, stateLook},
	{in(stateTrace), passing, false, true, stateTrace},
	{in(stateTry), passing, false, true, stateTry},
}

// fateOf returns the row for a failure. Every failure that is passing or lasting has one.
func fateOf(at state, what traits) *fate {
	for i := range fates {
		if f := &fates[i]; f.at&in(at) != 0 && what&f.what == f.what {
			return f
		}
	}
	return &fate{next: stateEnded}
}

// failed goes on after a command has failed in a state.
func (a *acquisition) failed(at state, what traits, why error) state {
	f := fateOf(at, what)
	if f.abandons {
		a.abandon()
	}
	switch f.next {
	case stateEnded:
		return a.ends(why)
	case stateBackOff:
		a.path.noQueue(why.Error())
		return a.withoutQueue()
	default:
	}
	if f.pauses {
		if err := a.recover(why); err != nil {
			return a.ends(err)
		}
	} else if at == stateTrace {
		a.failure = nil // it says nothing about the lock
	}
	return f.next
}

// traitsOf returns the traits of a failure of a command that asks for the lock.
func (a *acquisition) traitsOf(at state, why error) (what traits) {
	what = lasting
	if a.passing(why) {
		what = passing
	}
	what |= a.refusal(why)
	if a.again {
		what |= followUp
	}
	if (at == stateAsk || at == stateLook) && a.isStuck(why) {
		what |= stuck
	}
	return what
}

// refusal reports whether the server has refused a command because of its text or its keys.
func (a *attempt) refusal(why error) (what traits) {
	var refusal *rueidis.RedisError
	if !a.cut && errors.As(why, &refusal) {
		if fault.Refusal(refusal) {
			what |= refused
		}
		if fault.BetweenNodes(refusal) {
			what |= betweenNodes
		}
	}
	return what
}

// movingFor is how long a slot of a cluster may be at two nodes before calls go on without the queue. Moving a slot with many
// keys takes some seconds; an aborted move lasts until an operator repairs it.
const movingFor = 500 * time.Millisecond

// isStuck reports whether the server has refused looks for movingFor, because the lock's key is at one node and its queue at
// another.
func (a *acquisition) isStuck(err error) bool {
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

// retries counts failed tries, until one is answered.
type retries struct {
	failed  int           // in a row
	closing clock.Instant // when tries began to fail because the client seems closed; 0: they do not
}

// notSentPause is the longest pause after a try that sent nothing to Redis.
const notSentPause = 200 * time.Millisecond

// closingGrace is how long the client may seem closed before a call checks whether it is. Rueidis also returns ErrClosing for
// the commands that are pending on a connection when it replaces that connection, and for a PING that is sent just then.
const closingGrace = time.Second

// recover pauses after a try that failed with why; why may be nil. It fails when there is no next try.
func (a *acquisition) recover(why error) error {
	if a.failure == nil { // perhaps the process stood still until the call was over, and nothing was sent
		if over := a.over(); over != nil {
			return over
		}
		a.failure = fault.Classify(why)
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
	var last *failure
	if a.failure != nil {
		last = &failure{why: a.failure}
	}
	a.lastFailure.Store(last)
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
