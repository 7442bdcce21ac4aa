package lockregistry

import (
	"context"
	"errors"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/tenure"
)

// Do runs fn while it holds the lock of path. It is [Lock.Do] for the lock that [Registry.Obtain] returns, and Spring's
// executeLocked.
func (r *Registry) Do(ctx context.Context, path string, fn func(context.Context) error, opts ...LockOption) error {
	return r.Obtain(path).Do(ctx, fn, opts...)
}

// Do runs fn while it holds the lock. Fn gets the context of [Lock.Context], which ends as soon as the hold can no longer be
// guaranteed.
//
//	err := lock.Do(ctx, func(ctx context.Context) error { return ship(ctx) }, lockregistry.Wait(time.Second))
//
// Do takes the options of [Lock.Lock]. Without [Wait] and [NoWait] it waits for the lock until ctx is done.
//
// # Details
//
// The lock is renewed every third of its lease until fn returns, even if the owner already held it. If fn hangs, it keeps the
// lock for as long as the process lives, unless [AtMost] limits that. Locks that fn takes and does not unlock are renewed only as
// [WithRenewal] says.
//
// Calls for this lock with fn's context nest in the hold, even on goroutines that fn starts. Do also unlocks when fn panics, and
// when ctx is done.
//
// # Errors
//
// If locking fails, Do returns the error of [Lock.Lock], and does not run fn. Otherwise it returns the error of fn, joined with
// the error of [Lock.Unlock]:
//
//   - [ErrLockLost]: others may have had the lock while fn ran.
//   - [ErrUnavailable], in a [LockError] whose Op is "unlock": fn has run, and Redis did not answer the unlock. The registry
//     removes the key in the background. Redis may also have answered only after the end of the lease, see [Lock.Unlock].
func (l *Lock) Do(ctx context.Context, fn func(context.Context) error, opts ...LockOption) error {
	q := request{Request: queue.Request{Wait: untilDone}}
	return l.do(ctx, fn, &q, apply(&q, opts))
}

func (l *Lock) do(ctx context.Context, fn func(context.Context) error, q *request, bad error) (err error) {
	if fn == nil {
		return l.fail("do", errors.New("the function is nil"))
	}
	if _, err := l.acquire(ctx, "do", q, bad); err != nil {
		return err
	}
	var work *tenure.Tenure // nil, when the hold is lost already
	defer func() {
		work.StopRenewing()
		leaving := work.Outlived(l.undo(context.WithoutCancel(ctx), q))
		err = fault.Join(err, l.fail("unlock", leaving))
	}()
	within, of := l.context(ctx, q.in)
	work = of
	work.StartRenewing()
	return fn(within)
}

// undo undoes the lock of a call of Do, which may have nested in the hold of another owner. If that hold is lost, the goroutine
// may have locked for itself since: undo leaves that lock alone.
func (l *Lock) undo(ctx context.Context, q *request) error {
	now := l.reg.cache.current(l)
	switch t := q.nested; {
	case t == nil:
		return now.unlock(ctx, q.By)
	case t.Lasts():
		return now.unlock(ctx, t.Owner)
	default:
		return now.unlockLost(t)
	}
}

// DoValue is [Lock.Do] or [Semaphore.Do] for a function that also returns a value:
//
//	number, err := lockregistry.DoValue(ctx, locks.Obtain("invoices"), nextNumber, lockregistry.Wait(time.Second))
//
// It returns fn's value whatever the error: even if fn failed, or if fn succeeded and unlocking failed. If fn has not run, it
// returns the zero value. It takes the options that fit both; for [AtLeast] or [Permits], call Do.
func DoValue[T any, L *Lock | *Semaphore](
	ctx context.Context, on L, fn func(context.Context) (T, error), opts ...AcquireOption,
) (value T, err error) {
	var run func(context.Context) error
	if fn != nil {
		run = func(ctx context.Context) (failed error) {
			value, failed = fn(ctx)
			return failed
		}
	}
	q := request{Request: queue.Request{Wait: untilDone}}
	bad := apply(&q, opts)
	switch on := any(on).(type) {
	case *Lock:
		err = on.do(ctx, run, &q, bad)
	case *Semaphore:
		err = on.do(ctx, run, &q, bad)
	}
	return value, err
}

// leastPeriod is the shortest period of [Registry.Once]: Redis itself would take most of a shorter one.
const leastPeriod = 10 * time.Millisecond

// RetryOnError makes [Registry.Once] free the path when fn returned an error or panicked. Then the next call on any node runs the
// job, even in the same period. Default: a failed run counts like any other, and the next run is due in the next period.
func RetryOnError() OnceOption { return onceOption{option{kind: isRetryOnError}} }

// Once runs a job on one of several nodes. Every node calls it once each period. It calls fn except in two cases: another call is
// running the job, or the last run began less than nine tenths of the period ago. It never waits for the lock. Path names the
// job. Every is the period, at least 10 ms.
//
//	ran, err := registry.Once(ctx, "report", time.Hour, report)
//
// Ran reports whether fn was called. False without an error means that another call is running the job, or has run it in this
// period. Fn gets the context of [Hold.Context]: it ends, with the cause [ErrLockLost], as soon as the lock can no longer be
// guaranteed.
//
// # Details
//
// The path's lock marks the run, and keeps other calls out. It is renewed while fn runs. After fn it stays until nine tenths of
// the period have passed since it was obtained, see [AtLeast]. So the clocks of the nodes may differ by almost that much. A node
// that comes later than that does not skip the next run. If fn takes longer, the path is free when fn returns.
//
// The lock stays when ctx is done and, without [RetryOnError], even when fn fails or panics. After a crash or a loss, only the
// lease keeps other calls out, see [Lease]. The lease may end before the period does, or after it. A call of Once within fn for
// the same path returns false without an error.
//
// ShedLock calls those nine tenths lockAtLeastFor. Unlike ShedLock's lockAtMostFor, the lease counts only after a crash: while fn
// hangs, no node runs the job. So give ctx a timeout.
//
// # Errors
//
// If fn ran, the error is fn's, joined with the error of the release:
//
//   - [ErrLockLost]: another node may have run the job at the same time.
//   - [ErrUnavailable]: it is not known whether the path stays taken.
//   - Another error of Redis.
//
// If fn did not run, the error is one of [Lock.Acquire], except [ErrTaken]:
//
//   - [ErrUnavailable]: it is not known whether the job runs.
//   - [ErrDeadlock]: ctx carries another hold on the path, from [Hold.Context], [Registry.Do] or [Lock.Context].
//   - Bad input, such as a period that is too short.
func (r *Registry) Once(
	ctx context.Context, path string, every time.Duration, fn func(context.Context) error, opts ...OnceOption,
) (ran bool, err error) {
	l := r.Obtain(path)
	q := request{Request: queue.Request{Wait: notAtAll}}
	q.By, q.Terms.AtLeast = owner.NewOnce(), every-every/10
	err = fault.Join(
		invalid(fn == nil, "the function is nil"),
		invalid(every < leastPeriod, "every(%v): the period must be at least %v", every, leastPeriod),
		apply(&q, opts),
	)
	if err != nil {
		return false, l.fail("once", err)
	}
	h, err := l.acquireAs(ctx, "once", &q, nil)
	if h == nil {
		return false, err
	}
	failed := true // fn may panic
	defer h.releaseAfter(ctx, &err)
	defer func() {
		if failed && q.retries {
			h.hold.Unkeep()
		}
	}()
	err = fn(h.within(ctx, q.in))
	failed = err != nil
	return true, err
}
