package lockregistry

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// tenure is the time for which an owner has a hold: from its first Lock to its last Unlock. A hold can have several, since
// readers share it, and hand-over gives it from one owner to the next. A context carries the tenure that it was made in, so
// that calls with it nest there, whichever goroutine makes them.
//
// Such a call counts as one of the owner's. So the tenure cannot end while the call has the lock, even if the owner itself
// unlocks before: nobody is left with a hold that is another's.
type tenure struct {
	lock  *Lock
	owner owner.ID
	hold  *hold.Hold
	token uint64 // the owner's
	ended atomic.Bool

	lent atomic.Int32 // contexts that are lent, and can be reached; see lends
}

// lasts tells whether the owner still has the hold.
func (t *tenure) lasts() bool { return !t.ended.Load() && t.lock.hold.Load() == t.hold }

// tenures are those of a lock of which there are contexts. With the mutex an owner leaves the local half, and calls nest
// there: so a call that finds a tenure that lasts is counted before the owner can leave. The local half's mutex may be taken
// while this one is held.
type tenures struct {
	mu   sync.Mutex
	hold *hold.Hold // that all of them are of
	of   map[owner.ID]*tenure
}

// tenure returns that of an owner that has a hold, with its token; one that is over when it has unlocked in the meantime.
func (l *Lock) tenure(o owner.ID, h *hold.Hold, token uint64) *tenure {
	s := l.tenures.Load()
	if s == nil {
		l.tenures.CompareAndSwap(nil, &tenures{})
		s = l.tenures.Load()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.of[o]; t != nil && t.hold == h {
		return t
	}
	t := &tenure{lock: l, owner: o, hold: h, token: token}
	if !l.half().HeldBy(o) {
		t.ended.Store(true)
		if !o.IsHold() { // it may be the token of the next owner
			t.token = 0
		}
		return t
	}
	if s.hold != h { // what is left is of holds that were lost, and whose owners never came back
		s.hold, s.of = h, map[owner.ID]*tenure{}
	}
	s.of[o] = t
	return t
}

// exit undoes one lock of an owner in the local half. With the last one its tenure ends.
//
// When the first tenure of a lock is made at this moment, it may not be found here. It is over all the same once the hold is
// another one; and while the hold goes on, because readers share it, calls nest in it only if its owner is in again.
func (l *Lock) exit(o owner.ID) (local.Departure, fault.Loss) {
	s := l.tenures.Load()
	if s == nil { // most locks
		return l.half().Exit(o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	how, why := l.half().Exit(o)
	if t := s.of[o]; t != nil && (how == local.Leaves || how == local.Last) {
		t.ended.Store(true)
		delete(s.of, o)
	}
	return how, why
}

// lends is the key under which a context of a hold finds itself that a goroutine has got. It is lent when whoever can reach it
// may unlock for the goroutine: that of Lock.Context, and that of Do since a call has nested with it. Before that it is not: Do
// unlocks what it has locked.
type lends struct{ tenure *tenure }

// lendableIn is the innermost one of the tenure that a context was made from, or nil.
func (t *tenure) lendableIn(ctx context.Context) *hold.Lendable {
	c, _ := ctx.Value(lends{t}).(*hold.Lendable)
	return c
}

// lendable makes such a context of one that carries the tenure, unless it was made from one.
func (t *tenure) lendable(ctx context.Context) (context.Context, *hold.Lendable) {
	if !t.owner.IsGoroutine() {
		return ctx, nil
	}
	if c := t.lendableIn(ctx); c != nil {
		return ctx, c
	}
	if c := hold.LendableOf(ctx, lends{t}, &t.lent); c != nil {
		return c, c
	}
	return ctx, nil
}

// lent tells whether another goroutine may unlock for an owner. A call that is about to unlock may have let go of its context
// already; it ends the tenure all the same.
func (l *Lock) lent(o owner.ID) bool {
	s := l.tenures.Load()
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.of[o]
	return t != nil && t.lasts() && t.lent.Load() > 0
}

// ownerIn is the owner that a call with ctx acts as, when it is about a hold that is there.
func (l *Lock) ownerIn(ctx context.Context) owner.ID {
	c := carriedBy(ctx)
	if t := c.tenureOf(l); t != nil {
		return t.owner
	}
	return c.caller()
}

// carry returns a child of parent that carries the tenure of an owner, or parent, when that does already. With a token it is the
// innermost one that does.
func (l *Lock) carry(parent context.Context, o owner.ID, h *hold.Hold) (ctx context.Context, already bool) {
	c, t := carriedBy(parent), l.tenure(o, h, h.Token())
	if c.tenureOf(l) == t && (c.tenure == t || t.token == 0) {
		return parent, true
	}
	return context.WithValue(parent, carriedKey{}, c.with(t)), false
}

// nest locks once more for the owner of a tenure, unless the tenure is over: then it does nothing and reports false.
func (l *Lock) nest(ctx context.Context, t *tenure, q request) (nested bool, err error) {
	if c := t.lendableIn(ctx); c != nil {
		c.Lend() // it is needed to unlock
	}
	s := l.tenures.Load() // the tenure is one of them
	s.mu.Lock()
	nested = t.lasts() && l.half().Nest(t.owner)
	s.mu.Unlock()
	if !nested {
		return false, nil
	}
	if err = l.refresh(ctx, t.owner, q, local.Reentered); err != nil {
		err = l.retreat(ctx, t.owner, err)
	}
	return true, err
}
