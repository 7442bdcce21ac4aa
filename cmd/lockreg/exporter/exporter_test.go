package exporter_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry/cmd/lockreg/exporter"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a source. Its mutex is for what tests change while it is looked at.
type fake struct {
	mu        sync.Mutex
	locks     []inspect.Lock
	deadlocks []observe.Deadlock
	failure   error
	takes     time.Duration
	looks     int
	asked     int // for deadlocks
}

func (f *fake) Locks(ctx context.Context) iter.Seq2[inspect.Lock, error] {
	return func(yield func(inspect.Lock, error) bool) {
		f.mu.Lock()
		f.looks++
		locks, failure, takes := f.locks, f.failure, f.takes
		f.mu.Unlock()
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			yield(inspect.Lock{}, ctx.Err())
			return
		}
		for _, l := range locks {
			if !yield(l, nil) {
				return
			}
		}
		if failure != nil {
			yield(inspect.Lock{}, failure)
		}
	}
}

func (f *fake) Deadlocks(context.Context) ([]observe.Deadlock, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.deadlocks, nil
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// exported runs an exporter in fake time, and hands out what a scrape gets.
func exported(
	t *testing.T, sources map[string]exporter.Source, f func(t *testing.T, scrape func() string, log *strings.Builder),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder // read while the exporter sleeps
		e := exporter.New(sources, 10*time.Second, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			e.Run(ctx)
		}()
		f(t, func() string {
			w := httptest.NewRecorder()
			e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/metrics", nil))
			return w.Body.String()
		}, &log)
		cancel()
		<-ended
	})
}

func TestExporter(t *testing.T) {
	known := observe.Label{Host: "web-1", PID: 4711, Name: "billing"}
	busy := &fake{deadlocks: make([]observe.Deadlock, 1), takes: time.Millisecond}
	sources := map[string]exporter.Source{"a\"b\\\n": &fake{takes: time.Millisecond}, "shop": busy}
	exported(t, sources, func(t *testing.T, scrape func() string, _ *strings.Builder) {
		require.Contains(t, scrape(), "lockregistry_fleet_up{lockregistry_prefix=\"shop\"} 0\n", "before the first look")
		require.NotContains(t, scrape(), "lockregistry_fleet_holds{")
		now := time.Now()
		busy.set(func() {
			busy.locks = []inspect.Lock{
				{Path: "1", Kind: observe.KindLock, HolderCount: 1, WaiterCount: 2, Holders: []inspect.Holder{{
					Label: known, Silent: time.Minute, Lease: time.Minute, Behind: 3, BehindSince: now.Add(-time.Hour),
				}}, Waiters: []inspect.Waiter{
					{Label: known, Since: now.Add(-20 * time.Second)},
					{Label: known, Since: now.Add(-time.Hour), BehindSince: now.Add(-time.Hour), Standby: true},
					{Label: known, Since: now.Add(-time.Hour), BehindSince: now.Add(-time.Hour), Gone: true},
				}},
				{Path: "2", Kind: observe.KindLock, HolderCount: 1, Holders: []inspect.Holder{{Label: known, Lease: -1}}},
				{Path: "3", Kind: observe.KindLock, HolderCount: 1, Holders: []inspect.Holder{{
					Label: known, Lease: time.Minute, Behind: 1, BehindSince: now.Add(-50 * time.Second),
				}}},
			}
		})
		<-time.After(11 * time.Second)
		synctest.Wait()
		for name, want := range map[string]string{
			"up": "1", "holds": "3", "waiters": "6", "wait_oldest_seconds": "60.00", "dead_holders": "1", "holds_without_expiry": "1",
			"deadlocks": "1", "look_duration_seconds": "0.001",
		} {
			got := scrape()
			require.Contains(t, got, "# TYPE lockregistry_fleet_"+name+" gauge\n")
			require.Contains(t, got, "lockregistry_fleet_"+name+"{lockregistry_prefix=\"shop\"} "+want)
		}
		require.Contains(t, scrape(), `lockregistry_fleet_holds{lockregistry_prefix="a\"b\\\n"} 0`+"\n")
	})
}

// While a look fails nothing is told that was true before, and the log says it once.
func TestExporter_Failures(t *testing.T) {
	source := &fake{}
	exported(t, map[string]exporter.Source{"shop": source}, func(t *testing.T, scrape func() string, log *strings.Builder) {
		synctest.Wait()
		require.Contains(t, scrape(), "lockregistry_fleet_holds{")
		require.Zero(t, source.asked, "no two calls wait")
		for range 2 {
			source.set(func() { source.failure = errors.New("no answer") })
			<-time.After(30 * time.Second)
			synctest.Wait()
			require.Contains(t, scrape(), "lockregistry_fleet_up{lockregistry_prefix=\"shop\"} 0\n")
			require.NotContains(t, scrape(), "lockregistry_fleet_holds{")
			source.set(func() { source.failure = nil })
			<-time.After(30 * time.Second)
			synctest.Wait()
			require.Contains(t, scrape(), "lockregistry_fleet_up{lockregistry_prefix=\"shop\"} 1\n")
		}
		require.Equal(t, 2, strings.Count(log.String(), "cannot look at locks; trying again"))
		require.Equal(t, 2, strings.Count(log.String(), "looking at locks again"))
	})
}

// A look that does not end has failed.
func TestExporter_ALookThatHangs(t *testing.T) {
	source := &fake{}
	exported(t, map[string]exporter.Source{"shop": source}, func(t *testing.T, scrape func() string, _ *strings.Builder) {
		<-time.After(time.Minute)
		require.Contains(t, scrape(), "lockregistry_fleet_up{lockregistry_prefix=\"shop\"} 1\n")
		source.set(func() { source.takes = time.Hour })
		<-time.After(exporter.LookLimit + time.Minute)
		require.Contains(t, scrape(), "lockregistry_fleet_up{lockregistry_prefix=\"shop\"} 0\n")
		source.set(func() { source.takes = 0 })
	})
}

// A look that takes long is followed by a pause that is as long. Scrapes ask for nothing.
func TestExporter_Pauses(t *testing.T) {
	source := &fake{takes: time.Minute}
	exported(t, map[string]exporter.Source{"shop": source}, func(t *testing.T, scrape func() string, _ *strings.Builder) {
		for range 10 {
			<-time.After(time.Minute)
			scrape()
		}
		source.set(func() { require.InDelta(t, 5, source.looks, 1) })
		require.Contains(t, scrape(), "lockregistry_fleet_look_duration_seconds{lockregistry_prefix=\"shop\"} 60\n")
	})
}
