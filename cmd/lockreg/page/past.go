package page

import (
	"iter"
	"slices"

	"github.com/lockregistry/lockregistry/observe"
)

// past is what passes have seen happen, since somebody looked for the first time. The counts are lower bounds: what begins and
// ends between two passes is not seen, nor that Java releases a lock and has it again under the same name.
type past struct {
	grants    int64 // holds that were not there at the pass before
	handOvers int64 // locks of which all holders were others at the pass before
}

// count compares a lock with what it was at the pass before; nil: nobody held it, and nobody waited.
func (p *past) count(before, now *entry) {
	if !now.listed() || !before.listed() {
		return
	}
	granted, stayed := int64(0), 0
	for h := range now.owners() {
		if before.has(h.Holder) {
			stayed++
		} else {
			granted++
		}
	}
	p.grants += granted
	if granted > 0 && stayed == 0 && before.held() {
		p.handOvers++
	}
}

// listed reports whether all holders are known: of many readers only some are.
func (e *entry) listed() bool { return e == nil || e.info.HolderCount <= len(e.info.Holders) }

// owners are the holders, but for those that have released the lock and keep its path.
func (e *entry) owners() iter.Seq[observe.HolderInfo] {
	return func(yield func(observe.HolderInfo) bool) {
		if e == nil {
			return
		}
		for _, h := range e.info.Holders {
			if !h.Kept && !yield(h) {
				return
			}
		}
	}
}

func (e *entry) held() bool {
	for range e.owners() {
		return true
	}
	return false
}

func (e *entry) has(holder string) bool {
	return e != nil && slices.ContainsFunc(e.info.Holders, func(h observe.HolderInfo) bool { return h.Holder == holder })
}
