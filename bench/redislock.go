package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// redislockPeer has no default way to wait; the 100 ms are from its README.
var (
	redislockPeer = contender{
		name:     "redislock",
		role:     rival,
		settings: "go-redis v9 client with default options; LinearBackoff(100 ms), as in its README",
		poll:     100 * time.Millisecond,
		several:  true,
		open: func(o opening) (locks, error) {
			return openRedislock(o, 100*time.Millisecond), nil
		},
	}
	redislockEagerPeer = contender{
		name:      "redislock, 1 ms",
		role:      rival,
		settings:  fmt.Sprintf("as redislock, but with LinearBackoff(%v)", eagerRetry),
		contended: true,
		poll:      eagerRetry,
		open: func(o opening) (locks, error) {
			return openRedislock(o, eagerRetry), nil
		},
	}
)

type redislockLocks struct {
	client  redis.UniversalClient
	locks   *redislock.Client
	lease   time.Duration
	opts    *redislock.Options
	several int // paths of each session; 0: one
}

func openRedislock(o opening, retry time.Duration) redislockLocks {
	client := o.goRedis()
	lease := o.lease
	if lease == 0 {
		lease = defaultLease
	}
	return redislockLocks{
		client: client, locks: redislock.New(client), lease: lease,
		opts: &redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)}, several: o.several,
	}
}

func (l redislockLocks) session(path string) session {
	if l.several > 0 {
		return &redislockSeveral{l: l, keys: pathsBelow(l.key(path), l.several)}
	}
	return &redislockSession{l: l, key: l.key(path)}
}

func (l redislockLocks) key(path string) string { return "redislock:" + path }

func (l redislockLocks) close() { _ = l.client.Close() }

type redislockSession struct {
	l    redislockLocks
	key  string
	hold *redislock.Lock
}

// lock continues where redislock gives up: after one lease if ctx has no deadline.
func (s *redislockSession) lock(ctx context.Context) (err error) {
	for {
		s.hold, err = s.l.locks.Obtain(ctx, s.key, s.l.lease, s.l.opts)
		if errors.Is(err, redislock.ErrNotObtained) || (errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil) {
			continue
		}
		return err
	}
}

func (s *redislockSession) unlock(ctx context.Context) error { return s.hold.Release(ctx) }

func (s *redislockSession) renew(ctx context.Context) error {
	return s.hold.Refresh(ctx, s.l.lease, nil)
}
