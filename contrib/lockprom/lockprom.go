// Package lockprom reports what happens in lock registries to Prometheus: metrics of calls, holds and losses, and of what is
// held and waited for.
//
//	metrics := lockprom.New()
//	prometheus.MustRegister(metrics)
//	locks, err := lockregistry.Open(ctx, "redis://localhost:6379", "orders", lockregistry.WithObserver(metrics.Observer()))
//	...
//	defer metrics.Watch("orders", locks.Stats)()
//
// The names are those of module lockotel's metrics when OpenTelemetry's exporter serves them, so alerts and dashboards work
// with either. Histograms have classic buckets from 100 µs to a minute; with [WithNativeHistograms] also native ones.
// The metrics, and their labels besides lockregistry_prefix and lockregistry_kind ("lock", "reader", "writer", "semaphore" or
// "leader"):
//
//   - lockregistry_acquire_duration_seconds, a histogram: how long calls took, whether or not they got the lock.
//     lockregistry_operation is [observe.Acquired.Op]; lockregistry_acquire_how is [observe.How], "none" when the call did not
//     get the lock; error_type
//   - lockregistry_acquire_local_wait_duration_seconds, a histogram: how long calls waited for goroutines of this process; it
//     leaves out calls that did not. lockregistry_operation
//   - lockregistry_acquire_wakeups_total: what woke calls that waited for other processes. lockregistry_wakeup_type is "message",
//     "change" or "poll", see [observe.Wakeups]
//   - lockregistry_hold_duration_seconds, a histogram: how long locks were held. lockregistry_release_how is [observe.End];
//     error_type
//   - lockregistry_hold_losses_total. lockregistry_loss_reason is "lease_over", "key_gone", "key_taken", "renewed_too_late",
//     "forced" or "granted_twice", see [observe.Loss]
//   - lockregistry_unavailable_total: calls and releases that ended because Redis could not be asked.
//     lockregistry_unavailable_reason is "no_answer", "not_sent", "late", "few_replicas", "unreachable", how the server's reply
//     began, such as "readonly" or "loading", or "refused"
//   - lockregistry_renewal_outages_total: how often renewals and removals in the background began to fail, without
//     lockregistry_kind and lockregistry_prefix. error_type
//   - lockregistry_deadlocks_total: cycles of calls that wait for each other, without lockregistry_kind and lockregistry_prefix
//   - lockregistry_hold_loss_timestamp_seconds, lockregistry_unavailable_timestamp_seconds,
//     lockregistry_deadlock_timestamp_seconds: when the counters with the same labels last rose, in Unix time. Alerts use them: a
//     counter that begins with its first event shows no increase, and one that a failed scrape interrupts seems to begin anew.
//     Releases leave the second one as it is: often only their answer was late
//
// Leaders and candidates of package leader count only in the losses and in lockregistry_unavailable_total. They have no durations
// and no wake-ups: a candidate that waits for days, and fails when its process stops, is no slow call.
//
// The metrics of [Collector.Watch] have only the label lockregistry_prefix:
//
//   - lockregistry_holds, lockregistry_waiters: holds of locks, readers, writers and semaphores, and calls that wait
//   - lockregistry_hold_oldest_seconds, lockregistry_wait_oldest_seconds: the age of the oldest of each; 0 without
//     one. Leaders and their candidates do not count
//   - lockregistry_removals: keys that are yet to be removed in the background
//   - lockregistry_renewal_failing_seconds, lockregistry_removal_failing_seconds: how long renewals and removals in the
//     background have been failing; 0 if they do not
//   - lockregistry_handoffs_total: holds that went from one goroutine of this process to the next
//   - lockregistry_windows_total: how often a waiting call left a free lock to callers without a place in the queue
//
// The label error_type is the kind of error: "taken", "unavailable" (even if a context has also ended), "canceled",
// "deadline_exceeded", "lost", "closed", "capacity", "deadlock", "wrong_type", or "_OTHER". Without an error it is empty.
//
// The two events of a lock and unlock cost about 0.4 µs together, and allocate nothing once their labels have been seen: go
// test -bench Events.
package lockprom

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/tally"
	"github.com/lockregistry/lockregistry/observe"
)

// Option changes what [New] makes.
type Option func(*Collector)

// WithPath adds the label lockregistry_path wherever there is lockregistry_kind. Each path adds time series to several metrics,
// so use it only for registries with few paths. Default: no label has the path.
func WithPath() Option { return func(c *Collector) { c.paths = true } }

// WithNativeHistograms adds native histograms to the classic ones. Their buckets are at most 10 % wide, or wider if a series
// would need more than 100. Default: classic histograms only.
//
// Set two things in Prometheus, globally or for the job:
//
//   - scrape_native_histograms: true. Before version 3.8, use --enable-feature=native-histograms instead
//   - always_scrape_classic_histograms: true. Before version 3, it is called scrape_classic_histograms. Without it Prometheus
//     drops the classic histograms, with _bucket, _count and _sum: the dashboard of this project needs them
func WithNativeHistograms() Option { return func(c *Collector) { c.native = true } }

// Collector is a prometheus.Collector for one or more registries. Make it with [New], register it once, and give each registry
// its [Collector.Observer]. It is safe for use by many goroutines.
type Collector struct {
	paths, native bool

	acquire, local, hold           *prometheus.HistogramVec
	wakeups, outages               *prometheus.CounterVec
	losses, unavailable, deadlocks event

	watched tally.Tally
}

// New makes a Collector. A nil option is ignored.
func New(opts ...Option) *Collector {
	c := &Collector{}
	for _, o := range opts {
		if o != nil {
			o(c)
		}
	}
	c.make()
	return c
}

// buckets of durations, in seconds.
var buckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}

// event counts what should not happen, and says when it last did.
type event struct {
	count *prometheus.CounterVec
	last  *prometheus.GaugeVec
}

func (e event) happened(labels ...string) {
	e.count.WithLabelValues(labels...).Inc()
	e.last.WithLabelValues(labels...).SetToCurrentTime()
}

// make makes the metrics of events.
func (c *Collector) make() {
	about := []string{"lockregistry_prefix", "lockregistry_kind"}
	if c.paths {
		about = append(about, "lockregistry_path")
	}
	labels := func(more ...string) []string { return append(slices.Clip(about), more...) }
	histogram := func(name, help string, labels []string) *prometheus.HistogramVec {
		opts := prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
		if c.native {
			// No NativeHistogramMinResetDuration: a reset would also set the classic buckets, the count and the sum to 0.
			opts.NativeHistogramBucketFactor, opts.NativeHistogramMaxBucketNumber = 1.1, 100
		}
		return prometheus.NewHistogramVec(opts, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	c.acquire = histogram("lockregistry_acquire_duration_seconds", "How long calls took, whether or not they got their lock.",
		labels("lockregistry_operation", "lockregistry_acquire_how", "error_type"))
	c.local = histogram("lockregistry_acquire_local_wait_duration_seconds",
		"How long calls waited for goroutines of their process.", labels("lockregistry_operation"))
	c.hold = histogram("lockregistry_hold_duration_seconds", "How long locks were held.",
		labels("lockregistry_release_how", "error_type"))
	c.wakeups = counter("lockregistry_acquire_wakeups_total", "What woke calls that waited for other processes.",
		labels("lockregistry_wakeup_type")...)
	last := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	why := labels("lockregistry_loss_reason")
	c.losses = event{
		counter("lockregistry_hold_losses_total", "Holds that were lost.", why...),
		last("lockregistry_hold_loss_timestamp_seconds", "When a hold was last lost.", why...),
	}
	why = labels("lockregistry_unavailable_reason")
	c.unavailable = event{
		counter("lockregistry_unavailable_total", "Calls and releases that ended because Redis could not be asked.", why...),
		last("lockregistry_unavailable_timestamp_seconds", "When a call for a lock last failed to reach Redis.", why...),
	}
	c.outages = counter("lockregistry_renewal_outages_total", "How often renewals in the background began to fail.", "error_type")
	c.deadlocks = event{
		counter("lockregistry_deadlocks_total", "Cycles of calls that wait for each other."),
		last("lockregistry_deadlock_timestamp_seconds", "When calls were last found to wait for each other."),
	}
	c.deadlocks.count.WithLabelValues() // there is a 0 before the first one, so that a rate sees it
}

// Observer returns the observer that reports to c: give it to [lockregistry.WithObserver].
func (c *Collector) Observer() observe.Observer {
	return observe.Observer{
		Acquired: c.acquired, Released: c.released, Lost: c.lost, Renewing: c.renewing, Deadlocked: c.deadlocked,
	}
}

// about returns the values of the labels that name a lock, and of one to three more.
func (c *Collector) about(buffer []string, s observe.Subject, more ...string) []string {
	buffer = append(buffer, valid(s.Key[:len(s.Key)-len(s.Path)-1]), string(s.Kind))
	if c.paths {
		buffer = append(buffer, valid(s.Path))
	}
	return append(buffer, more...)
}

// valid returns a name as labels may have it: in UTF-8.
func valid(name string) string { return strings.ToValidUTF8(name, "\ufffd") }

// mostLabels is how many labels a metric has at most.
const mostLabels = 6

func (c *Collector) acquired(_ context.Context, a observe.Acquired) {
	if errors.Is(a.Err, fault.Unavailable) {
		c.unavailable.happened(c.about(nil, a.Subject, fault.Reason(a.Err))...)
	}
	if a.Kind == observe.KindLeader {
		return
	}
	var buffer [mostLabels]string
	took := a.Here + a.Redis
	c.acquire.WithLabelValues(c.about(buffer[:0], a.Subject, a.Op, a.How.String(), fault.Kind(a.Err))...).Observe(took.Seconds())
	if a.Here > 0 {
		c.local.WithLabelValues(c.about(buffer[:0], a.Subject, a.Op)...).Observe(a.Here.Seconds())
	}
	for _, w := range [...]struct {
		by string
		n  uint64
	}{{"message", a.Wakeups.Messages}, {"change", a.Wakeups.Changes}, {"poll", a.Wakeups.Polls}} {
		if w.n > 0 {
			c.wakeups.WithLabelValues(c.about(buffer[:0], a.Subject, w.by)...).Add(float64(w.n))
		}
	}
}

func (c *Collector) released(_ context.Context, r observe.Released) {
	if r.Kind != observe.KindLeader {
		var buffer [mostLabels]string
		c.hold.WithLabelValues(c.about(buffer[:0], r.Subject, r.How.String(), fault.Kind(r.Err))...).Observe(r.Held.Seconds())
	}
	if errors.Is(r.Err, fault.Unavailable) { // often its answer was only late: nobody is called for that
		c.unavailable.count.WithLabelValues(c.about(nil, r.Subject, fault.Reason(r.Err))...).Inc()
	}
}

func (c *Collector) lost(l observe.Lost) {
	c.losses.happened(c.about(nil, l.Subject, l.Why.String())...)
}

func (c *Collector) renewing(r observe.Renewing) {
	if r.Err != nil {
		c.outages.WithLabelValues(fault.Kind(r.Err)).Inc()
	}
}

func (c *Collector) deadlocked(observe.Deadlock) { c.deadlocks.happened() }
