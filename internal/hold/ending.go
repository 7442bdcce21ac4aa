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

// endings are the contexts that end with a hold, in a ring for each owner; the map has the newest of each ring. The hold's
// mutex guards them. Adding and removing one is constant work.
type endings map[owner.ID]*ending //nolint:recvcheck // only methods that make the map need its address

// ending is one such context. It leaves its ring when its parent ends, or when the owner unlocks, or when the hold is lost.
//
// Its parent may be of any type, whose methods may block, or call the lock. They are called in three places, each without a
// mutex: by the goroutine that asks for the context, in newEnding; by goroutines that use the context; and by a goroutine that
// detaches the context from its parent at the end. Ending the context calls none of them: it is a child of a context of package
// context, or of one that never ends. So a loss is announced, and a release goes on, whatever the methods of the owner's
// contexts do.
type ending struct {
	context.Context

	hold       *Hold
	owner      owner.ID
	parent     context.Context
	cancel     context.CancelCauseFunc
	unlink     context.CancelFunc // detaches the context in between from the parent; nil when the parent never ends
	forget     func() bool        // stops waiting for the end of the parent; nil likewise
	over       bool               // the parent has ended; the hold's mutex guards this and the following
	pass       func()             // ends the context after its parent; nil if package context does; see tied
	listened   weak.Pointer[byte] // its channel, once the Context is nil; see loosen
	lent       weak.Pointer[Lendable]
	prev, next *ending // nil outside of a ring
}

// unending is a context that never ends. Its type shows that to package context, which then asks no parent.
type unending struct{ context.Context }

func (unending) Done() <-chan struct{} { return nil }

// endsWith is the context key of an ending.
type endsWith struct {
	hold  *Hold
	owner owner.ID
}

// newEnding makes a context for an owner. It is not in a ring yet.
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

// given returns the context that the owner gets. The caller holds the mutex.
func (e *ending) given() context.Context {
	if e.owner.IsHold() {
		return e.Context // loosen may take the Context from the ending
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

// Cancels reports whether ctx ends with the hold, because it was made for the owner.
func (h *Hold) Cancels(ctx context.Context, o owner.ID) bool {
	e, ok := ctx.Value(endsWith{h, o}).(*ending)
	return ok && e.Done() == ctx.Done()
}

// last returns the newest context of an owner, if it was made for the same parent and has not ended.
func (e endings) last(parent context.Context, o owner.ID) *ending {
	if last := e[o]; last != nil && last.Err() == nil && SameContext(last.parent, parent) {
		return last
	}
	return nil
}

// add puts a context into its owner's ring.
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

// SameContext reports whether two contexts are the same. It reports false for types that cannot be compared.
func SameContext(a, b context.Context) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

func (e *ending) parentEnded() {
	e.hold.mu.Lock()
	e.over = true
	if e.next != nil { // else it was taken out, and is being ended, or was never put in
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

// of takes out the contexts of one owner.
func (e *endings) of(o owner.ID) (ends []*ending) {
	for end := (*e)[o]; end != nil; end = (*e)[o] {
		e.remove(end)
		ends = append(ends, end)
	}
	return ends
}

// all takes out all contexts.
func (e *endings) all() (ends []*ending) {
	for o := range *e {
		ends = append(ends, e.of(o)...)
	}
	return ends
}

// cancelAll ends contexts that were taken out. It does not wait for user code; a child of the context may start goroutines.
func cancelAll(ends []*ending, cause error) {
	for _, end := range ends {
		end.end(cause)
	}
}

// discard ends a context that was not put into a ring, because there was one already, or the hold is over. It may be nil.
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

// Lendable is the context that a user gets for an ending that may be lent to other goroutines. The ending does not refer to it
// strongly, so the garbage collector notices when the program can no longer reach it. Value returns it for its key.
type Lendable struct {
	*ending
	key   any
	count *atomic.Int32 // of lent contexts
	lent  atomic.Bool
}

// Value also returns the Lendable itself, for its key.
func (c *Lendable) Value(key any) any {
	if key == c.key {
		return c
	}
	return c.ending.Value(key)
}

// Lend counts the context, once, for as long as it can be reached.
func (c *Lendable) Lend() {
	if c.lent.CompareAndSwap(false, true) {
		c.count.Add(1)
		runtime.AddCleanup(c, func(count *atomic.Int32) { count.Add(-1) }, c.count)
	}
}

// LendableOf returns the Lendable of a context that Hold.Context has returned, the same one while the program can reach it; nil
// for any other context. Count counts the lent ones.
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

// Context returns a child of base that ends with the hold. Base is parent, with the hold added. If the owner's last context had
// the same parent, Context returns that one, so that a program that calls it before each of its steps does not fill the memory.
// It fails when the hold is lost, or the registry is closed.
//
// The context is made without the mutex, since that calls methods of parent. The hold and the last context may have ended by
// then, so both are checked again.
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
	if !made.over { // an ended one would never be taken out
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
