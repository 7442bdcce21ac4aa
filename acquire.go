package lockregistry

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/tenure"
)

// Hold is a lock that is held, as a value. Any goroutine may use it, and Release ends it. Get it from [Registry.Acquire] or
// [Lock.Acquire].
//
// It excludes everybody else, the goroutine that acquired it included. A call that asks for its path with the hold's own
// context would wait for itself, and returns [ErrDeadlock]; the lock's Unlock, Renew and Context are not for it, and return
// [ErrNotOwner].
//
// A hold of [Registry.AcquireAll] is on several paths: its methods are for all of them, and it is lost when one of them is.
//
// Release it. A Hold that was not released, and that the program can no longer reach, nor a context made from it, is noticed
// by the garbage collector some time later. That is logged; the hold is no longer renewed, and its key stays until its lease is
// over, since the work may still be running. A context keeps the hold reachable; so does a goroutine that waits for its end, a
// context that is derived from it, until that ends, and one that the hold itself was put into.
//
// A nil *Hold, as a failed Acquire returns it, is one that was released.
type Hold struct {
	lock  *Lock
	hold  *hold.Hold
	owner owner.ID
	token uint64
	more  []*Hold // those of the other paths, see [Registry.AcquireAll]
	last  atomic.Pointer[contextFor]
	calls atomic.Int32 // of Renew and Holder that are under way, and released
	watch runtime.Cleanup
}

// errNilHold is what methods of a nil *Hold return: a Release that was deferred before the error of Acquire was looked at, say.
var errNilHold = fmt.Errorf("%w: the Hold is nil", ErrNotOwner)

// released is set in Hold.calls once Release was called.
const released = 1 << 30

// Acquire is [Lock.Acquire] for the lock of path, as [Registry.Obtain] returns it.
func (r *Registry) Acquire(ctx context.Context, path string, opts ...LockOption) (*Hold, error) {
	return r.Obtain(path).Acquire(ctx, opts...)
}

// Acquire waits until it has the lock, like [Lock.Lock], for an owner of its own: the [Hold] that it returns. It takes the same
// options, waits in the same queues, and returns the same errors, never [ErrUpgrade]. [ErrDeadlock] is for a context of
// another hold on this path, be it one of [Hold.Context], [Registry.Do] or [Lock.Context]: an acquisition never nests. It
// returns [ErrLockLost] when the lock was lost before Acquire could return. The hold is renewed each third of its lease until
// it is released; [AtMost] bounds that.
func (l *Lock) Acquire(ctx context.Context, opts ...LockOption) (*Hold, error) {
	return l.acquireAs(ctx, "acquire", opts, untilDone, owner.NewHold())
}

// acquireAs is Acquire for such an owner. It returns no hold and no error when Once finds the lock taken.
func (l *Lock) acquireAs(ctx context.Context, op string, opts []LockOption, wait time.Duration, o owner.ID) (*Hold, error) {
	if ok, err := l.acquire(ctx, op, opts, wait, o); !ok {
		return nil, err
	}
	return l.take(ctx, op, o)
}

// take is the hold of an owner that has acquired the lock.
func (l *Lock) take(ctx context.Context, op string, o owner.ID) (*Hold, error) {
	now := l.reg.cache.current(l)
	held := now.heldBy(o)
	if held == nil {
		_ = now.unlock(ctx, o)
		return nil, l.fail(op, ErrLockLost)
	}
	if now.reads() { // else the hold is renewed until it is over, which this one ends
		held.Uphold()
	}
	h := &Hold{lock: now, hold: held, owner: o, token: held.TakenBy(o)}
	h.watch = runtime.AddCleanup(h, hold.Part.Unreachable, hold.Part{Hold: held, Owner: o})
	return h, nil
}

// Release releases the lock, from any goroutine. Whatever it returns, the hold is over. Nil means what it does for [Lock.Unlock],
// also with [WithBackgroundRelease], and so do the errors: [ErrLockLost], [ErrUnavailable], and others of Redis. [ErrNotOwner]
// says that Release was called before, or that h is nil. Only a nil context, which is bad input, changes nothing. Release waits
// as long as Unlock.
func (h *Hold) Release(ctx context.Context) error {
	if h == nil {
		return fmt.Errorf("lockregistry: release: %w", errNilHold)
	}
	defer runtime.KeepAlive(h)
	err := h.lock.check(ctx)
	if err == nil {
		if h.more != nil {
			return h.releaseAll(ctx)
		}
		err = h.release(ctx)
	}
	if err != nil {
		return h.lock.fail("release", err)
	}
	return nil
}

func (h *Hold) release(ctx context.Context) error {
	before, err := h.claim()
	if err != nil {
		return err
	}
	return h.giveUp(ctx, before)
}

// claim is for the one call that releases the hold. It returns how many calls of Renew and Holder are under way.
func (h *Hold) claim() (before int32, err error) {
	before = h.calls.Or(released)
	if before&released != 0 { // mutant: released twice
		return 0, ErrNotOwner
	}
	return before, nil
}

func (h *Hold) giveUp(ctx context.Context, before int32) error {
	h.watch.Stop()
	if before > 0 { // a renewal is under way that must not meet the next owner, or a caller learns the hold's name
		h.hold.Stay()
	}
	if h.lock.reads() {
		h.hold.Unuphold()
	}
	err := h.lock.unlock(ctx, h.owner)
	if errors.Is(err, ErrNotOwner) { // it was lost so long ago that nobody remembers
		return h.hold.Err()
	}
	return err
}

func (h *Hold) isReleased() bool { return h.calls.Load()&released != 0 }

// Renew sets the lease to ttl from now, in whole milliseconds, at least two as for [Lease]; that of a hold which several readers
// share to no less than it is, see [ReadWriteLock.Reader]. The errors, each within a [*LockError]: [ErrNotOwner] once Release
// was called, [ErrLockLost] when the lease is over or the key is no longer this hold's, that of ctx, that of a ttl that is too
// short, and those of Redis; after one of the last the hold stays valid for as long as it certainly is.
func (h *Hold) Renew(ctx context.Context, ttl time.Duration) error {
	if h == nil {
		return fmt.Errorf("lockregistry: renew: %w", errNilHold)
	}
	defer runtime.KeepAlive(h)
	l := h.lock
	if err := l.check(ctx); err != nil {
		return l.fail("renew", err)
	}
	if h.more != nil && !h.isReleased() {
		return each(h.parts(), func(part *Hold) error { return part.renew(ctx, ttl) })
	}
	return h.renew(ctx, ttl)
}

func (h *Hold) renew(ctx context.Context, ttl time.Duration) error {
	l := h.lock
	defer h.calls.Add(-1)
	if h.calls.Add(1)&released != 0 {
		return l.renew(ctx, nil, ttl)
	}
	return l.renew(ctx, h.hold, ttl)
}

// Remaining is for how long the hold can still be relied on if nobody renews it: what is left of its lease, less a margin for
// clocks. It is 0 once the hold is lost or released. It does not ask Redis.
func (h *Hold) Remaining() time.Duration {
	if h == nil {
		return 0
	}
	defer runtime.KeepAlive(h)
	left := h.hold.Left()
	for _, other := range h.more {
		left = min(left, other.Remaining())
	}
	if h.isReleased() { // the next owner may have it
		return 0
	}
	return left
}

// Key returns the lock's key in Redis, prefix + ":" + path.
func (h *Hold) Key() string {
	if h == nil {
		return ""
	}
	return h.lock.redis.Key
}

// Path returns the path that was acquired.
func (h *Hold) Path() string {
	if h == nil {
		return ""
	}
	return h.lock.path()
}

// Holder names the hold as it is in Redis, for [Registry.ForceUnlockHolder]: another process that is given it, with the path, can
// release this hold, and no other one. From this call on the hold is not handed to the next goroutine of this process, see
// [WithHandoff], since it would take the name along. Of a hold on several paths it is that of Path. The readers of a process have
// one between them, also those that come later, and lose the lock together. It is empty once Release was called.
func (h *Hold) Holder() string {
	if h == nil {
		return ""
	}
	defer runtime.KeepAlive(h)
	defer h.calls.Add(-1)
	if h.calls.Add(1)&released != 0 { // else Release sees that this call is under way
		return ""
	}
	h.hold.Stay()
	return h.lock.holderOf(h.hold)
}

// Context returns a child of parent that ends with the hold, like [Lock.Context]: with the cause [ErrLockLost] as soon as the
// hold can no longer be guaranteed, [context.Canceled] when it is released, and [ErrClosed] when the registry is closed. Once
// Release was called it is cancelled already, with the cause [ErrNotOwner].
//
// It carries the hold: a call with it, or with a child of it, that asks for the same path returns [ErrDeadlock].
func (h *Hold) Context(parent context.Context) context.Context {
	defer runtime.KeepAlive(h)
	if parent == nil {
		parent = context.Background()
	}
	if h == nil {
		ctx, cancel := context.WithCancelCause(parent)
		cancel(errNilHold)
		return ctx
	}
	if own, ok := parent.Value(ownContext{h}).(*holdContext); ok && own.Done() == parent.Done() {
		return parent // it is one, and a second one of it would keep it
	}
	if h.more != nil {
		return h.contextOfAll(parent)
	}
	return h.context(parent)
}

func (h *Hold) context(parent context.Context) context.Context {
	c := &holdContext{hold: h, carries: tenure.CarriedBy(parent)}
	ends := parent
	if parent.Done() == nil { // it never ends, and must not be kept: what it carries may lead to h
		ends, c.values = context.Background(), parent
	}
	t := h.lock.hold.Tenure(h.lock.half(), h.owner, h.hold, h.token)
	if c.carries.Innermost() != t {
		c.carries = c.carries.With(t)
	}
	var err error
	c.Context, err = h.hold.Context(ends, ends, h.owner)
	if h.isReleased() { // perhaps too late for Release to have ended it
		h.hold.Forget(h.owner)
		err = ErrNotOwner
	}
	if err != nil {
		ctx, cancel := context.WithCancelCause(c.carries.In(parent))
		cancel(err)
		return ctx
	}
	return c
}

// holdContext is a context that ends with a Hold, and keeps it reachable. The hold within knows no more of it than the Context
// that it cancels.
type holdContext struct {
	context.Context
	values  context.Context // what the Context was made from, if that is not its parent
	carries *tenure.Carried
	hold    *Hold
}

// ownContext is the key of the innermost one of a Hold.
type ownContext struct{ hold *Hold }

func (c *holdContext) Value(key any) any {
	switch key {
	case tenure.Key{}:
		return c.carries
	case ownContext{c.hold}:
		return c
	}
	if value := c.Context.Value(key); value != nil || c.values == nil {
		return value
	}
	return c.values.Value(key)
}

func (c *holdContext) String() string { return c.hold.String() + ".Context" }
