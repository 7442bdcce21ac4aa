package hold

import (
	"context"
	"reflect"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// endings are the contexts that end with a hold, in a ring for each owner; the map has the newest of each ring. The hold's mutex
// guards them. Adding and removing one takes constant time.
type endings map[owner.ID]*ending //nolint:recvcheck // only methods that make the map need its address

// ending is one such context. It leaves its ring when its parent ends, or when the owner unlocks, or when the hold is lost.
//
// Its parent may be of any type. The parent's methods may block, or call the lock. So they are called only without a mutex:
//
//   - by the goroutine that asks for the context, in newEnding,
//   - by goroutines that use the context,
//   - by a goroutine of package context that waits for the end of a parent of another package.
//
// Ending the context calls none of them: the context is a child of one of package context, which is detached from a stand-in of
// the parent, see settled; or of one that never ends. So a loss is reported, and a release proceeds, whatever the parent's
// methods do. And once Unlock has returned, the parent may be reused, as frameworks for the web do with the context of a request;
// unless package context watches it by a goroutine, which may see both ends at once.
//
// The context goes by the clock. Before Err and context.Cause answer, they look at the lease, and at the leases of the holds
// that the context was made in, and end the context if one is over. So the first look sees the end, even if the timer is late
// because the process was stopped or is starved of CPU. Done does not look, nor does a child that package context can cancel by
// itself: these end at the first look at the context, or by the timer.
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

// lasting is a hold, as its contexts see it. The end of a context may end the hold, so the hold handles it.
type lasting interface {
	lookAt(now clock.Instant) (cause error) // why its contexts must have ended; nil: it is valid
	parentEnded(e *ending)
}

// unending is a context that never ends. Its type shows that to package context, which then asks no parent.
type unending struct{ context.Context }

func (unending) Done() <-chan struct{} { return nil }

// Key is the context key of a [Carrier], the one thing that contexts carry here.
type Key struct{}

// Carrier is what a context carries: the caller that uses it, as package tenure has it, and the innermost context of a hold among
// the context itself and those that it was made from.
type Carrier struct {
	Caller any
	within *ending
}

// CarrierOf returns the carrier for a child of a context that Context has returned.
func CarrierOf(ctx context.Context, caller any) Carrier {
	e, _ := ctx.(*ending)
	return Carrier{caller, e}
}

// With returns the carrier for a child of the context that carries c, with another caller; c may be nil.
func (c *Carrier) With(caller any) Carrier { return Carrier{caller, c.innermost()} }

func (c *Carrier) innermost() *ending {
	if c == nil {
		return nil
	}
	return c.within
}

// Ends reports whether ctx, which carries c, ends with the context that the hold has made for an owner, and at no other time. A
// context of another hold that was made from that one, or a child with an end of its own, may end earlier.
func (h *Hold) Ends(ctx context.Context, c *Carrier, o owner.ID) bool {
	e := c.innermost()
	return e != nil && e.hold == lasting(h) && e.owner == o && e.Done() == ctx.Done()
}

// newEnding makes a context for an owner. It is not in a ring yet.
func newEnding(parent context.Context, o owner.ID, p *Path, h lasting, caller any, around *Carrier) *ending {
	e := &ending{path: p, hold: h, owner: o, parent: parent}
	e.carrier = Carrier{caller, e}
	outer := around.innermost()
	for e.outer = outer; e.outer != nil && (e.outer.hold == h || e.outer.Context.Err() != nil); {
		e.outer = e.outer.outer
	}
	stand := settled{Context: parent, ends: parent.Done()}
	switch {
	case stand.ends == nil:
		e.Context, e.cancel = context.WithCancelCause(unending{parent})
		return e
	case outer != nil && outer.Done() == stand.ends: // parent is outer, or a child of it with values
		stand.by = outer.Context.Value(causeKey)
	default:
		stand.by = parent.Value(causeKey)
	}
	between, unlink := context.WithCancel(stand)
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

// look ends the context if its lease is over, or the lease of a hold that the context was made in. It sends nothing, and calls
// no code of the user: ending a context closes its channel, and those of its children of package context. Functions of AfterFunc
// run in goroutines of their own.
//
// When look ends an outer context, the children of that context end before look returns, with one exception: package context
// watches a context of another type by a goroutine, which ends the children below it a little later.
//
// Two goroutines may look at once. The first may have marked the hold as lost, but not closed the channels yet: so each closes
// the channel of its own context.
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

// settled stands in for a parent when package context makes a child of it, and when it detaches that child. What it is asked for
// then is settled before, so detaching calls no method of the parent.
//
// If the parent is an ending, it does not look. Otherwise making n contexts, for n paths, each from the one before, would take
// time that grows with n × n.
type settled struct {
	context.Context
	ends <-chan struct{}
	by   any // the context of package context with whose end it ends; nil: none
}

func (s settled) Done() <-chan struct{} { return s.ends }

func (s settled) Value(key any) any {
	if key == causeKey {
		return s.by
	}
	return s.Context.Value(key)
}

// causeKey is the key by which context.Cause finds the context of package context that has the cause. Some versions of Go ask
// for it only if Err returns an error.
var causeKey = func() (key any) {
	_ = context.Cause(asked{context.Background(), &key})
	return key
}()

// asked is a context that has ended. It notes the key that it is asked for.
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

// LooksBack is how many of an owner's last contexts are searched for one with the same parent. It is enough for a program that
// asks for the contexts of a few parents in turn, and takes little time when many parents come and go.
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
	if e.next != nil { // otherwise it was removed, and is being ended, or was never added
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

// orphan notes that the program can no longer reach an owner. It reports whether the owner has contexts. If so, the hold must go
// on: the program may still use a context by its Done channel alone, which does not make the owner reachable.
func (e endings) orphan(o owner.ID) (has bool) {
	newest := e[o]
	for end := newest; end != nil && !end.orphan; end = end.next {
		end.orphan = true
	}
	return newest != nil
}

// of removes the contexts of one owner, and returns them.
func (e *endings) of(o owner.ID) (ends []*ending) {
	for end := (*e)[o]; end != nil; end = (*e)[o] {
		e.remove(end)
		ends = append(ends, end)
	}
	return ends
}

// all removes all contexts, and returns them.
func (e *endings) all() (ends []*ending) {
	for o := range *e {
		ends = append(ends, e.of(o)...)
	}
	return ends
}

// cancelAll ends contexts that were removed. It does not wait for user code; a child of the context may start goroutines.
func cancelAll(ends []*ending, cause error) {
	for _, end := range ends {
		end.end(cause)
	}
}

// end ends a context that is in no ring. It does nothing if e is nil.
func (e *ending) end(cause error) {
	if e == nil {
		return
	}
	if e.forget != nil {
		e.forget()
	}
	e.cancel(cause)
	if e.unlink != nil {
		e.unlink()
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
	if !made.over { // an ended one would never be removed
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
