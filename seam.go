package lockregistry

import (
	"context"
	"time"

	"github.com/lockregistry/lockregistry/internal/seam"
)

// What package leader and lockreg need, and tests of other modules.
func init() { //nolint:gochecknoinits // other packages cannot import these names
	seam.Lockregistry.Leads = LockOption{"Leads", 1, func(q *request, _ time.Duration) { q.leads = true }}
	seam.Lockregistry.Unlogged = LockOption{"Unlogged", 1, func(q *request, _ time.Duration) { q.unlogged = true }}
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

// holder returns the holder of the plain lock of path as named in Redis; empty if there is none.
func (r *Registry) holder(ctx context.Context, path, op string) (string, error) {
	l := r.newLock(path) // for its key; not the cached lock of the path
	err := l.check(ctx)
	if err == nil {
		var name string
		if name, err = r.others.reader.Holder(ctx, r.plain.Format.Holder(l.redis.Key), r.lease.Length); err == nil {
			return name, nil
		}
	}
	return "", l.fail(op, err)
}
