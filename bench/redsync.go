package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// redsyncPeer waits as redsync does by default, 50 to 250 ms between tries, but never gives up: its default of 32 tries
// would fail under the contention that is measured here.
var (
	redsyncPeer = contender{
		name:     "redsync",
		role:     rival,
		settings: "go-redis v9 pool with default options; retry delay at its default of 50 to 250 ms, tries without end",
		poll:     250 * time.Millisecond,
		open: func(o opening) (locks, error) {
			return openRedsync(o), nil
		},
	}
	redsyncEagerPeer = contender{
		name:      "redsync, 1 ms",
		role:      rival,
		settings:  fmt.Sprintf("as redsync, but with a retry delay of %v", eagerRetry),
		contended: true,
		poll:      eagerRetry,
		open: func(o opening) (locks, error) {
			return openRedsync(o, redsync.WithRetryDelay(eagerRetry)), nil
		},
	}
)

type redsyncLocks struct {
	client  redis.UniversalClient
	redsync *redsync.Redsync
	options []redsync.Option
}

func openRedsync(o opening, options ...redsync.Option) redsyncLocks {
	client := o.goRedis()
	lease := o.lease
	if lease == 0 {
		lease = defaultLease
	}
	options = append(options, redsync.WithTries(math.MaxInt), redsync.WithExpiry(lease))
	return redsyncLocks{client: client, redsync: redsync.New(goredis.NewPool(client)), options: options}
}

func (l redsyncLocks) session(path string) session {
	return redsyncSession{l.redsync.NewMutex(l.key(path), l.options...)}
}

func (l redsyncLocks) key(path string) string { return "redsync:" + path }

func (l redsyncLocks) close() { _ = l.client.Close() }

type redsyncSession struct{ mutex *redsync.Mutex }

func (s redsyncSession) lock(ctx context.Context) error { return s.mutex.LockContext(ctx) }

func (s redsyncSession) unlock(ctx context.Context) error {
	ok, err := s.mutex.UnlockContext(ctx)
	if err == nil && !ok {
		err = redsync.ErrLockAlreadyExpired
	}
	return err
}

func (s redsyncSession) renew(ctx context.Context) error {
	_, err := s.mutex.ExtendContext(ctx)
	return err
}
