package transport

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// alarm rings when the server has been silent for too long since a command was sent, whether or not the caller still waits. A
// timer that fires late says nothing about the server: this process or its machine stood still. But during a very long stop a
// failover may have gone unnoticed.
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
	timerSlack = 100 * time.Millisecond  // a timer this late means that this process, or its machine, stood still
	noAlarm    = 24 * time.Hour          // no command was sent to the server
	pauseMost  = 2500 * time.Millisecond // after a longer stop the master may be deposed without having been silent
)

func (a *alarm) set(began, now clock.Instant) {
	if a.at = clock.Never; a.shard != nil {
		a.at = a.due(began, now)
	}
}

// due returns when the server has been silent for too long. Before the command is sent, it counts from now. For a probe the
// silence began with the command that was given up; but the probe must have had time for its own reply.
func (a *alarm) due(began, now clock.Instant) clock.Instant {
	trip, sent := a.shard.RoundTrip(), began
	if a.call != nil {
		if sent = clock.Instant(a.call.begun.Load()); sent == 0 {
			sent = now
		}
	}
	if a.probes != 0 {
		return max(a.probes.Add(a.shard.silence(trip)), sent.Add(trip.sure()+tooSoon))
	}
	return sent.Add(a.shard.silence(trip) + a.holds)
}

func (a *alarm) ring(began, now clock.Instant) bool {
	if now < a.at {
		return false
	}
	if due := a.due(began, now); now < due { // it was sent later, or the round trip is known better by now
		a.at = due
		return false
	}
	if excuse(a.at.Until(now)) {
		a.excused, a.at = true, now.Add(a.shard.silence(a.shard.RoundTrip()))
		return false
	}
	a.rang, a.at = true, clock.Never
	return a.call == nil || !a.call.shared || !a.shard.IsSuspect(now)
}

// excuse reports whether a timer that fires this late excuses the server.
func excuse(by time.Duration) bool { return by >= timerSlack && by <= pauseMost }

// excuses reports whether the timer should have fired well before a reply came and has not, or has fired late.
func (a *alarm) excuses(sent, came clock.Instant) bool {
	if a.rang || a.shard == nil {
		return false
	}
	due := a.at
	if due == 0 { // a round would have set it, if the process had run
		due = sent.Add(a.shard.silence(a.shard.RoundTrip()) + a.holds)
	}
	return a.excused || excuse(due.Until(came))
}

func (a *alarm) suspect(began, now clock.Instant) {
	if a.call != nil {
		a.call.shard.foundSilent(clock.Instant(a.call.begun.Load()), now)
		return
	}
	a.shard.foundSilent(began, now)
}
