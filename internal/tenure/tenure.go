// Package tenure is what contexts say about the caller: an owner, and the holds that they were made in.
//
// What comes in: a context. What goes out, as [In]: the owner that calls with it, and the holds in which its calls nest. [Held]
// is the place of a lock's hold, where owners enter, nest and leave.
package tenure

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// Tenure is the time for which an owner has a hold: from its first Lock to its last Unlock. A hold can have several, since
// readers share it, and handoff gives it from one owner to the next. A context carries the tenure that it was made in, so that
// calls with it nest in the tenure, whichever goroutine makes them.
//
// Such a call counts as one of the owner's. So the tenure cannot end while the call has the lock, even if the owner itself
// unlocks before: no call is left with a hold that is another owner's.
type Tenure struct {
	Owner owner.ID
	Hold  *hold.Hold
	Token uint64 // the owner's

	at        *Held
	ended     atomic.Bool
	delegated atomic.Bool // see Delegate
}

// Over returns a tenure that is over, of no hold.
func Over() *Tenure {
	t := &Tenure{}
	t.ended.Store(true)
	return t
}

// Lasts reports whether the owner still has the hold.
func (t *Tenure) Lasts() bool { return !t.ended.Load() && t.at.Load() == t.Hold }

// StartRenewing has the hold renewed until StopRenewing, unless the tenure is over. T may be nil, when the hold is lost already.
func (t *Tenure) StartRenewing() { t.unlessOver((*hold.Hold).StartRenewing) }

// StopRenewing ends what StartRenewing has begun.
func (t *Tenure) StopRenewing() { t.unlessOver((*hold.Hold).StopRenewing) }

// unlessOver does something to the hold while the owner cannot leave: afterwards the hold may be another owner's.
func (t *Tenure) unlessOver(do func(*hold.Hold)) {
	if t == nil {
		return
	}
	s := t.at.lock()
	if s == nil { // the tenure was one of them, and is over
		return
	}
	defer t.at.unlock(s)
	if !t.ended.Load() {
		do(t.Hold)
	}
}

// Outlived returns the error of an unlock that has failed with err for the owner. When the local half knows nothing of the owner
// although nothing has ended the tenure, the hold's loss was so long ago that the local half has forgotten it. T may be nil.
func (t *Tenure) Outlived(err error) error {
	if t == nil || t.ended.Load() || !errors.Is(err, fault.NotOwner) {
		return err
	}
	return t.Hold.Err()
}

// Held is the hold that a lock has, and those of its tenures for which contexts were made.
type Held struct {
	atomic.Pointer[hold.Hold]                         // written only with the local half held
	tenures                   atomic.Pointer[tenures] // nil unless there is a context that carries a hold
}

// tenures has the tenures of a lock for which contexts were made. An owner leaves the local half, and a call nests there, with
// the mutex held. So a call that finds a tenure is counted before the owner can leave. The local half's mutex may be taken while
// this one is held.
//
// They are dropped with the last one, so that a lock that is cached for a long time takes no memory for them. A caller that
// found them before may take their mutex after that. So lock looks again whether they are still the lock's, which changes only
// with the mutex held.
type tenures struct {
	mu   sync.Mutex
	hold *hold.Hold // that all of them are of
	one  *Tenure
	more map[owner.ID]*Tenure // besides one, for readers that share a hold; nil for most
}

func (s *tenures) of(o owner.ID) *Tenure {
	if s.one != nil && s.one.Owner == o {
		return s.one
	}
	return s.more[o]
}

func (s *tenures) add(t *Tenure) {
	if s.hold != t.Hold { // what is left belongs to lost holds whose owners never unlocked
		s.hold, s.one, s.more = t.Hold, nil, nil
	}
	switch {
	case s.one == nil:
		s.one = t
	case s.more == nil:
		s.more = map[owner.ID]*Tenure{t.Owner: t}
	default:
		s.more[t.Owner] = t
	}
}

func (s *tenures) end(t *Tenure) {
	t.ended.Store(true)
	if s.one == t {
		s.one = nil
	} else {
		delete(s.more, t.Owner)
	}
}

// lock returns the tenures with their mutex taken, for unlock; nil if there are none.
func (l *Held) lock() *tenures {
	for {
		if s := l.tenures.Load(); s == nil || l.take(s) {
			return s
		}
	}
}

// take takes the mutex of tenures that the lock had, and reports whether the lock still has them.
func (l *Held) take(s *tenures) bool {
	s.mu.Lock()
	if l.tenures.Load() == s {
		return true
	}
	s.mu.Unlock()
	return false
}

func (l *Held) unlock(s *tenures) {
	if s.one == nil && len(s.more) == 0 {
		l.tenures.Store(nil)
	}
	s.mu.Unlock()
}

// Tenure returns the tenure of an owner that has a hold, with its token; it is over when the owner has unlocked meanwhile.
func (l *Held) Tenure(half local.Half, o owner.ID, h *hold.Hold, token uint64) *Tenure {
	var t *Tenure
	s := l.lock()
	for s == nil {
		first := &struct {
			Tenure
			tenures
		}{}
		first.mu.Lock()
		if l.tenures.CompareAndSwap(nil, &first.tenures) {
			t, s = &first.Tenure, &first.tenures
		} else {
			s = l.lock()
		}
	}
	defer l.unlock(s)
	if t := s.of(o); t != nil && t.Hold == h {
		return t
	}
	if t == nil {
		t = &Tenure{}
	}
	t.at, t.Owner, t.Hold, t.Token = l, o, h, token
	if half.HeldBy(o) {
		s.add(t)
		return t
	}
	t.ended.Store(true)
	if !o.IsHold() { // it may be the token of the next owner
		t.Token = 0
	}
	return t
}

// Exit undoes one lock of an owner in the local half. With the last one its tenure ends. That of an owner that was evicted goes
// on until then, too: other goroutines that have nested in it have yet to unlock, see ExitLost.
//
// It may miss the first tenure of a lock when that is made at this moment. That is harmless: the tenure is over once the hold
// is replaced; and while the hold goes on, because readers share it, calls nest only if the owner has locked again.
func (l *Held) Exit(half local.Half, o owner.ID) (local.Departure, fault.Loss) {
	s := l.lock()
	if s == nil { // most locks
		return half.Exit(o)
	}
	defer l.unlock(s)
	how, why := half.Exit(o)
	if t := s.of(o); t != nil && (how == local.Leaves || how == local.Last || how == local.Lost && half.Lost(o) == fault.NotLost) {
		s.end(t)
	}
	return how, why
}

// ExitLost undoes one lock of the owner of a tenure that Lost has returned, for a goroutine that has nested in the tenure, or
// unlocks for the owner. It returns why the hold was lost; nothing when the owner has unlocked as often as it has locked.
//
// The owner may have the lock again, or another goroutine of the caller may: ExitLost undoes no lock of a hold that lasts.
func (l *Held) ExitLost(half local.Half, t *Tenure) fault.Loss {
	why := half.ExitLost(t.Owner)
	if half.Lost(t.Owner) == fault.NotLost {
		l.end(t)
	}
	return why
}

// end ends a tenure, which may no longer be one of the lock's.
func (l *Held) end(t *Tenure) {
	s := l.lock()
	if s == nil {
		t.ended.Store(true)
		return
	}
	defer l.unlock(s)
	if t.ended.Store(true); s.of(t.Owner) == t {
		s.end(t)
	}
}

// Delegate notes that another goroutine may unlock for the owner from now on: it may have a context that carries the tenure.
func (t *Tenure) Delegate() { t.delegated.Store(true) }

// Delegated reports whether another goroutine may unlock for an owner.
func (l *Held) Delegated(o owner.ID) bool {
	s := l.lock()
	if s == nil {
		return false
	}
	defer l.unlock(s)
	t := s.of(o)
	return t != nil && t.Lasts() && t.delegated.Load()
}

// Nest counts one more lock of the tenure's owner, for a call by another goroutine, unless the tenure is over: then it does
// nothing and reports false.
func (t *Tenure) Nest(half local.Half) bool {
	s := t.at.lock()
	if s == nil { // the tenure was one of them, and is over
		return false
	}
	defer t.at.unlock(s)
	if !t.Lasts() || !half.Nest(t.Owner) {
		return false
	}
	t.Delegate() // the goroutine that nests is going to unlock, and may nest again after that: so the note stays
	return true
}

// Carried is what a context says about its caller. It names an owner that ContextWithOwner made, or the hold in which the context
// was made. Outer is what the parent of that context said.
type Carried struct {
	owner  owner.ID // that the innermost ContextWithOwner made, or nobody
	tenure *Tenure  // nil in what ContextWithOwner made
	outer  *Carried
}

// In is what a context carries. A call asks its context for it once.
type In struct {
	*Carried               // nil: nothing
	Around   *hold.Carrier // what has it
}

// CarriedBy returns what a context carries.
func CarriedBy(ctx context.Context) (in In) {
	in.Around, _ = ctx.Value(hold.Key{}).(*hold.Carrier)
	if in.Around != nil {
		in.Carried, _ = in.Around.Caller.(*Carried)
	}
	return in
}

// NewOwner returns a child of a context that carries a new owner.
func NewOwner(ctx context.Context) context.Context {
	in := CarriedBy(ctx)
	return in.Carrying(ctx, &Carried{owner: owner.New(), outer: in.Carried})
}

// Carrying returns a child of parent, which carries in, that carries c.
func (in In) Carrying(parent context.Context, c *Carried) context.Context {
	both := &struct {
		carrier hold.Carrier
		carried Carried
	}{carried: *c}
	both.carrier = in.Around.With(&both.carried)
	return context.WithValue(parent, hold.Key{}, &both.carrier)
}

// Innermost is the tenure in which the context was made; nil when there is none, or when NewOwner made the context.
func (c *Carried) Innermost() *Tenure {
	if c == nil {
		return nil
	}
	return c.tenure
}

// At finds the tenure of a lock that a context carries, in which calls can nest; nil if there is none, or it is over. A NewOwner
// in between hides the tenure: a call that asks for a new owner does not want to be an existing one.
func (c *Carried) At(l *Held) *Tenure {
	for ; c != nil && c.tenure != nil; c = c.outer {
		if c.tenure.at == l && c.tenure.Lasts() && !c.tenure.Owner.IsHold() {
			return c.tenure
		}
	}
	return nil
}

// Lost finds the tenure of a lock that a context carries whose hold was lost, and taken from its owner, which has yet to unlock.
// It returns nil if there is none. It looks as At does.
func (c *Carried) Lost(l *Held) *Tenure {
	for ; c != nil && c.tenure != nil; c = c.outer {
		if t := c.tenure; t.at == l && !t.ended.Load() && !t.Lasts() && !t.Owner.IsHold() {
			return t
		}
	}
	return nil
}

// Deadlock finds a tenure that the context of a call carries and whose end the call would wait for. The call asks as o, for the
// path that on recognizes. Only calls of Lock and Do nest, and only in holds of Lock and Do. A hold that is lost does not count,
// since no call waits for it.
func (c *Carried) Deadlock(o owner.ID, on func(*hold.Hold) bool) *Tenure {
	for ; c != nil && c.tenure != nil; c = c.outer {
		t := c.tenure
		if (t.Owner.IsHold() || o.IsHold()) && t.Lasts() && t.Hold.Valid() && on(t.Hold) {
			return t
		}
	}
	return nil
}

// All goes through what c and everything around it say: each time an owner that NewOwner made, or nobody, and a tenure that
// lasts, or nil.
func (c *Carried) All() iter.Seq2[owner.ID, *Tenure] {
	return func(yield func(owner.ID, *Tenure) bool) {
		for ; c != nil; c = c.outer {
			t := c.tenure
			if t != nil && !t.Lasts() {
				t = nil
			}
			if !yield(c.owner, t) {
				return
			}
		}
	}
}

// Owners returns the owners of the tenures that last, for the graph of waiting calls.
func (c *Carried) Owners() (owners []owner.ID) {
	for _, t := range c.All() {
		if t != nil {
			owners = append(owners, t.Owner)
		}
	}
	return owners
}

// With returns what a child context carries that is made in a tenure, from a parent that carries c.
func (c *Carried) With(t *Tenure) *Carried {
	for c != nil && c.tenure != nil && !c.tenure.Lasts() { // so that no chain grows with contexts of what is over
		c = c.outer
	}
	next := &Carried{tenure: t, outer: c}
	if c != nil {
		next.owner = c.owner
	}
	return next
}

// Caller returns the owner that calls, whatever hold the context carries.
func (c *Carried) Caller() owner.ID {
	if c != nil && c.owner != owner.Nobody {
		return c.owner
	}
	return owner.Calling()
}

// OwnerOf returns the owner as which a call acts on this lock, if its context carries c.
func (l *Held) OwnerOf(c *Carried) owner.ID {
	if t := c.At(l); t != nil {
		return t.Owner
	}
	return c.Caller()
}

// Carry returns the tenure of an owner, and what a context made in it carries, from a parent that carries c. Already: that is c
// itself. If the tenure has a token, it is c only if the tenure is the innermost one of c.
func (l *Held) Carry(c *Carried, half local.Half, o owner.ID, h *hold.Hold) (t *Tenure, next *Carried, already bool) {
	t = l.Tenure(half, o, h, h.Token())
	if c.At(l) == t && (c.tenure == t || t.Token == 0) {
		return t, c, true
	}
	return t, c.With(t), false
}
