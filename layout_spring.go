package lockregistry

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

// springLayout keeps a lock as Spring Integration's RedisLockRegistry does: a string whose value names the holder, and
// whose expiry is the lease. Spring compares the value only with its registry's own id, so it may carry more than that.
//
// Its channels are those of PUB_SUB_LOCK: one per key, "<prefix>-channel:<key>", and, before Spring Integration 6.4.8,
// 6.5.3 and 7.0.0, a single one, "<prefix>-channel". The message is the key on both.
type springLayout struct {
	client     rueidis.Client
	remove     *remover
	journal    *journal
	common     string // the single channel
	publish    string // what channels begin with when releases are published, else empty
	publishOld string // the single channel when releases are published there too, else empty
}

var (
	springObtain  = load("spring_obtain")
	springRelease = load("spring_release")
	springRenew   = load("spring_renew")
)

func newSpringLayout(client rueidis.Client, prefix string, s *settings, j *journal) layout {
	l := &springLayout{client: client, remove: removerOf(client), journal: j, common: prefix + "-channel"}
	if s.wakeup.publishes() {
		l.publish = l.common + ":"
		if s.oldChannel {
			l.publishOld = l.common
		}
	}
	return l
}

func (s *springLayout) obtain(ctx context.Context, b bid, quick bool) (bool, time.Duration, error) {
	if quick {
		// Most locks are free. SET NX takes such a lock with less work for the server than a script, and changes nothing
		// when the key is there.
		set := s.client.B().Arbitrary("SET").Keys(b.key).Args(b.value, "NX", "PX", b.lease.ms).Build()
		err := s.client.Do(ctx, set).Error()
		if rueidis.IsRedisNil(err) {
			return false, 0, nil
		}
		return err == nil, 0, err
	}
	left, err := call{springObtain, b.key, arguments{b.value, b.lease.ms}}.do(ctx, s.client).AsInt64()
	if rueidis.IsRedisNil(err) {
		return true, 0, nil
	}
	if err != nil {
		return false, 0, err
	}
	return false, remaining(left), nil
}

func (s *springLayout) release(ctx context.Context, key, value string) call {
	removal := s.remove.removal(ctx, s.client, s.journal)
	if removal == "UNLINK" {
		removal = ""
	}
	return call{springRelease, key, arguments{value, s.publish, s.publishOld, removal}}
}

func (s *springLayout) renew(key, value string, l lease) call {
	return call{springRenew, key, arguments{value, l.ms}}
}

func (s *springLayout) channel(key string) string { return s.common + ":" + key }

func (s *springLayout) commonChannel() string { return s.common }

func (s *springLayout) close() { s.remove.dismiss(s.client) }
