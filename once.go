package lockregistry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// leastPeriod is the shortest period of [Registry.Once]: of a shorter one hardly anything is left beside the time that Redis
// takes.
const leastPeriod = 10 * time.Millisecond

// RetryOnError has [Registry.Once] leave the path free when fn has failed: it returned an error, or panicked. Then the next
// call of any node runs the job, also in the same period. It is for Once only. Default: a failed run counts like any other
// one, and the next one is due in the next period.
func RetryOnError() LockOption {
	return LockOption{"RetryOnError", 0, func(*request, time.Duration) {}}
}

// Once runs a job that every node starts each period and one of them runs: it calls fn unless another call runs it already,
// or began to less than nine tenths of the period ago. It never waits. Path names the job, every is its period,
// 10 ms at least.
//
// A mark, the path's lock, keeps the others out. It is renewed while fn runs, and stays for nine tenths of the period from
// when it was obtained, see [AtLeast]; so the clocks of the nodes may differ by almost that much, and the next run is not
// skipped as long as a node comes no earlier than nine tenths of the period after the one that ran last. When fn takes longer
// than that, the path is free when fn returns. ShedLock's lockAtLeastFor and lockAtMostFor are the mark and the lease: see
// [Lease].
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
// [Lock.Context]. Options are [Lease], [RetryOnError] and [NoWait], which changes nothing; Wait and AtLeast are bad input.
func (r *Registry) Once(
	ctx context.Context, path string, every time.Duration, fn func(context.Context) error, opts ...LockOption,
) (ran bool, err error) {
	l := r.Obtain(path)
	retries, err := onceWith(every, fn, opts)
	if err != nil {
		return false, l.fail("once", err)
	}
	h, err := l.acquireAs(ctx, "once", append(slices.Clip(opts), AtLeast(every-every/10)), notAtAll, owner.NewOnce())
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

// onceWith judges what Once is given, and tells whether a failed run is to leave the path free.
func onceWith(every time.Duration, fn func(context.Context) error, opts []LockOption) (retries bool, err error) {
	if fn == nil {
		err = errors.New("the function is nil")
	}
	if every < leastPeriod {
		err = fault.Join(err, fmt.Errorf("every(%v): the period must be at least %v", every, leastPeriod))
	}
	for _, o := range opts {
		switch o.name {
		case "RetryOnError":
			retries = true
		case "Wait":
			err = fault.Join(err, errors.New("Wait: Once never waits"))
		case "AtLeast":
			err = fault.Join(err, errors.New("AtLeast: Once keeps the path for nine tenths of the period"))
		}
	}
	return retries, err
}
