package lockregistry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// The errors of locks. Each comes wrapped in a [*LockError]; test for it with [errors.Is].
var (
	// ErrNotOwner: the caller does not hold the lock. Nothing was changed. Spring throws IllegalStateException ("You do not own
	// lock at ...") here.
	ErrNotOwner = fault.NotOwner

	// ErrLockLost: the lease ended, or the key was removed or taken over, while the lock was held. Another owner may have worked
	// on what the lock protects, so stop. Spring throws ConcurrentModificationException ("Lock was released in the store due to
	// expiration ...") here.
	//
	// It is also the cause with which contexts of [Lock.Context] end. The text says how the lock was lost, see [observe.Loss].
	// Compare with errors.Is, not with ==.
	ErrLockLost = fault.Lost

	// ErrTaken: another owner had the lock when the time of [Wait] was over or, with [NoWait], when the call asked. The text says
	// how long the call waited, and which owner of this process has the lock, or that the lock is taken in Redis. If Redis could
	// not be asked before the wait was over, the error is [ErrUnavailable] instead.
	ErrTaken = fault.Taken

	// ErrUnavailable: Redis did not answer, or cannot serve now. The same call may succeed later. The reason is one of these:
	//
	//   - a broken connection, or no answer in time
	//   - a failover (READONLY, CLUSTERDOWN, MASTERDOWN)
	//   - a server that is starting (LOADING) or is out of memory
	//   - an answer that came too late to be trusted
	//
	// [Lock.Unlock] and [Hold.Release] also return it when the hold was valid until the call, but Redis answered after the end of
	// the lease. Then nobody knows whether the hold had been lost before.
	//
	// Joined with a context's error it means that the context ended while Redis did not answer. A context's error without
	// ErrUnavailable means that another owner had the lock.
	ErrUnavailable = fault.Unavailable

	// ErrClosed: the registry is closed, or it is shutting down and the caller holds none of its locks, see [Registry.Shutdown].
	ErrClosed = fault.Closed

	// ErrWrongType: the key in Redis is not the kind of lock that the call asks for. It is a read-write lock instead of a plain
	// lock, a lock of another layout, or no lock at all. Nothing was changed. Use another path or prefix, or the layout that the
	// other services use.
	ErrWrongType = fault.WrongType

	// ErrDeadlock: the call would wait for itself. Nothing was changed. What to do depends on the case:
	//
	//   - The caller holds the reader, and asks for the writer: unlock the reader first. In Redisson this call waits forever.
	//     Locking the reader while holding the writer works.
	//   - The context carries a hold on the same path: use the outer context. A [Hold] excludes all calls, even those with its
	//     own context; only Do and Lock nest, in contexts of [Registry.Do] and [Lock.Context].
	//   - Goroutines of this process wait for each other, each for a path that the next one holds: always lock the paths in the
	//     same order, or use [Registry.AcquireAll]. The error names the paths and goroutines.
	//
	// In the last case the call that closes the cycle returns ErrDeadlock at once, and the others go on waiting. That happens
	// only in cycles that nothing but a cancelled context, the end of a lease or ForceUnlock could end: each hold belongs to a
	// goroutine, by Lock, TryLock or Do, and no call has [Wait], a deadline or a context of [ContextWithOwner]. Other cycles are
	// only logged and reported to [observe.Observer]. If you give the calls a deadline or Wait, a cycle ends by itself.
	ErrDeadlock = fault.Deadlock

	// ErrCapacity: all locks that the registry may cache are in use. Raise the number with [Registry.SetCapacity].
	ErrCapacity = fault.Capacity
)

// LockError is the type of every error of a lock. It says which operation failed, on which key, and why.
type LockError struct {
	// Op is "lock", "trylock", "unlock", "renew", "do", "acquire", "once", "release", "setpermits", "forceunlock",
	// "inspect", "locks", "deadlocks" or "leader".
	Op  string
	Key string // the lock's key in Redis, whole
	Err error  // why
}

// Error returns the operation, the first 200 bytes of the key, and the reason.
func (e *LockError) Error() string {
	key := fault.Short(e.Key)
	if strings.HasSuffix(key, ":") { // another colon follows
		key = strconv.Quote(key)
	}
	return "lockregistry: " + e.Op + " " + key + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *LockError) Unwrap() error { return e.Err }

// whoHolds returns a text that names the owner of the lock; empty if the owner is not known.
func (l *Lock) whoHolds(asked bool) string {
	locks := []*Lock{l}
	if l.pair != nil {
		locks = []*Lock{&l.pair.writer, &l.pair.reader}
	}
	for _, l := range locks {
		if !l.hold.Load().Fresh() {
			continue
		}
		for _, o := range l.half().Owners() {
			return l.describe(o) + " has it"
		}
	}
	if asked { // another process has the lock, or AtLeast keeps it
		return "it is taken in Redis"
	}
	return ""
}

// describe names an owner that holds the lock.
func (l *Lock) describe(o owner.ID) string {
	switch {
	case o.Shared():
		return fmt.Sprintf("owner %d of this process", o.Number())
	case o.IsHold():
		if by := l.taker(o); by != owner.Nobody {
			return fmt.Sprintf("a Hold of goroutine %d of this process", uint64(by))
		}
		return "a Hold of this process" // which its call has only just got
	default:
		return fmt.Sprintf("goroutine %d of this process", uint64(o))
	}
}

// gaveUp returns the error of a call that did not get the lock. Wait is how long the call was allowed to wait. Asked says that it
// got the local half, and asked Redis.
func (l *Lock) gaveUp(op string, err error, wait time.Duration, asked bool) error {
	if err == fault.Busy { //nolint:errorlint // never wrapped
		return l.fail(op, fault.NotFreeError{Wait: wait, Who: l.reg.cache.current(l).whoHolds(asked)})
	}
	var late fault.OverdueError
	if errors.As(err, &late) {
		err = late.Failure
	}
	return l.fail(op, l.held(err))
}

// held adds the owner of the lock to err, if the context of a call has ended while another owner had the lock.
func (l *Lock) held(err error) error {
	var held fault.HeldError
	taken := errors.As(err, &held) // in Redis
	switch {
	case taken:
	case errors.Is(err, ErrUnavailable), errors.Is(err, ErrLockLost):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		held.End = err
	default:
		return err
	}
	if held.Who = l.reg.cache.current(l).whoHolds(taken); held.Who == "" {
		return err
	}
	return held
}
