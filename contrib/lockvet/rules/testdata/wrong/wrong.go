// Package wrong has each mistake, and what is said of it.
package wrong

import (
	"context"
	"errors"
	"time"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/leader"
)

func work(context.Context) error { return nil }

func neverUnlocked(ctx context.Context, r *lockregistry.Registry) error {
	l := r.Obtain("42")
	if err := l.Lock(ctx); err != nil { // want "lockunlock: l is locked and not unlocked"
		return err
	}
	return work(l.Context(ctx))
}

func neverUnlockedAfterTry(ctx context.Context, r *lockregistry.Registry) error {
	l := r.Obtain("42")
	ok, err := l.TryLock(ctx) // want "lockunlock: l is locked and not unlocked"
	if err != nil || !ok {
		return err
	}
	return nil
}

func notDeferred(ctx context.Context, l *lockregistry.Lock) error {
	if err := l.Lock(ctx); err != nil {
		return err
	}
	if err := work(ctx); err != nil {
		return err
	}
	return l.Unlock(ctx) // want "lockunlock: Unlock of l is not deferred"
}

func notDeferredOfAPath(ctx context.Context, r *lockregistry.Registry) error {
	err := r.Obtain("42").Lock(ctx)
	if err != nil {
		return err
	}
	err = work(ctx)
	return errors.Join(err, r.Obtain("42").Unlock(ctx)) // want "lockunlock: Unlock of r.Obtain.* is not deferred"
}

func tried(ctx context.Context, l *lockregistry.Lock) {
	if ok, err := l.TryLock(ctx); ok && err == nil {
		_ = work(ctx)
		_ = l.Unlock(ctx) // want "lockunlock: Unlock of l is not deferred"
	}
}

func dropped(ctx context.Context, r *lockregistry.Registry) error {
	r.Acquire(ctx, "42")           // want "lockhold: the Hold is dropped"
	_, err := r.Acquire(ctx, "42") // want "lockhold: the Hold is dropped"
	return err
}

func neverReleased(ctx context.Context, r *lockregistry.Registry) error {
	hold, err := r.AcquireAll(ctx, []string{"42", "43"}) // want "lockhold: hold is never released"
	if err != nil {
		return err
	}
	return work(hold.Context(ctx))
}

func outer(ctx context.Context, r *lockregistry.Registry) error {
	return r.Do(ctx, "42", func(context.Context) error {
		return work(ctx) // want "lockcontext: ctx does not end when the lock is lost"
	})
}

func outerByAnotherName(ctx context.Context, r *lockregistry.Registry) (int, error) {
	return lockregistry.DoValue(ctx, r.Obtain("42"), func(within context.Context) (int, error) {
		if err := work(within); err != nil {
			return 0, err
		}
		return 1, work(ctx) // want "lockcontext: ctx does not end when the lock is lost"
	})
}

func outerOnce(ctx context.Context, r *lockregistry.Registry) error {
	_, err := r.Once(ctx, "42", time.Hour, func(context.Context) error {
		return work(ctx) // want "lockcontext: ctx does not end when the lock is lost"
	})
	return err
}

func outerOfALeader(ctx context.Context, r *lockregistry.Registry) error {
	candidate, err := leader.New(r, "dispatcher", func(context.Context) error {
		return work(ctx) // want "lockcontext: ctx does not end when the lock is lost"
	}, leader.OnGranted(func(context.Context) {
		_ = work(ctx) // want "lockcontext: ctx does not end when the lock is lost"
	}))
	if err != nil {
		return err
	}
	return candidate.Run(ctx)
}

func besideHold(ctx context.Context, r *lockregistry.Registry) (err error) {
	hold, err := r.Acquire(ctx, "42")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release(context.WithoutCancel(ctx))) }()
	return work(ctx) // want "lockcontext: ctx does not end when the hold is lost: use hold.Context"
}

func silent(ctx context.Context, l *lockregistry.Lock, hold *lockregistry.Hold) error {
	if err := l.Lock(ctx); err != nil {
		return err
	}
	defer l.Unlock(ctx)  // want "lockresult: the error of Unlock is dropped"
	hold.Release(ctx)    // want "lockresult: the error of Release is dropped"
	go hold.Release(ctx) // want "lockresult: the error of Release is dropped"
	defer func() {
		hold.Release(ctx) // want "lockresult: the error of Release is dropped"
	}()
	return nil
}

func nanoseconds(ctx context.Context, l *lockregistry.Lock) error {
	return l.Do(ctx, work,
		lockregistry.Lease(30),  // want "lockduration: Lease.30. is 30 ns"
		lockregistry.Wait(5*60), // want "lockduration: Wait.5 . 60. is 5 . 60 ns"
		lockregistry.AtMost(time.Hour),
	)
}

func onlyTaken(ctx context.Context, l *lockregistry.Lock) {
	err := l.Lock(ctx)
	if errors.Is(err, lockregistry.ErrTaken) { // want "locktaken: only ErrTaken is handled"
		return
	}
	defer func() { _ = l.Unlock(ctx) }()
}

func onlyTakenInASwitch(ctx context.Context, r *lockregistry.Registry) {
	err := r.Do(ctx, "42", work)
	switch {
	case errors.Is(err, lockregistry.ErrTaken): // want "locktaken: only ErrTaken is handled"
		println("taken")
	}
}

func otherGoroutine(ctx context.Context, l *lockregistry.Lock) error {
	if err := l.Lock(ctx); err != nil {
		return err
	}
	go func() {
		_ = work(ctx)
		_ = l.Unlock(ctx) // want "lockgoroutine: another goroutine has locked l"
	}()
	return nil
}

func outerInEitherBranch(ctx context.Context, r *lockregistry.Registry) (err error) {
	hold, err := r.Acquire(ctx, "42")
	if err == nil {
		defer func() { err = errors.Join(err, hold.Release(context.WithoutCancel(ctx))) }()
		err = work(ctx) // want "lockcontext: ctx does not end when the hold is lost"
	}
	if err != nil {
		return work(ctx) // want "lockcontext: ctx does not end when the hold is lost"
	}
	return nil
}

func outerInACase(ctx context.Context, r *lockregistry.Registry) error {
	hold, err := r.Acquire(ctx, "42")
	switch {
	case err != nil:
		return err
	default:
		defer func() { _ = hold.Release(context.WithoutCancel(ctx)) }()
		return work(ctx) // want "lockcontext: ctx does not end when the hold is lost"
	}
}

func outerWhereItGoesOn(ctx context.Context, r *lockregistry.Registry, early bool) error {
	hold, err := r.Acquire(ctx, "42")
	if err != nil && !early {
		return err
	}
	if hold != nil {
		defer func() { _ = hold.Release(context.WithoutCancel(ctx)) }()
	}
	return work(ctx) // want "lockcontext: ctx does not end when the hold is lost"
}

func outerBeforeTheOtherRelease(ctx context.Context, r *lockregistry.Registry, early bool) error {
	hold, err := r.Acquire(ctx, "42")
	if err != nil || early {
		return errors.Join(err, hold.Release(context.WithoutCancel(ctx)))
	}
	err = work(ctx) // want "lockcontext: ctx does not end when the hold is lost"
	return errors.Join(err, hold.Release(context.WithoutCancel(ctx)))
}
