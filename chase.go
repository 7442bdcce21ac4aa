package lockregistry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/scan"
)

// A cycle over several processes is found from what their registries write about themselves, see record: which of their calls
// wait, and what the owners of these hold. From a call that waits a chain leads to the registry that holds the path in Redis,
// to the calls of that one which keep the path, and on to the paths that these wait for. Redis and the records are not of one
// moment. So a cycle counts when two looks show the same calls, half a second apart: a call that has ended is taken out of its
// record at once.
//
// A chain ends at a holder without a record: Java, an older version of this package, a process that is gone. It ends at a
// registry of another prefix, too.

// farWait is a call of some registry of the prefix that waits.
type farWait struct {
	presence.Wait

	label Label
	call  *deadlock.Call // of this registry
}

// lastingWaits are the calls of this registry that have waited for a second, and whose owners hold something: the oldest ones
// first.
func (r *Registry) lastingWaits() (all []*farWait) {
	now := r.clock.Now()
	lasting := map[*deadlock.Call]*farWait{}
	for call := range waiting.All() {
		if lockOf(call.Lock).reg == r && call.Since.Until(now) >= presence.Lasting {
			lasting[call] = nil
		}
	}
	if len(lasting) == 0 {
		return nil
	}
	for l := range r.cache.all() {
		if l.anchor().pins.Load() <= 0 {
			continue
		}
		for _, o := range l.half().Owners() {
			calls, _ := waiting.Blockers(waited{l}, o)
			for _, call := range calls {
				w, lasts := lasting[call]
				if !lasts {
					continue
				}
				if w == nil {
					d := describeWait(call)
					w = &farWait{presence.Wait{Path: d.Path, Kind: d.Kind, Owner: d.Owner, Since: d.Since.UnixMicro()}, d.Label, call}
					lasting[call], all = w, append(all, w)
				}
				if path := l.path(); len(w.Holds) < mostHolds && !slices.Contains(w.Holds, path) {
					w.Holds = append(w.Holds, path)
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b *farWait) int {
		return cmp.Or(cmp.Compare(a.Since, b.Since), strings.Compare(a.name(), b.name()))
	})
	all = all[:min(len(all), presence.MostWaits)]
	for _, w := range all {
		slices.Sort(w.Holds)
	}
	return all
}

const (
	mostHolds = 16   // paths of an owner
	mostChain = 1000 // calls that one look takes in
)

// name tells the call from others, of whichever registry.
func (w *farWait) name() string {
	return fmt.Sprintf("%q %q %s %q %d", w.label.Registry, w.Path, w.Kind, w.Owner, w.Since)
}

// chase is one look at the chains.
type chase struct {
	reg     *Registry
	waits   map[string][]*farWait // by registry, for those whose record was read
	holders map[string][]string   // the registries that hold a path, by path
	seen    map[*farWait]bool
}

func (r *Registry) newChase(own []*farWait) *chase {
	return &chase{
		reg:     r,
		waits:   map[string][]*farWait{r.inspection.label.Registry: own},
		holders: map[string][]string{},
		seen:    map[*farWait]bool{},
	}
}

// follow reads what there is on the chains that begin at some calls.
func (c *chase) follow(ctx context.Context, from []*farWait) error {
	for len(from) > 0 && len(c.seen) < mostChain {
		var keys []string
		for _, w := range from {
			c.seen[w] = true
			if _, known := c.holders[w.Path]; !known {
				c.holders[w.Path] = nil
				keys = append(keys, c.reg.prefix+":"+w.Path)
			}
		}
		infos, errs := c.reg.inspectKeys(ctx, keys)
		var registries []string
		for i, info := range infos {
			if errs[i] != nil && !errors.Is(errs[i], ErrWrongType) {
				return errs[i]
			}
			for _, h := range info.Holders {
				registry := h.Label.Registry
				if h.Kept || slices.Contains(c.holders[info.Path], registry) {
					continue
				}
				c.holders[info.Path] = append(c.holders[info.Path], registry)
				if _, known := c.waits[registry]; !known && !slices.Contains(registries, registry) {
					registries = append(registries, registry)
				}
			}
		}
		if err := c.read(ctx, registries); err != nil {
			return err
		}
		var next []*farWait
		for _, w := range from {
			for _, keeper := range c.next(w) {
				if !c.seen[keeper] && !slices.Contains(next, keeper) {
					next = append(next, keeper)
				}
			}
		}
		from = next
	}
	return nil
}

// read reads records.
func (c *chase) read(ctx context.Context, registries []string) (failure error) {
	keys := make([]string, len(registries))
	for i, registry := range registries {
		keys[i] = presence.Key(c.reg.prefix, registry)
	}
	c.reg.readRecords(ctx, keys, func(i int, text string, err error) {
		if err != nil {
			failure = err
			return
		}
		c.take(registries[i], text)
	})
	return failure
}

// take takes in what a record says.
func (c *chase) take(registry, text string) {
	r, label := parseRecord(registry, text)
	c.waits[registry] = nil
	for _, w := range r.Waits {
		c.waits[registry] = append(c.waits[registry], &farWait{Wait: w, label: label})
	}
}

// next are the calls that keep what a call waits for.
func (c *chase) next(w *farWait) (keepers []*farWait) {
	for _, registry := range c.holders[w.Path] {
		for _, other := range c.waits[registry] {
			if slices.Contains(other.Holds, w.Path) {
				keepers = append(keepers, other)
			}
		}
	}
	return keepers
}

// cycles are those that some calls are in, one for each call that is in no other one.
func (c *chase) cycles(from []*farWait) (found [][]*farWait) {
	in := map[*farWait]bool{}
	for _, start := range from {
		if in[start] {
			continue
		}
		seen := map[*farWait]bool{}
		var way []*farWait
		var search func(w *farWait) bool
		search = func(w *farWait) bool {
			way = append(way, w)
			for _, next := range c.next(w) {
				if next == start {
					return true
				}
				if !seen[next] {
					seen[next] = true
					if search(next) {
						return true
					}
				}
			}
			way = way[:len(way)-1]
			return false
		}
		if search(start) {
			for _, w := range way {
				in[w] = true
			}
			found = append(found, way)
		}
	}
	return found
}

// nameOfCycle is the same wherever the cycle begins.
func nameOfCycle(cycle []*farWait) string {
	names := make([]string, len(cycle))
	for i, w := range cycle {
		names[i] = w.name()
	}
	first := slices.Index(names, slices.Min(names))
	return strings.Join(slices.Concat(names[first:], names[:first]), "\n")
}

// both are the cycles of a look that an earlier one has shown, too.
func both(earlier, later [][]*farWait) (cycles [][]*farWait) {
	names := map[string]bool{}
	for _, cycle := range earlier {
		names[nameOfCycle(cycle)] = true
	}
	for _, cycle := range later {
		if names[nameOfCycle(cycle)] {
			cycles = append(cycles, cycle)
		}
	}
	return cycles
}

func deadlockOf(cycle []*farWait) (d Deadlock) {
	for _, w := range cycle {
		d.Waits = append(d.Waits, DeadlockWait{w.Path, w.Kind, w.Owner, w.Holds, w.label, wallTime(w.Since)})
	}
	return d
}

// chase follows the chains from the registry's own calls, and reports cycles that have not been reported.
func (w *recorded) chase(ctx context.Context) {
	r := w.reg
	if now := r.clock.Now(); now < w.chases {
		return
	}
	found, err := r.untoldCycles(ctx)
	if len(found) > 0 && r.rest(ctx) {
		var later [][]*farWait
		later, err = r.untoldCycles(ctx)
		for _, cycle := range both(found, later) {
			if waiting.Tell(ownCalls(cycle)) {
				r.tellDeadlock(deadlockOf(cycle))
			}
		}
	}
	if err != nil && !fault.Transient(err) { // there is no permission
		w.chases = r.clock.Now().Add(presence.Denied)
	}
}

// rest waits until it is time for a second look. It is false when there is to be none.
func (r *Registry) rest(ctx context.Context) bool {
	pause := time.NewTimer(deadlock.SecondLook)
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-ctx.Done():
	case <-r.closed:
	}
	return false
}

// untoldCycles are those with a call of this registry that is in no cycle which was reported.
func (r *Registry) untoldCycles(ctx context.Context) (cycles [][]*farWait, err error) {
	own := r.lastingWaits()
	if len(own) == 0 {
		return nil, nil
	}
	c := r.newChase(own)
	err = c.follow(ctx, own)
	return slices.DeleteFunc(c.cycles(own), func(cycle []*farWait) bool { return !waiting.Untold(ownCalls(cycle)) }), err
}

// Deadlocks tells of cycles of calls that wait for each other, in all processes that have registries with this prefix. It
// finds them by what the registries write about themselves: so each call in a cycle has waited for one second at least, two
// most likely. It looks twice, half a second apart, when the first look shows any.
//
// It sees no call of Java, nor of an older version of this package, nor a path of another prefix. A cycle of a single process,
// see [ErrDeadlock], is among them while it lasts. [Observer] has a function that is called for cycles that a registry is in.
//
// It uses SCAN as [Registry.Locks] does, and takes as long. The errors are those of Locks.
func (r *Registry) Deadlocks(ctx context.Context) (all []Deadlock, err error) {
	found, err := r.allCycles(ctx)
	if err == nil && len(found) > 0 {
		r.rest(ctx)
		var later [][]*farWait
		later, err = r.allCycles(ctx)
		found = both(found, later)
	}
	if err != nil {
		return nil, &LockError{Op: "deadlocks", Key: r.prefix + ":*", Err: r.transport.Farthest().Unsupported(err)}
	}
	for _, cycle := range found {
		all = append(all, deadlockOf(cycle))
	}
	return all, nil
}

// allCycles is one look at all records.
func (r *Registry) allCycles(ctx context.Context) ([][]*farWait, error) {
	own := r.lastingWaits()
	c := r.newChase(own)
	var registries []string
	pick := func(key string) (registry string, unread bool) {
		registry = presence.Owner(r.prefix, key)
		_, known := c.waits[registry]
		return registry, !known
	}
	read := func(found []string) error {
		registries = append(registries, found...)
		return nil
	}
	if err := r.scan(ctx, presence.Pattern, &scan.Pass{Pick: pick, Read: read}); err != nil {
		return nil, err
	}
	slices.Sort(registries)
	registries = slices.Compact(registries)
	if err := c.read(ctx, registries); err != nil {
		return nil, err
	}
	all := own
	for _, registry := range registries {
		all = append(all, c.waits[registry]...)
	}
	err := c.follow(ctx, all)
	return c.cycles(all), err
}

// ownCalls are the calls of this registry in a cycle.
func ownCalls(cycle []*farWait) (calls []*deadlock.Call) {
	for _, w := range cycle {
		if w.call != nil {
			calls = append(calls, w.call)
		}
	}
	return calls
}
