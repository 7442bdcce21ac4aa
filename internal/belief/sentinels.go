package belief

import (
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// sentinels is what is known of a master from its Sentinels. A doubt lasts until they have vouched, however long that takes:
//
//	trusted ──event, standstill, the watch begins, they do not vouch when asked──▶ doubted ◀──the same──┐
//	   ▲                                                                             │                  │
//	   │                                              they vouch, asked after the newest doubt          │
//	   │                                                                             ▼                  │
//	   └──────────────────────────── after Old ─────────────────────────────────── vouched ─────────────┘
//
//	trusted  commands go over the client's own connections, and nobody is asked
//	doubted  only a way for which the Sentinels vouch is used; a process that wants to send asks them; an idle one does not
//	vouched  commands go over that way; a silence that is noticed by this process alone begins here, too: it passes with time
type sentinels struct {
	spoke  atomic.Int64           // an instant: when their first word came, or the wait for it ended; 0: not yet
	beat   atomic.Int64           // an instant: when this process was last seen to run; 0: nobody looks
	server atomic.Pointer[string] // the address of the server that was believed last; set before doubt of it ends; nil: none was
}

// BeatEvery is how often a process shows that it runs. If two beats are missing, it stood still for a Pause.
const BeatEvery = Pause * 2 / 5

// askAgain is the pause before the Sentinels are asked again: a failover takes much longer.
const askAgain = Tick / 5

// Word is what most Sentinels say about a server when they are asked.
type Word uint8

// The words.
const (
	Unheard  Word = iota // they do not answer
	Against              // they replace it, find it down, or do not agree
	Vouching             // they name it as the master, or have said nothing else for so long that it is believed
)

// Watched is the event that from now on Sentinels are asked. Until they have vouched for the server it is in doubt: a failover
// may be under way, and connections from before may lead to a master that was deposed.
func (s *State) Watched(now clock.Instant) {
	s.Led()
	s.beat.Store(int64(now))
	s.Doubt(now) // mutant: begins without doubt
}

// Doubt makes the server suspect until vouched ends the doubt: the master may have been replaced, or be about to be replaced.
// Time alone does not end the doubt. A master may be frozen for any length of time, and a process that was idle meanwhile would
// believe it when it resumes.
func (s *State) Doubt(at clock.Instant) {
	s.change(func(next *standing) {
		next.doubtedAt = max(next.doubtedAt, at)
		next.inDoubt = true // mutant: doubt passes
	})
}

// Doubted is the event that the master may be about to be replaced: a Sentinel says so, or this process stood still and may have
// missed it. Replies to earlier commands are late from now on.
func (s *State) Doubted(now clock.Instant) Acts {
	s.Doubt(now) // mutant: doubt unheard
	return s.FoundSilent(now, now)
}

// InDoubt reports whether there is a doubt.
func (s *State) InDoubt() bool { return s.view().inDoubt }

// DoubtedSince reports whether doubt was raised since the Sentinels were asked.
func (s *State) DoubtedSince(asked clock.Instant) bool { return s.view().doubtedAt > asked }

// vouched ends a doubt: the Sentinels vouch for the server that is in use. A doubt that was raised after they were asked lasts.
// The server stays suspect until the given time.
func (s *State) vouched(asked, until clock.Instant) {
	s.change(func(next *standing) {
		if next.inDoubt && next.doubtedAt <= asked { // mutant: newer doubt forgotten
			next.beSuspect(until)
			next.inDoubt = false
		}
	})
}

// Beat is the event that a timer shows that this process runs.
func (s *State) Beat(now clock.Instant) Acts {
	do := s.StoodStill(now)
	s.beat.Store(int64(now))
	return do
}

// StoodStill notices that the process stood still for so long that the Sentinels may have begun and ended a failover. It is
// called before a command is sent, unless the server has just been heard from: the command may come before the timer fires, or
// an event of the Sentinels arrives.
func (s *State) StoodStill(now clock.Instant) (do Acts) {
	beat := s.beat.Load()
	if beat == 0 || clock.Instant(beat).Until(now) < Pause {
		return 0
	}
	if s.beat.CompareAndSwap(beat, int64(now)) {
		do = s.Doubted(now) // mutant: standstill unnoticed
	}
	return do
}

// Believed returns the address of the server that was believed last; nil: none was.
func (s *State) Believed() *string { return s.server.Load() }

// Switched is the event that the client uses another server than the one that was believed last. It raises a doubt, unless
// there is one already. Then only a way for which the Sentinels vouch is used anyway, and Told notes its server before that.
func (s *State) Switched(now clock.Instant) Acts {
	if s.InDoubt() {
		return 0
	}
	return s.Doubted(now)
}

// FirstWord is the event that the Sentinels have answered for the first time about the server at an address, or that the wait
// for that is over. It ends the doubt with which the watch began, if that is still the newest doubt, the client still uses the
// server (used), and one of these holds:
//
//   - The Sentinels vouch for the server.
//   - They do not answer, and the client's connections are young: they were made just before the watch, to a server that a
//     Sentinel had just named. Nothing else speaks against the server, and locks would be lost for nothing. Older connections
//     may lead to a deposed master that is not demoted yet.
func (s *State) FirstWord(w Word, address string, used, young bool, began, now clock.Instant) {
	nobody := w == Unheard && young // mutant: old connections trusted
	if (nobody || w == Vouching) && used {
		s.server.Store(&address)
		s.vouched(began, 0)
	}
	s.spoke.Store(int64(now))
}

// Told is the event that the Sentinels have said something about the server at an address, which the client uses. Asked is when
// they were asked. If they do not vouch for the server, it is in doubt, even if this process sends nothing from now on. If they
// say nothing, that is no new doubt, unless their first word was due.
//
// A doubt that is raised at the same time is not lost. It is newer than the question, so this word does not end it, and the way
// is not used, see Way.
func (s *State) Told(w Word, address string, asked, now clock.Instant) (do Acts) {
	spoke := clock.Instant(s.spoke.Load())
	switch {
	case w == Vouching:
		s.server.Store(&address)
		s.vouched(asked, now.Add(Old))
	case w == Unheard && (spoke == 0 || asked < spoke):
	default:
		idle := !s.IsSuspect(now) // the suspicion has passed meanwhile, so commands may have been sent
		s.Doubt(asked)
		if idle {
			do = s.FoundSilent(now, now)
		}
	}
	return do
}

// Way is a way to the server that a client used at some time: a connection, or the client's own connections. One that is trusted
// does not change any more, and can be read without a mutex.
type Way struct {
	Address string        // of that server
	Since   clock.Instant // when making it began; when the choice fell on the client's own connections
	Greeted clock.Instant // when the server had greeted it; Never: it refuses connections
	Trusted bool          // the Sentinels have vouched for the server since then, or there are none to ask
	Asked   clock.Instant // when they were last asked
	Again   clock.Instant // they are not asked again before this
}

// Told is the event that the Sentinels have been asked about it.
func (w *Way) Told(word Word, asked, now clock.Instant) {
	w.Trusted = word == Vouching // mutant: nobody vouches
	w.Asked, w.Again = asked, now.Add(askAgain)
}

// Waited returns for how long a greeted way has waited for the Sentinels.
func (w *Way) Waited(now clock.Instant) time.Duration { return max(0, w.Greeted.Until(now)) }

// Doubts reports whether a doubt was raised after the Sentinels had vouched for a way. Then another way is needed.
func (s *State) Doubts(w *Way) bool { return w.Trusted && s.DoubtedSince(w.Asked) }
