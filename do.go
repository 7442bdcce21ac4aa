package lockregistry

import (
	"context"
	"errors"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/tenure"
)

// Do is [Lock.Do] for the lock of path, as [Registry.Obtain] returns it. This is Spring's executeLocked.
func (r *Registry) Do(ctx context.Context, path string, fn func(context.Context) error, opts ...LockOption) error {
	return r.Obtain(path).Do(ctx, fn, opts...)
}

// Do runs fn while it holds the lock. Options are those of [Lock.Lock]; with [Wait] it gives up after that time, with [NoWait] at
// once, with [ErrTaken]. Without them Do waits until ctx is done.
//
// The lock is renewed each third of its lease until fn returns, also when the owner held it before, and no longer: what fn has
// locked, and not unlocked, is renewed only as [WithRenewal] says. A fn that hangs keeps it for as long as the process lives,
// unless [AtMost] says for how long.
//
// The context of fn is that of [Lock.Context]: it is cancelled, with the cause [ErrLockLost], as soon as the hold can no
// longer be guaranteed, and calls for this lock with it nest in this hold, also those of goroutines that fn starts.
//
// Do returns the error of fn, joined with that of unlocking: [ErrLockLost] means that others may have had the lock while
// fn ran. It unlocks also when fn panics, and when ctx is done. Errors of locking are those of [Lock.Lock]; fn has not
// run then. With [WithBackgroundRelease] nil says of the lock that it was valid by this process's clock, not that its key is
// gone.
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
		if unlocking := l.Unlock(context.WithoutCancel(ctx)); unlocking != nil {
			err = fault.Join(err, unlocking)
		}
	}()
	within, _ := l.within(ctx)
	work = tenure.CarriedBy(within).At(&l.reg.cache.current(l).hold)
	work.Uphold()
	return fn(within)
}

// DoValue is [Registry.Do] for a function that also returns a value. It returns that value whatever the error is: also when
// fn failed, and when fn succeeded and unlocking failed. When fn has not run it is the zero value.
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
