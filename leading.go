package lockregistry

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/seam"
)

// What package leader and lockreg need, and tests of other modules.
func init() { //nolint:gochecknoinits // it sets what other packages cannot import
	seam.Lockregistry.Leads = LockOption{"Leads", 1, func(q *request, _ time.Duration) { q.leads = true }}
	seam.Lockregistry.Quiet = LockOption{"Quiet", 1, func(q *request, _ time.Duration) { q.quiet = true }}
	seam.Lockregistry.Wakeup = func(how string) any {
		if m, known := wakeups[how]; known {
			return withWakeup(m)
		}
		return nil
	}
	seam.Lockregistry.Lockable = func(registry any, path string) error {
		r, _ := registry.(*Registry)
		return r.newLock(path).check(context.Background())
	}
	seam.Lockregistry.Holder = func(ctx context.Context, registry any, path, op string) (string, error) {
		r, _ := registry.(*Registry)
		return r.holder(ctx, path, op)
	}
}

// holder returns the holder of the plain lock of path, as it is in Redis, or nothing.
func (r *Registry) holder(ctx context.Context, path, op string) (string, error) {
	l := r.newLock(path) // for its key; it need not be the path's lock of today
	err := l.check(ctx)
	if err == nil {
		var name string
		if name, err = r.look(ctx, l); err == nil {
			return name, nil
		}
	}
	return "", l.fail(op, err)
}

func (r *Registry) look(ctx context.Context, l *Lock) (name string, err error) {
	if err = l.reg.queues.Stopped(ctx); err != nil {
		return "", err
	}
	p := r.queues.CommandWait(ctx, l.shard())
	p.Lease = r.lease.Length
	c := r.plain.Format.Holder(l.redis.Key)
	reply := r.transport.Do(&p, &c)
	if reply.Late { // a master that is none any more may have answered
		reply = r.transport.Do(&p, &c)
	}
	name, err = reply.ToString()
	switch {
	case reply.Cut:
		return "", fault.Explain(fault.Ended(ctx), fault.AsUnavailable(fault.NoAnswer))
	case rueidis.IsRedisNil(err):
		return "", nil
	default:
		return name, fault.Classify(err)
	}
}
