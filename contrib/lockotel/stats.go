package lockotel

import (
	"math"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/observe"
)

// figures are the instruments of [ReportStats].
type figures struct {
	meter       metric.Meter
	instruments []metric.Observable
	failed      error

	holds, waiters, removals                       metric.Int64ObservableGauge
	oldest, oldestWait, renewalFails, removalFails metric.Float64ObservableGauge
	handoffs, windows                              metric.Int64ObservableCounter
}

func newFigures(m metric.Meter) *figures {
	f := &figures{meter: m}
	f.holds = f.number("lockregistry.holds", "{hold}", "Locks, readers and writers that are held.")
	f.waiters = f.number("lockregistry.waiters", "{call}", "Calls that wait.")
	f.removals = f.number("lockregistry.removals", "{key}", "Keys that are yet to be removed in the background.")
	f.oldest = f.seconds("lockregistry.hold.oldest", "The age of the oldest hold, without leaders.")
	f.oldestWait = f.seconds("lockregistry.wait.oldest", "How long the oldest call has waited, without candidates of a leader.")
	f.renewalFails = f.seconds("lockregistry.renewal.failing", "How long renewals in the background have been failing.")
	f.removalFails = f.seconds("lockregistry.removal.failing", "How long removals in the background have been failing.")
	f.handoffs = f.count("lockregistry.handoffs", "{hold}", "Holds that went from one goroutine of the process to the next.")
	f.windows = f.count("lockregistry.windows", "{window}",
		"How often a waiting call left a free lock to callers without a place in the queue.")
	return f
}

func (f *figures) number(name, unit, what string) metric.Int64ObservableGauge {
	i, err := f.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what))
	f.made(i, err)
	return i
}

func (f *figures) seconds(name, what string) metric.Float64ObservableGauge {
	i, err := f.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(what))
	f.made(i, err)
	return i
}

func (f *figures) count(name, unit, what string) metric.Int64ObservableCounter {
	i, err := f.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
	f.made(i, err)
	return i
}

func (f *figures) made(i metric.Observable, err error) {
	f.instruments, f.failed = append(f.instruments, i), fault.Join(f.failed, err)
}

// observe reports the figures of now.
func (f *figures) observe(o metric.Observer, s observe.Stats, now time.Time, attributes metric.MeasurementOption) {
	var renewals, removals time.Duration
	for _, n := range s.Nodes {
		if !n.RenewalsFailing.IsZero() {
			renewals = max(renewals, now.Sub(n.RenewalsFailing))
		}
		if !n.RemovalsFailing.IsZero() {
			removals = max(removals, now.Sub(n.RemovalsFailing))
		}
	}
	o.ObserveInt64(f.holds, int64(s.Holds), attributes)
	o.ObserveInt64(f.waiters, int64(s.Waiters), attributes)
	o.ObserveInt64(f.removals, int64(s.Removals), attributes)
	o.ObserveFloat64(f.oldest, s.Oldest.Seconds(), attributes)
	o.ObserveFloat64(f.oldestWait, s.OldestWait.Seconds(), attributes)
	o.ObserveFloat64(f.renewalFails, renewals.Seconds(), attributes)
	o.ObserveFloat64(f.removalFails, removals.Seconds(), attributes)
	o.ObserveInt64(f.handoffs, int64(min(s.Handoffs, math.MaxInt64)), attributes)
	o.ObserveInt64(f.windows, int64(min(s.Windows, math.MaxInt64)), attributes)
}
