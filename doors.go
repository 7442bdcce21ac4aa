package lockregistry

import (
	"context"

	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/seam"
)

// init gives packages leader and inspect, lockreg, and tests of other modules what they need of this package.
func init() { //nolint:gochecknoinits // other packages cannot import these names
	seam.Lockregistry.Leads = lockOption{option{kind: isLeads}}
	seam.Lockregistry.Unlogged = acquireOption{option{kind: isUnlogged}}
	seam.Lockregistry.Unkeep = func(hold any) {
		h, _ := hold.(*Hold)
		h.hold.Unkeep()
	}
	seam.Lockregistry.CheckOption = func(o any) error { return apply(new(request), []any{o}) }
	seam.Lockregistry.Unchanged = Option(func(*settings) {})
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
	seam.Lockregistry.Parts = func(registry any) seam.Parts {
		r, _ := registry.(*Registry)
		return seam.Parts{
			Reader: &r.reader, Detector: r.record.detector, Formats: r.formats, Layout: r.layout.name,
			Values: r.queues.Values, Label: r.record.label, Log: r.reports.dispatch.Log, Own: r.record.of, Held: r.held,
		}
	}
	seam.Lockregistry.Deadlock = deadlockOf
	seam.Lockregistry.InRegistry = func(registry any) seam.InRegistry {
		r, _ := registry.(*Registry)
		return seam.InRegistry{
			Cached: r.cache.Len, Calls: func() int { return len(r.permits.All()) },
			Drain: &r.drain, Orphans: r.background.Orphans, Replicas: r.queues.Replicas, Stall: r.background.Stall,
			Sleep: r.transport.Clock.Sleep,
		}
	}
	seam.Lockregistry.InLock = func(lock any) seam.InLock {
		l, _ := lock.(*Lock)
		return seam.InLock{Key: l.redis.Key, Half: l.half(), Held: &l.hold, Handoff: l.reg.handoff, Unpin: l.unpin}
	}
}

// held returns this registry's holds on a path, of any kind of lock, by their names in Redis.
func (r *Registry) held(path string) map[string]*hold.Hold {
	all := map[string]*hold.Hold{}
	for l := range r.locksOf(path) {
		if h := l.hold.Load(); h != nil {
			all[l.holderOf(h)] = h
		}
	}
	return all
}

// holderOf returns the name of a hold of the lock in Redis.
func (l *Lock) holderOf(h *hold.Hold) string {
	if l.writes() {
		return h.Value() + ":write"
	}
	return h.Value()
}
