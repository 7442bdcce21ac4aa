package lockregistry

import (
	"context"
	"time"
)

// FailFast has a call that waits return [ErrUnavailable] as soon as Redis cannot be asked, instead of trying again until its
// wait is over: at the first failure, when too few replicas have a hold, or once the server is silent. Silent it is half a
// second and two round trips after a command was sent to it, 6.5 s as long as the round trip is not known, and after the time
// of [WithCommandTimeout] at most. While the call waits for its turn, the server is asked twice a second whether it is there.
// A call that waits for another goroutine of this process fails with what that one meets, within a tenth of a second. A call
// that does not wait for the lock waits no longer for its reply than that, either. Default: a call with [Wait] tries again.
func FailFast() LockOption {
	return LockOption{"FailFast", 0, func(q *request, _ time.Duration) { q.failFast = true }}
}

// failEvery is how often a call that is to fail fast looks whether Redis can be asked, while it waits for the local half.
const failEvery = 100 * time.Millisecond

// failing returns a child of ctx that ends when Redis cannot be asked whether the lock is free. End ends it, and says why it
// had ended, if it was that.
func (l *Lock) failing(parent context.Context) (ctx context.Context, end func() error) {
	shard, asked := l.shard(), l.reg.clock.Now()
	shard.KeepAlive()
	ctx, fail := context.WithCancelCause(parent)
	go func() {
		look := time.NewTicker(failEvery)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
				if why := l.redis.Failing(asked); why != nil {
					fail(why)
				}
			}
		}
	}()
	return ctx, func() (why error) {
		shard.EndKeepAlive()
		if parent.Err() == nil {
			why = context.Cause(ctx)
		}
		fail(nil)
		return why
	}
}
