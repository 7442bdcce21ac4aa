package lockregistry

import (
	"context"

	"github.com/lockregistry/lockregistry/internal/seam"
)

// What package leader and lockreg need, and tests of other modules.
func init() { //nolint:gochecknoinits // other packages cannot import these names
	seam.Lockregistry.Leads = lockOption{option{kind: isLeads}}
	seam.Lockregistry.Unlogged = acquireOption{option{kind: isUnlogged}}
	seam.Lockregistry.CheckOption = func(o any) error { return apply(new(request), []any{o}) }
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
	seam.Lockregistry.InRegistry = func(registry any) seam.InRegistry {
		r, _ := registry.(*Registry)
		return seam.InRegistry{
			Cached: r.cache.Len, Calls: func() int { return len(r.permits.all()) },
			Drain: &r.drain, Gone: r.background.Gone, Replicas: r.queues.Replicas, Stall: r.background.Stall,
		}
	}
	seam.Lockregistry.InLock = func(lock any) seam.InLock {
		l, _ := lock.(*Lock)
		return seam.InLock{Half: l.half(), Held: &l.hold, Handoff: l.reg.handoff, Unpin: l.unpin}
	}
}
