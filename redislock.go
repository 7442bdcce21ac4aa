package lockregistry

import (
	"context"
	"time"

	"github.com/lockregistry/lockregistry/internal/cache"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/tenure"
)

// Lock is the lock of one path. It is safe for use by many goroutines. Get it from [Registry.Obtain].
//
// # Details
//
// A lock has two halves. The local half serializes the goroutines of this process. The other half is the hold, the key in Redis.
//
//  1. Locking gets the local half, then asks Redis for the hold.
//  2. Unlocking ends the hold and removes its key.
//  3. Only then does it free the local half, so that the next goroutine finds the key free.
type Lock struct {
	reg   *Registry
	redis queue.Path     // its half in Redis
	pair  *ReadWriteLock // nil for a plain lock
	plain *plainLock     // nil for a side of a pair
	hold  tenure.Held
}

// plainLock is a plain lock with its local half. The two sides of a pair share theirs, which is in ReadWriteLock.
type plainLock struct {
	Lock

	local localLock
	entry cache.Entry
}

// The following tell a plain lock from the two sides of a pair.

// reads reports whether l is the reader of a read-write lock, writes whether it is the writer.
func (l *Lock) reads() bool  { return l.pair != nil && l == &l.pair.reader }
func (l *Lock) writes() bool { return l.pair != nil && l == &l.pair.writer }

// half is the local half.
func (l *Lock) half() local.Half {
	switch {
	case l.pair == nil:
		return &l.plain.local
	case l.writes():
		return l.pair.local.Writer()
	default:
		return l.pair.local.Reader()
	}
}

// anchor returns the lock that stands for l in the cache.
func (l *Lock) anchor() *Lock {
	if l.pair != nil {
		return &l.pair.writer
	}
	return l
}

// entry returns the cache's entry for l; the two sides of a pair have one.
func (l *Lock) entry() *cache.Entry {
	if l.pair != nil {
		return &l.pair.entry
	}
	return &l.plain.entry
}

// How long a call without [Wait] waits.
const (
	notAtAll  time.Duration = 0
	untilDone time.Duration = -1
)

// Lock waits until the caller has the lock, or ctx is done. Then the caller's goroutine holds the lock, or the owner that ctx
// carries, see [ContextWithOwner]. Each Lock needs an [Lock.Unlock]. It is Spring's lockInterruptibly.
//
// In HTTP handlers use [Lock.Do] or [Lock.Acquire] instead: net/http serves all requests of a connection on one goroutine. So if
// a handler forgets to unlock, the next request on that connection is the same owner, and gets in. Use them also in functions
// that C calls: two C threads may count as one goroutine. An iterator that locks, and is run by iter.Pull, is another goroutine
// than its caller.
//
// # Details
//
// The call first waits for the goroutines of this process that came before it, then for Redis.
//
// If the owner already holds the lock, it holds it once more. The lease is refreshed, as in Spring, but never shortened, see
// [Lease].
//
// After an error the caller does not hold the lock. Anything that Redis may have granted is removed in the background.
//
// # Errors
//
// Each is within a [*LockError].
//
//   - The error of ctx, joined with its cause if that differs, at most 500 ms and two round trips after ctx is done. It is also
//     joined with [ErrUnavailable] if Redis could not be asked whether the lock is free. Otherwise its text says who had the
//     lock.
//   - [ErrTaken]: another owner had the lock when the time of [Wait] was over or, with [NoWait], when the call asked.
//   - [ErrUnavailable]: the first attempt failed with a transient error, or was not answered within [WithCommandTimeout]. A
//     call with Wait, or one that has queued in this process, retries instead, with a backoff from 50 ms to a second, unless it
//     has [FailFast]. It returns ErrUnavailable when its time is over and Redis could not be asked.
//   - [ErrLockLost]: the owner held the lock already, and its lease was lost.
//   - [ErrCapacity]: all locks that the registry may keep are in use.
//   - [ErrClosed]: the registry is closed or shutting down.
//   - [ErrDeadlock], [ErrWrongType].
//   - Another error of Redis, such as a missing permission, even if only the release would need it.
//   - Bad input: an empty path, a nil context, a lease under two milliseconds or above 30 days, Wait together with NoWait. The
//     error lists everything that is wrong.
func (l *Lock) Lock(ctx context.Context, opts ...LockOption) error {
	q := request{Request: queue.Request{Wait: untilDone}}
	_, err := l.acquire(ctx, "lock", &q, apply(&q, opts))
	return err
}

// TryLock locks like [Lock.Lock], but does not wait for the lock; with [Wait] it waits at most that long. False without an error
// means that another owner holds the lock. It is Spring's tryLock.
//
// It returns the errors of Lock except [ErrTaken]. If Redis could not be asked, the error is [ErrUnavailable].
func (l *Lock) TryLock(ctx context.Context, opts ...LockOption) (bool, error) {
	q := request{Request: queue.Request{Wait: notAtAll}}
	return l.acquire(ctx, "trylock", &q, apply(&q, opts))
}

// Unlock undoes one Lock of the owner. The last one releases the lock: its key is removed from Redis, and the caller no longer
// holds the lock, whatever Unlock returns.
//
// Unlock waits for Redis for at most a second, and for at most 100 ms once ctx is done, in each case plus two round trips. It
// never returns the error of ctx.
//
// # Details
//
// Nil means one of these:
//
//   - this hold still had the key, which is now removed; after a lost reply, only that this hold no longer has the key
//   - the key stays, as [AtLeast] asks
//   - the next goroutine of this process has the lock now, see [WithHandoff]. Redis is not asked in this case. If FLUSHALL, or
//     ForceUnlock by another process, removes the key within the time of WithHandoff, the loss is noticed later: by the last of
//     these Unlocks, by a renewal, or by a check of fencing tokens. With WithHandoff(0) each Unlock notices it.
//
// # Errors
//
// Each is within a [*LockError].
//
//   - [ErrNotOwner]: the caller does not hold the lock. Nothing was changed. It is also the error of an owner whose loss is
//     forgotten: another owner has asked for the lock since, and the registry has dropped the unused lock object, see
//     [Registry.SetCapacity] and [Registry.ExpireUnusedOlderThan], or more than a thousand owners have lost the lock since.
//   - [ErrLockLost]: the hold had already been lost, so others may have had the lock since. Its lease was over by this process's
//     clock when Unlock was called, or Redis no longer had it, although the lease was not over.
//   - [ErrUnavailable]: it is not known whether the key was removed. The registry tries again in the background until the key is
//     removed or the lease is over. Only then does it admit the next waiter of this process.
//   - [ErrUnavailable], with a text that says so: the hold was valid until Unlock was called, but Redis answered after the end of
//     its lease, without the key, so nobody knows whether the hold was lost before. The error is ErrLockLost instead with
//     [AtLeast], and if the connection or the master had changed and Redis had not confirmed the hold since.
//   - Another error of Redis, such as a missing permission. The registry also retries in this case.
func (l *Lock) Unlock(ctx context.Context) error {
	if err := l.check(ctx); err != nil {
		return l.fail("unlock", err)
	}
	now, c := l.reg.cache.current(l), tenure.CarriedBy(ctx).Carried
	err := now.unlock(ctx, now.hold.OwnerOf(c))
	if err == ErrNotOwner { //nolint:errorlint // never wrapped
		// The caller may have nested in a hold that is lost, or unlock for the owner of that hold. Then one lock of that owner is
		// undone. Otherwise the owner would never get the lock again.
		err = now.unlockLost(c.Lost(&now.hold)) // mutant: nested call stays
	}
	return l.fail("unlock", err)
}

// unlockLost undoes one lock of the owner of t, whose hold was lost. It returns ErrNotOwner if t is nil, or has no lock to undo.
func (l *Lock) unlockLost(t *tenure.Tenure) error {
	if t != nil {
		if why := l.hold.ExitLost(l.half(), t); why != fault.NotLost {
			return why.Err()
		}
	}
	return ErrNotOwner
}

// lossFor returns why a call that acts as o, and whose context carries c, finds the hold lost, if it does.
func (l *Lock) lossFor(o owner.ID, c *tenure.Carried) fault.Loss {
	if t := c.Lost(&l.hold); t != nil && l.half().Lost(o) == fault.NotLost {
		o = t.Owner
	}
	return l.half().Lost(o)
}

// Renew sets the lease of the caller's hold: from now on it is valid for lease. Later renewals use the same lease, including
// those of nested calls. Renew may shorten a lease.
//
// # Details
//
// Lease is from two milliseconds to 30 days, in whole milliseconds, as for [Lease].
//
//   - A hold that several readers share is only lengthened, see [ReadWriteLock.Reader].
//   - A hold with [AtMost] gets no lease that extends beyond its end. Renew still returns nil.
//   - After an error of Redis the hold stays valid for as long as its lease is certain.
//
// # Errors
//
// Each is within a [*LockError].
//
//   - [ErrNotOwner]: the caller does not hold the lock, or another goroutine of its owner has unlocked it meanwhile.
//   - [ErrLockLost]: the lease is over, or this hold no longer has the key.
//   - [ErrUnavailable], and other errors of Redis.
//   - [ErrClosed]: the registry was closed while Renew waited.
//   - The error of ctx.
//   - Bad input: a lease that is too short, in itself or for the round trip to Redis, or longer than 30 days.
func (l *Lock) Renew(ctx context.Context, lease time.Duration) error {
	if err := l.check(ctx); err != nil {
		return l.fail("renew", err)
	}
	now := l.reg.cache.current(l)
	c := tenure.CarriedBy(ctx).Carried
	o := now.hold.OwnerOf(c)
	h := now.heldBy(o)
	if h == nil {
		if why := now.lossFor(o, c); why != fault.NotLost {
			return l.fail("renew", why.Err())
		}
	}
	return l.renew(ctx, hold.Part{Hold: h, Owner: o}, lease)
}

// Context returns a child of parent that ends with the caller's hold. Use it for the work that the lock protects. It ends as soon
// as the hold can no longer be guaranteed: before the key can expire, whether or not Redis can be reached.
//
// It ends with one of these causes:
//
//   - [ErrLockLost], when the hold can no longer be guaranteed
//   - [context.Canceled], when the lock is unlocked
//   - [ErrClosed], when the registry is closed
//   - [ErrNotOwner] or ErrLockLost, at once, when the caller does not hold the lock
//
// # Details
//
// Before each write, check Err of this context itself. Err and [context.Cause] go by the clock: the first check after the lease
// ends sees the loss and closes Done, even if the process was stopped or is starved of CPU. If nothing checks, a timer closes
// Done, which may be late in such a process. A check sends nothing to Redis, and calls no function of yours.
//
//   - A child of [context.WithValue] also checks the clock.
//   - A child of [context.WithCancel], [context.WithTimeout] or [context.WithDeadline] ends only when Done is closed.
//
// The context carries the hold. While the hold lasts, calls of Lock, Do, Unlock, Renew and Context of this very lock nest in it
// if they have this context or a child of it, whichever goroutine calls. The hold lasts until all nested calls have unlocked. If
// it is lost, the nested calls still have to unlock, and get [ErrLockLost], as the owner does. For other locks, and once the hold
// is over, the context does not change the owner.
//
// If the owner's goroutine ends without Unlock, the hold is usually logged and no longer renewed. In these cases it is still
// renewed, and nothing is logged, since another goroutine may unlock with the context:
//
//   - Context was called for the hold.
//   - Another goroutine has nested in the hold with the context of [Lock.Do].
func (l *Lock) Context(parent context.Context) context.Context {
	if parent == nil {
		parent = context.Background()
	}
	ctx, t := l.context(parent, tenure.CarriedBy(parent))
	if t != nil {
		t.Delegate()
	}
	return ctx
}

// context is Context without Delegate. It is for Do, which unlocks after its function, whatever becomes of the goroutine. Parent
// carries in. T is the hold's tenure; nil when the context has ended already.
func (l *Lock) context(parent context.Context, in tenure.In) (ctx context.Context, t *tenure.Tenure) {
	now := l.reg.cache.current(l)
	o := now.hold.OwnerOf(in.Carried)
	h := now.heldBy(o)
	var err error
	if h != nil {
		var carried *tenure.Carried
		var already bool
		if t, carried, already = now.hold.Carry(in.Carried, now.half(), o, h); already && h.Ends(parent, in.Around, o) && h.Valid() {
			return parent, t // a loop that passes each context on would build a chain that is never freed
		}
		ctx, err = h.Context(parent, o, carried, in.Around)
	}
	// Another goroutine of the owner may unlock meanwhile, and the next owner may get the hold. An unlock leaves the local half
	// before it ends the contexts. So if the owner still has the hold now, a later unlock ends this context. If the owner does not,
	// the unlock may have missed this context.
	if h == nil || now.heldBy(o) != h {
		if err == nil && h != nil {
			h.EndContext(ctx)
		}
		err = ErrNotOwner
		if why := now.lossFor(o, in.Carried); why != fault.NotLost {
			err = why.Err()
		}
	}
	if err != nil {
		var cancel context.CancelCauseFunc
		over := in.With(tenure.Over()) // without a token for TokenFrom
		ctx, cancel = context.WithCancelCause(in.Carrying(parent, over))
		cancel(err)
		return ctx, nil
	}
	return ctx, t
}

// Path returns the path that the lock was obtained with.
func (l *Lock) Path() string { return l.redis.Key[len(l.reg.prefix)+1:] }

// IsHeld reports whether a goroutine of this process holds the lock now, and its lease is not over. It does not ask Redis.
func (l *Lock) IsHeld() bool {
	h := l.reg.cache.current(l).hold.Load()
	return h != nil && h.Valid()
}

// fail returns the error of an operation that has failed with err; nil if that is nil.
func (l *Lock) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &LockError{Op: op, Key: l.redis.Key, Err: l.redis.Node().Unsupported(err)}
}

// check returns the error that every call on l fails with, if there is one.
func (l *Lock) check(ctx context.Context) error {
	if ctx == nil {
		return fault.NilContext
	}
	p := &l.redis
	err := protocol.CheckPath(l.Path(), p.Key)
	if err == nil && p.Format.Cluster {
		err = p.Format.Scattered(p.Key)
	}
	return err
}

// taker returns the goroutine that acquired the lock for a [Hold]; [owner.Nobody] when it is not known.
func (l *Lock) taker(o owner.ID) owner.ID {
	if h := l.hold.Load(); h != nil {
		return h.Taker(o)
	}
	return owner.Nobody
}

// heldBy returns the hold if o has it.
func (l *Lock) heldBy(o owner.ID) *hold.Hold {
	for {
		h := l.hold.Load()
		if !l.half().HeldBy(o) {
			return nil
		}
		if h == l.hold.Load() { // so h was o's hold when HeldBy was called
			return h
		}
	}
}

func (l *Lock) renew(ctx context.Context, h hold.Part, length time.Duration) error {
	err := leasable("Renew", length)
	switch {
	case err != nil:
	case h.Hold == nil:
		err = ErrNotOwner
	default:
		err = l.redis.Prolong(ctx, h, lease.NewTerm(length), queue.Limits{Deadline: clock.Never})
	}
	return l.fail("renew", err)
}

// unlock undoes one lock of an owner.
func (l *Lock) unlock(ctx context.Context, o owner.ID) error {
	last, err := l.leave(o)
	if last {
		return l.releaseLast(ctx)
	}
	return err
}

// leave undoes one lock of an owner in the local half. After the last one of all owners the caller must release the hold.
func (l *Lock) leave(o owner.ID) (last bool, err error) {
	h := l.hold.Load() // before others can end it
	switch how, why := l.hold.Exit(l.half(), o); how {
	case local.Stays:
		if h != nil {
			h.Unnest(o)
		}
		return false, nil
	case local.Leaves: // the hold goes on for others
		if h == nil {
			return false, ErrLockLost
		}
		if !h.Leave(o) {
			return false, h.Err()
		}
		return false, nil
	case local.Last:
		return true, nil
	case local.Lost:
		return false, why.Err()
	default:
		return false, ErrNotOwner
	}
}

// attend evicts the owners of a lost hold, since they may never unlock, and lets a waiting call in. It runs after a waiter has
// queued, and after a hold was granted: so whichever comes last finds the other one. It reports whether it has evicted owners:
// then a call that does not wait may try to enter again.
func (l *Lock) attend(waits bool) (evicted bool) {
	if l.pair == nil {
		return l.hold.Load().Attend(waits) && l.evict()
	}
	reader, writer := &l.pair.reader, &l.pair.writer
	evicted = reader.hold.Load().Attend(waits) && reader.evict()
	return writer.hold.Load().Attend(waits) && writer.evict() || evicted
}

// evict takes the local half from the owners of a lost hold, and gives it to the next waiter.
func (l *Lock) evict() (evicted bool) {
	if !l.half().Evict(l.lost) {
		return false
	}
	l.endLost(l.hold.Swap(nil))
	return true
}

// lost returns why the hold is lost, if it is.
func (l *Lock) lost() fault.Loss {
	h := l.hold.Load()
	if h == nil || h.Live() {
		return fault.NotLost
	}
	return h.Loss()
}

// endLost ends a lost hold and frees the local half. Its key, if it is still there, is removed in the background. No call needs
// to wait for that: the removal names this hold, and the next hold, whose number is larger, may take the key over first. Once the
// registry is closed, the key stays until its lease is over.
func (l *Lock) endLost(h *hold.Hold) {
	h.End(l.reg.now())
	l.redis.RemoveLost(h)
	(*forQueue)(l).Free()
}

// String returns the lock's key, and whether this process holds it, as [Lock.IsHeld] reports.
func (l *Lock) String() string {
	kind := "Lock"
	switch {
	case l.pair == nil:
	case l == &l.pair.writer:
		kind = "Writer"
	default:
		kind = "Reader"
	}
	if l.holds() {
		return kind + "(" + l.redis.Key + ", held)"
	}
	return kind + "(" + l.redis.Key + ", not held)"
}

// holds is IsHeld without announcing a loss.
func (l *Lock) holds() bool { return l.reg.cache.current(l).hold.Load().Fresh() }
