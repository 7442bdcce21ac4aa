package lockregistry

import (
	"context"
	"reflect"
)

// endings are the contexts that end with a hold, by owner: for each owner a ring, of which this is the newest. The hold's
// mutex guards them. Adding and removing one is constant work.
type endings map[owner]*ending

// ending is one such context. It leaves its ring when its parent ends, or when the owner unlocks, or when the hold is lost.
type ending struct {
	hold       *hold
	owner      owner
	parent     context.Context
	ctx        context.Context
	cancel     context.CancelCauseFunc
	forget     func() bool // stops waiting for the end of the parent
	prev, next *ending     // nil when it is in no ring
}

// add makes a context for an owner. When the last one was for the same parent it is that one again: so a program that asks
// for one before each of its steps does not fill the memory.
func (e *endings) add(parent, base context.Context, o owner, h *hold) context.Context {
	last := (*e)[o]
	if last != nil && last.ctx.Err() == nil && same(last.parent, parent) {
		return last.ctx
	}
	end := &ending{hold: h, owner: o, parent: parent}
	end.ctx, end.cancel = context.WithCancelCause(base)
	end.prev, end.next = end, end
	if last != nil {
		end.prev, end.next = last, last.next
		last.next.prev, last.next = end, end
	}
	if *e == nil {
		*e = endings{}
	}
	(*e)[o] = end
	if parent.Done() != nil {
		end.forget = context.AfterFunc(parent, end.over)
	}
	return end.ctx
}

// same tells whether two contexts are one. A context may be of a type that cannot be compared.
func same(a, b context.Context) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

// over is for when the parent has ended.
func (e *ending) over() {
	e.hold.mu.Lock()
	defer e.hold.mu.Unlock()
	if e.next != nil { // else the one that took it ends it
		e.hold.ends.remove(e)
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
func (e *endings) of(o owner) (ends []*ending) {
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

// cancelAll ends contexts that were taken out. No mutex may be held: what hangs on a context is not this package's code.
func cancelAll(ends []*ending, cause error) {
	for _, end := range ends {
		if end.forget != nil {
			end.forget()
		}
		end.cancel(cause)
	}
}
