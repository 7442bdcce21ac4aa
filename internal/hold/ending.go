package hold

import (
	"context"
	"reflect"
	"runtime"
	"sync/atomic"
	"weak"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// endings are the contexts that end with a hold, by owner: for each owner a ring, of which this is the newest. The hold's
// mutex guards them. Adding and removing one is constant work.
type endings map[owner.ID]*ending //nolint:recvcheck // only what may make the map needs its address

// ending is one such context. It leaves its ring when its parent ends, or when the owner unlocks, or when the hold is lost.
//
// Its parent may be of any type, whose methods may block, or ask the lock. The methods are called in three places, each without
// a mutex: by the goroutine that asks for the context, in newEnding; by those that use it; and by one of its own, which takes the
// context off its parent when it is over. The end itself calls none of them: the Context is a child of one of package context,
// or of one that never ends. So a hold's loss is announced, and its release goes on, whatever its owner's contexts do.
type ending struct {
	context.Context

	hold       *Hold
	owner      owner.ID
	parent     context.Context
	cancel     context.CancelCauseFunc
	unlink     context.CancelFunc // takes what lies between off the parent; nil when the parent never ends
	forget     func() bool        // stops waiting for the end of the parent; nil, too, then
	over       bool               // the parent has ended; guarded by the hold's mutex, as what follows
	pass       func()             // ends the context as its parent has ended; nil where package context does; see tied
	listened   weak.Pointer[byte] // its channel, once the Context is nil; see loosen
	lent       weak.Pointer[Lendable]
	prev, next *ending // nil when it is in no ring
}

// unending is a context that never ends, by the word of its type: package context asks no other one.
type unending struct{ context.Context }

func (unending) Done() <-chan struct{} { return nil }

// endsWith is the key under which an ending finds itself.
type endsWith struct {
	hold  *Hold
	owner owner.ID
}

// newEnding makes a context for an owner, which is in no ring yet.
func newEnding(parent, base context.Context, o owner.ID, h *Hold) *ending {
	e := &ending{hold: h, owner: o, parent: parent}
	if parent.Done() == nil {
		e.Context, e.cancel = context.WithCancelCause(unending{base})
		return e
	}
	between, unlink := context.WithCancel(base)
	e.unlink = unlink
	if o.IsHold() {
		e.tie(between)
	} else {
		e.Context, e.cancel = context.WithCancelCause(between)
	}
	e.forget = context.AfterFunc(between, e.parentEnded)
	return e
}

// given is what the owner gets. The caller holds the mutex.
func (e *ending) given() context.Context {
	if e.owner.IsHold() {
		return e.Context // of the ending the Context may be taken away
	}
	return e
}

func (e *ending) Value(key any) any {
	if key == (endsWith{e.hold, e.owner}) {
		return e
	}
	return e.Context.Value(key)
}

func (e *ending) String() string { return e.hold.path.Key + ".Context" }

// Cancels tells whether a context ends with the hold, as one that was made for the owner does.
func (h *Hold) Cancels(ctx context.Context, o owner.ID) bool {
	e, ok := ctx.Value(endsWith{h, o}).(*ending)
	return ok && e.Done() == ctx.Done()
}

// last is the newest context of an owner, if it was made for the same parent and goes on.
func (e endings) last(parent context.Context, o owner.ID) *ending {
	if last := e[o]; last != nil && last.Err() == nil && SameContext(last.parent, parent) {
		return last
	}
	return nil
}

// add puts a context into its ring.
func (e *endings) add(end *ending) {
	end.prev, end.next = end, end
	if last := (*e)[end.owner]; last != nil {
		end.prev, end.next = last, last.next
		last.next.prev, last.next = end, end
	}
	if *e == nil {
		*e = endings{}
	}
	(*e)[end.owner] = end
}

// SameContext tells whether two contexts are one. A context may be of a type that cannot be compared.
func SameContext(a, b context.Context) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

func (e *ending) parentEnded() {
	e.hold.mu.Lock()
	e.over = true
	if e.next != nil { // else the one that took it ends it, or it is not in yet
		e.hold.ends.remove(e)
	}
	pass := e.pass
	e.hold.mu.Unlock()
	if pass != nil {
		pass()
	}
}

func (e *endings) remove(end *ending) {
	switch {
	case end.next == end:
		delete(*e, end.owner)
	case (*e)[end.owner] == end:
		(*e)[end.owner] = end.prev
	}
	end.prev.next, end.next.prev = end.next, end.prev
	end.prev, end.next = nil, nil
}

// of takes out those of one owner.
func (e *endings) of(o owner.ID) (ends []*ending) {
	for end := (*e)[o]; end != nil; end = (*e)[o] {
		e.remove(end)
		ends = append(ends, end)
	}
	return ends
}

// all takes out all.
func (e *endings) all() (ends []*ending) {
	for o := range *e {
		ends = append(ends, e.of(o)...)
	}
	return ends
}

// cancelAll ends contexts that were taken out. It waits for nothing of the user's; a child of the context may start goroutines.
func cancelAll(ends []*ending, cause error) {
	for _, end := range ends {
		end.end(cause)
	}
}

// discard is for one that was in no ring, if there is one: another one was there before, or the hold is over.
func (e *ending) discard() {
	if e != nil {
		e.end(context.Canceled)
	}
}

func (e *ending) end(cause error) {
	if e.forget != nil {
		e.forget()
	}
	e.cancel(cause)
	if e.unlink != nil {
		go e.unlink()
	}
}

// Lendable is what the user gets for an ending that may be lent to other goroutines. The ending itself does not keep it, so the
// garbage collector tells when nobody can reach it any more. It finds itself under its key.
type Lendable struct {
	*ending
	key   any
	count *atomic.Int32 // how many are lent
	lent  atomic.Bool
}

// Value finds the Lendable itself, too.
func (c *Lendable) Value(key any) any {
	if key == c.key {
		return c
	}
	return c.ending.Value(key)
}

// Lend has it counted, once, for as long as it can be reached.
func (c *Lendable) Lend() {
	if c.lent.CompareAndSwap(false, true) {
		c.count.Add(1)
		runtime.AddCleanup(c, func(count *atomic.Int32) { count.Add(-1) }, c.count)
	}
}

// LendableOf is that of a context which a hold's Context has returned, the same one for as long as somebody can reach it; nil for
// another context. Count counts those that are lent.
func LendableOf(ctx context.Context, key any, count *atomic.Int32) *Lendable {
	e, ok := ctx.(*ending)
	if !ok {
		return nil
	}
	e.hold.mu.Lock()
	defer e.hold.mu.Unlock()
	c := e.lent.Value()
	if c == nil {
		c = &Lendable{ending: e, key: key, count: count}
		e.lent = weak.Make(c)
	}
	return c
}

// Context returns a child of base that ends with the hold. Base is what parent becomes when it carries the hold; when the last
// one for the owner was for the same parent, it is that one again: so a program that asks for one before each of its steps does
// not fill the memory. It fails when the hold is lost or nobody watches over it.
//
// The context is made without the mutex, since that calls methods of parent. What was true of the hold and of the last context
// may be over then, so both are looked at again.
func (h *Hold) Context(parent, base context.Context, o owner.ID) (context.Context, error) {
	var made *ending
	for {
		h.mu.Lock()
		if !h.fresh() {
			h.unlockLose(fault.LeaseOver)
			made.discard()
			return nil, h.Err()
		}
		if last := h.ends.last(parent, o); last != nil {
			ctx := last.given()
			h.mu.Unlock()
			made.discard()
			return ctx, nil
		}
		if made != nil {
			break
		}
		h.mu.Unlock()
		made = newEnding(parent, base, o, h)
	}
	if !made.over { // else nobody would take it out
		h.ends.add(made)
	}
	if !h.plan() {
		h.unlockEnds(fault.Closed)
		made.discard()
		return nil, fault.Closed
	}
	ctx := made.given()
	h.mu.Unlock()
	return ctx, nil
}
