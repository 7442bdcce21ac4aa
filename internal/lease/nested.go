package lease

import (
	"slices"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// A call that nests in a hold may ask for a lease of its own. A shorter one changes nothing: the calls around it rely on what
// they have asked for. A longer one counts for all calls until the nested call has ended; then the key gets the longest lease
// that the remaining calls ask for. So Term is always the longest lease that any of the calls asks for:
//
//	Lock(20s)          Term 20s   the outermost call, or Renew, which also drops what nested calls have asked for
//	  Lock(1m)         Term 1m    a level
//	    Lock(2s)       Term 1m    the same level: one more call of its goroutine
//	    Unlock         Term 1m    the same level
//	  Unlock           Term 20s   the level is over, and a renewal is due at once, to shorten the key's lease
//	Unlock             over
//
// Unlock does not say which Lock it undoes. The calls of one goroutine end in the opposite order, so each Unlock undoes the
// newest Lock of its goroutine. Several goroutines may nest in one hold at once, and their calls may end in any order. No call
// may take away another's level. So each call that asks for more than the outermost one has a level, even if Term is longer
// already. If another goroutine undoes the call of a level, the level stays until its owner has left: then the lease is longer
// than needed, never shorter.

// Caller identifies the maker of a nested call.
type Caller struct{ Owner, Goroutine uint64 }

// nested are the leases that nested calls ask for, if any has asked for a longer one.
type nested struct {
	outer  *Term // without them
	levels []level
}

// level is a nested call that has asked for a longer lease than those before.
type level struct {
	by    Caller
	term  *Term
	calls int // this call, and those that its goroutine has nested in it, for any lease
}

// newest returns the place of a caller's newest level, or -1.
func (n *nested) newest(by Caller) int {
	for i, l := range slices.Backward(n.levels) {
		if l.by == by {
			return i
		}
	}
	return -1
}

// term is the longest lease that is asked for.
func (n *nested) term() *Term {
	longest := n.outer
	for _, l := range n.levels {
		if l.term.Length > longest.Length {
			longest = l.term
		}
	}
	return longest
}

// Nests reports whether a nested call that asks for t, or for no lease if t is nil, must call Nest and Unnest.
func (s *State) Nests(t *Term) bool {
	return s.view().nested != nil || t != nil && (t.Length > s.Term.Length || s.chosen == clock.Never)
}

// Nest notes that a caller nests, and asks for t. The caller then renews with Term.
//
// The owner may have got the lease by Handoff just now, and another of its goroutines may be about to call SetTerms. Until then
// it is not known what the outermost call asks for, so each nested call has a level.
func (s *State) Nest(t *Term, by Caller) {
	n := s.view().nested
	if n == nil {
		n = &nested{outer: s.Term}
	}
	if t == nil || t.Length <= n.outer.Length && s.chosen != clock.Never {
		if i := n.newest(by); i >= 0 {
			n.levels[i].calls++
		}
		return
	}
	n.levels = append(n.levels, level{by, t, 1})
	s.unsettled().nested = n
	s.become(n.term())
}

// Join notes that another owner shares the lease, and relies on t until that owner has left. Keeps: that owner expects the lease
// to be renewed.
//
// Join reports whether the lease must be renewed, with Term, before that owner may rely on it: if it is shorter than t, if it was
// not renewed until now but is from now on, or if too little of it is left. Enough is 9/10 of t, with keeps half of t, and half
// of a short lease, which is lengthened soon. For sooner see Unnest.
//
// A renewal with a shorter lease may be under way, which was sent while one owner had the lease alone:
//
//	anna  Renew(2s) ─────────────────────────────────▶ reply: Term would be 2s
//	carl         joins: 1m ── renewal: 1m ──▶ reply
//
// The server may execute the shorter one last. Then 2s are certain for carl, and the lease is renewed once more, when a third of
// that is over. When the replies have come, Term is 1m, on which carl relies.
func (s *State) Join(t *Term, keeps bool, now clock.Instant) (renew, sooner bool) {
	s.ownersChange()
	left, effective := s.Left(now), s.Effective(s.Term)
	enough := t.Length - t.Length/10
	switch {
	case keeps && s.short == 0:
		enough = t.Length / 2
	case s.short > 0:
		enough = s.short / 2
	}
	if keeps {
		sooner = s.SetRenewed(now)
	}
	s.Rely(t)
	return sooner || effective < t.Length || left < enough, sooner
}

// Rely notes that one of several owners that share the lease relies on t.
func (s *State) Rely(t *Term) {
	if n := s.view().nested; n != nil && t.Length > n.outer.Length {
		n.outer = t
	}
	if t.Length > s.Term.Length {
		s.become(t)
	}
	if u := s.pending; u != nil && u.flying > 0 {
		u.joined = longer(u.joined, t) // mutant: sharer gets less
		u.owed = u.owed || u.shortest < t.Length
	}
}

// longer returns the longer one; a may be nil.
func longer(a, b *Term) *Term {
	if a != nil && a.Length >= b.Length {
		return a
	}
	return b
}

// Choose notes that the owner is about to choose another lease for all its calls, see [Renewal]. If the renewal fails, Term stays
// the longest that nested calls have asked for.
func (s *State) Choose(now clock.Instant) {
	s.forget()
	s.chosen = min(s.chosen, now)
}

// forget drops all levels.
func (s *State) forget() {
	if s.pending != nil {
		s.pending.nested = nil
	}
}

// Unnest undoes a caller's newest Nest. It reports whether the next command is due sooner than before: the key lives for longer
// than the remaining calls ask for.
func (s *State) Unnest(by Caller, now clock.Instant) (sooner bool) {
	n := s.view().nested
	if n == nil {
		return false
	}
	i := n.newest(by)
	if i < 0 {
		return false
	}
	if n.levels[i].calls--; n.levels[i].calls > 0 {
		return false
	}
	n.levels = slices.Delete(n.levels, i, i+1)
	return s.settle(now)
}

// Leave notes that one of several owners has left, and drops all its levels. It reports the same as Unnest.
func (s *State) Leave(owner uint64, now clock.Instant) (sooner bool) {
	s.ownersChange()
	n := s.view().nested
	if n == nil {
		return false
	}
	n.levels = slices.DeleteFunc(n.levels, func(l level) bool { return l.by.Owner == owner })
	return s.settle(now)
}

// settle makes Term the longest lease that is asked for.
func (s *State) settle(now clock.Instant) (sooner bool) {
	n, former := s.view().nested, s.Term
	s.become(n.term())
	if len(n.levels) == 0 {
		s.pending.nested = nil
	}
	if s.phase != live || s.Term.Length >= former.Length {
		return false
	}
	s.pending.exceeds, s.next = true, min(s.next, now) // mutant: inner lease stays
	return true
}

// become makes t the term of the next renewal. The key may have had the former one.
func (s *State) become(t *Term) {
	former := s.Term
	s.Term = t
	s.exceed(former)
}
