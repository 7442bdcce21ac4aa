package belief

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Alarm rings when the server has been silent for too long since a command was sent, whether or not the caller still waits. A
// timer that fires late says nothing about the server, since this process or its machine stood still: the alarm waits once
// more. During a very long stop, or several short ones, a failover may have gone unnoticed. So nothing is excused later than a
// Pause after the alarm was first due. Without this limit, the server would never be suspect on a machine where every timer is
// late.
type Alarm struct {
	Holds  time.Duration // how long the command itself may block at the server
	Probes clock.Instant // of a probe: when the command that it stands in for was sent; 0: it is not a probe

	At      clock.Instant // when a timer must fire; 0: none was set; Never: no server owes a reply
	rang    bool
	excused bool // the timer was late
}

// Never is the Holds of a wait that is not for a reply of the server.
const Never = clock.Longest / 2

// Due returns when the server has been silent for too long; sent is when the command was sent, or now if it still waits to be
// sent. For a probe, the silence began with the command that was given up. That command may have been answered, so the probe
// also gets the time of its own reply, even if the round trip has just become longer. So with contexts shorter than half a
// second a server is suspect within a second.
func (a *Alarm) Due(s *State, sent clock.Instant) clock.Instant {
	trip := s.RoundTrip()
	if a.Probes != 0 {
		return max(a.Probes.Add(s.Silence(trip)), sent.Add(max(Silence, trip.Sure()+Tick)))
	}
	return sent.Add(s.Silence(trip) + a.Holds)
}

// Ring is the event that the timer fires. It reports whether the server has been silent for too long. If not, the timer must be
// set again, to At.
func (a *Alarm) Ring(s *State, sent, now clock.Instant) bool {
	if now < a.At {
		return false
	}
	due := a.Due(s, sent)
	if now < due { // it was sent later, or the round trip is known better by now
		a.At = due
		return false
	}
	if a.At.Until(now) >= Tick && excusable(due, now) {
		a.excused, a.At = true, now.Add(s.RoundTrip().Silence())
		return false
	}
	a.rang, a.At = true, clock.Never
	return true
}

// excusable reports whether now is early enough to believe that this process stood still, and so missed a reply that was due.
func excusable(due, now clock.Instant) bool { return due.Until(now) <= Pause }

// Excuses reports whether a late reply is excused, since this process stood still: the timer was late, or should have fired a
// Tick before the reply came, and did not.
func (a *Alarm) Excuses(s *State, sent, came clock.Instant) bool {
	if a.rang || sent.Until(came) < Silence {
		return false
	}
	due, at := a.Due(s, sent), a.At
	if at == 0 { // a round would have set it, if the process had run
		at = due
	}
	return (a.excused || at.Until(came) >= Tick) && excusable(due, came)
}
