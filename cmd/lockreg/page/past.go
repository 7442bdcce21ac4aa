package page

import (
	"iter"
	"slices"
	"time"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
)

// past is what passes have seen since the first browser connected. The counts are lower bounds: holds that begin and end
// between two passes are not seen, nor a lock that Java releases and takes again under the same name.
type past struct {
	counts []counts // of each prefix. Not changed once it is published
	lost   []*loss  // of the last ten minutes, maxLosses at most. Not changed once it is published
}

type counts struct {
	grants   int64 // holds that the previous pass did not see
	handoffs int64 // locks whose holders were all different at the previous pass
}

const (
	rememberLosses = 10 * time.Minute
	maxLosses      = 100
)

// loss is a hold that was overdue, or whose process was, and was gone when its lease had ended. More cannot be
// seen from outside: a key that was deleted, or lost in a failover, is gone as after a release.
type loss struct {
	Prefix string      `json:"prefix,omitempty"`
	Path   string      `json:"path"`
	ID     string      `json:"id"` // both, see prefix.id
	Holder view.Holder `json:"holder"`
	At     int64       `json:"at"` // when it was seen, Unix ms
}

// count compares a lock with its state at the previous pass; nil: no holder and no waiter.
func (c *counts) count(before, now *entry) {
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
	c.grants += granted
	if granted > 0 && stayed == 0 && before.held() {
		c.handoffs++
	}
}

// lose adds the holds of a lock that were lost between two passes; now is nil when there is no lock any more.
func (p *past) lose(of prefix, before, now *entry, at time.Time) {
	for h := range before.owners() {
		if now.has(h.Holder) || h.Overdue() == 0 && h.Silent == 0 || at.Before(before.at.Add(h.Lease-leaseBlur)) {
			continue
		}
		one := before.info
		one.Holders, one.Waiters = []inspect.Holder{h}, nil
		lock := view.OfLock(one)
		p.lost = append(slices.Clip(p.lost), &loss{
			printable.Valid(of.name), lock.Path, of.id(before.info.Path), lock.Holders[0], at.UnixMilli(),
		})
	}
}

// end ends a pass: holds that are gone since the previous pass may be lost.
func (p *past) end(prefixes []prefix, before, now map[key]*entry, at time.Time) {
	for k, e := range before {
		if now[k] == nil {
			p.lose(prefixes[k.prefix], e, nil, at)
		}
	}
	old := func(l *loss) bool { return l.At < at.Add(-rememberLosses).UnixMilli() }
	if slices.ContainsFunc(p.lost, old) {
		p.lost = slices.DeleteFunc(slices.Clone(p.lost), old)
	}
	p.lost = p.lost[max(0, len(p.lost)-maxLosses):]
}

// remember keeps the content of an expired record: a dead process writes no record, and its lease may last longer than that.
func (e *entry) remember(before *entry) {
	for i := range e.info.Holders {
		h := &e.info.Holders[i]
		for last := range before.owners() {
			if last.Holder == h.Holder && last.Label.Known() && !h.Label.Known() {
				h.Label, h.Renewed, h.Granted = last.Label, last.Renewed, last.Granted
				if last.Silent > 0 {
					h.Silent = last.Silent + e.at.Sub(before.at)
				}
			}
		}
	}
}

// listed reports whether all holders are known: of many readers only some are.
func (e *entry) listed() bool { return e == nil || e.info.HolderCount <= len(e.info.Holders) }

// owners iterates over the holders, without those that have released the lock and keep its path.
func (e *entry) owners() iter.Seq[inspect.Holder] {
	return func(yield func(inspect.Holder) bool) {
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
	return e != nil && slices.ContainsFunc(e.info.Holders, func(h inspect.Holder) bool { return h.Holder == holder })
}
