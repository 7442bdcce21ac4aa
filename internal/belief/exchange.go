package belief

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Exchange is the event that a command was answered, or not.
type Exchange struct {
	Outcome    Outcome
	Sent, Came clock.Instant
	Trip       RoundTrip     // known before the reply
	Lease      time.Duration // the lease that the reply is about; 0: none
	Holds      time.Duration // how long the command itself may block at the server
	Obtains    bool          // its reply says whether it obtained a lock
	Probes     bool          // it was sent in the place of one that was given up
	Excused    bool          // the reply may have taken long because this process stood still, see Alarm; it may still be late
	Left       bool          // the client has left the server meanwhile, or the Sentinels have begun to doubt it
	Trusted    bool          // it came on a way that was chosen after the server had become suspect
}

// Outcome is what became of a command.
type Outcome uint8

// The outcomes.
const (
	Answered   Outcome = iota // also by an error of the server
	Broken                    // its connection broke
	Unanswered                // its caller waits no longer
	Unsent
)

// Answer is how far a reply is believed.
type Answer uint8

// The answers.
const (
	Believed Answer = iota // or there is none
	Late                   // it may come from a deposed master: ask again
	Doubtful               // late, and the server is suspect or closed: ask again on a new connection
)

// Judge takes a reply, or that none came while its caller waited. It says how far the reply is believed, and what to do. If the
// caller gave up, that says nothing about the server, so a probe is sent in the place of the command.
func (s *State) Judge(x Exchange) (a Answer, do Acts) {
	took := x.Sent.Until(x.Came) // mutant: no answer is late
	late := false
	switch {
	case x.Outcome == Unsent:
		return Believed, 0
	case x.Outcome == Unanswered && x.Probes:
		return Believed, 0
	case x.Outcome == Unanswered:
		return Believed, Probe
	case took >= s.Silence(x.Trip)+x.Holds && !x.Excused: // a timer is about to notice it
		do, late = s.FoundSilent(x.Sent, x.Came), true
	case x.Left && x.Outcome == Answered:
		late = true
	case took >= x.Trip.Late(x.Lease)+x.Holds, x.Obtains && !x.Trip.Known && took >= Silence:
		late = true
	case x.Sent < s.SilentAt():
		// It was silent for long enough for a failover, however fast this reply came.
		late = true
	}
	switch {
	case late && (s.IsSuspect(x.Came) || s.Closed()): // a closed server is never suspect, but its connections prove as little
		return Doubtful, do
	case late:
		return Late, do
	case x.Outcome == Broken:
		return Believed, s.Broke(x.Came)
	}
	s.answered(x.Came, x.Trusted)
	return Believed, 0
}
