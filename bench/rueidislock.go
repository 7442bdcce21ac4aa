package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// rueidislockPeer is configured for what is measured, one Redis node of version 7: a majority of one key instead of the default
// of three keys, which triple its work, and NOLOOP, which its documentation recommends for speed. Where there are waiters
// NOLOOP stays off: with it and several goroutines on one path, now and then one of them is never woken. TryNextAfter, which is
// for giving up on one of several keys, is set to a long time: with one key, giving up after the default 20 ms on a busy
// machine means waiting for a notification that never comes.
var rueidislockPeer = contender{
	name:     "rueidislock",
	role:     rival,
	settings: "KeyMajority 1, TryNextAfter 5 s, NoLoopTracking where nobody waits; otherwise defaults (it renews every held lock)",
	renews:   true,
	open: func(o opening) (locks, error) {
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: []string{o.addr}, DialCtxFn: dialFrom(o.away)},
			KeyMajority:    1,
			NoLoopTracking: !o.queues && !o.listens,
			TryNextAfter:   5 * time.Second,
			KeyValidity:    o.lease,
		})
		if err != nil {
			return nil, err
		}
		return rueidislockLocks{locker}, nil
	},
}

type rueidislockLocks struct{ locker rueidislock.Locker }

func (l rueidislockLocks) session(path string) session {
	return &rueidislockSession{locker: l.locker, path: path}
}

func (l rueidislockLocks) key(path string) string { return "rueidislock:0:" + path }

func (l rueidislockLocks) close() { l.locker.Close() }

type rueidislockSession struct {
	locker rueidislock.Locker
	path   string
	hold   context.Context
	cancel context.CancelFunc
}

func (s *rueidislockSession) lock(ctx context.Context) (err error) {
	s.hold, s.cancel, err = s.locker.WithContext(ctx, s.path)
	return err
}

// unlock returns when the key is gone: rueidislock's cancel waits for that.
func (s *rueidislockSession) unlock(context.Context) error {
	lost := s.hold.Err()
	s.cancel()
	return lost
}
