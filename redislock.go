package lockregistry

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Lock is the lock of one path. It is safe for use by many goroutines; get it from [Registry.Obtain].
//
// It has two halves. The local half serializes the goroutines of this process; only who has it asks Redis for the other
// half, the hold. To lock is to get the local half, then the hold. To unlock is to end the hold, have its key removed, and
// only then to give the local half free: a removal that is late would otherwise meet the next local holder's key.
type Lock struct {
	reg      *Registry
	key      string
	turn     atomic.Uint64 // when it was last obtained; belongs to the cache, as does pins
	pins     atomic.Int32
	lockedAt atomic.Int64 // instant
	local    localLock
	hold     atomic.Pointer[hold] // written only by who has the local half
	debt     int                  // see acquisition.standBack; for who has the local half
}

// How long a call waits that has no [Wait].
const (
	notAtAll  time.Duration = 0
	untilDone time.Duration = -1
)

// errBusy: somebody else holds the lock, and the call may not wait, or no longer. It becomes false or ErrTimeout.
var errBusy = errors.New("busy")

// Lock waits until it has the lock, first for the goroutines of this process that came before, then for Redis. When it
// returns nil the owner holds the lock, see [NewOwner]; each Lock needs an Unlock.
//
// An owner that holds the lock already holds it once more, and its lease is refreshed, as in Spring; if the lease was lost
// meanwhile, Lock returns [ErrLockLost].
//
// Lock is Spring's lockInterruptibly, and its lock when ctx is never done. A failure leaves nothing behind, neither here
// nor in Redis. The errors, each within a [*LockError]:
//
//   - that of ctx, when it is done first
//   - [ErrTimeout], when the time given by [Wait] is over
//   - [ErrLockLost], see above
//   - [ErrCapacity], when the registry may not keep one more lock
//   - [ErrClosed], when the registry is closed
//   - that of Redis or of the network, when the first attempt fails. Later ones are made again every poll interval, for as
//     long as a failover, a restart or a broken connection may be the reason
//   - bad input: an empty path, a nil context, a lease under a millisecond, a wait that is not positive
func (l *Lock) Lock(ctx context.Context, opts ...LockOption) error {
	_, err := l.acquire(ctx, "lock", opts, untilDone)
	return err
}

// TryLock locks like [Lock.Lock] but does not wait for anyone; with [Wait] it waits that long at most. False without an
// error means that somebody else holds the lock. It is Spring's tryLock. It returns the errors of Lock, except ErrTimeout.
func (l *Lock) TryLock(ctx context.Context, opts ...LockOption) (bool, error) {
	return l.acquire(ctx, "trylock", opts, notAtAll)
}

// Unlock takes one Lock of the owner back; the last one gives the lock free and removes its key from Redis. Whatever it
// returns then, the owner does not hold the lock any more. The errors, each within a [*LockError]:
//
//   - [ErrNotOwner]: the caller does not hold the lock; nothing was changed
//   - [ErrLockLost]: Redis no longer had this hold, so others may have had the lock meanwhile
//   - that of Redis or of the network: it is not known whether the key is removed. The registry tries again in the
//     background until it is or the lease is over, and only then lets in who waits in this process
//
// When ctx is done, Unlock does not wait for Redis: it returns nil at once, and the removal goes on in the background.
func (l *Lock) Unlock(ctx context.Context) error {
	err := l.check(ctx)
	if err == nil {
		now := l.reg.cache.current(l)
		last, ok := now.local.exit(ownerOf(ctx))
		switch {
		case !ok:
			err = ErrNotOwner
		case last:
			err = now.release(ctx)
		}
	}
	if err != nil {
		return l.fail("unlock", err)
	}
	return nil
}

// Renew sets the lease of the lock, held by the caller, to ttl from now. The errors, each within a [*LockError]:
// [ErrNotOwner] when the caller does not hold the lock, [ErrLockLost] when its lease is over or its key is no longer this
// hold's, that of ctx, that of a ttl under a millisecond, and those of Redis; after one of the last the hold stays valid
// for as long as it certainly is.
func (l *Lock) Renew(ctx context.Context, ttl time.Duration) error {
	if err := l.check(ctx); err != nil {
		return l.fail("renew", err)
	}
	return l.renew(ctx, l.reg.cache.current(l).heldBy(ownerOf(ctx)), ttl)
}

// Context returns a child of parent that ends with the hold of the caller: it is cancelled with the cause [ErrLockLost] as
// soon as the hold can no longer be guaranteed, before the key can expire in Redis and whether or not Redis can be
// reached, and with the cause [context.Canceled] when the lock is unlocked. When the caller does not hold the lock, it is
// cancelled already, with the cause [ErrNotOwner] (or ErrLockLost). When the registry is closed, the cause is [ErrClosed].
func (l *Lock) Context(parent context.Context) context.Context {
	if parent == nil {
		parent = context.Background()
	}
	ctx, cancel := context.WithCancelCause(parent)
	h := l.reg.cache.current(l).heldBy(ownerOf(parent))
	if h == nil {
		cancel(ErrNotOwner)
		return ctx
	}
	if err := h.watch(ctx, cancel); err != nil {
		cancel(err)
	}
	return ctx
}

// Locker returns a [sync.Locker] that locks and unlocks with ctx, for code that takes one. That interface cannot return
// errors, so its methods panic with the [*LockError] where Lock and Unlock return one.
func (l *Lock) Locker(ctx context.Context) sync.Locker { return locker{l, ctx} }

type locker struct {
	lock *Lock
	ctx  context.Context
}

func (l locker) Lock() {
	if err := l.lock.Lock(l.ctx); err != nil {
		panic(err)
	}
}

func (l locker) Unlock() {
	if err := l.lock.Unlock(l.ctx); err != nil {
		panic(err)
	}
}

// Key returns the lock's key in Redis, prefix + ":" + path.
func (l *Lock) Key() string { return l.key }

// Path returns the path that the lock was obtained with.
func (l *Lock) Path() string { return l.path() }

func (l *Lock) path() string { return l.key[len(l.reg.prefix)+1:] }

// IsHeld tells whether a goroutine of this process holds the lock now, with a lease that is not over. It does not ask
// Redis.
func (l *Lock) IsHeld() bool {
	h := l.reg.cache.current(l).hold.Load()
	return h != nil && h.valid()
}

func (l *Lock) fail(op string, err error) error { return &LockError{Op: op, Key: l.key, Err: err} }

// check finds what makes every call on l fail.
func (l *Lock) check(ctx context.Context) error {
	switch {
	case ctx == nil:
		return errors.New("the context is nil")
	case l.path() == "":
		return errors.New("the path is empty")
	}
	return nil
}

// acquire is Lock, TryLock and the first part of Do.
func (l *Lock) acquire(ctx context.Context, op string, opts []LockOption, wait time.Duration) (bool, error) {
	q := request{wait: wait}
	err := q.apply(opts)
	if err == nil {
		err = l.check(ctx)
	}
	if err == nil {
		err = l.enter(ctx, q)
	}
	switch {
	case err == nil:
		return true, nil
	case err != errBusy: //nolint:errorlint // never wrapped
		return false, l.fail(op, err)
	case op == "trylock":
		return false, nil
	default:
		return false, l.fail(op, ErrTimeout)
	}
}

// enter gets both halves of the path's lock of today.
func (l *Lock) enter(ctx context.Context, q request) error {
	reg := l.reg
	if ctx.Err() != nil {
		return ended(ctx)
	}
	select {
	case <-reg.closed:
		return ErrClosed
	default:
	}
	now, err := reg.cache.pin(l)
	if err != nil {
		return err
	}
	deadline := never
	if q.wait > 0 {
		deadline = reg.clock.now().add(q.wait)
	}
	o := ownerOf(ctx)
	if q.lease.ms == "" {
		q.lease = reg.lease
		q.plain = true
	}
	how, w := now.local.enter(o, q.lease.length, q.wait != notAtAll)
	if w != nil {
		how, err = now.queue(ctx, w, deadline)
	}
	switch how {
	case entered: // the pin is the hold's from now on
		if err = now.obtain(ctx, q, deadline); err != nil {
			now.letGo()
		}
		return err
	case handed: // likewise
		now.lockedAt.Store(int64(reg.clock.now()))
		return nil
	case reentered:
		if q.plain { // the lease that the hold has
			q.lease = lease{}
		}
		if err = now.hold.Load().renew(ctx, q.lease); err != nil {
			if last, _ := now.local.exit(o); last { // the outer Unlock came meanwhile, from another goroutine
				err = errors.Join(err, now.release(ctx))
			}
		}
		now.unpin()
		return err
	}
	now.unpin()
	if err == nil {
		err = errBusy
	}
	return err
}

// queue waits for the local half.
func (l *Lock) queue(ctx context.Context, w *waiter, deadline instant) (entry, error) {
	var timeout <-chan time.Time
	if deadline != never {
		timer := time.NewTimer(l.reg.clock.now().until(deadline))
		defer timer.Stop()
		timeout = timer.C
	}
	how := l.local.wait(ctx, w, timeout, l.reg.closed)
	if how != refused {
		return how, nil
	}
	return refused, l.stopped(ctx)
}

// stopped is why a call must stop waiting: its context or the registry ended. It is nil when neither did.
func (l *Lock) stopped(ctx context.Context) error {
	if ctx.Err() != nil {
		return ended(ctx)
	}
	select {
	case <-l.reg.closed:
		return ErrClosed
	default:
		return nil
	}
}

// heldBy returns the hold if o has it.
func (l *Lock) heldBy(o owner) *hold {
	if !l.local.heldBy(o) {
		return nil
	}
	return l.hold.Load()
}

func (l *Lock) renew(ctx context.Context, h *hold, ttl time.Duration) error {
	err := leasable("Renew", ttl)
	switch {
	case err != nil:
	case h == nil:
		err = ErrNotOwner
	default:
		err = h.renew(ctx, leaseOf(ttl))
	}
	if err != nil {
		return l.fail("renew", err)
	}
	return nil
}

// release gives the lock back for its last owner: to the next goroutine of this process together with the hold, if it can,
// or else to Redis. Then it ends the hold, has its key removed, and only then gives the local half free, which is leaving
// until then.
func (l *Lock) release(ctx context.Context) error {
	reg := l.reg
	h := l.hold.Load()
	due := false
	if reg.handoff > 0 {
		var can bool
		if can, due = h.relinquish(reg.handoff); can && l.local.pass(h.longest()) {
			l.unpin() // the next owner brings its own
			return nil
		}
	}
	l.hold.Store(nil)
	h.end()
	err := ctx.Err()
	var n int64
	if err == nil {
		n, err = confirmed(reg.layout.release(ctx, l.key, h.value).do(ctx, reg.client))
	}
	if due && l.local.contended() {
		l.debt = reg.debt(l.key, n)
	}
	switch {
	case err == nil && h.late:
		reg.scheduler.sweep(h.abandoned())
		fallthrough
	case err == nil:
		l.letGo()
		if n == 0 {
			return ErrLockLost
		}
		return nil
	case !reg.scheduler.sweep(h.removal(l.letGo)):
		l.letGo()
		return errors.Join(ErrClosed, err)
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded): // rueidis may see the deadline a little earlier
		return nil
	default:
		return err
	}
}

// letGo gives the local half free and ends the use of the lock that began with it.
func (l *Lock) letGo() {
	l.local.free()
	l.unpin()
}
