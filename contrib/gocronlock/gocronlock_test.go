package gocronlock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/gocronlock"
	"github.com/lockregistry/lockregistry/locktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newScheduler(t *testing.T, opts ...gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(opts...)
	require.NoError(t, err)
	return s
}

// tally counts runs by the minute in which they began.
type tally struct {
	mu   sync.Mutex
	runs map[time.Time]int
}

func (c *tally) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		c.runs = map[time.Time]int{}
	}
	c.runs[time.Now().Truncate(time.Minute)]++
}

// once checks that there was one run in each minute.
func (c *tally) once(t *testing.T, minutes int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Len(t, c.runs, minutes)
	for minute, n := range c.runs {
		require.Equal(t, 1, n, minute)
	}
}

// The clocks of the nodes differ by a second, the jobs take no time, and each tick has one run.
func TestOneOfTwoSchedulersRunsAJob(t *testing.T) {
	const minutes = 20
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New(t)
		var runs tally
		var skipped atomic.Int32
		begin := time.Now().Truncate(time.Minute).Add(time.Minute)
		for node, r := range []*locktest.Registry{locks, locks.Peer()} {
			locker := gocronlock.NewLocker(r.Registry, lockregistry.AtLeast(54*time.Second))
			s := newScheduler(t, gocron.WithDistributedLocker(locker))
			_, err := s.NewJob(
				gocron.DurationJob(time.Minute), gocron.NewTask(runs.run), gocron.WithName("report"),
				gocron.WithStartAt(gocron.WithStartDateTime(begin.Add(time.Duration(node)*time.Second))),
				gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, name string, err error) {
					if name != "report" || !errors.Is(err, lockregistry.ErrTaken) {
						t.Error(name, err)
					}
					skipped.Add(1)
				})),
			)
			require.NoError(t, err)
			s.Start()
			defer func() { require.NoError(t, s.Shutdown()) }()
		}
		<-time.After(time.Until(begin.Add(minutes*time.Minute - 10*time.Second)))
		runs.once(t, minutes)
		require.EqualValues(t, minutes, skipped.Load())
	})
}

// Nodes whose schedulers start at different times run a job once in each period, if AtLeast is nine tenths of it.
func TestSchedulersThatStartApart(t *testing.T) {
	const hours = 4
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New(t)
		var runs atomic.Int32
		for _, r := range []*locktest.Registry{locks, locks.Peer(), locks.Peer()} {
			s := newScheduler(t)
			_, err := s.NewJob(
				gocron.DurationJob(time.Hour), gocron.NewTask(func() { runs.Add(1) }), gocron.WithName("report"),
				gocron.WithDistributedJobLocker(gocronlock.NewLocker(r.Registry, lockregistry.AtLeast(54*time.Minute))),
			)
			require.NoError(t, err)
			s.Start()
			defer func() { require.NoError(t, s.Shutdown()) }()
			<-time.After(7 * time.Minute)
		}
		<-time.After(hours * time.Hour)
		require.EqualValues(t, hours, runs.Load())
	})
}

// Without AtLeast the clocks may differ by half a second.
func TestTheDefaultOfAtLeast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New(t)
		one, other := gocronlock.NewLocker(locks.Registry), gocronlock.NewLocker(locks.Peer().Registry)
		lock, err := one.Lock(t.Context(), "report")
		require.NoError(t, err)
		require.NoError(t, lock.Unlock(t.Context()))
		<-time.After(498 * time.Millisecond)
		_, err = other.Lock(t.Context(), "report")
		require.ErrorIs(t, err, lockregistry.ErrTaken)
		<-time.After(4 * time.Millisecond)
		lock, err = other.Lock(t.Context(), "report")
		require.NoError(t, err)
		require.NoError(t, lock.Unlock(t.Context()))
	})
}

// The lock is released after a shutdown that has ended the job's context. In real time: gocron's shutdown spins.
func TestUnlockingAfterAShutdown(t *testing.T) {
	locks := locktest.New(t)
	locker := gocronlock.NewLocker(locks.Registry, lockregistry.AtLeast(time.Millisecond)).
		OnUnlockError(func(key string, err error) { t.Error(key, err) })
	s := newScheduler(t)
	running := make(chan context.Context)
	_, err := s.NewJob(
		gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()),
		gocron.NewTask(func(ctx context.Context) {
			running <- ctx
			<-ctx.Done()
		}),
		gocron.WithName("report"), gocron.WithDistributedJobLocker(locker),
	)
	require.NoError(t, err)
	s.Start()
	ctx := <-running
	require.True(t, locks.Obtain("report").IsHeld())
	require.NoError(t, s.Shutdown())
	require.Error(t, ctx.Err())
	hold, err := locks.Peer().Acquire(t.Context(), "report", lockregistry.Wait(20*time.Second))
	require.NoError(t, err)
	require.NoError(t, hold.Release(t.Context()))
}

// Even when the context is done and Redis is slow, the release waits for as long as any other.
func TestUnlockWithAContextThatIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New(t)
		var told []error
		locker := gocronlock.NewLocker(locks.Registry).OnUnlockError(func(key string, err error) {
			require.Equal(t, "report", key)
			told = append(told, err)
		})
		ctx, cancel := context.WithCancel(t.Context())
		lock, err := locker.Lock(ctx, "report")
		require.NoError(t, err)
		cancel()
		require.NoError(t, lock.Unlock(ctx))
		require.Empty(t, told)
		<-time.After(time.Second)

		lock, err = locker.Lock(t.Context(), "report")
		require.NoError(t, err)
		locks.Hang()
		began := time.Now()
		require.ErrorIs(t, lock.Unlock(ctx), lockregistry.ErrUnavailable)
		require.Equal(t, time.Second, time.Since(began))
		require.Len(t, told, 1)
		require.ErrorIs(t, told[0], lockregistry.ErrUnavailable)
		locks.Reconnect()
		<-time.After(time.Minute)

		lock, err = locker.Lock(t.Context(), "report")
		require.NoError(t, err)
		locks.Lose("report")
		require.ErrorIs(t, lock.Unlock(ctx), lockregistry.ErrLockLost)
		require.Len(t, told, 2)
		require.ErrorIs(t, told[1], lockregistry.ErrLockLost)
		require.ErrorIs(t, lock.Unlock(ctx), lockregistry.ErrNotOwner)
		locker.OnUnlockError(nil)
		require.ErrorIs(t, lock.Unlock(ctx), lockregistry.ErrNotOwner)
		require.Len(t, told, 3)
	})
}

// What keeps a job from running is reported, and what says that another node runs it is not.
func TestOnLockError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New(t)
		var told []error
		tell := func(key string, err error) {
			require.Equal(t, "report", key)
			told = append(told, err)
		}
		locker := gocronlock.NewLocker(locks.Registry).OnLockError(tell)
		lock, err := locker.Lock(t.Context(), "report")
		require.NoError(t, err)
		_, err = locker.Lock(t.Context(), "report")
		require.ErrorIs(t, err, lockregistry.ErrTaken)
		require.NoError(t, lock.Unlock(t.Context()))
		<-time.After(time.Second)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = locker.Lock(ended, "report")
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, told)

		tooShort := lockregistry.AtMost(time.Minute)
		wrong := gocronlock.NewLocker(locks.Registry, lockregistry.AtLeast(time.Hour), tooShort).OnLockError(tell)
		_, err = wrong.Lock(t.Context(), "report")
		require.Equal(t, []error{err}, told)
		_, err = wrong.OnLockError(nil).Lock(t.Context(), "report")
		require.Error(t, err)
		locks.Hang()
		_, err = locker.Lock(t.Context(), "report")
		require.ErrorIs(t, err, lockregistry.ErrUnavailable)
		require.Len(t, told, 2)
		require.Equal(t, err, told[1])
		locks.Reconnect()
		<-time.After(time.Minute)
		require.NoError(t, locks.Close())
		_, err = locker.Lock(t.Context(), "report")
		require.ErrorIs(t, err, lockregistry.ErrClosed)
		require.Len(t, told, 2)
	})
}

// Without callbacks, errors of both kinds are logged.
func TestTheLog(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	locks := locktest.New(t)
	_, err := gocronlock.NewLocker(locks.Registry, lockregistry.AtLeast(-time.Second)).Lock(t.Context(), "report")
	require.Error(t, err)
	require.Contains(t, log.String(), "a run of a job was skipped on this node: its lock could not be taken\" job=report error=")
	log.Reset()
	lock, err := gocronlock.NewLocker(locks.Registry).Lock(t.Context(), "report")
	require.NoError(t, err)
	require.NoError(t, lock.Unlock(t.Context()))
	require.Empty(t, log.String())
	require.Error(t, lock.Unlock(t.Context()))
	require.Contains(t, log.String(), "the lock of a job was not released in order\" job=report error=")
}

func TestLockerWithBadInput(t *testing.T) {
	locks := locktest.New(t)
	for says, locker := range map[string]*gocronlock.Locker{
		"the registry is nil": gocronlock.NewLocker(nil),
		"NoWait and Wait":     gocronlock.NewLocker(locks.Registry, lockregistry.Wait(time.Second)),
		"AtLeast(-1s)":        gocronlock.NewLocker(locks.Registry, lockregistry.AtLeast(-time.Second)),
	} {
		_, err := locker.Lock(t.Context(), "report")
		require.ErrorContains(t, err, says)
	}
	_, err := gocronlock.NewLocker(locks.Registry).Lock(t.Context(), "")
	require.ErrorContains(t, err, "the path is empty")
	_, err = gocronlock.NewElector(nil, "", lockregistry.Lease(-1))
	require.ErrorContains(t, err, "gocronlock: elector: leader: new: the registry is nil; the role is empty; Lease(-1ns)")
}

// One node runs all jobs; when it ends, the other one does from the next tick on.
func TestTheLeaderRunsTheJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New(t)
		type node struct {
			elector   *gocronlock.Elector
			scheduler gocron.Scheduler
			stop      context.CancelFunc
			done      chan error
			runs      atomic.Int32
		}
		var all tally
		nodes := make([]*node, 2)
		begin := time.Now().Truncate(time.Minute).Add(time.Minute)
		for i, r := range []*locktest.Registry{locks, locks.Peer()} {
			n := &node{done: make(chan error, 1)}
			var err error
			n.elector, err = gocronlock.NewElector(r.Registry, "jobs")
			require.NoError(t, err)
			require.Equal(t, gocronlock.ErrNotLeader, n.elector.IsLeader(t.Context()))
			var ctx context.Context
			ctx, n.stop = context.WithCancel(t.Context())
			go func() { n.done <- n.elector.Run(ctx) }()
			synctest.Wait()
			n.scheduler = newScheduler(t, gocron.WithDistributedElector(n.elector))
			_, err = n.scheduler.NewJob(
				gocron.DurationJob(time.Minute), gocron.NewTask(func() { n.runs.Add(1); all.run() }),
				gocron.WithStartAt(gocron.WithStartDateTime(begin.Add(time.Duration(i)*time.Second))),
			)
			require.NoError(t, err)
			n.scheduler.Start()
			nodes[i] = n
		}
		<-time.After(time.Until(begin.Add(5*time.Minute - 10*time.Second)))
		require.EqualValues(t, 5, nodes[0].runs.Load())
		require.NoError(t, nodes[0].scheduler.Shutdown())
		nodes[0].stop()
		require.ErrorIs(t, <-nodes[0].done, context.Canceled)
		require.Equal(t, gocronlock.ErrNotLeader, nodes[0].elector.IsLeader(t.Context()))
		<-time.After(5 * time.Minute)
		require.EqualValues(t, 5, nodes[1].runs.Load())
		all.once(t, 10)
		require.NoError(t, nodes[1].elector.IsLeader(t.Context()))
		nodes[1].elector.Yield()
		synctest.Wait()
		require.NoError(t, nodes[1].scheduler.Shutdown())
		nodes[1].stop()
		require.ErrorIs(t, <-nodes[1].done, context.Canceled)
	})
}

// A shutdown that has waited for long enough leaves jobs running. No other node must lead before they have ended. In real time:
// gocron's shutdown spins.
func TestAShutdownThatLeavesAJobRunning(t *testing.T) {
	locks := locktest.New(t)
	var electors []*gocronlock.Elector
	var stops []func()
	for _, r := range []*locktest.Registry{locks, locks.Peer()} {
		e, err := gocronlock.NewElector(r.Registry, "jobs")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		stops = append(stops, func() {
			cancel()
			require.ErrorIs(t, <-done, context.Canceled)
		})
		electors = append(electors, e)
		if len(electors) == 1 {
			require.Eventually(t, func() bool { return e.IsLeader(t.Context()) == nil }, 20*time.Second, time.Millisecond)
		}
	}
	s := newScheduler(t, gocron.WithDistributedElector(electors[0]), gocron.WithStopTimeout(50*time.Millisecond))
	running, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	_, err := s.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()), gocron.NewTask(func() {
		close(running)
		<-end
		close(ended)
	}))
	require.NoError(t, err)
	s.Start()
	<-running
	require.ErrorIs(t, s.Shutdown(), gocron.ErrStopJobsTimedOut)
	select {
	case <-ended:
		require.Fail(t, "the job still runs")
	default:
	}
	require.NoError(t, electors[0].IsLeader(t.Context()), "no other node runs jobs meanwhile")
	require.Equal(t, gocronlock.ErrNotLeader, electors[1].IsLeader(t.Context()))
	close(end)
	<-ended
	for _, stop := range stops {
		stop()
	}
}

// The answer comes from this process's clock, also while Redis does not answer.
func TestIsLeaderDoesNotAskRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := locktest.New(t)
		e, err := gocronlock.NewElector(locks.Registry, "jobs", lockregistry.Lease(10*time.Second))
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- e.Run(ctx) }()
		synctest.Wait()
		locks.Hang()
		began := time.Now()
		require.NoError(t, e.IsLeader(ctx))
		require.Zero(t, time.Since(began))
		<-time.After(10 * time.Second)
		began = time.Now()
		require.Equal(t, gocronlock.ErrNotLeader, e.IsLeader(ctx))
		require.Zero(t, time.Since(began))
		cancel()
		require.Error(t, <-done)
		locks.Reconnect()
	})
}

// A run that was lost, and whose unlock has yet to come, does not keep the next one of its node out.
func TestLocker_LostRunIsNotInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locker := gocronlock.NewLocker(locktest.New(t).Registry, lockregistry.AtMost(time.Second))
		first, err := locker.Lock(t.Context(), "report")
		require.NoError(t, err)
		<-time.After(time.Minute)
		second, err := locker.Lock(t.Context(), "report")
		require.NoError(t, err)
		require.NoError(t, second.Unlock(t.Context()))
		require.ErrorIs(t, first.Unlock(t.Context()), lockregistry.ErrLockLost)
	})
}
