package transport

import (
	"errors"
	"time"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// judge notes a reply, or that none came while the caller waited, and returns how far it is believed.
func (s *Node) judge(p *Wait, err error, x exchange) belief.Answer {
	answer, do := s.belief.Judge(belief.Exchange{
		Outcome: outcomeOf(err), Sent: x.sent, Came: x.came, Trip: x.trip,
		Lease: p.Lease, Holds: p.holds, Obtains: p.Obtains, Probes: p.probes != 0,
		Excused: x.excused, Left: x.left, Trusted: x.trusted,
	})
	s.act(do, x.sent)
	return answer
}

func outcomeOf(err error) belief.Outcome {
	switch {
	case fault.Answered(err):
		return belief.Answered
	case errors.Is(err, fault.NotSent):
		return belief.Unsent
	case errors.Is(err, fault.NoAnswer):
		return belief.Unanswered
	default:
		return belief.Broken
	}
}

// act does what follows from an event about a command that was sent at some time.
func (s *Node) act(do belief.Acts, sent clock.Instant) {
	if do == 0 {
		return
	}
	if do.Has(belief.Undedicate) {
		s.own.drop()
	}
	if do.Has(belief.Reroute) {
		s.queue.renew()
	}
	if do.Has(belief.Redial) {
		s.fresh.silent(sent)
	}
	if do.Has(belief.AskOthers) {
		s.fresh.forgetLast()
	}
	if do.Has(belief.Measure) {
		s.probes.learn(s.belief.Lessons())
	}
	if do.Has(belief.Probe) {
		s.probes.gaveUp(sent)
	}
	if do.Has(belief.Inspect) {
		s.mend()
	}
}

// takeIn completes a reply that has just come to a command without a goroutine.
func (s *Node) takeIn(p *Wait, excused bool, a *Reply) {
	x := exchange{sent: a.Sent, came: a.Came, trip: s.RoundTrip(), excused: excused}
	if !excused && fault.Answered(a.Error()) {
		s.belief.Sample(a.Sent, a.Came)
	}
	s.assess(p, x, a)
}

func (s *Node) assess(p *Wait, x exchange, a *Reply) {
	err := a.Error()
	x.left = x.left || p.Obtains && fault.Answered(err) && s.changed()
	answer := s.judge(p, err, x)
	a.Late, a.Doubtful, a.Cut = answer != belief.Believed, answer == belief.Doubtful, p.cut(err)
	s.notice(x, a)
}

// foundSilent notes that a command that was sent at some time had no reply for too long.
func (s *Node) foundSilent(sent, now clock.Instant) { s.act(s.belief.FoundSilent(sent, now), sent) }

// doubted makes the node suspect because its master may be about to be replaced.
func (s *Node) doubted() {
	now := s.client.Clock.Now()
	s.act(s.belief.Doubted(now), now)
}

// IsHealthy reports whether the node is healthy, see [belief.State].
func (s *Node) IsHealthy(now clock.Instant) bool { return s.belief.IsHealthy(now) }

// IsSuspect reports whether the node is suspect, see [belief.State].
func (s *Node) IsSuspect(now clock.Instant) bool { return s.belief.IsSuspect(now) }

// RoundTrip returns the round trip to the master.
func (s *Node) RoundTrip() RoundTrip { return s.belief.RoundTrip() }

// Plus adds two round trips to a limit that was chosen for a server nearby, or more if a connection may have to be made.
func (s *Node) Plus(d time.Duration) time.Duration { return s.belief.Plus(d) }

// Patience returns for how long the server may leave a command without a reply before it is silent.
func (s *Node) Patience() time.Duration { return s.belief.Patience() }

// LastReply returns when the newest reply came; not positive: there is none.
func (s *Node) LastReply() clock.Instant { return s.belief.LastReply() }

// LastBreak returns when the newest reply before the last break of a connection came; 0: none has broken.
func (s *Node) LastBreak() clock.Instant { return s.belief.LastBreak() }

// GotMessage notes a message from the node's server.
func (s *Node) GotMessage(now clock.Instant) { s.belief.GotMessage(now) }

// Overdue reports whether a command would be answered by now if the server were available; sent is when that was sent.
func (s *Node) Overdue(sent clock.Instant) bool {
	return sent.Until(s.client.Clock.Now()) >= s.RoundTrip().Plus(tooSoon)
}

// IsLate reports whether a reply to a command that was sent at some time would be late by now. The way may just have become
// longer, or is not known yet: sooner than that nothing is amiss.
func (s *Node) IsLate(sent clock.Instant) bool {
	return sent.Until(s.client.Clock.Now()) >= s.RoundTrip().Silence()
}

// Silent reports whether the server is silent, see [belief.State]; it was asked at some time.
func (s *Node) Silent(asked clock.Instant) bool {
	return s.belief.IsSilent(asked, s.client.Clock.Now())
}
