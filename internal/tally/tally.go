// Package tally adds up the figures of a process's registries, by prefix, for modules that report them as metrics.
package tally

import (
	"maps"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/observe"
)

// Tally asks registries for their figures. The zero value is ready for use.
type Tally struct {
	mu      sync.Mutex
	watched map[int]*watched
	next    int
	stopped map[string]counts // by prefix: what registries have counted that are watched no more
}

// watched is a registry of [Tally.Watch].
type watched struct {
	prefix string
	stats  func() observe.Stats
	most   counts // that was told; guarded by the tally's mutex
}

// counts are the figures that only grow.
type counts struct{ handoffs, windows uint64 }

// Figures are those of all registries with one prefix: sums, and the oldest ages.
type Figures struct {
	Registries               int // that are watched; without any, there are only Handoffs and Windows
	Holds, Waiters, Removals int
	Oldest, OldestWait       time.Duration
	Handoffs, Windows        uint64 // since the first registry was watched; they do not fall

	RenewalsFailing, RemovalsFailing time.Duration // for how long; 0 if they do not
}

// Watch adds a registry until stop is called. What it has counted by then stays in the sums.
func (t *Tally) Watch(prefix string, stats func() observe.Stats) (stop func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watched == nil {
		t.watched, t.stopped = map[int]*watched{}, map[string]counts{}
	}
	t.next++
	n := t.next
	t.watched[n] = &watched{prefix: prefix, stats: stats}
	return func() { t.stop(n) }
}

// stop ends a registry's part in the figures. Now, called beside it, tells a count with what the registry has counted, or with
// what it leaves, and that is not less than an earlier call has told.
func (t *Tally) stop(n int) {
	t.mu.Lock()
	w, is := t.watched[n]
	t.mu.Unlock()
	if !is {
		return
	}
	last := w.stats()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watched[n] == nil {
		return
	}
	delete(t.watched, n)
	left := t.stopped[w.prefix]
	left.handoffs += max(last.Handoffs, w.most.handoffs)
	left.windows += max(last.Windows, w.most.windows)
	t.stopped[w.prefix] = left
}

// Now asks the registries for their figures, without the mutex. It returns those of each prefix. A registry that is stopped
// meanwhile does not count any more.
func (t *Tally) Now() map[string]*Figures {
	t.mu.Lock()
	ask := maps.Clone(t.watched)
	t.mu.Unlock()
	found := make(map[int]observe.Stats, len(ask))
	for n, w := range ask {
		found[n] = w.stats()
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[string]*Figures{}
	for prefix, left := range t.stopped {
		all[prefix] = &Figures{Handoffs: left.handoffs, Windows: left.windows}
	}
	for n, stats := range found {
		w := t.watched[n]
		if w == nil {
			continue
		}
		w.most = counts{max(w.most.handoffs, stats.Handoffs), max(w.most.windows, stats.Windows)}
		stats.Handoffs, stats.Windows = w.most.handoffs, w.most.windows
		if all[w.prefix] == nil {
			all[w.prefix] = new(Figures)
		}
		all[w.prefix].add(stats, now)
	}
	return all
}

// add adds the figures of one registry.
func (f *Figures) add(s observe.Stats, now time.Time) {
	f.Registries++
	f.Holds += s.Holds
	f.Waiters += s.Waiters
	f.Removals += s.Removals
	f.Handoffs += s.Handoffs
	f.Windows += s.Windows
	f.Oldest = max(f.Oldest, s.Oldest)
	f.OldestWait = max(f.OldestWait, s.OldestWait)
	for _, n := range s.Nodes {
		if !n.RenewalsFailing.IsZero() {
			f.RenewalsFailing = max(f.RenewalsFailing, now.Sub(n.RenewalsFailing))
		}
		if !n.RemovalsFailing.IsZero() {
			f.RemovalsFailing = max(f.RemovalsFailing, now.Sub(n.RemovalsFailing))
		}
	}
}
