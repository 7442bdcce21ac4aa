package lockregistry

import (
	"context"

	"github.com/lockregistry/lockregistry/internal/owner"
)

// carried is what a context says about its caller: an owner that NewOwner made, or one of the holds that it is the context
// of, and through outer what the context says that it was made from.
type carried struct {
	owner  owner.ID // that the innermost NewOwner made, or nobody
	tenure *tenure  // nil in what NewOwner made
	outer  *carried
}

type carriedKey struct{}

func carriedBy(ctx context.Context) *carried {
	c, _ := ctx.Value(carriedKey{}).(*carried)
	return c
}

// tenureOf finds the tenure of a lock that a context carries, and that calls can nest in, if it lasts. A NewOwner in between
// hides it: a call that asks for a new owner does not want to be an existing one.
func (c *carried) tenureOf(l *Lock) *tenure {
	for ; c != nil && c.tenure != nil; c = c.outer {
		if c.tenure.lock == l && c.tenure.lasts() && !c.tenure.owner.IsHold() {
			return c.tenure
		}
	}
	return nil
}

// deadlock finds the tenure on the path of l that the context of a call carries, and for whose end the call would wait that
// asks for l as o. Only what is locked by Lock and Do nests, and only in what was. Nobody waits for a hold that is lost.
func (c *carried) deadlock(l *Lock, o owner.ID) *tenure {
	for ; c != nil && c.tenure != nil; c = c.outer {
		t := c.tenure
		if t.lock.anchor() == l.anchor() && (t.owner.IsHold() || o.IsHold()) && t.lasts() && t.hold.Valid() {
			return t
		}
	}
	return nil
}

// with is what a context says that is made from one that says c, for a tenure.
func (c *carried) with(t *tenure) *carried {
	for c != nil && c.tenure != nil && !c.tenure.lasts() { // so that no chain grows with contexts of what is over
		c = c.outer
	}
	next := &carried{tenure: t, outer: c}
	if c != nil {
		next.owner = c.owner
	}
	return next
}

// NewOwner returns a child of ctx that carries a new owner. Calls with this context, or with children of it, lock and
// unlock as that owner, whichever goroutine makes them: so one goroutine can unlock what another one locked, and several
// can nest within one hold. Without it the goroutine that calls is the owner, as the thread is in Java. Within the context of
// [Registry.Do] or [Lock.Context] the new owner is one that does not hold their lock.
//
// Go code that C calls back (cgo) may run under the number of the goroutine that called C, or of one that has ended. So a lock
// that it needs should be an owner's of its own.
func NewOwner(ctx context.Context) context.Context {
	if ctx == nil {
		ctx = context.Background()
	}
	return context.WithValue(ctx, carriedKey{}, &carried{owner: owner.New(), outer: carriedBy(ctx)})
}

// caller is the owner that calls, whatever hold the context carries.
func (c *carried) caller() owner.ID {
	if c != nil && c.owner != owner.Nobody {
		return c.owner
	}
	return owner.Calling()
}
