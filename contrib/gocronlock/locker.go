// Package gocronlock runs the jobs of [gocron] schedulers on one of several nodes, with the locks of a lock registry. With a
// [Locker], each run of a job may be on a different node. With an [Elector], one node runs all jobs until it stops.
//
//	locker := gocronlock.NewLocker(registry, lockregistry.AtLeast(54*time.Minute))
//	_, err = scheduler.NewJob(
//		gocron.DurationJob(time.Hour), gocron.NewTask(report),
//		gocron.WithName("report"), gocron.WithDistributedJobLocker(locker),
//	)
//
// At the end, shut down the scheduler, then call registry.Shutdown(ctx), then close its client. The scheduler's Shutdown
// waits for jobs, but at most for the time of [gocron.WithStopTimeout], 10 s by default. If it returns an error, jobs are still
// running under their locks: registry.Shutdown waits for them, and Close would not.
//
// [gocron]: https://github.com/go-co-op/gocron
package gocronlock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/lockregistry/lockregistry"
)

// defaultLeast is longer than the difference between clocks that NTP sets, and shorter than the period of most jobs.
const defaultLeast = 500 * time.Millisecond

// Locker is a [gocron.Locker], for [gocron.WithDistributedLocker] and [gocron.WithDistributedJobLocker]. Make it with
// [NewLocker]. It is safe for use by many goroutines, and for many jobs.
//
// The path of a job's lock is the job's name. Name your jobs: without [gocron.WithName], gocron uses the function's name.
type Locker struct {
	reg      *lockregistry.Registry
	opts     []lockregistry.LockOption
	locking  func(key string, err error)
	releases func(key string, err error)
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker makes a Locker that uses the locks of r. It takes the options of [lockregistry.Lock.Acquire] except Wait:
//
//   - [lockregistry.AtLeast] keeps a job's lock taken for some time, even if the job ends sooner. It must be longer than the
//     time between the nodes' ticks, or a short job runs on two nodes; and shorter than the job's period, or runs are skipped.
//     With [gocron.CronJob] nodes tick at the same time, but for the difference between their clocks. With [gocron.DurationJob]
//     each node counts from the start of its own scheduler. Nine tenths of the period is a good choice, with a locker for each
//     period. Default: 500 ms, which suits a CronJob with periods of a second or more, and no DurationJob.
//   - [lockregistry.Lease] sets the lease: how long a crash keeps the job from running. Default: the registry's lease.
//   - [lockregistry.AtMost] limits how long a hanging run keeps others out. Set it longer than any run: gocron cannot tell a job
//     that its lock was lost. It must not be less than AtLeast. Default: the lock is renewed for as long as the job runs.
//
// If gocron skips a run after it has the lock, because of BeforeJobRunsSkipIfBeforeFuncErrors, the run still counts: the job's
// lock stays for the time of AtLeast, and no other node runs the job in that time.
//
// NewLocker does not talk to Redis. Lock reports a nil registry or a bad option, which keeps all jobs from running; see
// [Locker.OnLockError].
func NewLocker(r *lockregistry.Registry, opts ...lockregistry.LockOption) *Locker {
	first := []lockregistry.LockOption{lockregistry.NoWait(), lockregistry.AtLeast(defaultLeast)} // the last one of a kind counts
	return &Locker{reg: r, opts: slices.Concat(first, opts), locking: logLocking, releases: logRelease}
}

// OnUnlockError sets a function that is called when releasing the lock after a run of the job key failed, since gocron ignores
// that error. Call OnUnlockError before the locker is used. Default: the error is logged to [slog.Default].
//
// Err is an error of [lockregistry.Hold.Release]. With [lockregistry.ErrLockLost], another node may have run the job at the same
// time. The scheduler's goroutine for the run calls f. So [gocron.Scheduler.Shutdown] waits for f as it waits for the job, but
// only for the time of [gocron.WithStopTimeout].
func (l *Locker) OnUnlockError(f func(key string, err error)) *Locker {
	l.releases = orNothing(f)
	return l
}

// OnLockError sets a function that is called when a run of the job key is skipped for another reason than that another node runs
// the job, or did: Redis could not be asked, or the locker can never lock, since an option or the job's name is wrong, or a
// permission is missing. Call OnLockError before the locker is used. Default: the error is logged to [slog.Default].
//
// Err is an error of [Locker.Lock], but neither [lockregistry.ErrTaken] nor one of a scheduler or registry that stops. The
// listener of [gocron.AfterLockError] gets all errors, if the job has one.
func (l *Locker) OnLockError(f func(key string, err error)) *Locker {
	l.locking = orNothing(f)
	return l
}

func orNothing(f func(key string, err error)) func(key string, err error) {
	if f == nil {
		return func(string, error) {}
	}
	return f
}

func logRelease(key string, err error) {
	slog.Warn("gocronlock: the lock of a job was not released in order", slog.String("job", key), slog.Any("error", err))
}

func logLocking(key string, err error) {
	slog.Warn("gocronlock: a run of a job was skipped on this node: its lock could not be taken",
		slog.String("job", key), slog.Any("error", err))
}

// Lock takes the lock of a job for one run, for gocron. It tries once. On an error, gocron skips the run and calls the listener
// of [gocron.AfterLockError].
//
// # Errors
//
// Lock returns the errors of [lockregistry.Lock.Acquire], for instance these:
//
//   - [lockregistry.ErrTaken]: another node runs the job, or did
//   - [lockregistry.ErrUnavailable]: Redis could not be asked
//   - an error for a nil registry
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	hold, err := l.acquire(ctx, key)
	if err != nil {
		if !errors.Is(err, lockregistry.ErrTaken) && !errors.Is(err, lockregistry.ErrClosed) && ctx.Err() == nil {
			l.locking(key, err)
		}
		return nil, err
	}
	return &lock{locker: l, key: key, hold: hold}, nil
}

func (l *Locker) acquire(ctx context.Context, key string) (*lockregistry.Hold, error) {
	if l.reg == nil {
		return nil, errors.New("gocronlock: lock: the registry is nil")
	}
	return l.reg.Acquire(ctx, key, l.opts...)
}

type lock struct {
	locker *Locker
	key    string
	hold   *lockregistry.Hold
}

// Unlock ends a run. It ignores the end of ctx, which a shutdown has cancelled. Gocron drops the error. Release takes a second
// at most.
func (l *lock) Unlock(ctx context.Context) error {
	err := l.hold.Release(context.WithoutCancel(ctx))
	if err != nil {
		l.locker.releases(l.key, err)
	}
	return err
}
