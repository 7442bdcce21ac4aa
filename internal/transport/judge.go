package transport

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// judge takes the outcome of each command to one server, including that there was no reply. It updates the belief in the server,
// and calls act for what follows from that.
type judge struct {
	belief  belief.State
	clock   clock.Clock
	act     func(do belief.Acts, sent clock.Instant) // does what follows from an event, if anything; sent: when its command was sent
	present func() string                            // the address of the server that a client for Sentinel uses; empty for others
	roles   bool                                     // a master may become a replica behind the client's address, see demotion
}

// exchange says when a command was sent and answered, and how. For Excused see bound.excuses, for Left see judge.left.
type exchange struct {
	belief.Exchange
	made clock.Instant // when making the connection of a trusted way began; 0: not known
}

// believes notes a reply, or that none came while the caller waited. It returns how far the reply is believed.
func (j *judge) believes(p *Wait, err error, x belief.Exchange) belief.Answer {
	x.Outcome, x.Lease, x.Holds, x.Obtains, x.Probes = outcomeOf(err), p.Lease, p.holds, p.Obtains, p.probes != 0
	answer, do := j.belief.Judge(x)
	j.act(do, x.Sent)
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

// takeIn completes a reply that has just come to a command whose caller sent it.
func (j *judge) takeIn(p *Wait, excused bool, a *Reply) {
	x := exchange{Exchange: belief.Exchange{Sent: a.Sent, Came: a.Came, Trip: j.RoundTrip(), Excused: excused}}
	if !excused && fault.Answered(a.Error()) {
		j.belief.Sample(a.Sent, a.Came)
	}
	j.assess(p, x, a)
}

// assess completes a reply. One that says whether it obtained a lock is late if the client uses another server by now than the
// one that was believed last. If a replica has refused the command, it makes the node suspect. If a later command is answered on
// a fresh connection, it starts to look at the client's own connections.
func (j *judge) assess(p *Wait, x exchange, a *Reply) {
	err := a.Error()
	believed := j.belief.Believed()
	if !x.Left && p.Obtains && believed != nil && fault.Answered(err) && j.present() != *believed {
		x.Left = true // mutant: change unnoticed
		now := j.clock.Now()
		j.act(j.belief.Switched(now), now)
	}
	answer := j.believes(p, err, x.Exchange)
	a.Late, a.Doubtful, a.Cut = answer != belief.Believed, answer == belief.Doubtful, p.cut(err)
	refused := j.roles && protocol.RefusedByReplica(a.RedisResult)
	a.elsewhere = refused && (!x.Trusted || x.made != 0 && x.made < a.Sent)
	switch {
	case refused:
		j.act(j.belief.Redirected(a.Came), a.Came)
	case j.roles && x.Trusted && fault.Answered(err) && j.belief.Owed():
		j.act(belief.Inspect, a.Came)
	}
}

// left reports whether replies over a way must not be trusted. Address is where the way leads, and asked when the Sentinels
// were asked about it. The replies are not trusted if one of these has happened meanwhile:
//
//   - The client has left the server at address.
//   - The Sentinels have begun to doubt it.
//   - The process stood still, and may have missed a doubt.
func (j *judge) left(address string, asked clock.Instant) bool {
	j.noticeStandstill()
	return j.present() != address || j.belief.DoubtedSince(asked)
}

// foundSilent notes that a command had no reply for too long. Sent is when the command was sent.
func (j *judge) foundSilent(sent, now clock.Instant) { j.act(j.belief.FoundSilent(sent, now), sent) }

// doubted makes the node suspect because its master may be about to be replaced.
func (j *judge) doubted() {
	now := j.clock.Now()
	j.act(j.belief.Doubted(now), now)
}

// noticeStandstill makes the node suspect if the process stood still, see [belief.State.StoodStill].
func (j *judge) noticeStandstill() {
	now := j.clock.Now()
	j.act(j.belief.StoodStill(now), now)
}

// IsHealthy reports whether the node is healthy, see [belief.State].
func (j *judge) IsHealthy(now clock.Instant) bool { return j.belief.IsHealthy(now) }

// IsSuspect reports whether the node is suspect, see [belief.State].
func (j *judge) IsSuspect(now clock.Instant) bool { return j.belief.IsSuspect(now) }

// RoundTrip returns the round trip to the master.
func (j *judge) RoundTrip() RoundTrip { return j.belief.RoundTrip() }

// Plus adds two round trips to a limit that was chosen for a server nearby, or more if a connection may have to be made.
func (j *judge) Plus(d time.Duration) time.Duration { return j.belief.Plus(d) }

// Patience returns how long the server may take to reply before it counts as silent.
func (j *judge) Patience() time.Duration { return j.belief.Patience() }

// LastReply returns when the newest reply came; not positive: there is none.
func (j *judge) LastReply() clock.Instant { return j.belief.LastReply() }

// LastBreak returns when the newest reply before the last break of a connection came; 0: none has broken.
func (j *judge) LastBreak() clock.Instant { return j.belief.LastBreak() }

// GotMessage notes a message from the node's server.
func (j *judge) GotMessage(now clock.Instant) { j.belief.GotMessage(now) }

// Overdue reports whether an available server would have answered a command by now. Sent is when the command was sent.
func (j *judge) Overdue(sent clock.Instant) bool {
	return sent.Until(j.clock.Now()) >= j.RoundTrip().Plus(tooSoon)
}

// IsLate reports whether the reply to a command would be late if it came now. Sent is when the command was sent. Before that
// nothing is wrong: the round trip may just have become longer, or may not be known yet.
func (j *judge) IsLate(sent clock.Instant) bool {
	return sent.Until(j.clock.Now()) >= j.RoundTrip().Silence()
}

// Silent reports whether the server is silent, see [belief.State.IsSilent]. Asked is when it was asked last.
func (j *judge) Silent(asked clock.Instant) bool { return j.belief.IsSilent(asked, j.clock.Now()) }

// RoundTrip is what is known about the round trip to a master at some moment.
type RoundTrip = belief.RoundTrip

// Unsupported completes the error of a command without a timely reply: if the master is too far away, the error says so.
func (j *judge) Unsupported(err error) error {
	trip := j.RoundTrip()
	if !trip.Far() || !errors.Is(err, fault.NoAnswer) && !errors.Is(err, fault.NotSent) && !errors.Is(err, fault.Late) {
		return err
	}
	return fmt.Errorf("%w; %v", err, trip)
}

// bound begins a bound with its own timer. The caller must stop it.
func (j *judge) bound(p *Wait, now clock.Instant) *bound {
	b := &bound{done: make(chan struct{}), judge: j}
	b.begin(p, now, nil, false)
	return b
}
