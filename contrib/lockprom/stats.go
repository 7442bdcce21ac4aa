package lockprom

import (
	"maps"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockregistry/lockregistry/observe"
)

// Watch also reports figures of [lockregistry.Registry.Stats]: stats is called each time the metrics are collected. Call stop
// before the registry is closed.
//
// Several registries may have the same prefix: their figures are added up, and the oldest age counts. After stop, the registry's
// figures are no longer reported. But counters do not fall: what the registry has counted stays in the sum while other registries
// with its prefix are watched.
func (c *Collector) Watch(prefix string, stats func() observe.Stats) (stop func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	n := c.next
	c.watched[n] = &watched{prefix: valid(prefix), stats: stats}
	return func() { c.stop(n) }
}

// stop ends a registry's part in the figures. A scrape beside it tells a counter with what the registry has counted, or with what
// it leaves, and that is not less than an earlier scrape has told.
func (c *Collector) stop(n int) {
	c.mu.Lock()
	w, is := c.watched[n]
	c.mu.Unlock()
	if !is {
		return
	}
	last := w.stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watched[n] == nil {
		return
	}
	delete(c.watched, n)
	if c.stopped[w.prefix] == nil {
		c.stopped[w.prefix] = new(figures)
	}
	c.stopped[w.prefix].Handoffs += max(last.Handoffs, w.handoffs)
	c.stopped[w.prefix].Windows += max(last.Windows, w.windows)
}

// figures is what is reported of all registries with one prefix.
type figures struct {
	observe.Stats

	renewals, removals time.Duration // for how long they have been failing
}

// figure is one metric of [figures].
type figure struct {
	about *prometheus.Desc
	kind  prometheus.ValueType
	of    func(f *figures) float64
}

var reported = []figure{
	gauge("lockregistry_holds", "Locks, readers and writers that are held.", func(f *figures) float64 { return float64(f.Holds) }),
	gauge("lockregistry_waiters", "Calls that wait.", func(f *figures) float64 { return float64(f.Waiters) }),
	gauge("lockregistry_hold_oldest_seconds", "The age of the oldest hold, without leaders.",
		func(f *figures) float64 { return f.Oldest.Seconds() }),
	gauge("lockregistry_wait_oldest_seconds", "How long the oldest call has waited, without candidates of a leader.",
		func(f *figures) float64 { return f.OldestWait.Seconds() }),
	gauge("lockregistry_removals", "Keys that are yet to be removed in the background.",
		func(f *figures) float64 { return float64(f.Removals) }),
	gauge("lockregistry_renewal_failing_seconds", "How long renewals in the background have been failing.",
		func(f *figures) float64 { return f.renewals.Seconds() }),
	gauge("lockregistry_removal_failing_seconds", "How long removals in the background have been failing.",
		func(f *figures) float64 { return f.removals.Seconds() }),
	counter("lockregistry_handoffs_total", "Holds that went from one goroutine of the process to the next.",
		func(f *figures) float64 { return float64(f.Handoffs) }),
	counter("lockregistry_windows_total", "How often a waiting call left a free lock to callers without a place in the queue.",
		func(f *figures) float64 { return float64(f.Windows) }),
}

func gauge(name, help string, of func(f *figures) float64) figure {
	return figure{prometheus.NewDesc(name, help, []string{"lockregistry_prefix"}, nil), prometheus.GaugeValue, of}
}

func counter(name, help string, of func(f *figures) float64) figure {
	return figure{prometheus.NewDesc(name, help, []string{"lockregistry_prefix"}, nil), prometheus.CounterValue, of}
}

// add adds the figures of one registry.
func (f *figures) add(s observe.Stats, now time.Time) {
	f.Holds += s.Holds
	f.Waiters += s.Waiters
	f.Removals += s.Removals
	f.Handoffs += s.Handoffs
	f.Windows += s.Windows
	f.Oldest = max(f.Oldest, s.Oldest)
	f.OldestWait = max(f.OldestWait, s.OldestWait)
	for _, n := range s.Nodes {
		if !n.RenewalsFailing.IsZero() {
			f.renewals = max(f.renewals, now.Sub(n.RenewalsFailing))
		}
		if !n.RemovalsFailing.IsZero() {
			f.removals = max(f.removals, now.Sub(n.RemovalsFailing))
		}
	}
}

// Describe is for Prometheus.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range c.events() {
		m.Describe(to)
	}
	for _, f := range reported {
		to <- f.about
	}
}

// Collect is for Prometheus.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, m := range c.events() {
		m.Collect(to)
	}
	for prefix, all := range c.now() {
		for _, f := range reported {
			to <- prometheus.MustNewConstMetric(f.about, f.kind, f.of(all), prefix)
		}
	}
}

func (c *Collector) events() []prometheus.Collector {
	return []prometheus.Collector{
		c.acquire, c.local, c.hold, c.wakeups, c.outages,
		c.losses.count, c.losses.last, c.unavailable.count, c.unavailable.last, c.deadlocks.count, c.deadlocks.last,
	}
}

// now asks the registries for their figures, without the mutex. One that is stopped meanwhile does not count any more.
func (c *Collector) now() map[string]*figures {
	c.mu.Lock()
	ask := maps.Clone(c.watched)
	c.mu.Unlock()
	found := make(map[int]observe.Stats, len(ask))
	for n, w := range ask {
		found[n] = w.stats()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]*figures{}
	for n, stats := range found {
		w := c.watched[n]
		if w == nil {
			continue
		}
		w.handoffs, w.windows = max(w.handoffs, stats.Handoffs), max(w.windows, stats.Windows)
		if all[w.prefix] == nil {
			all[w.prefix] = new(figures)
			if before := c.stopped[w.prefix]; before != nil {
				*all[w.prefix] = *before
			}
		}
		all[w.prefix].add(stats, time.Now())
	}
	return all
}
