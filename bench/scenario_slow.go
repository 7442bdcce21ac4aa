package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// callerPause is longer than this library trusts, after a reply, that the server is still there.
const callerPause = 15 * time.Millisecond

// slowCaller has one goroutine lock and unlock a path, with a pause before each lock.
func (s *suite) slowCaller() ([]*result, error) {
	rounds := either(s, 30, 10)
	opened, err := s.openAll(opening{}, func(c contender) bool { return !c.contended })
	if err != nil {
		return nil, err
	}
	defer closeAll(opened)
	sl := slice{
		goroutines: 1,
		length:     600 * time.Millisecond,
		paths:      pathNames(1),
		pick:       func(int, int) int { return 0 },
		settled:    true,
	}
	r := &result{
		scenario: "slow-caller", title: "One goroutine that locks every 15 ms", metrics: inOneProcess,
		how: fmt.Sprintf("%d rounds of %v for each contender, in shuffled order. The pauses do not count.", rounds, sl.length),
	}
	err = turns(s, rounds+1, opened, func(round int, c *open) error {
		ls := &pausingLocks{locks: c.locks}
		t, err := sl.run(s.ctx, ls, s.observer)
		if err != nil {
			return fmt.Errorf("%s with a slow caller: %w", c.name, err)
		}
		if round > 0 { // the first round warms up
			t.elapsed = time.Duration(ls.busy.Load())
			r.record(c.contender, t.values())
		}
		return nil
	})
	r.inOrder()
	return []*result{r}, err
}

// pausingLocks are a contender's locks, with a pause before each lock.
type pausingLocks struct {
	locks
	busy atomic.Int64 // nanoseconds spent in calls
}

func (l *pausingLocks) session(path string) session {
	return &pausingSession{of: l, session: l.locks.session(path)}
}

type pausingSession struct {
	session
	of *pausingLocks
}

func (s *pausingSession) lock(ctx context.Context) error {
	time.Sleep(callerPause)
	defer s.of.count(time.Now())
	return s.session.lock(ctx)
}

func (s *pausingSession) unlock(ctx context.Context) error {
	defer s.of.count(time.Now())
	return s.session.unlock(ctx)
}

func (l *pausingLocks) count(began time.Time) { l.busy.Add(int64(time.Since(began))) }
