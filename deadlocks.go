package lockregistry

import (
	"context"
	"iter"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/inspect"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/observe"
)

// Deadlocks returns the cycles of calls that wait for each other, in all processes that have registries with this prefix. It
// reads the records that the registries keep in Redis, so it finds a call once it has waited for one to two seconds. When the
// first look shows a cycle, it looks again half a second later.
//
// It sees no calls of Java or of older versions of this package, and no paths of other prefixes. Cycles within one process, see
// [ErrDeadlock], are included while they last. [observe.Observer] has a function that is called for cycles that a registry is
// in.
//
// It uses SCAN, takes as long as [Registry.Locks], and returns the same errors.
func (r *Registry) Deadlocks(ctx context.Context) (all []observe.Deadlock, err error) {
	var found []detector.Cycle
	if err = errNilContext; ctx != nil {
		found, err = r.others.presence.detector.All(ctx)
	}
	if err != nil {
		return nil, &LockError{Op: "deadlocks", Key: r.prefix + ":*", Err: r.transport.Farthest().Unsupported(err)}
	}
	for _, cycle := range found {
		all = append(all, deadlockOf(cycle))
	}
	return all, nil
}

func deadlockOf(cycle detector.Cycle) (d observe.Deadlock) {
	for _, w := range cycle {
		d.Waits = append(d.Waits, observe.DeadlockWait{
			Path: w.Path, Kind: observe.Kind(w.Kind), Owner: w.Owner, Holds: w.Holds,
			Label: observe.Label(w.From), Since: protocol.Time(w.Since),
		})
	}
	return d
}

// detecting is a registry as package detector sees it.
type detecting struct {
	*inspect.Reader

	reg *Registry
}

// Mine reports whether a call is for a lock of the registry.
func (d detecting) Mine(c *deadlock.Call) bool { return lockOf(c.Lock).reg == d.reg }

// Subject says what a call waits for.
func (d detecting) Subject(c *deadlock.Call) (path, kind string) {
	s := lockOf(c.Lock).subject()
	return s.Path, string(s.Kind)
}

// Held iterates over the locks that owners of this process hold.
func (d detecting) Held() iter.Seq[detector.Held] {
	return func(yield func(detector.Held) bool) {
		for l := range d.reg.cache.all() {
			if l.anchor().entry.Pins() <= 0 {
				continue
			}
			for _, o := range l.half().Owners() {
				if !yield(detector.Held{Path: l.path(), Lock: waited{l}, Owner: o}) {
					return
				}
			}
		}
	}
}

// Report reports a cycle to the log and the observer.
func (d detecting) Report(c detector.Cycle) { d.reg.tellDeadlock(deadlockOf(c)) }
