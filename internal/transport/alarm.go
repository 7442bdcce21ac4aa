package transport

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// alarm rings when the server has been silent for too long since a command was sent to it, whether the caller goes on waiting
// or not. A timer that fires late has learned nothing about the server: this process stood still, or its machine did. But when
// that took very long a failover may have passed unnoticed.
type alarm struct {
	shard   *Shard        // whose silence it notices; nil: none
	call    *asyncCall    // which has a goroutine; nil: none
	holds   time.Duration // for so long the command itself may wait at the server
	probes  clock.Instant // see Wait
	at      clock.Instant // when it is to ring; 0: the timer was not set
	rang    bool
	excused bool // the timer was late
}

const (
	timerSlack = 100 * time.Millisecond  // a timer that fires so late tells that this process, or its machine, stood still
	noAlarm    = 24 * time.Hour          // nothing is sent that the server is to answer
	pauseMost  = 2500 * time.Millisecond // after a longer stop a master may be none any more without having been silent
)

func (a *alarm) set(began, now clock.Instant) {
	if a.at = clock.Never; a.shard != nil {
		a.at = a.due(began, now)
	}
}

// due is when the server has been silent for too long. While nothing has been sent yet that is not before now. A probe is sent
// because an earlier command was given up: the silence began with that. But it must have had time for its own reply.
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
	if due := a.due(began, now); now < due { // it was sent later, or more is known than when the timer was set
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

// excuse tells whether a timer that fires so much after its time excuses the server.
func excuse(by time.Duration) bool { return by >= timerSlack && by <= pauseMost }

// excuses tells whether the timer should have fired a while before a reply came, and has not, or has fired late.
func (a *alarm) excuses(sent, came clock.Instant) bool {
	if a.rang || a.shard == nil {
		return false
	}
	due := a.at
	if due == 0 { // a round would have seen to that, if there had been any
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
