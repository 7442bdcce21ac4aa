// Package lease is what a process may believe about its lease of a key in Redis: a state machine and its arithmetic. It knows
// neither Redis nor the key's holder, and has no clock, no goroutine and no mutex: its user guards it.
//
// What comes in: when a command was sent, with which [Term], and what was answered, as an [Outcome]. What goes out: until when
// the key is the hold's, when to renew or verify it, and a [Verdict] on each answer.
package lease

import (
	"cmp"
	"strconv"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// Term is how long a key lives in Redis, and the same as text for commands.
type Term struct {
	Length time.Duration // whole milliseconds
	MS     string
}

// NewTerm cuts a lease to the whole milliseconds that Redis counts.
func NewTerm(d time.Duration) *Term {
	ms := d.Milliseconds()
	return &Term{Length: time.Duration(ms) * time.Millisecond, MS: strconv.FormatInt(ms, 10)}
}

// Margin is subtracted from a lease, so that this process sees its end before the server does, although clocks may differ by up
// to 1 % in rate, this one moves in steps, and the server counts whole milliseconds.
func Margin(length time.Duration) time.Duration { return length/100 + time.Millisecond + clock.Step } // mutant: no margin

// State is the state of one possession of a key, from the command that asked for it to its end:
//
//	         Grant, GrantShort          End
//	asked ─────────────────────▶ live ───────▶ over
//	                               │            ▲
//	                               ╰──Lose──▶ lost
//
// A lost lease stays lost: a renewal that is answered later does not revive it.
//
// The lease is valid until, which is never later than the key's expiry:
//
//	until = sent + shortest(this lease, leases of commands that may be executed later) - margin for clocks
//
// Sent is the time before the command was sent, when the server cannot have executed it yet. Shorter leases count, because a
// command with a shorter lease that is executed later cuts the key's lease, while this process would still believe in the longer
// one. Two kinds of commands may be executed later:
//
//   - renewals under way at the same time. Once all of them are answered, none can be executed any more, and the next renewal is
//     executed after all of them. A renewal does not wait for the reply to the one before it. If that reply were lost, the
//     owner's call would wait until the loss is certain: 500 ms + 2 × round trip.
//   - commands that will never be answered. They may be executed at any time, until the end.
//
// Only the methods write the fields, except as the comments of the fields say; others may read them.
type State struct {
	phase      phase
	Renewed    bool       // it is renewed every third of its lease; others may write it before the grant, see [State.SetRenewed]
	MayArrive  bool       // a grant may arrive later; written only by the call that obtains it
	sound      bool       // when over: it was valid until End
	unverified bool       // the server must be asked whether it still has the key
	why        fault.Loss // why it is lost
	anyway     bool       // it is renewed although Renewed is false, see [State.RenewAnyway]
	failed     uint8      // consecutive renewals that were not answered

	Term    *Term         // of the next renewal: what the owner asked for last, see also Nest; others may write it before the grant
	until   clock.Instant // it is valid until then
	chosen  clock.Instant // when the command that set Term was sent; Never between Handoff and what its next owner chooses
	next    clock.Instant // when to send something; Never without renewal, and while one is under way; if lost, see PlanRemoval
	short   time.Duration // the short lease from another process's release, until it is lengthened; then 0
	pending *pending      // nil for most
}

type phase uint8

const (
	asked phase = iota
	live
	lost
	over
)

// pending is what most leases do not have: renewals under way, commands that may still be executed, a bound, nested calls.
type pending struct {
	flying     int32         // renewals under way
	several    bool          // two were under way at once since the last time that none was
	exceeds    bool          // the key may live beyond the bound, or longer than Term, and must be shortened
	owed       bool          // an owner that shares it may have less than it relies on, see Join: it must be renewed once more
	shortest   time.Duration // the shortest lease of all renewals since none was under way
	sure       clock.Instant // the value for until once the server has refused all of them
	unanswered time.Duration // the shortest lease of commands that will never be answered; 0: there are none
	most       time.Duration // the longest lease that the key may have had since it was known, if that is longer than Term is now
	bound      clock.Instant // the key may live until then at most; 0: as long as it is renewed
	nested     *nested       // see Nest; nil for most
	joined     *Term         // the longest lease of owners that have joined during renewals, see Join; nil for most
	changes    uint32        // of owners, see Generation
	counted    bool          // Generation has been called
}

// spare has values of pending for reuse. A hold that is renewed all the time would otherwise allocate one for each renewal.
var spare = sync.Pool{New: func() any { return &pending{} }}

var none pending // never written

// view returns pending for reading only.
func (s *State) view() *pending {
	if s.pending == nil {
		return &none
	}
	return s.pending
}

// unsettled returns pending for writing.
func (s *State) unsettled() *pending {
	if s.pending == nil {
		s.pending = spare.Get().(*pending) //nolint:forcetypeassert // nothing else is in it
	}
	return s.pending
}

// settled sets pending to nil if nothing is pending. Most holds of a process are between two renewals, so they must be small
// then. The fields that settled does not look at count only while renewals are under way.
func (s *State) settled() {
	u := s.pending
	if u == nil || u.flying > 0 || u.exceeds || u.owed || u.unanswered > 0 || u.most > 0 || u.bound != 0 || u.nested != nil ||
		u.counted {
		return
	}
	s.pending = nil
	*u = pending{}
	spare.Put(u)
}

// Effective returns the lease that counts from when a command with t was sent, once it has been executed.
func (s *State) Effective(t *Term) time.Duration {
	length, u := t.Length, s.view()
	if u.flying > 0 {
		length = min(length, u.shortest)
	}
	if u.unanswered > 0 {
		length = min(length, u.unanswered)
	}
	return length
}

// Longest is the longest lease that the key can have.
func (s *State) Longest() time.Duration { return max(s.Term.Length, s.view().most) }

// exceed notes that the key may have the lease t, in case it is longer than Term.
func (s *State) exceed(t *Term) {
	if t.Length > s.Longest() {
		s.unsettled().most = t.Length
	}
}

// noteUnanswered notes that a command with a lease of this length will never be answered, and may be executed at any time.
func (s *State) noteUnanswered(length time.Duration) {
	if u := s.unsettled(); u.unanswered == 0 || length < u.unanswered {
		u.unanswered = length
	}
}

// prolong notes that the server has executed a command with t that was sent at sent. It never shortens the time for which the
// lease is valid.
func (s *State) prolong(sent clock.Instant, t *Term) {
	length := s.Effective(t)
	s.until = s.capped(max(s.until, sent.Add(length-Margin(length))))
	s.next, s.short, s.unverified = clock.Never, 0, false
	if s.scheduled() {
		s.next = sent.Add(length / 3)
	}
}

// Grant turns asked into live, with the reply at came to a command that was sent at sent. It reports false when the reply came
// after the lease had ended.
func (s *State) Grant(sent, came clock.Instant) bool {
	if s.MayArrive { // mutant: late grant forgotten
		s.noteUnanswered(s.Term.Length)
	}
	s.prolong(sent, s.Term) // mutant: lease from the reply
	if came >= s.until {
		return false
	}
	s.phase, s.chosen = live, sent
	return true
}

// lengthenPart is the part of a short lease's certain time after which the lease is lengthened: 3 is a third. Most holds end
// before that, so no timer is set for them.
const lengthenPart = 3

// GrantShort turns asked into live at now, for a hold that another process's release has made the owner. The lease counts from
// base. It is lengthened when a third of its certain time is over, or at once if it lasts for less than three round trips.
// GrantShort reports false when less than half of the lease is certain.
func (s *State) GrantShort(base, now clock.Instant, length, roundTrip time.Duration) bool {
	until := base.Add(length - Margin(length))
	if now.Until(until) < length/2 {
		return false
	}
	s.phase, s.until, s.chosen, s.next = live, until, base, clock.Never
	if length < s.Term.Length {
		s.short, s.next = length, now
		if left := now.Until(until); left >= 3*roundTrip {
			s.next = now.Add(left / lengthenPart) // mutant: grant not lengthened
		}
	} else if s.renews() {
		s.next = base.Add(length / 3)
	}
	return true
}

// Live reports whether it is live: granted, and neither lost nor over.
func (s *State) Live() bool { return s.phase == live }

// Lost reports whether it is lost.
func (s *State) Lost() bool { return s.phase == lost }

// Over reports whether it is over.
func (s *State) Over() bool { return s.phase == over }

// Fresh reports whether it is live and its time is not over.
func (s *State) Fresh(now clock.Instant) bool { return s.phase == live && now < s.until }

// Left returns how long it stays valid.
func (s *State) Left(now clock.Instant) time.Duration { return now.Until(s.until) }

// Why returns why it was lost.
func (s *State) Why() fault.Loss { return s.why }

// Sound reports whether it was valid until End.
func (s *State) Sound() bool { return s.sound }

// Lose turns live into lost. It reports false in any other state.
func (s *State) Lose(why fault.Loss) bool {
	if s.phase != live {
		return false
	}
	s.phase, s.why, s.next = lost, why, clock.Never
	return true
}

// Look goes by the clock. Valid: the lease is live, and its time is not over. Ended: its time was over, and Look has turned it
// from live into lost.
func (s *State) Look(now clock.Instant) (valid, ended bool) {
	valid = s.Fresh(now)
	return valid, !valid && s.Lose(fault.LeaseOver)
}

// End turns any state into over. Sound: the lease was valid until then. Noticed: it was live, and End is the first to see that
// its time is over.
func (s *State) End(now clock.Instant) (sound, noticed bool) {
	s.sound = s.Fresh(now)
	if noticed = s.phase == live && !s.sound; noticed {
		s.why = fault.LeaseOver
	}
	s.phase = over
	return s.sound, noticed
}

// Generation is a number that changes whenever an owner takes over, joins or leaves. While it stays the same, the owners are the
// same. It counts from the first call on, since nobody knows a number from before.
func (s *State) Generation() uint32 {
	u := s.unsettled()
	u.counted = true
	return u.changes
}

// ownersChange changes the generation.
func (s *State) ownersChange() {
	if s.pending != nil {
		s.pending.changes++ // mutant: next owner loses its lease
	}
}

// Handoff notes that another owner has the lease from now on. SetTerms gives it that owner's terms. The choices of the former
// owner, of its nested calls, and of its renewals under way no longer count.
func (s *State) Handoff() {
	s.ownersChange()
	s.forget()
	s.chosen = clock.Never
}

// SetTerms gives the lease the terms of another owner: a term from the next renewal on, whether it is renewed, and a bound, 0 for
// none. Other goroutines of that owner may have nested since Handoff, or chosen a lease. They do not get a shorter one.
func (s *State) SetTerms(t *Term, renewed bool, bound, now clock.Instant) (changed bool) {
	if s.chosen == clock.Never {
		s.chosen = now
	} else if s.Term.Length > t.Length {
		t = s.Term
	}
	if n := s.view().nested; n != nil {
		n.outer = t
		t = n.term()
	}
	if s.Term.Length == t.Length && s.Renewed == renewed && bound == 0 && s.view().bound == 0 {
		return false
	}
	former := s.Term
	s.Term, s.Renewed = t, renewed
	s.exceed(former)
	s.Bound(bound)
	if u := s.pending; u != nil {
		u.exceeds = bound != 0 && s.Longest() > now.Until(bound)
	}
	switch {
	case s.unverified || s.view().exceeds: // still needed, whichever owner has it
		s.next = now
	case s.short > 0: // lengthened soon
	case !s.renews():
		s.next = clock.Never
	default:
		s.next = s.third()
	}
	return true
}

// Bound sets until when the key may live; 0: as long as it is renewed. No renewal goes beyond the bound, and the lease is valid
// only until the bound less the margin.
func (s *State) Bound(at clock.Instant) {
	if at == 0 && s.view().bound == 0 {
		return
	}
	u := s.unsettled()
	u.bound = at
	s.until, u.sure = s.capped(s.until), s.capped(u.sure)
}

// capped returns until, or the bound less the margin if the bound is earlier.
func (s *State) capped(until clock.Instant) clock.Instant {
	if bound := s.view().bound; bound != 0 {
		return min(until, bound.Add(-Margin(s.Term.Length)))
	}
	return until
}

// within returns t, shortened if it would end after the bound.
func (s *State) within(t *Term, now clock.Instant) *Term {
	if bound := s.view().bound; bound != 0 && now.Until(bound) < t.Length {
		return NewTerm(max(now.Until(bound), time.Millisecond))
	}
	return t
}

// gains reports whether a renewal would make the lease valid for longer. None does once until has reached the bound.
func (s *State) gains() bool {
	bound := s.view().bound
	return bound == 0 || s.until.Add(time.Millisecond) < s.capped(bound) // Redis counts whole milliseconds
}

// third returns when a third of the lease will be over.
func (s *State) third() clock.Instant { return s.until.Add(s.Term.Length/3 - s.Term.Length) }

// SetRenewed makes the lease renewed from now on. It reports whether it was not renewed before.
func (s *State) SetRenewed(now clock.Instant) bool {
	if s.phase != live || s.Renewed {
		return false
	}
	if s.Renewed = true; s.anyway { // it was renewed already
		return false
	}
	s.next = now
	return true
}

// RenewAnyway renews the lease until RenewAnyway(false), even if Renewed is false. The first renewal is due when a third of the
// lease is over. RenewAnyway reports whether the next command is due sooner than before.
func (s *State) RenewAnyway(on bool) (sooner bool) {
	renewed := s.renews()
	s.anyway = on
	switch {
	case s.phase != live || s.renews() == renewed:
	case !on && !s.scheduled():
		s.next = clock.Never
	case on && s.short == 0: // otherwise it is lengthened soon
		s.next, sooner = min(s.next, s.third()), true
	}
	return sooner
}

// renews reports whether the lease is renewed every third of it.
func (s *State) renews() bool { return s.Renewed || s.anyway }

// scheduled reports whether commands for the lease are sent in the background.
func (s *State) scheduled() bool {
	u := s.view()
	return s.renews() || s.short > 0 || s.unverified || u.exceeds || u.owed
}

// Due returns when to look at a live lease: to send something, or to notice its end. Awaited: a waiter or a context waits for its
// end. Looks reports whether to look at all.
func (s *State) Due(awaited bool) (due clock.Instant, looks bool) {
	if s.scheduled() {
		return min(s.until, s.next), true
	}
	return s.until, awaited
}

// RenewalLease returns the lease that renewals set every third of it. It is 0 if the lease is not renewed, has yet to be
// lengthened, or nears its bound.
func (s *State) RenewalLease(now clock.Instant) time.Duration {
	bound := s.view().bound
	if s.phase != live || !s.renews() || s.short > 0 || bound != 0 && now.Add(s.Term.Length) >= bound {
		return 0
	}
	return s.Term.Length
}

// MayHandOff reports whether the lease may go to another owner of this process: it is fresh, and at least half of it is left. The
// process has had the key for had. Due: less than half is left, or had has reached the limit, so other processes have their turn.
func (s *State) MayHandOff(now clock.Instant, had, limit time.Duration) (may, due bool) {
	half := s.Left(now) < cmp.Or(s.short, s.Term.Length)/2
	due = had >= limit || half // mutant: handed on without end
	return s.Fresh(now) && !half, due
}

// Outlasts reports whether the lease is fresh, and its owner has had it, for owned, at least this many leases.
func (s *State) Outlasts(now clock.Instant, owned time.Duration, leases int) bool {
	return s.Fresh(now) && owned >= clock.Times(leases, s.Term.Length)
}
