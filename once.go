package lockregistry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// leastPeriod is the shortest period of [Registry.Once]: of a shorter one hardly anything is left beside the time that Redis
// takes.
const leastPeriod = 10 * time.Millisecond

// OnceOption changes one call of [Registry.Once].
type OnceOption struct {
	retries bool
	lock    LockOption
}

// RetryOnError has [Registry.Once] leave the path free when fn has failed: it returned an error, or panicked. Then the next
// call of any node runs the job, also in the same period. Default: a failed run counts like any other one, and the next one
// is due in the next period.
func RetryOnError() OnceOption { return OnceOption{retries: true} }

// OnceLease sets the lease of the run, as [Lease] does for other calls: how long the path stays taken after a crash. Default:
// the registry's lease.
func OnceLease(d time.Duration) OnceOption {
	o := Lease(d)
	o.name = "OnceLease"
	return OnceOption{lock: o}
}

// Once runs a job that every node starts each period and one of them runs: it calls fn unless another call runs it already,
// or began to less than nine tenths of the period ago. It never waits. Path names the job, every is its period,
// 10 ms at least.
//
// A mark, the path's lock, keeps the others out. It is renewed while fn runs, and stays for nine tenths of the period from
// when it was obtained, see [AtLeast]; so the clocks of the nodes may differ by almost that much, and the next run is not
// skipped as long as a node comes no earlier than nine tenths of the period after the one that ran last. When fn takes longer
// than that, the path is free when fn returns. ShedLock's lockAtLeastFor and lockAtMostFor are the mark and the lease: see
// [OnceLease].
//
// Ran reports whether fn was called. False without an error means that another call runs the job or did; so it is for a call
// within fn. The context of fn is that of [Hold.Context]: it ends, with the cause [ErrLockLost], as soon as the lock can no
// longer be guaranteed.
//
// The errors when fn ran are fn's own, joined with that of the release: [ErrLockLost], another node may have run the job at
// the same time; [ErrUnavailable], it is not known whether the mark stays. The mark stays also when fn fails or panics, without
// [RetryOnError], and when ctx is done. After a crash, and after a loss, the lease alone keeps the others out, and may be
// over before the period is, or after it.
//
// The errors when it did not are those of [Lock.Acquire], but never [ErrTaken]: [ErrUnavailable], it is not known whether the
// job runs; [ErrDeadlock], ctx is that of another hold on the path, be it one of [Hold.Context], [Registry.Do] or
// [Lock.Context].
func (r *Registry) Once(
	ctx context.Context, path string, every time.Duration, fn func(context.Context) error, opts ...OnceOption,
) (ran bool, err error) {
	l := r.Obtain(path)
	retries, locking, err := onceWith(every, fn, opts)
	if err != nil {
		return false, l.fail("once", err)
	}
	h, err := l.acquireAs(ctx, "once", locking, notAtAll, owner.NewOnce())
	if h == nil {
		return false, err
	}
	failed := true // it may panic
	defer func() {
		if failed && retries {
			h.hold.Unkeep()
		}
		if released := h.Release(context.WithoutCancel(ctx)); released != nil {
			err = fault.Join(err, released)
		}
	}()
	err = fn(h.Context(ctx))
	failed = err != nil
	return true, err
}

// onceWith judges what Once is given. It tells whether a failed run is to leave the path free, and how the path is locked.
func onceWith(
	every time.Duration, fn func(context.Context) error, opts []OnceOption,
) (retries bool, locking []LockOption, err error) {
	if fn == nil {
		err = errors.New("the function is nil")
	}
	if every < leastPeriod {
		return false, nil, fault.Join(err, fmt.Errorf("every(%v): the period must be at least %v", every, leastPeriod))
	}
	locking = []LockOption{AtLeast(every - every/10)}
	for _, o := range opts {
		switch {
		case o.retries:
			retries = true
		case o.lock.set != nil:
			locking = append(locking, o.lock)
		default:
			err = fault.Join(err, errors.New("an OnceOption that no function of this package made"))
		}
	}
	return retries, locking, err
}
