package lease

import (
	"math"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Task is what is to be sent for a lease.
type Task uint8

// The tasks.
const (
	Nothing Task = iota
	Renew        // and see [State.Begin]
	Verify       // ask the server whether it has the key, see [State.Verified]
)

// Renewal is one command that renews a lease.
type Renewal struct {
	Term      *Term
	Sent      clock.Instant
	Scheduled bool // nobody waits for it
	Chosen    bool // the owner wants this term, for the renewals that follow too
}

// Outcome is what is known of a command.
type Outcome struct {
	Ours    bool // the key was the hold's
	Failed  bool // there is an error; with Ours: it was done, but too few replicas have it
	Unknown bool // with Failed: it may be executed yet
	Late    bool // the reply came late: a server may have given it that is the master no more
}

// Verdict is what the outcome of a renewal says.
type Verdict uint8

// The verdicts.
const (
	Extended    Verdict = iota
	Unconfirmed         // it has to be sent once more, since its reply was late
	Failed              // it failed; the lease goes on for as long as it is certain
	NotOurs             // the key is gone, or another's: it is to be lost
	TooLate             // the lease was over before: it is to be lost
	NotLive             // it was lost, or over, before
)

// Begin notes that a renewal is about to be sent. The server may execute it long before it is answered, and then a shorter lease
// than the running one counts. The renewal's term is not t where that goes beyond the bound.
func (s *State) Begin(now clock.Instant, t *Term) Renewal {
	u := s.unsettled()
	t = s.within(t, now)
	if u.flying == 0 {
		u.several, u.shortest, u.sure = false, t.Length, s.until
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

// Reply takes in the outcome of a renewal. A late one does not prolong the lease, since a master that is none any more may have
// given it. Nor does a renewal that too few replicas have.
func (s *State) Reply(r Renewal, now clock.Instant, o Outcome) Verdict {
	u := s.unsettled()
	// A reply that comes after the old validity is over cannot revive it, even if the new one would reach further.
	if o.Ours && !o.Failed && s.Fresh(now) {
		if !o.Late {
			u.exceeds = u.exceeds && (u.flying > 1 || r.Term.Length > s.Term.Length) // another one may be longer, or this
			if !u.several && u.doubt == 0 {
				u.most = 0 // the key has this lease, and no longer one can come any more
				s.exceed(r.Term)
			}
			s.prolong(r.Sent, r.Term)
			s.failed = 0
		}
		u.sure = s.until
		if r.Chosen && r.Sent >= s.chosen {
			former := s.Term
			s.Term, s.chosen = r.Term, r.Sent
			if o.Late || u.several || u.doubt > 0 { // else the key has this lease, and no longer one comes
				s.exceed(former)
			}
		}
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

// failure takes in what a renewal that failed may do to the lease.
func (s *State) failure(u *unsure, r Renewal, o Outcome) {
	switch {
	case o.Ours: // it may have shortened the lease
		u.sure = s.until
	case o.Unknown: // it may shorten the lease yet
		s.distrust(r.Term.Length)
		u.sure = s.until
	case u.flying == 0: // none that may is left
		s.until = u.sure
	}
}

// retries tells whether something is to be sent again: not when the owner sent the renewal, and nothing else is to be sent.
func (s *State) retries(r Renewal) bool { return s.tended() && (r.Scheduled || s.next != clock.Never) }

// tended tells whether something is to be sent.
func (s *State) tended() bool { return s.renews() || s.short > 0 || s.doubted || s.exceeds() }

// Due is when to look at a lease that is live, if it is to be looked at: to send something, or because somebody waits for its
// end.
func (s *State) Due(awaited bool) (due clock.Instant, looks bool) {
	if s.tended() {
		return min(s.until, s.next), true
	}
	return s.until, awaited
}

// Tick says what is to be sent now. Deserted tells that no owner will release it: then it is not renewed any more.
func (s *State) Tick(now clock.Instant, deserted bool) Task {
	if s.next > now {
		return Nothing
	}
	s.next = clock.Never
	switch {
	case s.short == 0 && s.renews() && deserted: // another owner may share it yet
		s.next = now.Add(s.Term.Length / 3)
		return Nothing
	case (s.short > 0 || s.renews()) && s.gains() || s.exceeds():
		return Renew
	case s.doubted:
		return Verify
	default: // it has what it may have
		return Nothing
	}
}

// Doubt has something sent at once, since the server may be the master no more: a renewal, or a question. It reports false when
// the lease is not live.
func (s *State) Doubt(now clock.Instant) bool {
	if s.phase != live {
		return false
	}
	s.doubted, s.next = true, min(s.next, now)
	return true
}

// Verified takes in the answer to a question. Refused tells that it cannot be asked.
func (s *State) Verified(now clock.Instant, o Outcome, refused bool) Verdict {
	switch {
	case s.phase != live:
		return NotLive
	case refused:
		s.doubted = false
		return Extended
	case o.Failed || o.Late:
		s.next = min(s.next, now.Add(s.backoff(s.Term)))
		return Failed
	case !o.Ours:
		return NotOurs
	default:
		s.doubted, s.failed = false, 0
		return Extended
	}
}

// PlanRemoval returns when the key of a lost hold may be removed. It can outlive its lease by far, when the server's clock was
// set back. The owner may be at work until the lease ends on the server. That is after until, by no more than the margin and by
// what the reply took on which until relies: late. The other margin is for the clocks. Kept is until when the key is to stay.
func (s *State) PlanRemoval(late time.Duration, kept clock.Instant) clock.Instant {
	s.next = max(s.until.Add(2*Margin(s.Longest())).Add(late), kept)
	return s.next
}

// Remove tells, once, whether that time has come.
func (s *State) Remove(now clock.Instant) bool {
	if s.next > now {
		return false
	}
	s.next = clock.Never
	return true
}

// backoff is the pause after another command that was not answered.
func (s *State) backoff(t *Term) time.Duration {
	if s.failed < math.MaxUint8 {
		s.failed++
	}
	return clock.Backoff(int(s.failed), t.Length)
}
