package queue

import (
	"log/slog"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/wake"
	"github.com/lockregistry/lockregistry/observe"
)

// acquisition is a call that has the local half, did not get the hold at its first try, and waits. It is in one state after
// another, until it has the hold or ends.
//
//	ask ──queued──▶ sleep ──its time has come, or a message says that something happened──▶ look
//	 │ ▲              │  ▲                                                                 │ │ │
//	 │ └──────────────┼──┴──queued─────────────────────────────────────────────────────────┘ │ │
//	 │  missing: a new number ───────────────────────────────────────────────────────────────┘ │
//	 ▼                ▼ a message: granted                                                     ▼
//	hold ◀────────────┴─▶ sure ──renewed──▶ hold                                       hold, sure
//
//	ask, look ──no queue──▶ back off ──▶ poll ──▶ hold
//
// Each state is a function that returns the next state. Those of the queue are in queue.go, the others in poll.go. failures.go
// decides which state follows a command that failed. test/specs/PROTOCOL.md calls the states by the same names.
type acquisition struct {
	attempt    // what its tries share
	activeWait // what others see of it
	*waitKit   // its ticket, its mail, how it went
	retries    retries
	listener   *wake.Waiter // nil: there are no wake-ups
	blocked    deadlock.Call

	// What ends it, besides its context and its registry.
	deadline clock.Instant   // the last moment to begin a try, except the first
	draining <-chan struct{} // closed when the registry begins to shut down; nil once the call is allowed to go on
}

// state is what a call does next.
type state uint8

const (
	stateAsk     state = iota // for a ticket, with a new number
	stateLook                 // at the ticket
	stateSleep                // until it is time to look, or a message comes
	stateSure                 // renews a hold that was granted
	stateAlone                // tries once by a command that needs only the lock's key
	stateBackOff              // lets others go first
	statePoll                 // begins to try without a queue
	stateTrace                // tries, and leaves a trace for calls with tickets
	stateTry                  // tries
	stateHold                 // the hold is live
	stateEnded                // the call has failed
)

// run goes from state to state until the call has the hold or has failed.
func (a *acquisition) run(s state) error {
	for {
		switch s {
		case stateAsk, stateLook:
			s = a.inQueue(s)
		case stateSleep:
			s = a.sleep()
		case stateSure:
			s = a.sure()
		case stateAlone:
			s = a.alone()
		case stateBackOff:
			s = a.backOff()
		case statePoll:
			s = a.poll()
		case stateTrace, stateTry:
			s = a.tryNow(s)
		case stateHold:
			return nil
		case stateEnded:
			return a.failure
		}
	}
}

// ends records why the call fails, and returns its last state.
func (a *acquisition) ends(err error) state {
	a.failure = err
	return stateEnded
}

// over returns why the call must not go on; nil if it may. Each wait and each new try asks it.
func (a *acquisition) over() error {
	if err := a.path.all.Stopped(a.ctx); err != nil {
		return a.explained(err)
	}
	select {
	case <-a.draining:
		if !a.path.all.Draining.GoesOn(a.ctx) {
			return fault.Closed
		}
		a.draining = nil
	default:
	}
	if a.path.Clock.Now() < a.deadline {
		return nil
	}
	return a.explained(fault.Busy)
}

// foundTaken notes that Redis has answered, and that the call now waits for another owner's hold. Left is what was left of the
// hold's lease at seen: not known if not positive, except [protocol.Endless].
//
// Every lock of this library and of Java has an expiry; a key without one stays until somebody removes it. This is logged once a
// minute at most, and not for a semaphore, where the expiry of the key means nothing.
func (a *acquisition) foundTaken(seen clock.Instant, left time.Duration) {
	a.retries = retries{}
	a.lastFailure.Store(nil)
	a.course.slept, a.course.lapses = true, 0
	if left > 0 {
		a.course.lapses = seen.Add(left)
	}
	if left != protocol.Endless || a.path.Format.Many() {
		return
	}
	c, now := a.path.anchor.contention(), a.path.Clock.Now()
	if next := clock.Instant(c.endless.Load()); now >= next && c.endless.CompareAndSwap(int64(next), int64(now.Add(queuelessFor))) {
		a.path.Log(slog.LevelWarn, "a key that calls wait for has no expiry: it stays until somebody removes it",
			slog.String("key", a.path.Key))
	}
}

// left returns how much of the call's time is left.
func (a *acquisition) left() time.Duration { return max(0, a.path.Clock.Now().Until(a.deadline)) }

// connecting returns how long the call waits for the connection for messages.
func (a *acquisition) connecting() time.Duration {
	return min(a.path.all.Poll, a.path.Node().RoundTrip().Connect(), a.path.Clock.Now().Until(a.deadline))
}

// reason is what ended a pause.
type reason uint8

const (
	byTime reason = iota
	byWakeup
	byMail
)

// failEvery is how often a call with FailFast checks whether Redis can be asked.
const failEvery = 100 * time.Millisecond

// pause waits for d, or until the call is woken or has mail. It fails when the call must not go on, and, with FailFast, once the
// server is silent.
func (a *acquisition) pause(d time.Duration, wake, mail <-chan struct{}) (why reason, err error) {
	if !a.failFast {
		return a.rest(d, wake, mail)
	}
	now, node := a.path.Clock.Now, a.path.Node()
	node.KeepAlive() // perhaps nothing else is sent meanwhile
	defer node.EndKeepAlive()
	asked := now()
	for end := asked.Add(d); ; {
		left := now().Until(end)
		why, err = a.rest(min(left, failEvery), wake, mail)
		if err != nil || why != byTime || left <= failEvery {
			return why, err
		}
		if !node.Silent(asked) {
			continue
		}
		select {
		case <-wake:
			return byWakeup, nil
		case <-mail: // it may be a grant
			return byMail, nil
		default:
			a.failure = fault.AsUnavailable(fault.NoAnswer)
			return byTime, a.failure
		}
	}
}

// rest is pause without FailFast.
func (a *acquisition) rest(d time.Duration, wake, mail <-chan struct{}) (why reason, err error) {
	if !a.course.waits {
		a.course.waits = true
		a.path.lock.Taken()
	}
	a.timer.Reset(d)
	for {
		select {
		case <-a.timer.C:
			return byTime, nil
		case <-wake:
			return byWakeup, nil
		case <-mail:
			return byMail, nil
		case <-a.ctx.Done():
		case <-a.path.all.Closed:
		case <-a.draining:
		}
		if err = a.over(); err != nil {
			return byTime, err
		}
	}
}

// waitKit has what a call needs while it waits. Later calls reuse it: that saves 10 of 38 allocations when two registries take
// turns and each locks once, see BenchmarkTakingTurns.
//
// Other goroutines use only the mailbox. One of them may still have it from an earlier call. That is harmless: a late message
// names the earlier call's number, so put refuses it; a late wake-up makes the later call look or try once, and find no
// mail.
type waitKit struct {
	timer  *time.Timer // stopped
	box    mailbox
	ticket ticket
	course course
}

// waitKit returns a kit, reused if possible: end puts it back.
func (all *Shared) waitKit() *waitKit {
	if s, ok := all.kits.Get().(*waitKit); ok {
		return s
	}
	s := &waitKit{timer: time.NewTimer(time.Hour), box: mailbox{came: make(chan struct{}, 1)}}
	s.timer.Stop()
	return s
}

// course records how a call went, for its result.
type course struct {
	waits   bool          // the local half knows that this call waits
	served  bool          // another process granted the hold
	slept   bool          // the call has waited for another owner's hold
	lapses  clock.Instant // when that hold's lease ends, as last seen; 0: not known
	late    int           // how many grants were over before they counted
	wakeups observe.Wakeups
}
