package lockregistry

import (
	"context"
	"errors"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/tenure"
)

// Do is [Lock.Do] for the lock that [Registry.Obtain] returns for path. It is Spring's executeLocked.
func (r *Registry) Do(ctx context.Context, path string, fn func(context.Context) error, opts ...LockOption) error {
	return r.Obtain(path).Do(ctx, fn, opts...)
}

// Do runs fn while it holds the lock. It takes the options of [Lock.Lock]: with [Wait] it gives up after that time, with
// [NoWait] at once, with [ErrTaken]. Without them Do waits until ctx is done.
//
// The lock is renewed each third of its lease until fn returns, even if the owner held it before. Locks that fn takes and
// does not unlock are renewed only as [WithRenewal] says. A fn that hangs keeps the lock for as long as the process lives,
// unless [AtMost] limits that.
//
// Fn gets the context of [Lock.Context]: it is cancelled, with the cause [ErrLockLost], as soon as the hold can no longer be
// guaranteed. Calls for this lock with this context nest in the hold, even on goroutines that fn starts.
//
// Do returns the error of fn, joined with the error of [Lock.Unlock]: [ErrLockLost] means that others may have had the lock
// while fn ran, and [ErrUnavailable] in a [LockError] whose Op is "unlock" that fn has run, and the server did not answer
// the unlock: the lock ends in the background. It also unlocks when fn panics, and when ctx is done. When locking fails, Do
// returns the error of [Lock.Lock], and does not run fn. With [WithBackgroundRelease] nil means that the lock was valid by
// this process's clock, not that its key is gone.
func (l *Lock) Do(ctx context.Context, fn func(context.Context) error, opts ...LockOption) (err error) {
	if fn == nil {
		return l.fail("do", errors.New("the function is nil"))
	}
	if _, err := l.acquire(ctx, "do", opts, untilDone, owner.Nobody); err != nil {
		return err
	}
	var work *tenure.Tenure // nil, when the hold is lost already
	defer func() {
		work.Unuphold()
		err = fault.Join(err, l.Unlock(context.WithoutCancel(ctx)))
	}()
	within, _ := l.within(ctx)
	work = tenure.CarriedBy(within).At(&l.reg.cache.current(l).hold)
	work.Uphold()
	return fn(within)
}

// DoValue is [Registry.Do] for a function that also returns a value. It returns that value whatever the error is: also when fn
// failed, and when fn succeeded and unlocking failed. If fn has not run, it returns the zero value.
func DoValue[T any](
	ctx context.Context, r *Registry, path string, fn func(context.Context) (T, error), opts ...LockOption,
) (value T, err error) {
	if r == nil {
		return value, errors.New("lockregistry: do: the registry is nil")
	}
	if fn == nil {
		return value, r.Do(ctx, path, nil, opts...)
	}
	err = r.Do(ctx, path, func(ctx context.Context) (failed error) {
		value, failed = fn(ctx)
		return failed
	}, opts...)
	return value, err
}
