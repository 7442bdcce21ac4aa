// Package detector finds cycles of calls that wait for each other across processes. It knows neither locks nor how Redis is
// asked.
//
// What comes in: the records of registries, which say which of their calls wait, and what the owners of these calls hold; and who
// holds a path ([Peers]). What goes out: each [Cycle], to [Registry.Report] or to an operator.
package detector

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/presence"
)

// Peers is how Redis is asked about all registries.
type Peers interface {
	// Holders returns, for each path, the registries that hold it in Redis: one for each hold, empty if it is not known.
	Holders(ctx context.Context, paths []string) ([][]string, error)
	// Records reads the records of some registries, and calls each with one after another; with the zero record if there is none.
	Records(ctx context.Context, registries []string, each func(i int, r presence.Record, from presence.Identity)) error
}

// Registry is the registry that a [Detector] works for.
type Registry interface {
	Peers

	// Mine reports whether a call is one of this registry's.
	Mine(c *deadlock.Call) bool
	// Subject returns what such a call waits for.
	Subject(c *deadlock.Call) (path, kind string)
	// Held iterates over the locks that this registry's owners hold.
	Held() iter.Seq[Held]
	// Report reports a cycle that has not been reported.
	Report(c Cycle)
}

// Held is a lock, or permits of a semaphore, that an owner holds.
type Held struct {
	Path    string
	Permits bool
	Lock    deadlock.Lock
	Owner   owner.ID
}

// Wait is a call of some registry that waits for another process.
type Wait struct {
	presence.Wait

	From presence.Identity
	call *deadlock.Call // nil for other registries' calls
}

// Detector finds cycles that the calls of a registry are in.
//
// From a waiting call a chain leads to the registry that holds the path in Redis, to that registry's calls that keep the path,
// and on to the paths that these wait for. Redis and the records are read at different moments. So a cycle counts only if two
// looks, half a second apart, show the same calls: a call that has ended is removed from its record at once.
//
// A semaphore has many holders, and each of them may end a wait for it. So a call that waits for permits counts only if calls
// that count keep all of its holders from releasing.
//
// A chain ends at a holder without a record: Java, an older version of this library, or a process that is gone. It also ends at
// a registry with another prefix.
type Detector struct {
	reg   Registry
	own   presence.Identity
	graph *deadlock.Graph
	clock clock.Clock

	denied clock.Instant // after a lasting error: when Look looks again
}

// New makes the detector of a registry. Graph has the waiting calls of this process.
func New(reg Registry, own presence.Identity, graph *deadlock.Graph, c clock.Clock) *Detector {
	return &Detector{reg: reg, own: own, graph: graph, clock: c}
}

// Bystander makes a detector that belongs to no registry: it has no calls of its own.
func Bystander(peers Peers, c clock.Clock) *Detector {
	return New(bystander{peers}, presence.Identity{}, &deadlock.Graph{}, c)
}

type bystander struct{ Peers }

func (bystander) Mine(*deadlock.Call) bool                   { return false }
func (bystander) Subject(*deadlock.Call) (path, kind string) { return "", "" }
func (bystander) Held() iter.Seq[Held]                       { return func(func(Held) bool) {} }
func (bystander) Report(Cycle)                               {}

// mostHolds is how many paths of an owner are listed. A cycle over a path that is not is never found.
const mostHolds = 1000

// Waits returns the calls of this registry for its record. When one of them ends, Graph.Leave reports that.
func (d *Detector) Waits() (all []presence.Wait) {
	for _, w := range d.lasting() {
		if d.graph.Record(w.call) {
			all = append(all, w.Wait)
		}
	}
	return all
}

// lasting returns the calls of this registry that have waited for a second, and whose owners hold a lock: the oldest first.
func (d *Detector) lasting() (all []*Wait) {
	now := d.clock.Now()
	waits := map[*deadlock.Call]*Wait{} // nil if the owner is not known to hold anything
	for c := range d.graph.All() {
		if d.reg.Mine(c) && c.Since.Until(now) >= presence.Lasting {
			waits[c] = nil
		}
	}
	if len(waits) == 0 {
		return nil
	}
	for held := range d.reg.Held() {
		calls, _ := d.graph.Blockers(held.Lock, held.Owner)
		for _, c := range calls {
			w, lasts := waits[c]
			if !lasts {
				continue
			}
			if w == nil {
				w = d.describe(c)
				waits[c], all = w, append(all, w)
			}
			if len(w.Holds) < mostHolds && (held.Permits || !slices.Contains(w.Holds, held.Path)) {
				w.Holds = append(w.Holds, held.Path)
			}
			if held.Permits {
				break // others count the calls that block a hold of the semaphore
			}
		}
	}
	slices.SortFunc(all, func(a, b *Wait) int {
		if a.Since != b.Since {
			return cmp.Compare(a.Since, b.Since)
		}
		return strings.Compare(a.name(), b.name())
	})
	all = all[:min(len(all), presence.MostWaits)]
	for _, w := range all {
		slices.Sort(w.Holds)
	}
	return all
}

func (d *Detector) describe(c *deadlock.Call) *Wait {
	path, kind := d.reg.Subject(c)
	return &Wait{presence.Wait{Path: path, Kind: kind, Owner: c.Caller(), Since: d.clock.Time(c.Since).UnixMicro()}, d.own, c}
}

// Look follows the chains from the registry's own calls, and reports cycles that have not been reported. One goroutine at a
// time calls it.
func (d *Detector) Look(ctx context.Context) {
	if d.clock.Now() < d.denied {
		return
	}
	found, err := d.untold(ctx)
	if len(found) > 0 && clock.Rest(ctx, deadlock.SecondLook) {
		var later []Cycle
		later, err = d.untold(ctx)
		for _, c := range inBoth(found, later) {
			if d.graph.Tell(c.calls()) {
				d.reg.Report(c)
			}
		}
	}
	if err != nil && !fault.Transient(err) { // no permission
		d.denied = d.clock.Now().Add(presence.Denied)
	}
}

// untold returns the cycles with a call of this registry that is in no reported cycle.
func (d *Detector) untold(ctx context.Context) ([]Cycle, error) {
	own := d.lasting()
	if len(own) == 0 {
		return nil, nil
	}
	l := d.newLook(own)
	err := l.follow(ctx, own)
	return slices.DeleteFunc(l.cycles(own), func(c Cycle) bool { return !d.graph.Unreported(c.calls()) }), err
}

// All returns the cycles of all registries. List returns those that may have a record, perhaps more than once.
func (d *Detector) All(ctx context.Context, list func(context.Context) ([]string, error)) ([]Cycle, error) {
	found, err := d.look(ctx, list)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	clock.Rest(ctx, deadlock.SecondLook)
	later, err := d.look(ctx, list)
	if err != nil {
		return nil, err
	}
	return inBoth(found, later), nil
}

// look reads all records once.
func (d *Detector) look(ctx context.Context, list func(context.Context) ([]string, error)) ([]Cycle, error) {
	all := d.lasting()
	l := d.newLook(all)
	registries, err := list(ctx)
	if err != nil {
		return nil, err
	}
	slices.Sort(registries)
	registries = slices.DeleteFunc(slices.Compact(registries), func(registry string) bool { return registry == d.own.Registry })
	if err := l.read(ctx, registries); err != nil {
		return nil, err
	}
	for _, registry := range registries {
		all = append(all, l.waits[registry]...)
	}
	err = l.follow(ctx, all)
	return l.cycles(all), err
}
