// Package lockotel reports what happens in lock registries to OpenTelemetry: metrics of calls, holds and losses, and a span
// for each call that has waited.
//
//	observer, err := lockotel.New()
//	...
//	locks, err := lockregistry.Open(ctx, "redis://localhost:6379", "orders", lockregistry.WithObserver(observer))
//
// Durations are in seconds, with buckets from 100 µs to a minute. The metrics, and their attributes besides
// lockregistry.prefix and lockregistry.kind ("lock", "reader", "writer", "semaphore" or "leader"):
//
//   - lockregistry.acquire.duration, a histogram: how long calls took, whether or not they got the lock. lockregistry.operation
//     is [observe.Acquired.Op]; lockregistry.acquire.how is [observe.How], "none" when the call did not get the lock;
//     error.type
//   - lockregistry.acquire.local_wait.duration, a histogram: how long calls waited for goroutines of this process; it leaves out
//     calls that did not. lockregistry.operation
//   - lockregistry.acquire.wakeups, a counter: what woke calls that waited for other processes. lockregistry.wakeup.type is
//     "message", "change" or "poll", see [observe.Wakeups]
//   - lockregistry.hold.duration, a histogram: how long locks were held. lockregistry.release.how is [observe.End];
//     error.type
//   - lockregistry.hold.losses, a counter. lockregistry.loss.reason is "lease_over", "key_gone", "key_taken", "renewed_too_late",
//     "forced" or "granted_twice", see [observe.Loss]
//   - lockregistry.unavailable, a counter: calls and releases that ended because Redis could not be asked.
//     lockregistry.unavailable.reason is "no_answer", "not_sent", "late", "few_replicas", "unreachable", how the server's reply
//     began, such as "readonly" or "loading", or "refused"
//   - lockregistry.renewal.outages, a counter: how often renewals and removals in the background began to fail, without
//     lockregistry.kind and lockregistry.prefix. error.type
//   - lockregistry.deadlocks, a counter: cycles of calls that wait for each other, without lockregistry.kind and
//     lockregistry.prefix
//   - lockregistry.hold.loss.timestamp, lockregistry.unavailable.timestamp, lockregistry.deadlock.timestamp, gauges: when the
//     counters with the same attributes last rose, in seconds of Unix time. Alerts use them: a counter that begins with its first
//     event shows no increase, and one that a failed scrape interrupts seems to begin anew. Releases leave the second one as it
//     is: often only their answer was late
//
// Leaders and candidates of package leader count only in the losses and in lockregistry.unavailable. They have no durations,
// wake-ups or spans: a candidate that waits for days, and fails when its process stops, is no slow call.
//
// [ReportStats] adds gauges of holds and waiting calls.
//
// The span of a call that has waited is called "lockregistry.wait". It lasts from the beginning of the call to its end, and has
// the attributes of lockregistry.acquire.duration. Its parent is the span of the call's context. It is created when the call
// ends.
//
// The attribute error.type is the kind of error: "taken", "unavailable" (even if a context has also ended), "canceled",
// "deadline_exceeded", "lost", "closed", "capacity", "deadlock", "wrong_type", or "_OTHER". Without an error it is absent.
//
// The two events of a lock and unlock cost about 0.4 µs together without a span, and allocate nothing once their attributes
// have been seen: go test -bench Events.
package lockotel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/observe"
)

// scope names the meter and the tracer.
const scope = "github.com/lockregistry/lockregistry/contrib/lockotel"

// The attributes.
const (
	prefixKey    = attribute.Key("lockregistry.prefix")
	pathKey      = attribute.Key("lockregistry.path")
	kindKey      = attribute.Key("lockregistry.kind")
	operationKey = attribute.Key("lockregistry.operation")
	howKey       = attribute.Key("lockregistry.acquire.how")
	wakeupKey    = attribute.Key("lockregistry.wakeup.type")
	endKey       = attribute.Key("lockregistry.release.how")
	lossKey      = attribute.Key("lockregistry.loss.reason")
	whyKey       = attribute.Key("lockregistry.unavailable.reason")
	errorKey     = attribute.Key("error.type")
)

// buckets of durations, in seconds.
var buckets = []float64{
	.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60,
}

// Option changes what [New] makes.
type Option func(*settings)

type settings struct {
	meters  metric.MeterProvider
	tracers trace.TracerProvider
	paths   bool
	err     error
}

// WithMeterProvider sets where the metrics go. It must not be nil. Default: the global one, see otel.SetMeterProvider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(s *settings) {
		if p == nil {
			s.err = fault.Join(s.err, errors.New("WithMeterProvider(nil): leave the option out for the global one"))
		}
		s.meters = p
	}
}

// WithTracerProvider sets where the spans go; a provider of OpenTelemetry's package noop turns them off. It must not be nil.
// Default: the global one, see otel.SetTracerProvider.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(s *settings) {
		if p == nil {
			s.err = fault.Join(s.err, errors.New("WithTracerProvider(nil): leave the option out for the global one"))
		}
		s.tracers = p
	}
}

// WithPath adds the attribute lockregistry.path wherever there is lockregistry.kind. Each path adds time series to several
// metrics, and each event allocates, so use it only for registries with few paths. Default: no attribute has the path.
func WithPath() Option { return func(s *settings) { s.paths = true } }

// New makes an observer for one or more registries. It fails if an option is wrong, or if the meter provider refuses an
// instrument.
func New(opts ...Option) (observe.Observer, error) {
	s, err := settingsOf(opts)
	if err != nil {
		return observe.Observer{}, fmt.Errorf("lockotel: new: %w", err)
	}
	r := &reporter{paths: s.paths, tracer: s.tracers.Tracer(scope)}
	if err := r.instruments(s.meters.Meter(scope)); err != nil {
		return observe.Observer{}, fmt.Errorf("lockotel: new: %w", err)
	}
	return observe.Observer{
		Acquired: r.acquired, Released: r.released, Lost: r.lost, Renewing: r.renewing, Deadlocked: r.deadlocked,
	}, nil
}

func settingsOf(opts []Option) (settings, error) {
	s := settings{meters: otel.GetMeterProvider(), tracers: otel.GetTracerProvider()}
	for _, o := range opts {
		if o == nil {
			s.err = fault.Join(s.err, errors.New("an option is nil"))
			continue
		}
		o(&s)
	}
	return s, s.err
}

// reporter is what the functions of the observer share.
type reporter struct {
	paths  bool
	tracer trace.Tracer

	acquire, local, hold           metric.Float64Histogram
	wakeups, outages               metric.Int64Counter
	losses, unavailable, deadlocks event

	mu    sync.RWMutex
	known map[facts]*options
}

// event counts what should not happen, and says when it last did.
type event struct {
	count metric.Int64Counter
	last  metric.Float64Gauge
}

func (e event) happened(ctx context.Context, o *options) {
	e.count.Add(ctx, 1, o.add...)
	e.last.Record(ctx, float64(time.Now().UnixNano())/1e9, o.record...)
}

func (r *reporter) instruments(m metric.Meter) error {
	r.known = map[facts]*options{}
	var failed error
	histogram := func(name, what string) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(what),
			metric.WithExplicitBucketBoundaries(buckets...))
		failed = fault.Join(failed, err)
		return h
	}
	counter := func(name, unit, what string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(what))
		failed = fault.Join(failed, err)
		return c
	}
	last := func(name, what string) metric.Float64Gauge {
		g, err := m.Float64Gauge(name, metric.WithUnit("s"), metric.WithDescription(what))
		failed = fault.Join(failed, err)
		return g
	}
	r.acquire = histogram("lockregistry.acquire.duration", "How long calls took, whether or not they got their lock.")
	r.local = histogram("lockregistry.acquire.local_wait.duration", "How long calls waited for goroutines of their process.")
	r.wakeups = counter("lockregistry.acquire.wakeups", "{wakeup}", "What woke calls that waited for other processes.")
	r.hold = histogram("lockregistry.hold.duration", "How long locks were held.")
	r.losses = event{
		counter("lockregistry.hold.losses", "{hold}", "Holds that were lost."),
		last("lockregistry.hold.loss.timestamp", "When a hold was last lost."),
	}
	r.unavailable = event{
		counter("lockregistry.unavailable", "{call}", "Calls and releases that ended because Redis could not be asked."),
		last("lockregistry.unavailable.timestamp", "When a call for a lock last failed to reach Redis."),
	}
	r.outages = counter("lockregistry.renewal.outages", "{outage}", "How often renewals in the background began to fail.")
	r.deadlocks = event{
		counter("lockregistry.deadlocks", "{deadlock}", "Cycles of calls that wait for each other."),
		last("lockregistry.deadlock.timestamp", "When calls were last found to wait for each other."),
	}
	if failed == nil {
		r.deadlocks.count.Add(context.Background(), 0) // there is a 0 before the first one, so that a rate sees it
	}
	return failed
}

// facts are the values of an event's attributes; an empty value adds no attribute.
type facts struct {
	prefix, path, kind, operation, how, wakeup, end, loss, why, err string
}

// options are attributes in the forms that instruments and spans take, so that an event allocates none.
type options struct {
	attributes []attribute.KeyValue
	record     []metric.RecordOption
	add        []metric.AddOption
}

func (f facts) options() *options {
	var o options
	for _, a := range []struct {
		key   attribute.Key
		value string
	}{
		{prefixKey, f.prefix},
		{pathKey, f.path},
		{kindKey, f.kind},
		{operationKey, f.operation},
		{howKey, f.how},
		{wakeupKey, f.wakeup},
		{endKey, f.end},
		{lossKey, f.loss},
		{whyKey, f.why},
		{errorKey, f.err},
	} {
		if a.value != "" {
			o.attributes = append(o.attributes, a.key.String(valid(a.value)))
		}
	}
	set := metric.WithAttributeSet(attribute.NewSet(o.attributes...))
	o.record, o.add = []metric.RecordOption{set}, []metric.AddOption{set}
	return &o
}

// of returns the attributes of facts. It caches them, except those with a path, of which there may be any number.
func (r *reporter) of(f facts) *options {
	if f.path != "" {
		return f.options()
	}
	r.mu.RLock()
	o := r.known[f]
	r.mu.RUnlock()
	if o != nil {
		return o
	}
	o = f.options()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[f] = o
	return o
}

func (r *reporter) about(s observe.Subject) facts {
	f := facts{prefix: s.Key[:len(s.Key)-len(s.Path)-1], kind: string(s.Kind)}
	if r.paths {
		f.path = s.Path
	}
	return f
}

func (r *reporter) acquired(ctx context.Context, a observe.Acquired) {
	about := r.about(a.Subject)
	if errors.Is(a.Err, fault.Unavailable) {
		f := about
		f.why = fault.Reason(a.Err)
		r.unavailable.happened(ctx, r.of(f))
	}
	if a.Kind == observe.KindLeader {
		return
	}
	f := about
	f.operation, f.how, f.err = a.Op, a.How.String(), fault.Kind(a.Err)
	o := r.of(f)
	took := a.Here + a.Redis
	r.acquire.Record(ctx, took.Seconds(), o.record...)
	if !a.Waited() {
		return
	}
	if a.Here > 0 {
		f := about
		f.operation = a.Op
		r.local.Record(ctx, a.Here.Seconds(), r.of(f).record...)
	}
	r.woken(ctx, about, "message", a.Wakeups.Messages)
	r.woken(ctx, about, "change", a.Wakeups.Changes)
	r.woken(ctx, about, "poll", a.Wakeups.Polls)

	now := time.Now()
	_, span := r.tracer.Start(ctx, "lockregistry.wait",
		trace.WithTimestamp(now.Add(-took)), trace.WithAttributes(o.attributes...))
	if a.Err != nil {
		span.SetStatus(codes.Error, reason(a.Err))
	}
	span.End(trace.WithTimestamp(now))
}

func (r *reporter) woken(ctx context.Context, f facts, by string, n uint64) {
	if n > 0 {
		f.wakeup = by
		r.wakeups.Add(ctx, int64(min(n, math.MaxInt64)), r.of(f).add...)
	}
}

func (r *reporter) released(ctx context.Context, e observe.Released) {
	if e.Kind != observe.KindLeader {
		f := r.about(e.Subject)
		f.end, f.err = e.How.String(), fault.Kind(e.Err)
		r.hold.Record(ctx, e.Held.Seconds(), r.of(f).record...)
	}
	if errors.Is(e.Err, fault.Unavailable) { // often its answer was only late: nobody is called for that
		f := r.about(e.Subject)
		f.why = fault.Reason(e.Err)
		r.unavailable.count.Add(ctx, 1, r.of(f).add...)
	}
}

func (r *reporter) lost(l observe.Lost) {
	f := r.about(l.Subject)
	f.loss = l.Why.String()
	r.losses.happened(context.Background(), r.of(f))
}

func (r *reporter) renewing(e observe.Renewing) {
	if e.Err != nil {
		r.outages.Add(context.Background(), 1, r.of(facts{err: fault.Kind(e.Err)}).add...)
	}
}

func (r *reporter) deadlocked(observe.Deadlock) {
	r.deadlocks.happened(context.Background(), new(options))
}

// reason returns the error's text without the key, which contains the path.
func reason(err error) string {
	var about *lockregistry.LockError
	if errors.As(err, &about) {
		err = about.Err
	}
	return valid(err.Error())
}

// valid returns a text in UTF-8: of a batch in which one text is not, exporters send nothing.
func valid(text string) string { return strings.ToValidUTF8(text, "\ufffd") }
