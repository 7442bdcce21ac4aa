package lockprom_test

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/contrib/lockprom"
	"github.com/lockregistry/lockregistry/leader"
	"github.com/lockregistry/lockregistry/locktest"
	"github.com/lockregistry/lockregistry/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collected is a registry of Prometheus with a collector.
type collected struct {
	*testing.T
	all *prometheus.Registry
}

func collect(t *testing.T, c *lockprom.Collector) collected {
	t.Helper()
	all := prometheus.NewPedanticRegistry()
	require.NoError(t, all.Register(c))
	return collected{t, all}
}

// of returns the series of a metric whose labels have the values.
func (c collected) of(name string, labels ...string) []*dto.Metric {
	c.Helper()
	families, err := c.all.Gather()
	require.NoError(c, err)
	var found []*dto.Metric
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && has(m, labels) {
				found = append(found, m)
			}
		}
	}
	return found
}

func has(m *dto.Metric, labels []string) bool {
	for i := 0; i < len(labels); i += 2 {
		if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == labels[i] && l.GetValue() == labels[i+1]
		}) {
			return false
		}
	}
	return true
}

// count returns how many observations a histogram has.
func (c collected) count(name string, labels ...string) (n uint64) {
	c.Helper()
	for _, m := range c.of(name, labels...) {
		n += m.GetHistogram().GetSampleCount()
	}
	return n
}

// value returns the one value of a counter or a gauge.
func (c collected) value(name string, labels ...string) float64 {
	c.Helper()
	found := c.of(name, labels...)
	require.Len(c, found, 1, name)
	return found[0].GetCounter().GetValue() + found[0].GetGauge().GetValue()
}

// world runs a test in fake time, with a registry that is collected.
func world(t *testing.T, f func(c collected, m *lockprom.Collector, locks *locktest.Registry), opts ...lockprom.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := lockprom.New(opts...)
		f(collect(t, m), m, locktest.New(t, lockregistry.WithObserver(m.Observer()), lockregistry.WithHandoff(time.Hour)))
	})
}

func nothing(context.Context) error { return nil }

func TestCalls(t *testing.T) {
	world(t, func(c collected, _ *lockprom.Collector, locks *locktest.Registry) {
		hold, err := locks.Acquire(c.Context(), "42")
		require.NoError(c, err)
		require.ErrorIs(c, locks.Do(c.Context(), "42", nothing, lockregistry.Wait(3*time.Second)), lockregistry.ErrTaken)
		require.NoError(c, hold.Release(c.Context()))
		require.NoError(c, locks.ReadWrite("43").Reader().Do(c.Context(), nothing))

		const acquire, held = "lockregistry_acquire_duration_seconds", "lockregistry_hold_duration_seconds"
		require.EqualValues(c, 1, c.count(acquire, "lockregistry_operation", "acquire",
			"lockregistry_acquire_how", "free", "error_type", ""))
		require.EqualValues(c, 1, c.count(acquire, "lockregistry_operation", "do",
			"lockregistry_acquire_how", "none", "error_type", "taken"))
		require.EqualValues(c, 1, c.count(acquire, "lockregistry_kind", "reader"))
		require.EqualValues(c, 3, c.count(acquire))
		waited := c.of(acquire, "error_type", "taken")[0].GetHistogram()
		require.InDelta(c, 3, waited.GetSampleSum(), 0.1)
		require.NotEmpty(c, waited.GetBucket())
		require.EqualValues(c, 1, c.count("lockregistry_acquire_local_wait_duration_seconds", "lockregistry_operation", "do"))
		require.EqualValues(c, 2, c.count(held, "lockregistry_release_how", "released"))
		for _, f := range c.of(acquire) {
			require.False(c, has(f, []string{"lockregistry_path", "42"}))
			require.Len(c, f.GetLabel(), 5)
		}
	})
}

func TestPaths(t *testing.T) {
	world(t, func(c collected, _ *lockprom.Collector, locks *locktest.Registry) {
		require.NoError(c, locks.Do(c.Context(), "42", nothing))
		require.EqualValues(c, 1, c.count("lockregistry_acquire_duration_seconds", "lockregistry_path", "42"))
		require.EqualValues(c, 1, c.count("lockregistry_hold_duration_seconds", "lockregistry_path", "42"))
		require.NoError(c, locks.Do(c.Context(), "a\xffb", nothing), "a path need not be UTF-8")
		require.EqualValues(c, 1, c.count("lockregistry_acquire_duration_seconds", "lockregistry_path", "a\ufffdb"))
	}, lockprom.WithPath(), nil)
}

func TestLosses(t *testing.T) {
	world(t, func(c collected, _ *lockprom.Collector, locks *locktest.Registry) {
		require.Zero(c, c.value("lockregistry_deadlocks_total"), "there before the first one")
		l := locks.Obtain("42")
		require.NoError(c, l.Lock(c.Context(), lockregistry.Lease(time.Second)))
		<-l.Context(c.Context()).Done()
		require.ErrorIs(c, l.Unlock(c.Context()), lockregistry.ErrLockLost)
		synctest.Wait()
		require.InDelta(c, 1, c.value("lockregistry_hold_losses_total", "lockregistry_loss_reason", "lease_over"), 0)
		require.EqualValues(c, 1, c.count("lockregistry_hold_duration_seconds", "lockregistry_release_how", "lost",
			"error_type", "lost"))
	})
}

// A Prometheus that scrapes native histograms drops the classic buckets of a histogram that has both. So there are native ones
// only for a program that asks for them.
func TestHistograms_Classic(t *testing.T) {
	m := lockprom.New()
	c := collect(t, m)
	took(t, m, time.Second)
	h := c.of("lockregistry_acquire_duration_seconds")[0].GetHistogram()
	require.NotEmpty(t, h.GetBucket())
	require.Empty(t, h.GetPositiveSpan())
	require.Nil(t, h.Schema, "it has no native buckets")
}

// Durations that need more native buckets than there may be make these coarser. No count falls: Prometheus would take that for a
// restart.
func TestHistograms_Native(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lockprom.New(lockprom.WithNativeHistograms())
		c := collect(t, m)
		for minute := range 130 {
			const several = 200
			for i := range several {
				took(t, m, time.Duration(5e4*math.Exp2(float64(i)/several*14.3))) // 50 µs to a second
			}
			h := c.of("lockregistry_acquire_duration_seconds")[0].GetHistogram()
			require.EqualValues(t, (minute+1)*several, h.GetSampleCount())
			classic := h.GetBucket()
			require.Equal(t, h.GetSampleCount(), classic[len(classic)-1].GetCumulativeCount())
			require.NotEmpty(t, h.GetPositiveSpan())
			require.LessOrEqual(t, len(h.GetPositiveDelta()), 100)
			require.Less(t, h.GetSchema(), int32(3), "there are not too many buckets of 10 %")
			<-time.After(time.Minute)
		}
	})
}

// took tells a collector of a call.
func took(t *testing.T, m *lockprom.Collector, d time.Duration) {
	t.Helper()
	m.Observer().Acquired(t.Context(), observe.Acquired{
		Subject: observe.Subject{Path: "42", Key: "orders:42", Kind: observe.KindLock}, Op: "do", How: observe.HowFree, Redis: d,
	})
}

// Neither the days that a candidate waits nor the days that a leader leads are durations of calls and holds. Redis may well be
// unavailable to them, and they may lose the lock.
func TestLeaders(t *testing.T) {
	world(t, func(c collected, _ *lockprom.Collector, locks *locktest.Registry) {
		leads := func(ctx context.Context) error { <-ctx.Done(); return nil }
		ctx, cancel := context.WithTimeout(c.Context(), time.Minute)
		defer cancel()
		ended := make(chan error, 2)
		for range 2 {
			candidate, err := leader.New(locks.Registry, "42", leads)
			require.NoError(c, err)
			go func() { ended <- candidate.Run(ctx) }()
			synctest.Wait()
		}
		locks.Lose("42") // the other one leads
		locks.Disconnect()
		require.ErrorIs(c, <-ended, context.DeadlineExceeded)
		require.ErrorIs(c, <-ended, context.DeadlineExceeded)
		locks.Reconnect()
		synctest.Wait()
		require.InDelta(c, 1, c.value("lockregistry_hold_losses_total", "lockregistry_loss_reason", "forced",
			"lockregistry_kind", "leader"), 0)
		require.NotEmpty(c, c.of("lockregistry_unavailable_timestamp_seconds", "lockregistry_kind", "leader"))
		for _, name := range []string{
			"lockregistry_acquire_duration_seconds", "lockregistry_acquire_local_wait_duration_seconds",
			"lockregistry_acquire_wakeups_total", "lockregistry_hold_duration_seconds",
		} {
			require.Empty(c, c.of(name), name)
		}
	})
}

// A release whose answer was late is counted, and no reason to call somebody.
func TestUnavailable(t *testing.T) {
	const count, last = "lockregistry_unavailable_total", "lockregistry_unavailable_timestamp_seconds"
	synctest.Test(t, func(t *testing.T) {
		m := lockprom.New()
		c := collect(t, m)
		o, subject := m.Observer(), observe.Subject{Path: "42", Key: "orders:42", Kind: observe.KindLock}
		o.Released(t.Context(), observe.Released{Subject: subject, Err: lockregistry.ErrUnavailable})
		require.InDelta(t, 1, c.value(count), 0)
		require.Empty(t, c.of(last))
		o.Acquired(t.Context(), observe.Acquired{Subject: subject, Op: "lock", Err: lockregistry.ErrUnavailable})
		require.InDelta(t, 2, c.value(count), 0)
		require.InDelta(t, float64(time.Now().Unix()), c.value(last), 0.001)
	})
}

func TestWatch(t *testing.T) {
	world(t, func(c collected, m *lockprom.Collector, locks *locktest.Registry) {
		require.Empty(c, c.of("lockregistry_holds"))
		stop := m.Watch("orders", locks.Stats)
		stopOther := m.Watch("orders", func() observe.Stats {
			return observe.Stats{Holds: 2, Oldest: time.Minute, Windows: 3, Removals: 4, Nodes: []observe.NodeStats{
				{}, {RenewalsFailing: time.Now().Add(-time.Second), RemovalsFailing: time.Now().Add(-2 * time.Second)},
			}}
		})
		hold, err := locks.Acquire(c.Context(), "42")
		require.NoError(c, err)
		waits := make(chan error, 1)
		go func() { waits <- locks.Do(c.Context(), "42", nothing) }()
		<-time.After(3 * time.Second)
		for name, want := range map[string]float64{
			"lockregistry_holds": 3, "lockregistry_waiters": 1, "lockregistry_hold_oldest_seconds": 60,
			"lockregistry_wait_oldest_seconds": 3, "lockregistry_removals": 4, "lockregistry_windows_total": 3,
			"lockregistry_renewal_failing_seconds": 1, "lockregistry_removal_failing_seconds": 2, "lockregistry_handoffs_total": 0,
		} {
			require.InDelta(c, want, c.value(name, "lockregistry_prefix", "orders"), 0.1, name)
		}
		require.NoError(c, hold.Release(c.Context()))
		require.NoError(c, <-waits)
		stopOther()
		stopOther()
		require.InDelta(c, 0, c.value("lockregistry_holds"), 0)
		require.InDelta(c, 3, c.value("lockregistry_windows_total"), 0, "counters do not fall")
		require.InDelta(c, 1, c.value("lockregistry_handoffs_total"), 0)
		stop()
		require.Empty(c, c.of("lockregistry_holds"))
		require.InDelta(c, 3, c.value("lockregistry_windows_total"), 0)
	})
}

// A scrape while a registry is no longer watched finds no counter lower than before: Prometheus would take that for a restart,
// and count all of it once more.
func TestWatch_StopBesideAScrape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lockprom.New()
		c := collect(t, m)
		defer m.Watch("orders", func() observe.Stats { return observe.Stats{} })()
		var handoffs atomic.Uint64
		handoffs.Store(5)
		stop := m.Watch("orders", func() observe.Stats {
			<-time.After(time.Second)
			return observe.Stats{Handoffs: handoffs.Add(1)}
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			stop()
		}()
		synctest.Wait()
		last := 0.0
		for range 3 {
			now := c.value("lockregistry_handoffs_total")
			require.GreaterOrEqual(t, now, last)
			require.GreaterOrEqual(t, now, 5.0)
			last = now
			<-time.After(300 * time.Millisecond)
		}
		<-done
		require.GreaterOrEqual(t, c.value("lockregistry_handoffs_total"), last)
	})
}

// The names and labels, as module lockotel has them, too: its test reads the same file.
func TestNames(t *testing.T) {
	m := lockprom.New()
	c := collect(t, m)
	o, subject := m.Observer(), observe.Subject{Path: "42", Key: "orders:42", Kind: observe.KindLock}
	o.Acquired(t.Context(), observe.Acquired{
		Subject: subject, Op: "lock", Here: 1, Err: context.Canceled, Wakeups: observe.Wakeups{Messages: 1, Changes: 1, Polls: 1},
	})
	o.Released(t.Context(), observe.Released{Subject: subject, Err: lockregistry.ErrLockLost})
	o.Acquired(t.Context(), observe.Acquired{Subject: subject, Op: "lock", Err: lockregistry.ErrUnavailable})
	o.Lost(observe.Lost{Subject: subject})
	o.Renewing(observe.Renewing{Err: errors.New("some")})
	o.Renewing(observe.Renewing{})
	o.Deadlocked(observe.Deadlock{})
	defer m.Watch("orders", func() observe.Stats { return observe.Stats{} })()

	families, err := c.all.Gather()
	require.NoError(t, err)
	var got []string
	for _, f := range families {
		require.NotEmpty(t, f.GetHelp())
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		got = append(got, strings.Join(append([]string{strings.ToLower(f.GetType().String()), f.GetName()}, labels...), " "))
	}
	want, err := os.ReadFile("testdata/metrics.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), strings.Join(got, "\n")+"\n")
	problems, err := testutil.GatherAndLint(c.all)
	require.NoError(t, err)
	require.Empty(t, problems, "promtool's rules for names")
}

func TestAllocations(t *testing.T) { //nolint:paralleltest // it counts allocations
	o, subject := lockprom.New().Observer(), observe.Subject{Path: "42", Key: "orders:42", Kind: observe.KindLock}
	ctx := t.Context()
	both := func() {
		o.Acquired(ctx, observe.Acquired{Subject: subject, Op: "lock", How: observe.HowFree, Redis: time.Millisecond})
		o.Released(ctx, observe.Released{Subject: subject, Held: time.Second})
	}
	require.Zero(t, testing.AllocsPerRun(100, both))
}
