package hold

import (
	"context"
	"reflect"

	"github.com/lockregistry/lockregistry/internal/clock"
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
// context, or of one that never ends. So a loss is reported, and a release proceeds, whatever the methods of the owner's
// contexts do.
//
// It goes by the clock: Err and context.Cause look at the lease, and end the context if that is over, before they answer. So
// the first look sees the end, even if the timer that ends the context comes late, because the process was stopped or is
// starved of CPU. They look at the holds that it was made in, too. Nothing looks when Done is called, nor when a child is asked
// that package context can cancel by itself: these end with the first look at the context, or when the timer comes.
type ending struct {
	context.Context

	path       *Path
	hold       lasting
	owner      owner.ID
	carrier    Carrier
	parent     context.Context
	outer      *ending // the innermost context of another hold that it was made from; nil if there is none
	cancel     context.CancelCauseFunc
	unlink     context.CancelFunc // detaches the context in between from the parent; nil when the parent never ends
	forget     func() bool        // stops waiting for the end of the parent; nil likewise
	over       bool               // the parent has ended; the hold's mutex guards this and the following
	orphan     bool               // the program can no longer reach its owner, a lockregistry.Hold
	prev, next *ending            // nil outside of a ring
}

// lasting is a hold, as its contexts see it: what happens to a context may end the hold, so it is the hold's to do.
type lasting interface {
	lookAt(now clock.Instant) (cause error) // why its contexts must have ended; nil: it is valid
	parentEnded(e *ending)
}

// unending is a context that never ends. Its type shows that to package context, which then asks no parent.
type unending struct{ context.Context }

func (unending) Done() <-chan struct{} { return nil }

// Key is the context key of a [Carrier], the one thing that contexts carry here.
type Key struct{}

// Carrier is what a context carries: who calls with it, as package tenure has it, and the innermost context of a hold that it is,
// or was made of.
type Carrier struct {
	Caller any
	within *ending
}

// CarrierOf is one for a child of a context that Context has returned.
func CarrierOf(ctx context.Context, caller any) Carrier {
	e, _ := ctx.(*ending)
	return Carrier{caller, e}
}

// With returns one for a child of the context that has c, with another caller; c may be nil.
func (c *Carrier) With(caller any) Carrier { return Carrier{caller, c.innermost()} }

func (c *Carrier) innermost() *ending {
	if c == nil {
		return nil
	}
	return c.within
}

// Ends reports whether ctx, which has c, ends with the hold because a context was made for an owner. A context of another hold
// that was made of that one, or a child with an end of its own, would end at other times, too.
func (h *Hold) Ends(ctx context.Context, c *Carrier, o owner.ID) bool {
	e := c.innermost()
	return e != nil && e.hold == lasting(h) && e.owner == o && e.Done() == ctx.Done()
}

// newEnding makes a context for an owner. It is not in a ring yet.
func newEnding(parent context.Context, o owner.ID, p *Path, h lasting, caller any, around *Carrier) *ending {
	e := &ending{path: p, hold: h, owner: o, parent: parent}
	e.carrier = Carrier{caller, e}
	base, outer := parent, around.innermost()
	for e.outer = outer; e.outer != nil && (e.outer.hold == h || e.outer.Context.Err() != nil); {
		e.outer = e.outer.outer
	}
	switch ends := parent.Done(); {
	case ends == nil:
		e.Context, e.cancel = context.WithCancelCause(unending{base})
		return e
	case outer != nil && outer.Done() == ends:
		base = unlooked{base, outer}
	}
	between, unlink := context.WithCancel(base)
	e.unlink = unlink
	e.Context, e.cancel = context.WithCancelCause(between)
	e.forget = context.AfterFunc(between, func() { h.parentEnded(e) })
	return e
}

func (e *ending) Value(key any) any {
	switch key {
	case Key{}:
		return &e.carrier
	case causeKey:
		e.look()
	}
	return e.Context.Value(key)
}

// Err returns a non-nil error as soon as the lease is over. Done is closed by then.
func (e *ending) Err() error {
	e.look()
	return e.Context.Err()
}

// look ends the context if the lease is over, or the lease of a hold that it was made in. It sends nothing, and calls nothing of
// the user: ending a context closes its channel and those of its children of package context, which have goroutines call the
// functions of AfterFunc. When it ends a context that this one was made in, that context's children end before it returns, unless
// a context of another type is in between, of which package context learns by a goroutine.
//
// Two may look at once, and the first has the hold lost already, but not yet closed the channels: so each closes its own.
func (e *ending) look() {
	if e.Context.Err() != nil {
		return
	}
	now := e.path.Clock.Now()
	for at := e; at != nil; at = at.outer {
		if at.Context.Err() != nil { // ended, and this one was detached from it
			continue
		}
		if cause := at.hold.lookAt(now); cause != nil { // mutant: contexts end by timers alone
			at.end(cause)
		}
	}
}

// unlooked is an ending, or a child of it with values, for package context to make children of. It does not look: else making the
// contexts of several paths, each made from the one before, would take time with the square of their number.
type unlooked struct {
	context.Context
	of *ending
}

func (u unlooked) Value(key any) any {
	if key == causeKey {
		return u.of.Context.Value(key)
	}
	return u.Context.Value(key)
}

// causeKey is the key by which context.Cause finds the context of package context that has the cause. Some versions of Go ask
// Err first, and for the key only when that is not nil.
var causeKey = func() (key any) {
	_ = context.Cause(asked{context.Background(), &key})
	return key
}()

// asked has ended, and notes which key it is asked for.
type asked struct {
	context.Context
	key *any
}

func (asked) Err() error { return context.Canceled }

func (a asked) Value(key any) any {
	*a.key = key
	return nil
}

func (e *ending) String() string { return e.path.Key + ".Context" }

// LooksBack is how many of an owner's last contexts are looked at for one with the same parent. It is enough for a program that
// asks in turn for those of a few parents, and takes no time when many parents come and go.
const LooksBack = 8

// last returns one of the last contexts of an owner, if it was made for the same parent and has not ended.
func (e endings) last(parent context.Context, o owner.ID) *ending {
	newest := e[o]
	for at, i := newest, 0; at != nil && i < LooksBack; i++ {
		if at.Context.Err() == nil && SameContext(at.parent, parent) {
			return at
		}
		if at = at.prev; at == newest {
			break
		}
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

func (h *Hold) parentEnded(e *ending) {
	h.mu.Lock()
	e.over = true
	if e.next != nil { // else it was taken out, and is being ended, or was never put in
		h.ends.remove(e)
	}
	left := e.orphan && h.ends[e.owner] == nil
	h.mu.Unlock()
	if left { // no goroutine waits for the hold any more
		h.Orphan(e.owner)
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

// orphan notes that the program can no longer reach an owner. It reports whether there are contexts of it, which make the hold
// go on: a goroutine that waits for the end of one may refer only to its Done channel, from where nothing leads to the owner.
func (e endings) orphan(o owner.ID) (has bool) {
	newest := e[o]
	for end := newest; end != nil && !end.orphan; end = end.next {
		end.orphan = true
	}
	return newest != nil
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

// end ends a context that is in no ring, or in none any more. It may be nil: then there is none to end.
func (e *ending) end(cause error) {
	if e == nil {
		return
	}
	if e.forget != nil {
		e.forget()
	}
	e.cancel(cause)
	if e.unlink != nil {
		go e.unlink()
	}
}

// Context returns a child of parent that ends with the hold, and carries a caller. Around is what parent carries. If one of the
// owner's last contexts has the same parent, Context returns that one, so that a program that calls it before each of its steps
// does not fill the memory. It fails when the hold is lost, or the registry is closed.
//
// The context is made without the mutex, since that calls methods of parent. The hold and the last context may have ended by
// then, so both are checked again.
func (h *Hold) Context(parent context.Context, o owner.ID, caller any, around *Carrier) (context.Context, error) {
	var made *ending
	for {
		h.mu.Lock()
		if !h.fresh() {
			h.unlockLose(fault.LeaseOver)
			made.end(context.Canceled)
			return nil, h.Err()
		}
		if last := h.ends.last(parent, o); last != nil {
			h.mu.Unlock()
			made.end(context.Canceled)
			return last, nil
		}
		if made != nil {
			break
		}
		h.mu.Unlock()
		made = newEnding(parent, o, h.path, h, caller, around)
	}
	if !made.over { // an ended one would never be taken out
		h.ends.add(made)
	}
	if !h.plan() {
		h.unlockEnds(fault.Closed)
		made.end(context.Canceled)
		return nil, fault.Closed
	}
	h.mu.Unlock()
	return made, nil
}

// EndContext ends a context that Context has returned, for an owner that has left meanwhile.
func (h *Hold) EndContext(ctx context.Context) {
	e, ok := ctx.(*ending)
	if !ok {
		return
	}
	h.mu.Lock()
	if e.next != nil {
		h.ends.remove(e)
	}
	h.mu.Unlock()
	e.end(context.Canceled)
}
