// Package lease is what a process may believe about its lease of a key in Redis: a state machine and its arithmetic. It knows
// neither Redis nor who holds the key, and has no mutex: its owner guards it.
package lease

import (
	"strconv"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// Term is the time that a key lives in Redis, and the same in the form that commands carry.
type Term struct {
	Length time.Duration // whole milliseconds
	MS     string
}

// NewTerm cuts a lease to the whole milliseconds that Redis counts.
func NewTerm(d time.Duration) *Term {
	ms := d.Milliseconds()
	return &Term{Length: time.Duration(ms) * time.Millisecond, MS: strconv.FormatInt(ms, 10)}
}

// Margin is what a lease is shortened by, so that this process sees its end before the server does: clocks that differ
// by up to 1 % in rate, and the server's counting in whole milliseconds.
func Margin(length time.Duration) time.Duration { return length/100 + time.Millisecond } // mutant: no margin

// State is that of one possession of a key, from the command that asked for it to its end:
//
//	         Grant, GrantShort          End
//	asked ─────────────────────▶ live ───────▶ over
//	                               │            ▲
//	                               ╰──Lose──▶ lost
//
// What is lost stays lost: a renewal that is answered later does not revive it.
//
// Until never lies after the moment at which the key expires. It counts from before a command was sent, when the server cannot
// have executed it yet, and takes a margin off for clocks that run at slightly different rates.
//
// A command that may be executed after another one, and sets a shorter lease, cuts the longer one that this process would
// believe in. From the moment at which it is executed the key lives for the lease that it carries, and that moment is not
// before the other one. So after a command that was sent at some time, the key lives at least until that time plus the
// shortest lease among this command and those that may come after it. Two kinds may:
//
//   - renewals that are under way at the same time. When all of them are answered none can come any more, and the next one, which
//     is sent after that, is executed after all of them. A renewal does not wait for the one before it, whose reply may be lost.
//   - commands that will never be answered. They may come at any time, until the end.
//
// The fields are for those who read; only the methods write them, but for what their comments say.
type State struct {
	phase     phase
	Renewed   bool       // it is to be renewed each third of its lease; written before it is granted, see [State.Keep] then
	MayArrive bool       // a grant may arrive yet; written only by the call that obtains it
	sound     bool       // when over: it was valid until then
	doubted   bool       // the server is to be asked whether it has the key still
	why       fault.Loss // why it is lost
	upheld    bool       // it is renewed all the same, for as long as somebody needs that; see [State.Uphold]
	failed    uint8      // renewals in a row that were not answered

	Term   *Term         // of the next renewal: what the owner asked for last, of what was granted; written before it is granted
	until  clock.Instant // it is valid before this
	chosen clock.Instant // when the command was sent that set Term
	next   clock.Instant // when to send something; never without renewal, and while that is under way; lost: see PlanRemoval
	short  time.Duration // the lease that a release of another process has given it, until it is lengthened; 0 then
	unsure *unsure       // nil in most
}

type phase uint8

const (
	asked phase = iota
	live
	lost
	over
)

// unsure is what is not settled: renewals under way, and commands that may yet be executed. And how far renewals may go.
type unsure struct {
	flying   int32         // renewals under way
	several  bool          // there were two at once since none was
	exceeds  bool          // the key may live beyond the bound, and is to be shortened
	shortest time.Duration // the shortest lease among all since none was
	sure     clock.Instant // what until is again when the server has refused all of them
	doubt    time.Duration // the shortest lease among commands that will never be answered; 0 when there is none
	most     time.Duration // the longest lease that the key may have had since it was known, if that is longer than Term is now
	bound    clock.Instant // until when the key may live at most; 0: for as long as it is renewed
}

func (s *State) unsettled() *unsure {
	if s.unsure == nil {
		s.unsure = &unsure{}
	}
	return s.unsure
}

// Effective is the lease that counts from when a command with t was sent, when it has been executed.
func (s *State) Effective(t *Term) time.Duration {
	length := t.Length
	if u := s.unsure; u != nil {
		if u.flying > 0 {
			length = min(length, u.shortest)
		}
		if u.doubt > 0 {
			length = min(length, u.doubt)
		}
	}
	return length
}

// Longest is the longest lease that the key can have, so that it cannot live for longer.
func (s *State) Longest() time.Duration {
	if s.unsure == nil {
		return s.Term.Length
	}
	return max(s.Term.Length, s.unsure.most)
}

// exceed notes that t was asked for, in case it is longer than Term.
func (s *State) exceed(t *Term) {
	if t.Length > s.Longest() {
		s.unsettled().most = t.Length
	}
}

// distrust notes that a command with a lease of this length may be executed at any time.
func (s *State) distrust(length time.Duration) {
	if u := s.unsettled(); u.doubt == 0 || length < u.doubt {
		u.doubt = length
	}
}

// prolong takes in that the server has executed a command with t that was sent at sent. What was true before stays so.
func (s *State) prolong(sent clock.Instant, t *Term) {
	length := s.Effective(t)
	s.until = s.capped(max(s.until, sent.Add(length-Margin(length))))
	s.next, s.short, s.doubted = clock.Never, 0, false
	if s.renews() || s.exceeds() {
		s.next = sent.Add(length / 3)
	}
}

// Grant turns asked into live, with the reply that came to a command that was sent at sent. It reports false when the
// reply came too late to be one.
func (s *State) Grant(sent, came clock.Instant) bool {
	if s.MayArrive { // mutant: late grant forgotten
		s.distrust(s.Term.Length)
	}
	s.prolong(sent, s.Term) // mutant: lease from the reply
	if came >= s.until {
		return false
	}
	s.phase, s.chosen = live, sent
	return true
}

// lengthenPart is which part of what is certain of a grant passes before its short lease is lengthened. Most holds are over
// by then, and the timer has not been set for each of them.
const lengthenPart = 3

// GrantShort turns asked into live at now, for a hold that another process's release has made the owner, with a lease that counts
// from base. It is lengthened a little later, if it is not over by then; at once where it is over after three round trips. It
// reports false when less than half of the lease is certain.
func (s *State) GrantShort(base, now clock.Instant, length, roundTrip time.Duration) bool {
	until := base.Add(length - Margin(length))
	if now.Until(until) < length/2 {
		return false
	}
	s.phase, s.until, s.chosen, s.next = live, until, base, clock.Never
	if length < s.Term.Length {
		s.short = length
		s.next = lengthening(now, until, roundTrip) // mutant: grant not lengthened
	} else if s.renews() {
		s.next = base.Add(length / 3)
	}
	return true
}

func lengthening(now, until clock.Instant, roundTrip time.Duration) clock.Instant {
	left := now.Until(until)
	if left < 3*roundTrip {
		return now
	}
	return now.Add(left / lengthenPart)
}

// Live tells whether it is neither lost nor over.
func (s *State) Live() bool { return s.phase == live }

// Lost tells whether it is lost.
func (s *State) Lost() bool { return s.phase == lost }

// Over tells whether it is over.
func (s *State) Over() bool { return s.phase == over }

// Fresh tells whether it is live and its time is not over.
func (s *State) Fresh(now clock.Instant) bool { return s.phase == live && now < s.until }

// Left is for how long it can be relied on.
func (s *State) Left(now clock.Instant) time.Duration { return now.Until(s.until) }

// Why is why it is lost.
func (s *State) Why() fault.Loss { return s.why }

// Sound tells, when it is over, whether it was valid until then.
func (s *State) Sound() bool { return s.sound }

// Lose turns live into lost. It reports false when it is something else.
func (s *State) Lose(why fault.Loss) bool {
	if s.phase != live {
		return false
	}
	s.phase, s.why, s.next = lost, why, clock.Never
	return true
}

// End turns any state into over. It reports whether it was valid until then.
func (s *State) End(now clock.Instant) bool {
	s.sound = s.Fresh(now)
	if s.phase == live && !s.sound {
		s.why = fault.LeaseOver
	}
	s.phase = over
	return s.sound
}

// Adopt gives it what another owner asks for: a term from the next renewal on, renewed or not, and the bound, if any.
func (s *State) Adopt(t *Term, renewed bool, bound, now clock.Instant) (changed bool) {
	if s.Term.Length == t.Length && s.Renewed == renewed && bound == 0 && s.bound() == 0 {
		return false
	}
	former := s.Term
	s.Term, s.Renewed = t, renewed
	s.exceed(former)
	s.Bound(bound)
	if u := s.unsure; u != nil {
		u.exceeds = bound != 0 && s.Longest() > now.Until(bound)
	}
	switch {
	case s.doubted || s.exceeds(): // the answer is still to come, whoever has it
		s.next = now
	case s.short > 0: // to be lengthened soon
	case !s.renews():
		s.next = clock.Never
	default:
		s.next = s.third()
	}
	return true
}

// Bound sets until when the key may live at most; 0: for as long as it is renewed. No renewal goes beyond, and it is valid for
// no longer, less the margin.
func (s *State) Bound(at clock.Instant) {
	if at == 0 && s.bound() == 0 {
		return
	}
	u := s.unsettled()
	u.bound = at
	s.until, u.sure = s.capped(s.until), s.capped(u.sure)
}

func (s *State) bound() clock.Instant {
	if s.unsure == nil {
		return 0
	}
	return s.unsure.bound
}

// capped is until when it may be valid at most, of a time that is certain else.
func (s *State) capped(until clock.Instant) clock.Instant {
	if bound := s.bound(); bound != 0 {
		return min(until, bound.Add(-Margin(s.Term.Length)))
	}
	return until
}

// within is t, or what is left of it until the bound.
func (s *State) within(t *Term, now clock.Instant) *Term {
	if bound := s.bound(); bound != 0 && now.Until(bound) < t.Length {
		return NewTerm(max(now.Until(bound), time.Millisecond))
	}
	return t
}

// gains tells whether a renewal has it valid for longer: with a bound one is the last, which goes up to it.
func (s *State) gains() bool {
	bound := s.bound()
	return bound == 0 || s.until.Add(time.Millisecond) < s.capped(bound) // Redis counts whole milliseconds
}

func (s *State) exceeds() bool { return s.unsure != nil && s.unsure.exceeds }

// third is when a third of a lease of its length would be over.
func (s *State) third() clock.Instant { return s.until.Add(s.Term.Length/3 - s.Term.Length) }

// Keep has it renewed from now on. It reports whether it was not so far.
func (s *State) Keep(now clock.Instant) bool {
	if s.phase != live || s.Renewed {
		return false
	}
	if s.Renewed = true; s.upheld { // it was renewed
		return false
	}
	s.next = now
	return true
}

// Uphold has it renewed until the same is called with false, also where it would not be: the first time when a third of its lease
// is over. It reports whether something is to be sent sooner than before.
func (s *State) Uphold(on bool) (sooner bool) {
	renewed := s.renews()
	s.upheld = on
	switch {
	case s.phase != live || s.renews() == renewed:
	case !on && !s.tended():
		s.next = clock.Never
	case on && s.short == 0: // else it is to be lengthened soon
		s.next, sooner = min(s.next, s.third()), true
	}
	return sooner
}

// renews tells whether it is to be renewed each third of its lease.
func (s *State) renews() bool { return s.Renewed || s.upheld }

// current is the lease that it has now: a short one until it is lengthened.
func (s *State) current(length time.Duration) time.Duration {
	if s.short > 0 {
		return s.short
	}
	return length
}

// Upheld is the lease that renewals set each third of it; 0: it is not renewed, or yet to be lengthened, or nears its bound.
func (s *State) Upheld(now clock.Instant) time.Duration {
	bound := s.bound()
	if s.phase != live || !s.renews() || s.short > 0 || bound != 0 && now.Add(s.Term.Length) >= bound {
		return 0
	}
	return s.Term.Length
}

// Half tells whether more than half of its lease is over.
func (s *State) Half(now clock.Instant) bool { return s.Left(now) < s.current(s.Term.Length)/2 }

// Behind tells whether it is to be renewed at once for an owner that asks for a lease of this length: more than half is over,
// since renewals are behind, or its lease is shorter.
func (s *State) Behind(length time.Duration, now clock.Instant) bool {
	return s.Left(now) < s.current(length)/2 || s.Effective(s.Term) < length
}

// Shares tells whether it must be renewed before one more owner shares it that asks for a lease of this length, so that at least
// nine tenths of that are left; half, where a short lease is to be lengthened soon.
func (s *State) Shares(length time.Duration, now clock.Instant) (renew bool) {
	enough := length - length/10
	if s.short > 0 {
		enough = s.short / 2
	}
	return s.Effective(s.Term) < length || s.Left(now) < enough
}
