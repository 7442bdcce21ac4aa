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
// demoted, it answers everything on its existing connections as a master. So late replies are not believed, and commands to a
// suspect server go only over a fresh connection, made since then:
//
//   - The client's address, or its Sentinels, lead the fresh connection to the new master. If the server was only slow, replies
//     on the fresh connection are believed, however long they take.
//   - On a cluster the fresh connection leads to the node that most nodes name as the master.
//   - On a cluster, and where Sentinels are asked, a broken connection makes the server suspect, too.
//   - Where Sentinels are asked, time alone does not end a doubt that they have raised: see Doubt.
//
// Each event returns what to do; whoever has the connections does it. Every reply is an event, so a reply changes only one
// atomic value, and not every time. Everything else changes as a whole, see standing. In a zero State nothing is known.
type State struct {
	Trips
	heard    atomic.Int64 // an instant: when the newest reply came, or one of a moment before
	messaged atomic.Int64 // an instant: when the newest message came
	replies  atomic.Int32 // since a connection broke; counts up to manyReplies
	standing atomic.Pointer[standing]
	sentinels
}

// standing changes seldom. It is replaced, never changed, so that all of it is from one moment. Nil is the zero standing.
type standing struct {
	suspectUntil clock.Instant
	silentAt     clock.Instant // when the server was found silent; replies to earlier commands are late
	unanswered   clock.Instant // when the newest command that had no reply for too long was sent; older connections may be silent
	doubtedAt    clock.Instant // when the Sentinels last raised a doubt; what they said before does not count
	brokeAfter   clock.Instant // when the newest reply came before the last break of a connection
	inDoubt      bool          // it is suspect until its Sentinels vouch for it
	led          bool          // others name the master: a cluster's nodes, or Sentinels that are asked
	closed       bool          // it is never suspect again
	barred       bool          // it was suspect when it was closed
	address
}

// HealthyFor is for how long a server is healthy after a reply or a message.
const HealthyFor = Tick / 10

const (
	newsRest    = Tick / 80 // a reply this soon after another one says nothing new, and is not noted
	manyReplies = 32        // after this many, each of the client's few connections has surely been made
)

// Acts are what to do; the zero value is nothing.
type Acts uint8

// The acts.
const (
	Undedicate Acts = 1 << iota // close the dedicated connection: it may lead to a deposed master
	Reroute                     // send what waits, and what comes, another way
	Redial                      // give up the fresh connection that the command may have used, and dial anew
	Measure                     // measure the round trip anew: the way may have become longer
	Probe                       // ask the server something in place of a command that was given up
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

// change replaces the standing by a copy that how has changed, unless it is closed. How may be called several times.
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

// beSuspect never shortens the time for which the server is suspect.
func (s *standing) beSuspect(until clock.Instant) { s.suspectUntil = max(s.suspectUntil, until) }

// IsHealthy reports whether the server is healthy. Messages count, too: where many processes wait, each sends nothing until a
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

// Warm reports whether so many replies have come since a connection broke that each of the client's few connections has surely
// been made.
func (s *State) Warm() bool { return s.replies.Load() >= manyReplies }

// Lessons is how many replies are needed to know the round trip anew, and to be sure that all connections are made.
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

// Barred reports whether the server was suspect when Close was called. Nothing may be obtained there any more: nobody looks for
// its successor, so a deposed master might grant it.
func (s *State) Barred() bool { return s.view().barred }

// Silence returns how long a command may go without a reply before the server is suspect. That is longer until all connections
// have surely been made, since the command may wait for its connection. Its reply counts as late after the usual time all the
// same.
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

// Patience returns how long the server may take to reply before it counts as silent.
func (s *State) Patience() time.Duration { return s.Silence(s.RoundTrip()) }

// IsSilent reports whether the server is silent: it was found silent, and has not replied since. If nothing was sent since, it
// may answer again by now. So it is asked first, and has the time of a reply from then on. Asked is when it was asked.
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

// Broke is the event that a connection broke: making another one may take long. If a fresh connection broke, the client's own
// ones count as broken, too. While the server is suspect no command goes over them, so nothing else would show it.
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

// Succeeds is the event that the server has taken over from former. If former is suspect, the server becomes so, too: the
// client may not know of the change, and still send to former.
func (s *State) Succeeds(former *State) {
	if until := former.view().suspectUntil; until > s.view().suspectUntil {
		s.change(func(next *standing) { next.beSuspect(until) })
	}
}

// FoundSilent is the event that a command had no reply for too long. Sent is when the command was sent. All replies to commands
// sent before now are late, even fast ones: a master that was frozen answers everything at once when it resumes. If the server
// was suspect already, only a command that was sent since then says something new: the fresh connection is silent, too.
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

// Close ends all suspicion, for good: later removals go over the client's own connections. If the server was suspect, it is
// barred. Which replies are late stays known, for commands that are still under way: a deposed master may have granted one of
// them.
func (s *State) Close(now clock.Instant) {
	s.change(func(next *standing) {
		*next = standing{
			closed: true, barred: next.suspect(now),
			silentAt: next.silentAt, unanswered: next.unanswered, doubtedAt: next.doubtedAt, brokeAfter: next.brokeAfter,
		}
	})
}

// Exchange is the event that a command was answered, or not.
type Exchange struct {
	Outcome    Outcome
	Sent, Came clock.Instant
	Trip       RoundTrip     // known before the reply
	Lease      time.Duration // the lease that the reply is about; 0: none
	Holds      time.Duration // how long the command itself may block at the server
	Obtains    bool          // its reply says whether it obtained a lock
	Probes     bool          // it was sent in place of one that was given up
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
// caller gave up, that says nothing about the server, so a probe is sent in place of the command.
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
	case x.Sent < s.view().silentAt:
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
	if last := s.LastReply(); last.Until(x.Came) >= newsRest || last <= s.view().brokeAfter {
		s.heard.Store(int64(x.Came))
	}
	if !x.Trusted && !s.Warm() { // a trusted way says nothing about the client's own connections
		s.replies.Add(1)
	}
	return Believed, 0
}
