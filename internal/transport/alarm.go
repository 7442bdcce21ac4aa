package transport

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
)

// alarm rings when the server has been silent for too long since a command was sent, whether or not the caller still waits. A
// timer that fires late says nothing about the server: this process or its machine stood still, so it waits once more. But during
// a very long stop a failover may have gone unnoticed, and as well during several short ones. So all that is excused ends
// pauseMost after the first time was due: on a machine where each timer is late the server would never be suspect otherwise.
type alarm struct {
	shard   *Shard        // the shard whose silence it notices; nil: none
	call    *asyncCall    // the call, if it has a goroutine
	holds   time.Duration // how long the command itself may block at the server
	probes  clock.Instant // see Wait
	at      clock.Instant // when it rings; 0: the timer was not set
	rang    bool
	excused bool // the timer was late
}

const (
	timerSlack = belief.Tick       // a timer this late means that this process, or its machine, stood still
	noAlarm    = clock.Longest / 2 // no command was sent to the server
	pauseMost  = belief.Pause      // after a longer stop the master may be deposed without having been silent
)

func (a *alarm) set(began, now clock.Instant) {
	if a.at = clock.Never; a.shard != nil {
		a.at = a.due(began, now)
	}
}

// due returns when the server has been silent for too long. Before the command is sent, it counts from now. For a probe the
// silence began with the command that was given up; but the probe must have had time for its own reply, also on a way that has
// just become longer: the command that was given up may have been answered. So with contexts shorter than half a second a server
// is suspect within a second.
func (a *alarm) due(began, now clock.Instant) clock.Instant {
	trip, sent := a.shard.RoundTrip(), began
	if a.call != nil {
		if sent = clock.Instant(a.call.begun.Load()); sent == 0 {
			sent = now
		}
	}
	if a.probes != 0 {
		return max(a.probes.Add(a.shard.silence(trip)), sent.Add(max(lateReply, trip.Sure()+tooSoon)))
	}
	return sent.Add(a.shard.silence(trip) + a.holds)
}

func (a *alarm) ring(began, now clock.Instant) bool {
	if now < a.at {
		return false
	}
	due := a.due(began, now)
	if now < due { // it was sent later, or the round trip is known better by now
		a.at = due
		return false
	}
	if a.at.Until(now) >= timerSlack && excusable(due, now) {
		a.excused, a.at = true, now.Add(a.shard.RoundTrip().Silence())
		return false
	}
	a.rang, a.at = true, clock.Never
	return a.call == nil || !a.call.shared || !a.shard.IsSuspect(now)
}

// excusable reports whether it can be this process's fault that a reply that was due then has not been seen.
func excusable(due, now clock.Instant) bool { return due.Until(now) <= pauseMost }

// excuses reports whether the timer should have fired well before a reply came and has not, or has fired late.
func (a *alarm) excuses(sent, came clock.Instant) bool {
	if a.rang || a.shard == nil {
		return false
	}
	due, at := a.due(sent, came), a.at
	if at == 0 { // a round would have set it, if the process had run
		at = due
	}
	return (a.excused || at.Until(came) >= timerSlack) && excusable(due, came)
}

func (a *alarm) suspect(began, now clock.Instant) {
	if a.call != nil {
		a.call.shard.foundSilent(clock.Instant(a.call.begun.Load()), now)
		return
	}
	a.shard.foundSilent(began, now)
}
