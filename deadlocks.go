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

// Deadlocks tells of cycles of calls that wait for each other, in all processes that have registries with this prefix. It
// finds them by what the registries write about themselves: so each call in a cycle has waited for one second at least, two
// most likely. It looks twice, half a second apart, when the first look shows any.
//
// It sees no call of Java, nor of an older version of this package, nor a path of another prefix. A cycle of a single process,
// see [ErrDeadlock], is among them while it lasts. [observe.Observer] has a function that is called for cycles that a
// registry is in.
//
// It uses SCAN as [Registry.Locks] does, and takes as long. The errors are those of Locks.
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

// detecting is what package detector sees of a registry.
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

// Held are the locks that owners of this process hold.
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

// Report tells the log and the observer of a cycle.
func (d detecting) Report(c detector.Cycle) { d.reg.tellDeadlock(deadlockOf(c)) }
