package belief

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Alarm rings when the server has been silent for too long since a command was sent, whether or not the caller still waits. A
// timer that fires late says nothing about the server: this process or its machine stood still, so it waits once more. But during
// a very long stop, or several short ones, a failover may have gone unnoticed. So nothing is excused later than a Pause after the
// first time was due: otherwise the server would never be suspect on a machine where each timer is late.
type Alarm struct {
	Holds  time.Duration // how long the command itself may block at the server
	Probes clock.Instant // when a command was sent and given up, in whose place this one was sent; 0: it is no probe

	at      clock.Instant // when it rings; 0: the timer was not set
	rang    bool
	excused bool // the timer was late
}

// Never is a Holds for what is no command to the server.
const Never = clock.Longest / 2

// At returns when a timer must fire; 0: none was set.
func (a *Alarm) At() clock.Instant { return a.at }

// Set sets the alarm for a command; sent is when that was sent, or now if it waits to be sent.
func (a *Alarm) Set(s *State, sent clock.Instant) { a.at = a.due(s, sent) }

// SetNever is Set for what no server has to answer.
func (a *Alarm) SetNever() { a.at = clock.Never }

// due returns when the server has been silent for too long. For a probe the silence began with the command that was given up; but
// the probe must have had time for its own reply, also on a way that has just become longer: the command that was given up may
// have been answered. So with contexts shorter than half a second a server is suspect within a second.
func (a *Alarm) due(s *State, sent clock.Instant) clock.Instant {
	trip := s.RoundTrip()
	if a.Probes != 0 {
		return max(a.Probes.Add(s.Silence(trip)), sent.Add(max(Silence, trip.Sure()+Tick)))
	}
	return sent.Add(s.Silence(trip) + a.Holds)
}

// Ring is the event that the timer fires. It reports whether the server has been silent for too long; else the timer must be set
// again, for At.
func (a *Alarm) Ring(s *State, sent, now clock.Instant) bool {
	if now < a.at {
		return false
	}
	due := a.due(s, sent)
	if now < due { // it was sent later, or the round trip is known better by now
		a.at = due
		return false
	}
	if a.at.Until(now) >= Tick && excusable(due, now) {
		a.excused, a.at = true, now.Add(s.RoundTrip().Silence())
		return false
	}
	a.rang, a.at = true, clock.Never
	return true
}

// excusable reports whether this process may have stood still, so that it has not seen a reply that was due then.
func excusable(due, now clock.Instant) bool { return due.Until(now) <= Pause }

// Excuses reports whether the timer should have fired well before a reply came and has not, or has fired late.
func (a *Alarm) Excuses(s *State, sent, came clock.Instant) bool {
	if a.rang || sent.Until(came) < Silence {
		return false
	}
	due, at := a.due(s, sent), a.at
	if at == 0 { // a round would have set it, if the process had run
		at = due
	}
	return (a.excused || at.Until(came) >= Tick) && excusable(due, came)
}
