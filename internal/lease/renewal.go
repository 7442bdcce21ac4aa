package lease

import (
	"math"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Task is what to send for a lease.
type Task uint8

// The tasks.
const (
	Nothing Task = iota
	Renew        // see [State.Begin]
	Verify       // ask the server whether it has the key, see [State.Verified]
)

// Renewal is a command that renews a lease.
type Renewal struct {
	Term      *Term
	Sent      clock.Instant
	Scheduled bool // sent in the background
	Chosen    bool // the owner wants this term, also for later renewals
}

// Outcome is what is known about a command that was sent.
type Outcome struct {
	Ours    bool // the key was the hold's
	Failed  bool // there is an error; with Ours: it was executed, but too few replicas have the lock
	Unknown bool // with Failed: it may still be executed
	Late    bool // the reply came late, perhaps from a former master
}

// Verdict is what the outcome of a renewal means.
type Verdict uint8

// The verdicts.
const (
	Extended    Verdict = iota
	Unconfirmed         // it must be sent again, since its reply was late
	Failed              // the lease goes on for as long as it is certain
	NotOurs             // the key is gone, or another's: the hold must be lost
	TooLate             // the lease was over before: the hold must be lost
	NotLive             // the lease was lost, or over, before
)

// Begin notes that a renewal is about to be sent. A lease that is shorter than the present one counts from now on, since the
// server may execute the command long before the reply comes. If t would go beyond the bound, the renewal's term is shorter.
func (s *State) Begin(now clock.Instant, t *Term) Renewal {
	u := s.unsettled()
	t = s.within(t, now)
	if u.flying == 0 {
		u.several, u.shortest, u.sure, u.joined = false, t.Length, s.until, nil
	}
	u.flying++
	u.several = u.flying > 1 || u.several
	u.shortest = min(u.shortest, t.Length)
	s.exceed(t)
	s.until = min(s.until, now.Add(t.Length-Margin(t.Length)))
	if s.next != clock.Never { // the next one does not wait for the reply to this one
		s.next = min(s.next, now.Add(t.Length/3))
	}
	return Renewal{Term: t, Sent: now}
}

// Reply handles the outcome of a renewal. A late reply does not prolong the lease, since it may come from a former master. Nor
// does a renewal that too few replicas have acknowledged.
func (s *State) Reply(r Renewal, now clock.Instant, o Outcome) Verdict {
	defer s.settled()
	u := s.unsettled()
	// A reply that comes when the old validity is over cannot revive it, even if the new lease reaches further.
	if o.Ours && !o.Failed && s.Fresh(now) {
		s.renewed(u, r, o.Late)
	}
	u.flying--
	switch {
	case s.phase != live:
		return NotLive
	case o.Failed:
		s.failure(u, r, o)
		if s.retries(r) {
			s.next = min(s.next, now.Add(s.backoff(r.Term)))
		}
		return Failed
	case !o.Ours:
		return NotOurs
	case now >= s.until:
		return TooLate
	case o.Late:
		if s.retries(r) {
			s.next = min(s.next, now)
		}
		return Unconfirmed
	default:
		return Extended
	}
}

// renewed handles a renewal that was executed in time.
func (s *State) renewed(u *pending, r Renewal, late bool) {
	known := !late && !u.several && u.unanswered == 0 // the key has this lease, and no command under way can set a longer one
	if !late {
		u.exceeds = u.exceeds && (u.flying > 1 || r.Term.Length > s.Term.Length) // unless this, or another under way, may be longer
		u.owed = u.owed && u.several                                             // otherwise the server has executed all before it
		if known {
			u.most = 0
			s.exceed(r.Term)
		}
		s.prolong(r.Sent, r.Term)
		s.failed = 0
	}
	u.sure = s.until
	if r.Chosen && r.Sent >= s.chosen {
		former := s.Term
		s.Term, s.chosen = longer(u.joined, r.Term), r.Sent
		if n := u.nested; n != nil { // of calls that came after the choice
			n.outer = s.Term
			s.Term = n.term()
		}
		if !known {
			s.exceed(former)
		}
	}
}

// failure handles what a failed renewal may do to the lease.
func (s *State) failure(u *pending, r Renewal, o Outcome) {
	switch {
	case o.Ours: // it may have shortened the key's lease
		u.sure = s.until
	case o.Unknown: // it may still shorten the key's lease
		s.noteUnanswered(r.Term.Length)
		u.sure = s.until
	case u.flying == 0: // none is left that may shorten it
		s.until = u.sure
	}
}

// retries reports whether to send again after r. If the owner sent r, and nothing else is scheduled, the owner decides.
func (s *State) retries(r Renewal) bool {
	return s.scheduled() && (r.Scheduled || s.next != clock.Never)
}

// Tick returns what to send now. A deserted lease, which no owner will release, is not renewed any more.
func (s *State) Tick(now clock.Instant, deserted bool) Task {
	if s.next > now {
		return Nothing
	}
	s.next = clock.Never
	switch u := s.view(); {
	case s.short == 0 && s.renews() && deserted: // another owner may still join
		s.next = now.Add(s.Term.Length / 3)
		return Nothing
	case (s.short > 0 || s.renews() || u.owed) && s.gains() || u.exceeds:
		return Renew
	case s.unverified:
		return Verify
	default: // the lease has reached its bound
		return Nothing
	}
}

// Verify makes a renewal or a verification due at once, since the server may no longer be the master. It reports false when the
// lease is not live.
func (s *State) Verify(now clock.Instant) bool {
	if s.phase != live {
		return false
	}
	s.unverified, s.next = true, min(s.next, now)
	return true
}

// Unverified reports whether the server has not confirmed the lease since Verify.
func (s *State) Unverified() bool { return s.unverified }

// Verified handles the outcome of a verification. Refused: the server does not allow it.
func (s *State) Verified(now clock.Instant, o Outcome, refused bool) Verdict {
	switch {
	case s.phase != live:
		return NotLive
	case refused:
		s.unverified = false
		return Extended
	case o.Failed || o.Late:
		s.next = min(s.next, now.Add(s.backoff(s.Term)))
		return Failed
	case !o.Ours:
		return NotOurs
	default:
		s.unverified, s.failed = false, 0
		return Extended
	}
}

// PlanRemoval returns when the key of a lost hold may be removed: not while the owner may rely on the lease, nor while AtLeast
// keeps the key, until kept:
//
//	removal = max(kept, until + 2 × margin + late)
//
// On the server the lease ends at most one margin + late after until. Late is how long the server may have taken to execute the
// command from which until was computed. The second margin is for the clocks. If the server's clock was set back, the key may
// outlive its lease by far.
func (s *State) PlanRemoval(late time.Duration, kept clock.Instant) clock.Instant {
	s.next = max(s.until.Add(2*Margin(s.Longest())).Add(late), kept)
	return s.next
}

// Remove reports, once, that the time of PlanRemoval has come.
func (s *State) Remove(now clock.Instant) bool {
	if s.next > now {
		return false
	}
	s.next = clock.Never
	return true
}

// backoff counts a command that was not answered, and returns the pause after it.
func (s *State) backoff(t *Term) time.Duration {
	if s.failed < math.MaxUint8 {
		s.failed++
	}
	return clock.Backoff(int(s.failed), t.Length)
}
