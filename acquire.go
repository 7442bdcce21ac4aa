package lockregistry

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/tenure"
)

// Hold is a held lock, or held permits, as a value. Any goroutine may use it, and [Hold.Release] ends it. Get it from
// [Registry.Acquire], [Lock.Acquire], [Registry.AcquireAll] or [Semaphore.Acquire].
//
//	hold, err := registry.Acquire(ctx, "42")
//	if err != nil {
//		return err
//	}
//	defer func() { err = errors.Join(err, hold.Release(context.WithoutCancel(ctx))) }()
//	return ship(hold.Context(ctx))
//
// Here err is a named result. The error of Release also reports a loss that the process had not noticed by then.
//
// A Hold of a lock excludes all other owners, including the goroutine that acquired it. A call for the same path with the hold's
// own context would wait for itself, and returns [ErrDeadlock]. Unlock, Renew and Context of [Lock] do not apply to a Hold; they
// return [ErrNotOwner]. With a Hold of a [Semaphore], calls with its context ask for further permits.
//
// # Details
//
// A hold of [Registry.AcquireAll] is on several paths. Its methods apply to all of them, and it is lost when one of them is.
//
// Release every Hold. If a program drops a Hold without releasing it, so that neither the Hold nor a context made from it can be
// reached, the garbage collector notices some time later. Then the registry logs the Hold and stops renewing it. The key stays
// until its lease is over, since the work may still be running.
//
//   - A context of the hold keeps the hold reachable. So does a child context until it ends, and a context that has the Hold as a
//     value.
//   - A goroutine may keep only the Done channel of such a context, which the garbage collector cannot see. So once Context has
//     been called, a dropped Hold is logged, but still renewed until the contexts given to Context have ended.
//
// A nil *Hold, which a failed Acquire returns, behaves like a released one.
type Hold struct {
	lock  *Lock
	hold  *hold.Hold
	owner owner.ID
	token uint64
	more  []*Hold                      // the holds of the other paths, see [Registry.AcquireAll]
	last  atomic.Pointer[[]contextFor] // the newest first
	calls atomic.Int32                 // counts calls of Renew and Holder under way; and the bit released
	watch runtime.Cleanup
}

// errNilHold is what methods of a nil *Hold return, for instance a Release deferred before the error of Acquire was checked.
var errNilHold = fmt.Errorf("%w: the Hold is nil, as a failed Acquire returns it", ErrNotOwner)

// released is set in Hold.calls once Release was called.
const released = 1 << 30

// Acquire waits until it has the lock of path, and returns it as a [Hold]. It is [Lock.Acquire] for the lock that
// [Registry.Obtain] returns.
func (r *Registry) Acquire(ctx context.Context, path string, opts ...LockOption) (*Hold, error) {
	return r.Obtain(path).Acquire(ctx, opts...)
}

// Acquire waits until it has the lock, like [Lock.Lock], and returns it as a [Hold], which is a new owner. It takes the same
// options and waits in the same queues. The hold is renewed every third of its lease until it is released; [AtMost] limits that.
//
// # Errors
//
// Acquire returns the errors of [Lock.Lock], with these differences:
//
//   - [ErrDeadlock] is also returned when ctx carries another hold on this path, from [Hold.Context], [Registry.Do] or
//     [Lock.Context]: Acquire never nests
//   - [ErrLockLost] is returned when the lock was lost before Acquire could return
func (l *Lock) Acquire(ctx context.Context, opts ...LockOption) (*Hold, error) {
	q := request{Request: queue.Request{Wait: untilDone}}
	q.By = owner.NewHold()
	return l.acquireAs(ctx, "acquire", &q, apply(&q, opts))
}

// acquireAs is Acquire for the owner that q names. It returns neither a hold nor an error when Once or TryAcquire finds the lock
// taken.
func (l *Lock) acquireAs(ctx context.Context, op string, q *request, bad error) (*Hold, error) {
	if ok, err := l.acquire(ctx, op, q, bad); !ok {
		return nil, err
	}
	return l.take(ctx, op, q.By)
}

// take returns the Hold of an owner that has acquired the lock.
func (l *Lock) take(ctx context.Context, op string, o owner.ID) (*Hold, error) {
	now := l.reg.cache.current(l)
	held := now.heldBy(o)
	if held == nil {
		_ = now.unlock(ctx, o)
		return nil, l.fail(op, ErrLockLost)
	}
	if now.reads() { // a shared hold is renewed while an owner needs it; others until they end
		held.StartRenewing()
	}
	h := &Hold{lock: now, hold: held, owner: o, token: held.TakenBy(o)}
	h.watch = runtime.AddCleanup(h, hold.Part.Unreachable, hold.Part{Hold: held, Owner: o})
	return h, nil
}

// Release releases the lock, from any goroutine. Whatever it returns, the hold is over. The one exception is a nil ctx: then
// Release returns an error, and the hold continues.
//
// # Errors
//
// Release waits as long as [Lock.Unlock]. Nil, [ErrLockLost], [ErrUnavailable] and other errors of Redis mean what they do there.
// [ErrNotOwner] means that Release had already been called, or that h is nil.
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
	return h.lock.fail("release", err)
}

// releaseAfter is Release for the end of a function that had the hold. It adds its error to the function's.
func (h *Hold) releaseAfter(ctx context.Context, err *error) {
	*err = fault.Join(*err, h.Release(context.WithoutCancel(ctx)))
}

func (h *Hold) release(ctx context.Context) error {
	before, err := h.claim()
	if err != nil {
		return err
	}
	last, err := h.leave(before)
	if last {
		return h.lock.releaseLast(ctx)
	}
	return err
}

// claim succeeds for the one call that releases the hold. It returns how many calls of Renew and Holder are under way.
func (h *Hold) claim() (before int32, err error) {
	before = h.calls.Or(released)
	if before&released != 0 { // mutant: released twice
		return 0, ErrNotOwner
	}
	return before, nil
}

// leave ends the claimed hold in the local half. After the last owner the caller must release the lock.
func (h *Hold) leave(before int32) (last bool, err error) {
	h.watch.Stop()
	if before > 0 { // no handoff: a renewal must not reach the next owner, and a caller learns the hold's name
		h.hold.Stay()
	}
	if h.lock.reads() {
		h.hold.StopRenewing()
	}
	last, err = h.lock.leave(h.owner)
	if errors.Is(err, ErrNotOwner) { // its loss was so long ago that the local half has forgotten it
		err = h.hold.Err()
	}
	return last, err
}

func (h *Hold) isReleased() bool { return h.calls.Load()&released != 0 }

// Renew sets the hold's lease: from now on it is valid for lease, from two milliseconds to 30 days. It works like [Lock.Renew],
// with the same limits, including [AtMost], and the same errors. [ErrNotOwner] means that Release has been called, or that h is
// nil. For a hold on several paths, Renew renews each path, and joins the errors.
func (h *Hold) Renew(ctx context.Context, lease time.Duration) error {
	if h == nil {
		return fmt.Errorf("lockregistry: renew: %w", errNilHold)
	}
	defer runtime.KeepAlive(h)
	l := h.lock
	if err := l.check(ctx); err != nil {
		return l.fail("renew", err)
	}
	if h.more != nil && !h.isReleased() {
		return queue.Each(h.parts(), func(part *Hold) error { return part.renew(ctx, lease) })
	}
	return h.renew(ctx, lease)
}

func (h *Hold) renew(ctx context.Context, lease time.Duration) error {
	l := h.lock
	defer h.calls.Add(-1)
	if h.calls.Add(1)&released != 0 {
		return l.renew(ctx, hold.Part{}, lease)
	}
	return l.renew(ctx, hold.Part{Hold: h.hold, Owner: h.owner}, lease)
}

// Remaining returns how long the hold stays valid if it is not renewed: the rest of its lease, minus a margin for clocks. It is 0
// once the hold is lost or released. Remaining does not ask Redis.
func (h *Hold) Remaining() time.Duration {
	if h == nil {
		return 0
	}
	defer runtime.KeepAlive(h)
	left := h.hold.Left()
	for _, other := range h.more {
		left = min(left, other.Remaining())
	}
	if h.isReleased() { // the next owner may have this hold
		return 0
	}
	return left
}

// Holder returns the hold's name in Redis, for ForceUnlockHolder of package inspect. With the name and the path, another process
// can release this hold and no other. The name is empty once Release has been called.
//
// # Details
//
// After this call, the hold is no longer handed to the next goroutine of this process, see [WithHandoff], since its name would go
// with it.
//
// For a hold on several paths, Holder names the hold of the first path. All readers of a process, including later ones, share one
// name, and lose the lock together.
func (h *Hold) Holder() string {
	if h == nil {
		return ""
	}
	defer runtime.KeepAlive(h)
	defer h.calls.Add(-1)
	if h.calls.Add(1)&released != 0 { // otherwise Release sees that this call is under way
		return ""
	}
	h.hold.Stay()
	return h.lock.holderOf(h.hold)
}

// Context returns a child of parent that ends with the hold, like [Lock.Context]. Use it for the work that the lock protects.
// The context carries the hold: a call for the same path with it, or with a child of it, returns [ErrDeadlock]. A call for
// permits of the same [Semaphore] asks for further permits.
//
// It ends with one of these causes:
//
//   - [ErrLockLost], as soon as the hold can no longer be guaranteed
//   - [context.Canceled], when the hold is released
//   - [ErrClosed], when the registry is closed
//   - [ErrNotOwner], at once, when Release has already been called
//
// Err and [context.Cause] go by the clock, as [Lock.Context] describes. For a hold on several paths, they look at each path.
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
	return h.within(parent, tenure.CarriedBy(parent))
}

// within is Context for a parent that carries in.
func (h *Hold) within(parent context.Context, in tenure.In) context.Context {
	if h.hold.Ends(parent, in.Around, h.owner) {
		return parent // it is such a context already; another one would only make a chain
	}
	if h.more != nil {
		return h.contextOfAll(parent)
	}
	return h.context(parent, in)
}

func (h *Hold) context(parent context.Context, in tenure.In) context.Context {
	c, carried := &holdContext{hold: h}, in.Carried
	ends, around := parent, in.Around
	if parent.Done() == nil { // parent never ends; the hold must not refer to it, since its values may lead to h
		ends, around, c.values = context.Background(), nil, parent
	}
	t := h.lock.hold.Tenure(h.lock.half(), h.owner, h.hold, h.token)
	if carried.Innermost() != t {
		carried = carried.With(t)
	}
	var err error
	c.Context, err = h.hold.Context(ends, h.owner, nil, around)
	if h.isReleased() { // Release may have missed this context
		h.hold.EndContext(c.Context)
		err = ErrNotOwner
	}
	if err != nil {
		ctx, cancel := context.WithCancelCause(in.Carrying(parent, carried))
		cancel(err)
		return ctx
	}
	c.carrier = hold.CarrierOf(c.Context, carried)
	return c
}

// holdContext is a context that ends with a Hold, and keeps the Hold reachable. The inner hold refers only to the Context that
// it cancels.
type holdContext struct {
	context.Context
	values  context.Context // the parent given, if it is not the Context's own parent
	carrier hold.Carrier
	hold    *Hold
}

func (c *holdContext) Value(key any) any {
	if key == (hold.Key{}) {
		return &c.carrier
	}
	if value := c.Context.Value(key); value != nil || c.values == nil {
		return value
	}
	return c.values.Value(key)
}

func (c *holdContext) String() string { return c.hold.String() + ".Context" }

// String returns the key, and whether the hold is still valid.
func (h *Hold) String() string {
	if h == nil {
		return "Hold(nil)"
	}
	if h.hold.Fresh() && !h.isReleased() {
		return "Hold(" + h.lock.redis.Key + ", held)"
	}
	return "Hold(" + h.lock.redis.Key + ", over)"
}
