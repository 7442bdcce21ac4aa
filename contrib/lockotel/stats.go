package lockotel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/embedded"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/tally"
	"github.com/lockregistry/lockregistry/observe"
)

// ReportStats reports figures of [lockregistry.Registry.Stats], which it calls each time metrics are collected. All of them
// have the attribute lockregistry.prefix:
//
//   - lockregistry.holds, a gauge: holds of locks, readers, writers and semaphores, see [observe.Stats]
//   - lockregistry.waiters, a gauge: calls that wait
//   - lockregistry.hold.oldest, lockregistry.wait.oldest, gauges in seconds: the age of the oldest of each; 0 without
//     one. Leaders and their candidates do not count
//   - lockregistry.removals, a gauge: keys that are yet to be removed in the background
//   - lockregistry.renewal.failing, lockregistry.removal.failing, gauges in seconds: how long renewals and removals in the
//     background have been failing; 0 if they do not
//   - lockregistry.handoffs, a counter: holds that went from one goroutine of this process to the next
//   - lockregistry.windows, a counter: how often a waiting call left a free lock to callers without a place in the queue
//
// Unregister the registration before the registry is closed. Several registries may have the same prefix: their figures are added
// up, and the oldest age counts. After Unregister, the registry's figures are no longer reported. But counters do not fall: what
// the registry has counted stays in the sum that the meter provider gets. Of the options, only [WithMeterProvider] has an effect.
func ReportStats(prefix string, stats func() observe.Stats, opts ...Option) (metric.Registration, error) {
	s, err := settingsOf(opts)
	if err == nil && stats == nil {
		err = errors.New("the function is nil")
	}
	if err != nil {
		return nil, fmt.Errorf("lockotel: stats: %w", err)
	}
	t, err := reports.to(s.meters)
	if err != nil {
		return nil, fmt.Errorf("lockotel: stats: %w", err)
	}
	return registration{stop: t.Watch(valid(prefix), stats)}, nil
}

// registration is a registry's part in what is reported.
type registration struct {
	embedded.Registration

	stop func()
}

// Unregister ends it.
func (r registration) Unregister() error {
	r.stop()
	return nil
}

// reports are what [ReportStats] reports. A meter provider gets one callback for all registries, since their sums are one series.
// The callback and its entry here stay when the last registry is unregistered: the counters go on.
var reports = reporting{by: map[metric.MeterProvider]*tally.Tally{}}

type reporting struct {
	mu sync.Mutex
	by map[metric.MeterProvider]*tally.Tally
}

// to returns what is reported to a meter provider.
func (r *reporting) to(p metric.MeterProvider) (*tally.Tally, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	keeps := reflect.ValueOf(p).Comparable() // otherwise it cannot be the key of a map
	if keeps && r.by[p] != nil {
		return r.by[p], nil
	}
	all, t := newFigures(p.Meter(scope)), new(tally.Tally)
	if all.failed != nil {
		return nil, all.failed
	}
	_, err := all.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for prefix, f := range t.Now() {
			all.observe(o, f, metric.WithAttributes(prefixKey.String(prefix)))
		}
		return nil
	}, all.instruments...)
	if err != nil {
		return nil, err
	}
	if keeps {
		r.by[p] = t
	}
	return t, nil
}

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

// observe reports the figures of one prefix.
func (f *figures) observe(o metric.Observer, s *tally.Figures, attributes metric.MeasurementOption) {
	o.ObserveInt64(f.handoffs, int64(min(s.Handoffs, math.MaxInt64)), attributes)
	o.ObserveInt64(f.windows, int64(min(s.Windows, math.MaxInt64)), attributes)
	if s.Registries == 0 {
		return
	}
	o.ObserveInt64(f.holds, int64(s.Holds), attributes)
	o.ObserveInt64(f.waiters, int64(s.Waiters), attributes)
	o.ObserveInt64(f.removals, int64(s.Removals), attributes)
	o.ObserveFloat64(f.oldest, s.Oldest.Seconds(), attributes)
	o.ObserveFloat64(f.oldestWait, s.OldestWait.Seconds(), attributes)
	o.ObserveFloat64(f.renewalFails, s.RenewalsFailing.Seconds(), attributes)
	o.ObserveFloat64(f.removalFails, s.RemovalsFailing.Seconds(), attributes)
}
