package hold

import (
	"context"
	"runtime"
	"sync"
	"unsafe"
	"weak"

	"github.com/lockregistry/lockregistry/internal/owner"
)

// A goroutine that waits for the end of a Hold's context may refer only to the context's Done channel, which leads neither to
// the context nor to the Hold. The garbage collector then finds the Hold unreachable, although the goroutine relies on it. From
// then on the library refers to that channel only by a weak pointer, and drops the context: the program has no reference to it,
// nor to a child, which would lead to the Hold. Once the channel is unreachable, too, no goroutine waits.
//
// A parent of package context keeps its children until it ends. So a Hold's context is a child not of its parent but of a bond.

// bond is the parent of a Hold's context, and ends when the Context does. Package context gives it, by AfterFunc, the function
// that ends the child, which calls no user code.
type bond struct {
	context.Context
	pass func()
}

// Value hides the Context from package context, which would tie the child to it, until the child is made.
func (b *bond) Value(key any) any {
	if b.pass == nil && b.Err() == nil {
		return nil
	}
	return b.Context.Value(key)
}

func (b *bond) AfterFunc(pass func()) (stop func() bool) {
	b.pass = pass
	return func() bool { return true }
}

// tied is a Hold's context. A goroutine passes the parent's end to it; calling its methods does so earlier.
type tied struct {
	context.Context
	bond *bond
}

func (e *ending) tie(between context.Context) {
	b := &bond{Context: between}
	ctx, cancel := context.WithCancelCause(b)
	e.Context, e.cancel, e.pass = tied{ctx, b}, cancel, b.pass
}

func (t tied) follow() {
	if t.bond.pass != nil && t.bond.Err() != nil {
		t.bond.pass()
	}
}

func (t tied) Done() <-chan struct{} {
	t.follow()
	return t.Context.Done()
}

func (t tied) Err() error {
	t.follow()
	return t.Context.Err()
}

func (t tied) Value(key any) any {
	t.follow() // package context asks for the cause in this way
	return t.Context.Value(key)
}

// listened reports whether a goroutine may still wait for the end of a context of an owner whose Hold is unreachable. If so,
// the scheduler is told when none waits any more. The caller holds the mutex.
func (e *endings) listened(o owner.ID) bool {
	listened := false
	for end, first := (*e)[o], true; end != nil && (first || end != (*e)[o]); end, first = end.next, false {
		if end.Context != nil {
			listened = end.loosen() || listened
		} else if end.listened.Value() != nil {
			listened = true
		}
	}
	return listened
}

// loosen replaces the context by a weak pointer to its channel, unless it has ended. It cannot end meanwhile: it is taken out
// of its ring before it ends.
func (e *ending) loosen() bool {
	if e.Err() != nil {
		return false
	}
	done := addressOf(e.Done())
	e.Context, e.listened = nil, weak.Make(done)
	finish := sync.OnceFunc(func() {
		if done := e.listened.Value(); done != nil {
			close(channelAt(done))
		}
	})
	e.cancel = func(error) { finish() } // no context is left to ask for the cause
	if e.pass != nil {
		e.pass = finish
	}
	runtime.AddCleanup(done, Part.Unreachable, Part{e.hold, e.owner})
	return true
}

// addressOf and channelAt rely on a channel being a pointer, which package reflect says, too (Value.UnsafePointer). There are no
// weak pointers to channels, and no cleanups of them, without that.
func addressOf(c <-chan struct{}) *byte { return *(**byte)(unsafe.Pointer(&c)) } //nolint:gosec // see above

func channelAt(address *byte) chan struct{} { return *(*chan struct{})(unsafe.Pointer(&address)) } //nolint:gosec // likewise
