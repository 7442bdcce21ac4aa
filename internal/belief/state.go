package belief

import (
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// State is what is believed of one server, from its replies and messages, and from their absence:
//
//	healthy  it has just been heard from, by a reply or a message: a command sent now will not hang
//	idle     nothing has been heard for a while, or connections may have to be made: the next command may hang
//	suspect  a command was not answered in its time, or so late that a failover may have happened meanwhile. As idle, and
//	         commands go another way; see below
//
//	healthy ──time──▶ idle ──reply──▶ healthy
//	   └───────────────┴──late or no reply──▶ suspect ──time without any──▶ idle
//
// A late reply may come from a master that was frozen and deposed, and then went on with its queued commands. Until it is
// demoted, it answers everything on its existing connections as a master. So late replies are not believed, and commands on a
// suspect server go only over a fresh connection, made since then, which the client's address or its Sentinels lead to the new
// master. If the server was only slow, replies on the fresh connection are believed although they take long. In a cluster
// they go over a fresh connection to the node that most nodes name as the master; there a broken connection makes the server
// suspect, too, and so it does where Sentinels are asked.
//
// Where Sentinels are asked, time alone does not end what they have raised: see Doubt.
//
// Each event returns what to do, for whoever has connections. Each reply is an event: so what changes with each is one atomic
// value, written once in a while. All else changes as a whole, see standing. Of a zero State nothing is known.
type State struct {
	Trips
	heard    atomic.Int64 // an instant: when the newest reply came, or one of a moment before
	messaged atomic.Int64 // an instant: when the newest message came
	replies  atomic.Int32 // since a connection broke; counts to manyReplies
	standing atomic.Pointer[standing]
	sentinels
}

// standing changes seldom. It is replaced, never changed, so that all of it is from one moment. Nil is the zero standing.
type standing struct {
	suspectUntil clock.Instant
	silentAt     clock.Instant // when the server was found silent; replies to earlier commands are late
	unanswered   clock.Instant // when the newest command was sent that showed it; connections from before may be silent, too
	doubtedAt    clock.Instant // when the Sentinels last raised a doubt; what they said before does not count
	brokeAfter   clock.Instant // when the newest reply before the last break of a connection came
	inDoubt      bool          // it is suspect until its Sentinels vouch for it
	led          bool          // others name the master: a cluster's nodes, or Sentinels that are asked
	closed       bool          // it is never suspect again
	barred       bool          // it was suspect when it was closed
	address
}

// HealthyFor is for how long a server is healthy after a reply or a message.
const HealthyFor = Tick / 10

const (
	newsRest    = Tick / 80 // a reply this soon after another one tells nothing new: noting each would cost more
	manyReplies = 32        // after these each of the client's few connections has surely been made
)

// Acts are what to do; the zero value is nothing.
type Acts uint8

// The acts.
const (
	Undedicate Acts = 1 << iota // close the dedicated connection: it may lead to a deposed master
	Reroute                     // send what waits, and what comes, another way
	Redial                      // give up the fresh connection that the command may have used, and dial anew
	Measure                     // measure the round trip anew: the way may have become longer
	Probe                       // ask the server something in the place of a command that was given up
	AskOthers                   // before the client's own connections are used, ask the Sentinels anew
	Inspect                     // look at the client's own connections: the address leads to a master again, see Looks
)

// Has reports whether all of these are to be done.
func (a Acts) Has(these Acts) bool { return a&these == these }

var unknown standing

func (s *State) view() *standing {
	if now := s.standing.Load(); now != nil {
		return now
	}
	return &unknown
}

// change replaces the standing by one that how has changed, unless it is closed. How may be called several times.
func (s *State) change(how func(next *standing)) {
	for {
		was := s.standing.Load()
		next := unknown
		if was != nil {
			next = *was
		}
		if next.closed {
			return
		}
		if how(&next); s.standing.CompareAndSwap(was, &next) {
			return
		}
	}
}

func (s *standing) suspect(now clock.Instant) bool { return now < s.suspectUntil || s.inDoubt }

// beSuspect never makes the time shorter for which the server is suspect.
func (s *standing) beSuspect(until clock.Instant) { s.suspectUntil = max(s.suspectUntil, until) }

// IsHealthy reports whether the server is healthy. Messages count, too: with many waiting processes each sends nothing until a
// message tells it that its turn has come.
func (s *State) IsHealthy(now clock.Instant) bool {
	standing, news := s.view(), clock.Instant(s.messaged.Load())
	if heard := s.LastReply(); heard > standing.brokeAfter {
		news = max(news, heard)
	}
	return now < news.Add(HealthyFor) && !standing.suspect(now) && !standing.barred && s.Warm()
}

// IsSuspect reports whether the server is suspect.
func (s *State) IsSuspect(now clock.Instant) bool { return s.view().suspect(now) }

// Warm reports whether there were so many replies since a connection broke that each of the client's few connections has surely
// been made.
func (s *State) Warm() bool { return s.replies.Load() >= manyReplies }

// Lessons is how many replies are needed to know the round trip anew, on each of the client's connections.
func (s *State) Lessons() int32 { return max(3, manyReplies-s.replies.Load()) }

// SilentAt returns when the server was last found silent: replies to earlier commands are late.
func (s *State) SilentAt() clock.Instant { return s.view().silentAt }

// Outlives reports whether a connection is younger than each command that had no reply for too long. An older one may have
// carried such a command, or be as silent.
func (s *State) Outlives(made clock.Instant) bool { return made >= s.view().unanswered }

// LastReply returns when the newest reply came; 0: there is none.
func (s *State) LastReply() clock.Instant { return clock.Instant(s.heard.Load()) }

// LastBreak returns when the newest reply before the last break of a connection came; 0: none has broken.
func (s *State) LastBreak() clock.Instant { return s.view().brokeAfter }

// Closed reports whether Close was called.
func (s *State) Closed() bool { return s.view().closed }

// Barred reports whether the server was suspect when Close was called. Nothing may be obtained there any more: since nobody looks
// for its successor, a deposed master might grant it.
func (s *State) Barred() bool { return s.view().barred }

// Silence returns for how long a command may have no reply before the server is suspect. Until all connections have surely been
// made, a command may wait for its connection: that is no silence, but its reply is late as any other.
func (s *State) Silence(t RoundTrip) time.Duration {
	if s.Warm() {
		return t.Silence()
	}
	return t.Silence() + 4*t.Sure()
}

// Plus adds two round trips to a limit that was chosen for a server nearby, or more if a connection may have to be made.
func (s *State) Plus(d time.Duration) time.Duration {
	t := s.RoundTrip()
	if s.Warm() {
		return t.Plus(d)
	}
	return t.Plus(d) + 4*t.Base
}

// Patience returns for how long the server may leave a command without a reply before it is silent.
func (s *State) Patience() time.Duration { return s.Silence(s.RoundTrip()) }

// IsSilent reports whether the server is silent: it was found silent, and has not replied since. If nothing was sent since, it
// may answer again by now: so it is asked, and has the time of a reply, counted from asked.
func (s *State) IsSilent(asked, now clock.Instant) bool {
	return s.LastReply() < s.SilentAt() && s.IsSuspect(now) && asked.Until(now) >= s.Plus(Tick)
}

// SilentSince reports whether the server was found silent after a command began, and has not replied since.
func (s *State) SilentSince(began, now clock.Instant) bool {
	found := s.SilentAt()
	return found > began && s.LastReply() < found && s.IsSuspect(now)
}

// GotMessage is the event that a message came from the server.
func (s *State) GotMessage(now clock.Instant) { s.messaged.Store(int64(now)) }

// WarmedUp is the event that all connections have been made that the client needs for commands.
func (s *State) WarmedUp() { s.replies.Store(manyReplies) }

// Led is the event that from now on others name the master: the nodes of a cluster, or Sentinels.
func (s *State) Led() { s.change(func(next *standing) { next.led = true }) }

// answered is the event that a reply came which is not late. A reply on a trusted way, chosen after the server had become
// suspect, says nothing about the client's own connections.
func (s *State) answered(came clock.Instant, trusted bool) {
	last := s.LastReply()
	if pause := last.Until(came); pause >= newsRest || last <= s.LastBreak() {
		s.heard.Store(int64(came))
	}
	if !trusted && !s.Warm() {
		s.replies.Add(1)
	}
}

// Broke is the event that a connection broke: making another one may take long. A broken fresh connection counts for the client's
// own ones: while the server is suspect no command goes over those, so their end would go unnoticed.
func (s *State) Broke(now clock.Instant) Acts {
	s.replies.Store(0)
	do := Undedicate
	s.change(func(next *standing) {
		next.brokeAfter = max(next.brokeAfter, clock.Instant(s.heard.Load()))
		if next.led { // it may lead to another master now
			next.beSuspect(now.Add(Old))
			do |= Reroute | AskOthers
		}
	})
	return do
}

// Succeeds is the event that the server has taken over from another one. If that is suspect, the client may not know its
// successor, and still ask the former one.
func (s *State) Succeeds(former *State) {
	if until := former.view().suspectUntil; until > s.view().suspectUntil {
		s.change(func(next *standing) { next.beSuspect(until) })
	}
}

// FoundSilent is the event that a command had no reply for too long; sent is when that was sent. All replies to commands sent
// before now are late, even fast ones: a master that was frozen answers everything at once when it goes on. If the server was
// suspect already, only commands sent since then say anything new: the fresh connection is silent, too.
func (s *State) FoundSilent(sent, now clock.Instant) (do Acts) {
	s.change(func(next *standing) {
		do = 0
		isNew := !next.suspect(now) || sent >= next.silentAt
		next.beSuspect(now.Add(Old))
		if isNew {
			next.silentAt, next.unanswered = now, max(next.unanswered, sent)
			do = Undedicate | Reroute | Redial | Measure
		}
	})
	return do
}

// Close ends all suspicion, for good: later removals go over the client's own connections. What it knows of replies to commands
// that are still under way stays: a deposed master may have granted one of these. A server that is suspect is barred.
func (s *State) Close(now clock.Instant) {
	s.change(func(next *standing) {
		*next = standing{
			closed: true, barred: next.suspect(now),
			silentAt: next.silentAt, unanswered: next.unanswered, doubtedAt: next.doubtedAt, brokeAfter: next.brokeAfter,
		}
	})
}
