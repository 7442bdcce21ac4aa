package detector

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/presence"
)

// look is one look at chains.
type look struct {
	reg     Registry
	waits   map[string][]*Wait  // by registry, if its record was read
	holders map[string][]string // the registries that hold a path, one for each hold, by path
	seen    map[*Wait]bool

	found map[string][]*Wait // the calls that keep a path, see blockers
}

// mostSeen limits the calls of one look.
const mostSeen = 1000

func (d *Detector) newLook(own []*Wait) *look {
	return &look{
		reg:     d.reg,
		waits:   map[string][]*Wait{d.own.Registry: own},
		holders: map[string][]string{},
		seen:    map[*Wait]bool{},
		found:   map[string][]*Wait{},
	}
}

// follow reads the chains that begin at some calls.
func (l *look) follow(ctx context.Context, from []*Wait) error {
	for len(from) > 0 && len(l.seen) < mostSeen {
		registries, err := l.findHolders(ctx, from)
		if err != nil {
			return err
		}
		if err := l.read(ctx, registries); err != nil {
			return err
		}
		var next []*Wait
		for _, w := range from {
			for _, blocker := range l.blockers(w) {
				if !l.seen[blocker] && !slices.Contains(next, blocker) {
					next = append(next, blocker)
				}
			}
		}
		from = next
	}
	return nil
}

// findHolders asks which registries hold the paths of some calls. It returns the registries whose records must still be read.
func (l *look) findHolders(ctx context.Context, from []*Wait) (registries []string, err error) {
	var paths []string
	for _, w := range from {
		l.seen[w] = true
		if _, known := l.holders[w.Path]; !known {
			l.holders[w.Path] = nil
			paths = append(paths, w.Path)
		}
	}
	holders, err := l.reg.Holders(ctx, paths)
	if err != nil {
		return nil, err
	}
	for i, path := range paths {
		slices.Sort(holders[i])
		l.holders[path] = holders[i]
		for _, registry := range holders[i] {
			if _, known := l.waits[registry]; !known && registry != "" && !slices.Contains(registries, registry) {
				registries = append(registries, registry)
			}
		}
	}
	return registries, nil
}

func (l *look) read(ctx context.Context, registries []string) error {
	if len(registries) == 0 {
		return nil
	}
	return l.reg.Records(ctx, registries, func(i int, r presence.Record, from presence.Identity) {
		waits := make([]*Wait, len(r.Waits))
		for k, w := range r.Waits {
			waits[k] = &Wait{Wait: w, From: from}
		}
		l.waits[registries[i]] = waits
	})
}

// blockers returns the calls that keep what a call waits for. The holders of its path, and their records, have been read.
func (l *look) blockers(w *Wait) []*Wait {
	all, known := l.found[w.Path]
	if known {
		return all
	}
	for _, registry := range slices.Compact(slices.Clone(l.holders[w.Path])) {
		for _, other := range l.waits[registry] {
			if slices.Contains(other.Holds, w.Path) {
				all = append(all, other)
			}
		}
	}
	l.found[w.Path] = all
	return all
}

// blocked returns the calls that block each other: none of them ends before another one of them.
func (l *look) blocked() map[*Wait]bool {
	all := maps.Clone(l.seen)
	for before := -1; before != len(all); {
		before = len(all)
		kept := map[string]bool{} // paths; all calls that wait for one are alike
		for w := range all {
			if _, known := kept[w.Path]; !known {
				kept[w.Path] = l.blocks(all, w)
			}
		}
		maps.DeleteFunc(all, func(w *Wait, _ bool) bool { return !kept[w.Path] })
	}
	return all
}

// blocks reports whether some calls together keep what a call waits for: a hold of a lock, or all holds of a semaphore.
func (l *look) blocks(some map[*Wait]bool, w *Wait) bool {
	kept := map[string]int{}
	for _, b := range l.blockers(w) {
		if !some[b] {
			continue
		}
		if w.Kind != presence.Permits {
			return true
		}
		for _, path := range b.Holds {
			if path == w.Path {
				kept[b.From.Registry]++
			}
		}
	}
	for _, registry := range l.holders[w.Path] {
		kept[registry]--
		if kept[registry] < 0 {
			return false
		}
	}
	return w.Kind == presence.Permits && len(l.holders[w.Path]) > 0
}

// cycles returns the cycles that some calls are in, one for each call that is in no earlier one.
func (l *look) cycles(from []*Wait) (found []Cycle) {
	in := map[*Wait]bool{}
	blocked := l.blocked()
	for _, start := range from {
		if in[start] || !blocked[start] {
			continue
		}
		c := l.cycle(start, blocked)
		for _, w := range c {
			in[w] = true
		}
		if c != nil {
			found = append(found, c)
		}
	}
	return found
}

// cycle returns a cycle of some calls that one of them is in, or nil.
func (l *look) cycle(start *Wait, some map[*Wait]bool) (way Cycle) {
	seen := map[string]bool{} // paths; all calls that wait for one lead on alike
	var search func(w *Wait) bool
	search = func(w *Wait) bool {
		if seen[w.Path] {
			return false
		}
		seen[w.Path] = true
		way = append(way, w)
		for _, next := range l.blockers(w) {
			if next == start || some[next] && search(next) {
				return true
			}
		}
		way = way[:len(way)-1]
		return false
	}
	if !search(start) {
		return nil
	}
	return way
}

// Cycle is a cycle of waiting calls: each waits for a path that the next one holds, the last one for a path of the first.
type Cycle []*Wait

// calls returns the cycle's calls of this registry.
func (c Cycle) calls() (own []*deadlock.Call) {
	for _, w := range c {
		if w.call != nil {
			own = append(own, w.call)
		}
	}
	return own
}

// name returns a name that does not depend on where the cycle begins.
func (c Cycle) name() string {
	names := make([]string, len(c))
	for i, w := range c {
		names[i] = w.name()
	}
	first := slices.Index(names, slices.Min(names))
	return strings.Join(slices.Concat(names[first:], names[:first]), "\n")
}

// name identifies a call among those of all registries.
func (w *Wait) name() string {
	return fmt.Sprintf("%q %q %s %q %d", w.From.Registry, w.Path, w.Kind, w.Owner, w.Since)
}

// inBoth returns the cycles of a look that an earlier one has shown, too.
func inBoth(earlier, later []Cycle) (cycles []Cycle) {
	names := map[string]bool{}
	for _, c := range earlier {
		names[c.name()] = true
	}
	for _, c := range later {
		if names[c.name()] {
			cycles = append(cycles, c)
		}
	}
	return cycles
}
