package lockregistry

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/rueidis"
)

// springLayout keeps a lock as Spring Integration's RedisLockRegistry does: a string whose value names the holder, and
// whose expiry is the lease. Spring compares the value only with its registry's own id, so it may carry more than that.
type springLayout struct {
	client rueidis.Client
	remove *remover
	log    *slog.Logger
}

var (
	springObtain  = load("spring_obtain")
	springRelease = load("spring_release")
	springRenew   = load("spring_renew")
)

func newSpringLayout(client rueidis.Client, log *slog.Logger) layout {
	return &springLayout{client: client, remove: removerOf(client), log: log}
}

func (s *springLayout) obtain(ctx context.Context, key, value string, l lease, first bool) (bool, time.Duration, error) {
	if first {
		// Most locks are free. SET NX takes such a lock with less work for the server than a script, and changes nothing
		// when the key is there.
		set := s.client.B().Arbitrary("SET").Keys(key).Args(value, "NX", "PX", l.ms).Build()
		err := s.client.Do(ctx, set).Error()
		if !rueidis.IsRedisNil(err) {
			return err == nil, 0, err
		}
	}
	left, err := call{springObtain, key, arguments{value, l.ms}}.do(ctx, s.client).AsInt64()
	if rueidis.IsRedisNil(err) {
		return true, 0, nil
	}
	return false, time.Duration(left) * time.Millisecond, err
}

func (s *springLayout) release(ctx context.Context, key, value string) call {
	return call{springRelease, key, arguments{value, s.remove.removal(ctx, s.client, s.log)}}
}

func (s *springLayout) renew(key, value string, l lease) call {
	return call{springRenew, key, arguments{value, l.ms}}
}

func (s *springLayout) close() { s.remove.dismiss(s.client) }
