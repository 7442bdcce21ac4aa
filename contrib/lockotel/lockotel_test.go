package lockotel_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/lockotel"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/leader"
	"github.com/lockregistry/lockregistry/locktest"
	"github.com/lockregistry/lockregistry/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// telemetry is what the SDK has got.
type telemetry struct {
	*testing.T
	reader *sdkmetric.ManualReader
	spans  *tracetest.InMemoryExporter
	tracer *sdktrace.TracerProvider
	meter  *sdkmetric.MeterProvider
}

func newTelemetry(t *testing.T) *telemetry {
	t.Helper()
	m := &telemetry{T: t, reader: sdkmetric.NewManualReader(), spans: tracetest.NewInMemoryExporter()}
	m.meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(m.reader))
	m.tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(m.spans))
	return m
}

// observed is the option of a registry that reports to m.
func (m *telemetry) observed(opts ...lockotel.Option) lockregistry.Option {
	m.Helper()
	observer, err := lockotel.New(append(opts, lockotel.WithMeterProvider(m.meter), lockotel.WithTracerProvider(m.tracer))...)
	require.NoError(m, err)
	return lockregistry.WithObserver(observer)
}

// metric collects, and returns one of the metrics.
func (m *telemetry) metric(name string) metricdata.Metrics {
	m.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(m, m.reader.Collect(m.Context(), &all))
	require.Len(m, all.ScopeMetrics, 1)
	require.Equal(m, "github.com/lockregistry/lockregistry/contrib/lockotel", all.ScopeMetrics[0].Scope.Name)
	for _, one := range all.ScopeMetrics[0].Metrics {
		if one.Name == name {
			require.NotEmpty(m, one.Description)
			return one
		}
	}
	m.Fatal("there is no ", name)
	return metricdata.Metrics{}
}

// histogram checks a histogram's unit, and that it has so many values that add up to sum, with exactly these attributes.
func (m *telemetry) histogram(name string, count uint64, sum time.Duration, attributes ...string) {
	m.Helper()
	one := m.metric(name)
	require.Equal(m, "s", one.Unit)
	data := one.Data.(metricdata.Histogram[float64])
	for _, p := range data.DataPoints {
		if p.Attributes.Equals(set(attributes...)) {
			require.Equal(m, count, p.Count)
			require.InDelta(m, sum.Seconds(), p.Sum, 1e-9)
			require.InDelta(m, 0.0001, p.Bounds[0], 0)
			require.InDelta(m, 60, p.Bounds[len(p.Bounds)-1], 0)
			return
		}
	}
	m.Fatalf("%s has none with %v: %v", name, attributes, data.DataPoints)
}

// counter is the value with exactly these attributes; 0 when there is none.
func (m *telemetry) counter(name, unit string, attributes ...string) int64 {
	m.Helper()
	one := m.metric(name)
	require.Equal(m, unit, one.Unit)
	data := one.Data.(metricdata.Sum[int64])
	require.True(m, data.IsMonotonic)
	for _, p := range data.DataPoints {
		if p.Attributes.Equals(set(attributes...)) {
			return p.Value
		}
	}
	return 0
}

// set makes attributes of names, without lockregistry. in front unless it is error.type, and values.
func set(pairs ...string) *attribute.Set {
	var all []attribute.KeyValue
	for i := 0; i < len(pairs); i += 2 {
		name := "lockregistry." + pairs[i]
		if pairs[i] == "error.type" {
			name = pairs[i]
		}
		all = append(all, attribute.String(name, pairs[i+1]))
	}
	s := attribute.NewSet(all...)
	return &s
}

// world runs a test on a registry that reports, in fake time.
func world(t *testing.T, test func(m *telemetry, locks *locktest.Registry), opts ...lockotel.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := newTelemetry(t)
		test(m, locktest.New(t, m.observed(opts...)))
	})
}

// Exporters refuse a whole batch in which one text is not UTF-8: names are made so that they are.
func TestNames_NotUTF8(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTelemetry(t)
		observer, err := lockotel.New(
			lockotel.WithPath(), lockotel.WithMeterProvider(m.meter), lockotel.WithTracerProvider(m.tracer))
		require.NoError(t, err)
		registration, err := lockotel.ReportStats("ord\xffers", func() observe.Stats { return observe.Stats{} },
			lockotel.WithMeterProvider(m.meter))
		require.NoError(t, err)
		defer func() { require.NoError(t, registration.Unregister()) }()
		subject := observe.Subject{Path: "4\xff2", Key: "ord\xffers:4\xff2", Kind: observe.KindLock}
		observer.Acquired(t.Context(), observe.Acquired{
			Subject: subject, Op: "lock", Here: 1, Err: errors.New("strange \xff"), Wakeups: observe.Wakeups{Polls: 1},
		})
		observer.Released(t.Context(), observe.Released{Subject: subject})
		observer.Lost(observe.Lost{Subject: subject})

		var all metricdata.ResourceMetrics
		require.NoError(t, m.reader.Collect(t.Context(), &all))
		seen := 0
		valid := func(set attribute.Set) {
			for _, a := range set.ToSlice() {
				seen++
				require.True(t, utf8.ValidString(a.Value.AsString()), "%s: %q", a.Key, a.Value.AsString())
			}
		}
		for _, one := range all.ScopeMetrics[0].Metrics {
			switch data := one.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					valid(p.Attributes)
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					valid(p.Attributes)
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					valid(p.Attributes)
				}
			}
		}
		require.Greater(t, seen, 10)
		for _, span := range m.spans.GetSpans() {
			valid(attribute.NewSet(span.Attributes...))
			require.True(t, utf8.ValidString(span.Status.Description))
		}
		require.Len(t, m.spans.GetSpans(), 1)
	})
}

// Most calls wait for nobody: durations, and no span.
func TestCalls(t *testing.T) {
	world(t, func(m *telemetry, locks *locktest.Registry) {
		for range 3 {
			require.NoError(m, locks.Do(m.Context(), "42", func(context.Context) error {
				<-time.After(2 * time.Second)
				return nil
			}))
		}
		m.histogram("lockregistry.acquire.duration", 3, 0,
			"prefix", "locktest", "kind", "lock", "operation", "do", "acquire.how", "free")
		m.histogram("lockregistry.hold.duration", 3, 6*time.Second,
			"prefix", "locktest", "kind", "lock", "release.how", "released")
		require.NoError(m, locks.ReadWrite("43").Reader().Lock(m.Context()))
		require.NoError(m, locks.ReadWrite("43").Reader().Unlock(m.Context()))
		m.histogram("lockregistry.acquire.duration", 1, 0,
			"prefix", "locktest", "kind", "reader", "operation", "lock", "acquire.how", "free")
		require.Empty(m, m.spans.GetSpans())
	})
}

// Calls and holds of a semaphore are told from those of locks, and so is what is lost.
func TestSemaphore(t *testing.T) {
	world(t, func(m *telemetry, locks *locktest.Registry) {
		seats := locks.Semaphore("seat", 1)
		for range 2 {
			require.NoError(m, seats.Do(m.Context(), func(ctx context.Context) error {
				_, err := seats.Acquire(ctx, lockregistry.NoWait())
				require.ErrorIs(m, err, lockregistry.ErrTaken)
				<-time.After(2 * time.Second)
				return nil
			}))
		}
		_, err := seats.Acquire(m.Context())
		require.NoError(m, err)
		err = seats.Do(m.Context(), func(context.Context) error { return nil }, lockregistry.Wait(time.Second))
		require.ErrorIs(m, err, lockregistry.ErrTaken)
		require.NoError(m, inspect.Of(locks.Registry).ForceUnlock(m.Context(), "seat"))
		synctest.Wait() // the message that tells the hold comes a moment later

		of := []string{"prefix", "locktest", "kind", "semaphore"}
		about := func(more ...string) []string { return append(slices.Clone(of), more...) }
		m.histogram("lockregistry.acquire.duration", 2, 0, about("operation", "do", "acquire.how", "free")...)
		taken := about("operation", "acquire", "acquire.how", "none", "error.type", "taken")
		m.histogram("lockregistry.acquire.duration", 2, 0, taken...)
		waited := about("operation", "do", "acquire.how", "none", "error.type", "taken")
		m.histogram("lockregistry.acquire.duration", 1, time.Second, waited...)
		m.histogram("lockregistry.hold.duration", 2, 4*time.Second, about("release.how", "released")...)
		require.EqualValues(m, 1, m.counter("lockregistry.hold.losses", "{hold}", about("loss.reason", "forced")...))
		spans := m.spans.GetSpans()
		require.Len(m, spans, 1)
		attributes := attribute.NewSet(spans[0].Attributes...)
		require.True(m, attributes.Equals(set(waited...)), spans[0].Attributes)
	})
}

// A call that has waited has a span, within that of its context.
func TestWaiting(t *testing.T) {
	world(t, func(m *telemetry, locks *locktest.Registry) {
		ctx, parent := m.tracer.Tracer("test").Start(m.Context(), "request")
		release := locks.HoldElsewhere("42", time.Minute)
		done := make(chan error)
		go func() {
			<-time.After(3 * time.Second)
			release()
		}()
		began := time.Now()
		for range 2 {
			go func() { done <- locks.Do(ctx, "42", func(context.Context) error { return nil }) }()
			synctest.Wait()
		}
		require.NoError(m, <-done)
		require.NoError(m, <-done)
		m.histogram("lockregistry.acquire.duration", 1, 3*time.Second,
			"prefix", "locktest", "kind", "lock", "operation", "do", "acquire.how", "found_free")
		m.histogram("lockregistry.acquire.duration", 1, 3*time.Second,
			"prefix", "locktest", "kind", "lock", "operation", "do", "acquire.how", "handed_over")
		m.histogram("lockregistry.acquire.local_wait.duration", 1, 3*time.Second,
			"prefix", "locktest", "kind", "lock", "operation", "do")
		require.Positive(m, m.counter("lockregistry.acquire.wakeups", "{wakeup}",
			"prefix", "locktest", "kind", "lock", "wakeup.type", "change"))
		require.Positive(m, m.counter("lockregistry.acquire.wakeups", "{wakeup}",
			"prefix", "locktest", "kind", "lock", "wakeup.type", "poll"))
		require.Zero(m, m.counter("lockregistry.acquire.wakeups", "{wakeup}",
			"prefix", "locktest", "kind", "lock", "wakeup.type", "message"))

		spans := m.spans.GetSpans()
		require.Len(m, spans, 2)
		for i, how := range []string{"found_free", "handed_over"} {
			s := spans[i]
			require.Equal(m, "lockregistry.wait", s.Name)
			require.Equal(m, parent.SpanContext().SpanID(), s.Parent.SpanID())
			require.Equal(m, began, s.StartTime)
			require.Equal(m, began.Add(3*time.Second), s.EndTime)
			require.Equal(m, codes.Unset, s.Status.Code)
			attributes := attribute.NewSet(s.Attributes...)
			require.True(m, attributes.Equals(
				set("prefix", "locktest", "kind", "lock", "operation", "do", "acquire.how", how)), s.Attributes)
		}
	})
}

// Neither the days that a candidate waits nor the days that a leader leads are durations of calls and holds, or spans. Redis may
// well be unavailable to them, and they may lose the lock.
func TestLeaders(t *testing.T) {
	world(t, func(m *telemetry, locks *locktest.Registry) {
		leads := func(ctx context.Context) error { <-ctx.Done(); return nil }
		ctx, cancel := context.WithTimeout(m.Context(), time.Minute)
		defer cancel()
		ended := make(chan error, 2)
		for range 2 {
			candidate, err := leader.New(locks.Registry, "42", leads)
			require.NoError(m, err)
			go func() { ended <- candidate.Run(ctx) }()
			synctest.Wait()
		}
		locks.Lose("42") // the other one leads
		locks.Disconnect()
		require.ErrorIs(m, <-ended, context.DeadlineExceeded)
		require.ErrorIs(m, <-ended, context.DeadlineExceeded)
		locks.Reconnect()
		synctest.Wait()

		require.EqualValues(m, 1, m.counter("lockregistry.hold.losses", "{hold}",
			"prefix", "locktest", "kind", "leader", "loss.reason", "forced"))
		m.metric("lockregistry.unavailable.timestamp")
		var all metricdata.ResourceMetrics
		require.NoError(m, m.reader.Collect(m.Context(), &all))
		for _, one := range all.ScopeMetrics[0].Metrics {
			require.NotContains(m, []string{
				"lockregistry.acquire.duration", "lockregistry.acquire.local_wait.duration", "lockregistry.acquire.wakeups",
				"lockregistry.hold.duration",
			}, one.Name)
		}
		require.Empty(m, m.spans.GetSpans())
	})
}

// Error.type tells what went wrong, and the span why, without the path.
func TestErrors(t *testing.T) {
	world(t, func(m *telemetry, locks *locktest.Registry) {
		defer locks.HoldElsewhere("secret", time.Hour)()
		failed := func(how string, call func(context.Context) error) {
			m.Helper()
			require.Error(m, call(m.Context()))
			m.histogram("lockregistry.acquire.duration", 1, 0,
				"prefix", "locktest", "kind", "lock", "operation", "lock", "acquire.how", "none", "error.type", how)
		}
		failed("taken", func(ctx context.Context) error { return locks.Obtain("secret").Lock(ctx, lockregistry.NoWait()) })
		failed("canceled", func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return locks.Obtain("secret").Lock(ctx)
		})
		failed("deadline_exceeded", func(ctx context.Context) error {
			ctx, cancel := context.WithDeadline(ctx, time.Now())
			defer cancel()
			return locks.Obtain("secret").Lock(ctx)
		})
		failed("deadlock", func(ctx context.Context) error {
			h, err := locks.Acquire(ctx, "42")
			require.NoError(m, err)
			defer func() { require.NoError(m, h.Release(ctx)) }()
			return locks.Obtain("42").Lock(h.Context(ctx))
		})
		failed("_OTHER", func(ctx context.Context) error { return locks.Obtain("").Lock(ctx) })
		ok, err := locks.Obtain("secret").TryLock(m.Context())
		require.NoError(m, err)
		require.False(m, ok)
		m.histogram("lockregistry.acquire.duration", 1, 0,
			"prefix", "locktest", "kind", "lock", "operation", "trylock", "acquire.how", "none")
		require.Empty(m, m.spans.GetSpans())

		require.ErrorIs(m, locks.Obtain("secret").Lock(m.Context(), lockregistry.Wait(time.Second)), lockregistry.ErrTaken)
		spans := m.spans.GetSpans()
		require.Len(m, spans, 1)
		require.Equal(m, codes.Error, spans[0].Status.Code)
		require.Equal(m, "the lock was not free within 1s: it is taken in Redis", spans[0].Status.Description)
		require.Contains(m, spans[0].Attributes, attribute.String("error.type", "taken"))

		locks.Hang()
		require.ErrorIs(m, locks.Obtain("43").Lock(m.Context(), lockregistry.Wait(time.Second)), lockregistry.ErrUnavailable)
		m.metric("lockregistry.acquire.duration")
		m.histogram("lockregistry.acquire.duration", 1, 1250*time.Millisecond,
			"prefix", "locktest", "kind", "lock", "operation", "lock", "acquire.how", "none", "error.type", "unavailable")
		locks.Reconnect()
	})
}

func TestLossesAndOutages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newTelemetry(t)
		locks := locktest.New(t, m.observed(), lockregistry.WithRenewal())
		losses := func(reason string) int64 {
			t.Helper()
			return m.counter("lockregistry.hold.losses", "{hold}", "prefix", "locktest", "kind", "lock", "loss.reason", reason)
		}
		require.NoError(t, locks.Obtain("42").Lock(t.Context()))
		locks.Lose("42")
		require.ErrorIs(t, locks.Obtain("42").Unlock(t.Context()), lockregistry.ErrLockLost)
		synctest.Wait()
		require.EqualValues(t, 1, losses("forced"))
		m.histogram("lockregistry.hold.duration", 1, 0,
			"prefix", "locktest", "kind", "lock", "release.how", "lost", "error.type", "lost")

		require.NoError(t, locks.Obtain("42").Lock(t.Context()))
		ctx := locks.Obtain("42").Context(t.Context())
		locks.Disconnect()
		<-ctx.Done()
		synctest.Wait()
		require.EqualValues(t, 1, losses("lease_over"))
		locks.Reconnect()
		require.ErrorIs(t, locks.Obtain("42").Unlock(t.Context()), lockregistry.ErrLockLost)
		require.NoError(t, locks.Obtain("43").Lock(t.Context(), lockregistry.Wait(time.Minute), lockregistry.Lease(3*time.Second)))
		<-time.After(time.Minute) // renewals succeed again, which is no outage
		require.NoError(t, locks.Obtain("43").Unlock(t.Context()))
		require.EqualValues(t, 1, m.counter("lockregistry.renewal.outages", "{outage}", "error.type", "unavailable"))
		require.Len(t, m.metric("lockregistry.renewal.outages").Data.(metricdata.Sum[int64]).DataPoints, 1)
	})
}

// The path is an attribute of metrics and spans if that is asked for, and else of none.
func TestPaths(t *testing.T) {
	for _, asked := range []bool{false, true} {
		var opts []lockotel.Option
		attributes := []string{"prefix", "locktest", "kind", "lock"}
		if asked {
			opts = append(opts, lockotel.WithPath())
			attributes = append(attributes, "path", "a:b")
		}
		world(t, func(m *telemetry, locks *locktest.Registry) {
			release := locks.HoldElsewhere("a:b", time.Second)
			require.NoError(m, locks.Obtain("a:b").Lock(m.Context()))
			release()
			<-locks.Obtain("a:b").Context(m.Context()).Done()
			synctest.Wait()
			require.ErrorIs(m, locks.Obtain("a:b").Unlock(m.Context()), lockregistry.ErrLockLost)
			m.histogram("lockregistry.acquire.duration", 1, time.Second,
				append(attributes, "operation", "lock", "acquire.how", "found_expired")...)
			require.Positive(m, m.counter("lockregistry.acquire.wakeups", "{wakeup}", append(attributes, "wakeup.type", "poll")...))
			require.EqualValues(m, 1, m.counter("lockregistry.hold.losses", "{hold}", append(attributes, "loss.reason", "lease_over")...))
			require.Len(m, m.spans.GetSpans(), 1)
			value := attribute.String("lockregistry.path", "a:b")
			if asked {
				require.Contains(m, m.spans.GetSpans()[0].Attributes, value)
			} else {
				require.NotContains(m, m.spans.GetSpans()[0].Attributes, value)
			}
		}, opts...)
	}
}

// refusing is a meter that has no instruments.
type refusing struct{ metricnoop.MeterProvider }

type refusingMeter struct{ metricnoop.Meter }

func (refusing) Meter(string, ...metric.MeterOption) metric.Meter { return refusingMeter{} }

func (refusingMeter) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return nil, errors.New("no histograms")
}

func (refusingMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return nil, errors.New("no counters")
}

func TestNewWithBadInput(t *testing.T) {
	_, err := lockotel.New(nil, lockotel.WithMeterProvider(nil), lockotel.WithTracerProvider(nil))
	require.EqualError(t, err, "lockotel: new: an option is nil; "+
		"WithMeterProvider(nil): leave the option out for the global one; "+
		"WithTracerProvider(nil): leave the option out for the global one")
	_, err = lockotel.New(lockotel.WithMeterProvider(refusing{}))
	require.ErrorContains(t, err, "lockotel: new: no histograms")
	_, err = lockotel.New() // the global ones
	require.NoError(t, err)
}

// An event allocates nothing once its attributes were seen.
func TestAllocations(t *testing.T) {
	m := newTelemetry(t)
	observer, err := lockotel.New(lockotel.WithMeterProvider(m.meter), lockotel.WithTracerProvider(m.tracer))
	require.NoError(t, err)
	acquired, released := events()
	ctx := t.Context()
	least := math.Inf(1)
	for range 5 {
		least = min(least, testing.AllocsPerRun(100, func() {
			observer.Acquired(ctx, acquired)
			observer.Released(ctx, released)
		}))
	}
	require.Zero(t, least)
}

// events are those of a lock that was free.
func events() (observe.Acquired, observe.Released) {
	s := observe.Subject{Path: "42", Key: "orders:42", Kind: "lock"}
	return observe.Acquired{Subject: s, Op: "lock", How: observe.HowFree, Redis: 100 * time.Microsecond},
		observe.Released{Subject: s, Held: time.Millisecond}
}

// A cycle counts once, whichever of its calls find it. Before the first one there is a 0, so that a rate sees it.
func TestDeadlocks(t *testing.T) {
	world(t, func(m *telemetry, locks *locktest.Registry) {
		require.Zero(m, m.counter("lockregistry.deadlocks", "{deadlock}"))
		require.Len(m, m.metric("lockregistry.deadlocks").Data.(metricdata.Sum[int64]).DataPoints, 1)
		require.NoError(m, locks.Obtain("43").Lock(m.Context()))
		result := make(chan error, 1)
		go func() {
			result <- locks.Do(m.Context(), "42", func(ctx context.Context) error {
				return locks.Do(ctx, "43", func(context.Context) error { return nil })
			})
		}()
		synctest.Wait()
		require.ErrorIs(m, locks.Obtain("42").Lock(m.Context()), lockregistry.ErrDeadlock)
		synctest.Wait()
		require.EqualValues(m, 1, m.counter("lockregistry.deadlocks", "{deadlock}"))
		require.NoError(m, locks.Obtain("43").Unlock(m.Context()))
		require.NoError(m, <-result)
	})
}

// When a service closes its registry and opens another one, the counters go on: a monotonic counter must not fall, and a delta
// is not negative, and does not tell a handoff twice. Nor does it when two registries have the prefix at the same time.
func TestReportStats_CountersDoNotFall(t *testing.T) {
	for _, temporality := range []metricdata.Temporality{metricdata.CumulativeTemporality, metricdata.DeltaTemporality} {
		reader := sdkmetric.NewManualReader(sdkmetric.WithTemporalitySelector(
			func(sdkmetric.InstrumentKind) metricdata.Temporality { return temporality }))
		m := &telemetry{T: t, reader: reader, meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))}
		var sum int64
		handoffs := func(want int64) {
			t.Helper()
			told := m.counter("lockregistry.handoffs", "{hold}", "prefix", "orders")
			if temporality == metricdata.DeltaTemporality {
				require.GreaterOrEqual(t, told, int64(0))
				told += sum
			}
			sum = told
			require.Equal(t, want, sum, temporality)
		}
		report := func(n uint64) metric.Registration {
			stats := func() observe.Stats { return observe.Stats{Handoffs: n, Holds: 1} }
			r, err := lockotel.ReportStats("orders", stats, lockotel.WithMeterProvider(m.meter))
			require.NoError(t, err)
			return r
		}
		holds := func() (n int64) {
			for _, p := range m.metric("lockregistry.holds").Data.(metricdata.Gauge[int64]).DataPoints {
				n += p.Value
			}
			return n
		}
		first := report(1000)
		handoffs(1000)
		require.NoError(t, first.Unregister())
		require.NoError(t, first.Unregister())
		second := report(3)
		handoffs(1003)
		third := report(20)
		handoffs(1023)
		if temporality == metricdata.CumulativeTemporality {
			require.EqualValues(t, 2, holds())
		}
		require.NoError(t, second.Unregister())
		handoffs(1023)
		require.NoError(t, third.Unregister())
		handoffs(1023) // when metrics are collected while there is no registry
		require.NoError(t, report(4).Unregister())
		handoffs(1027)
	}
}

// incomparable is a meter provider that is no key of a map.
type incomparable struct {
	metricnoop.MeterProvider

	_ []string
}

func TestReportStats_ToAnIncomparableProvider(t *testing.T) {
	for range 2 {
		stats := func() observe.Stats { return observe.Stats{} }
		r, err := lockotel.ReportStats("orders", stats, lockotel.WithMeterProvider(incomparable{}))
		require.NoError(t, err)
		require.NoError(t, r.Unregister())
	}
}

func TestReportStats(t *testing.T) {
	world(t, func(m *telemetry, locks *locktest.Registry) {
		windows := uint64(3)
		stats := func() observe.Stats {
			s := locks.Stats()
			s.Windows = windows
			return s
		}
		reported, err := lockotel.ReportStats("orders", stats, lockotel.WithMeterProvider(m.meter))
		require.NoError(m, err)
		age := func() float64 {
			one := m.metric("lockregistry.hold.oldest")
			require.Equal(m, "s", one.Unit)
			points := one.Data.(metricdata.Gauge[float64]).DataPoints
			require.Len(m, points, 1)
			require.True(m, points[0].Attributes.Equals(set("prefix", "orders")))
			return points[0].Value
		}
		gauge := func(name, unit string) int64 {
			one := m.metric(name)
			require.Equal(m, unit, one.Unit)
			points := one.Data.(metricdata.Gauge[int64]).DataPoints
			require.Len(m, points, 1)
			require.True(m, points[0].Attributes.Equals(set("prefix", "orders")))
			return points[0].Value
		}
		require.Zero(m, age())
		require.Zero(m, gauge("lockregistry.holds", "{hold}"))
		hold, err := locks.Acquire(m.Context(), "42")
		require.NoError(m, err)
		result := make(chan error, 1)
		go func() {
			_, err := locks.Acquire(m.Context(), "42", lockregistry.Wait(10*time.Second))
			result <- err
		}()
		<-time.After(3 * time.Second)
		require.InDelta(m, 3, age(), 0.1)
		require.EqualValues(m, 1, gauge("lockregistry.holds", "{hold}"))
		require.EqualValues(m, 1, gauge("lockregistry.waiters", "{call}"))
		require.EqualValues(m, 3, m.counter("lockregistry.windows", "{window}", "prefix", "orders"))
		require.ErrorIs(m, <-result, lockregistry.ErrTaken)
		require.NoError(m, hold.Release(m.Context()))
		require.Zero(m, age())
		require.Zero(m, gauge("lockregistry.waiters", "{call}"))
		require.NoError(m, reported.Unregister())
		_, err = lockotel.ReportStats("orders", nil)
		require.Error(m, err)
		_, err = lockotel.ReportStats("orders", locks.Stats, nil)
		require.Error(m, err)
	})
}
