package lockprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockregistry/lockregistry/internal/tally"
	"github.com/lockregistry/lockregistry/observe"
)

// Watch also reports figures of [lockregistry.Registry.Stats]: stats is called each time the metrics are collected. Call stop
// before the registry is closed.
//
// Several registries may have the same prefix: their figures are added up, and the oldest age counts. After stop, the registry's
// figures are no longer reported. But counters do not fall: what the registry has counted stays in the sum.
func (c *Collector) Watch(prefix string, stats func() observe.Stats) (stop func()) {
	return c.watched.Watch(valid(prefix), stats)
}

// figures are those of one prefix.
type figures = tally.Figures

// figure is one metric of them.
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
		func(f *figures) float64 { return f.RenewalsFailing.Seconds() }),
	gauge("lockregistry_removal_failing_seconds", "How long removals in the background have been failing.",
		func(f *figures) float64 { return f.RemovalsFailing.Seconds() }),
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
	for prefix, all := range c.watched.Now() {
		for _, f := range reported {
			if all.Registries == 0 && f.kind == prometheus.GaugeValue {
				continue
			}
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
