package exporter_test

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lockregistry/lockregistry/cmd/lockreg/exporter"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakes are a source, in the order of the prefixes.
type fakes []*fake

func (s fakes) Locks(ctx context.Context) iter.Seq2[inspect.Found, error] {
	return func(yield func(inspect.Found, error) bool) {
		for i, f := range s {
			for lock, err := range f.Locks(ctx) {
				if !yield(inspect.Found{Of: i, Lock: lock}, err) {
					return
				}
			}
		}
	}
}

func (s fakes) Deadlocks(_ context.Context, of []int) (found [][]observe.Deadlock, errs []error) {
	for _, i := range of {
		deadlocks, err := s[i].Deadlocks()
		found, errs = append(found, deadlocks), append(errs, err)
	}
	return found, errs
}

// fake has the locks of a prefix. Its mutex is for what tests change while it is looked at.
type fake struct {
	mu        sync.Mutex
	locks     []inspect.Lock
	deadlocks []observe.Deadlock
	failure   error
	unknown   error // why there is nothing about deadlocks
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

func (f *fake) Deadlocks() ([]observe.Deadlock, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.deadlocks, f.unknown
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// exported runs an exporter in fake time, and hands out what a scrape gets.
func exported(
	t *testing.T, sources map[string]*fake, f func(t *testing.T, scrape func() string, log *strings.Builder),
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder // read while the exporter sleeps
		prefixes := slices.Sorted(maps.Keys(sources))
		var all fakes
		for _, prefix := range prefixes {
			all = append(all, sources[prefix])
		}
		e := exporter.NewOf(prefixes, all, 10*time.Second, slog.New(slog.NewTextHandler(&log, nil)))
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
	sources := map[string]*fake{"a\"b\\\n": {takes: time.Millisecond}, "shop": busy}
	exported(t, sources, func(t *testing.T, scrape func() string, _ *strings.Builder) {
		require.NotContains(t, scrape(), "lockregistry_fleet_up{", "before the first look")
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
				{Path: "nightly", Kind: observe.KindLock, HolderCount: 1, Holders: []inspect.Holder{{
					Label: known, Since: now.Add(-time.Hour), Lease: 20 * time.Hour, Kept: true,
				}}},
			}
		})
		<-time.After(11 * time.Second)
		synctest.Wait()
		for name, want := range map[string]string{
			"up": "1", "holds": "3", "waiters": "6", "wait_oldest_seconds": "60.00", "dead_holders": "1", "holds_without_expiry": "1",
			"deadlocks": "1", "look_duration_seconds": "0.002",
		} {
			got := scrape()
			require.Contains(t, got, "# TYPE lockregistry_fleet_"+name+" gauge\n")
			require.Contains(t, got, "lockregistry_fleet_"+name+"{lockregistry_prefix=\"shop\"} "+want)
		}
		require.Contains(t, scrape(), `lockregistry_fleet_holds{lockregistry_prefix="a\"b\\\n"} 0`+"\n")
	})
}

// A lock of a prefix that begins with another one is counted once, for the longer prefix.
func TestExporter_LongerPrefix(t *testing.T) {
	lock := func(path, key string) inspect.Lock {
		return inspect.Lock{Path: path, Key: key, HolderCount: 1, Holders: []inspect.Holder{{Lease: -1}}}
	}
	exported(t, map[string]*fake{
		"shop": {locks: []inspect.Lock{
			lock("42", "shop:42"), lock("eu:42", "shop:eu:42"), lock("eu", "shop:eu"), lock("europe:42", "shop:europe:42"),
		}},
		"shop:eu": {locks: []inspect.Lock{lock("42", "shop:eu:42")}},
	}, func(t *testing.T, scrape func() string, _ *strings.Builder) {
		synctest.Wait()
		for _, name := range []string{"holds", "holds_without_expiry"} {
			require.Contains(t, scrape(), "lockregistry_fleet_"+name+"{lockregistry_prefix=\"shop\"} 3\n")
			require.Contains(t, scrape(), "lockregistry_fleet_"+name+"{lockregistry_prefix=\"shop:eu\"} 1\n")
		}
	})
}

// While a look fails nothing is told that was true before, and the log says it once.
func TestExporter_Failures(t *testing.T) {
	source := &fake{}
	exported(t, map[string]*fake{"shop": source}, func(t *testing.T, scrape func() string, log *strings.Builder) {
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

// What fails for one prefix is told of that one alone.
func TestExporter_OneFails(t *testing.T) {
	crowd := []inspect.Lock{{Path: "1", Kind: observe.KindLock, HolderCount: 1, WaiterCount: 2}}
	sources := map[string]*fake{
		"a": {failure: errors.New("no answer")},
		"b": {locks: crowd, unknown: errors.New("no answer")},
		"c": {locks: crowd, deadlocks: make([]observe.Deadlock, 1)},
	}
	exported(t, sources, func(t *testing.T, scrape func() string, log *strings.Builder) {
		synctest.Wait()
		for prefix, up := range map[string]string{"a": "0", "b": "0", "c": "1"} {
			require.Contains(t, scrape(), "lockregistry_fleet_up{lockregistry_prefix=\""+prefix+"\"} "+up+"\n")
		}
		require.Contains(t, scrape(), "lockregistry_fleet_deadlocks{lockregistry_prefix=\"c\"} 1\n")
		require.Equal(t, 1, strings.Count(scrape(), "lockregistry_fleet_deadlocks{"))
		require.Equal(t, 2, strings.Count(log.String(), "cannot look at locks; trying again"))
	})
}

// All prefixes cost one pass over the keys.
func TestExporter_OnePass(t *testing.T) {
	server := redistest.Start(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	require.NoError(t, err)
	defer client.Close()
	server.Command(t, "EVAL", "for i = 1, 20000 do redis.call('SET', 'session:' .. i, 'x') end return 1", "0")
	scans := func(prefixes ...string) int {
		all := map[string]*inspect.Inspector{}
		for _, prefix := range prefixes {
			one, err := inspect.New(client, prefix)
			require.NoError(t, err)
			all[prefix] = one
		}
		server.Command(t, "CONFIG", "RESETSTAT")
		e := exporter.New(all, time.Hour, slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			e.Run(ctx)
		}()
		require.Eventually(t, func() bool {
			w := httptest.NewRecorder()
			e.ServeHTTP(w, nil)
			return strings.Count(w.Body.String(), "\"} 1\n") == len(prefixes) // each is up
		}, time.Minute, time.Millisecond)
		stop()
		<-ended
		found := regexp.MustCompile(`cmdstat_scan:calls=(\d+)`).FindStringSubmatch(server.Command(t, "INFO", "commandstats"))
		require.NotNil(t, found)
		n, err := strconv.Atoi(found[1])
		require.NoError(t, err)
		return n
	}
	alone := scans("shop")
	require.Greater(t, alone, 5)
	require.Less(t, scans("mail", "shop", "stock"), 2*alone)
}

// A pass through very many keys takes long, and does not fail.
func TestExporter_ALongLook(t *testing.T) {
	source := &fake{takes: 40 * time.Minute}
	exported(t, map[string]*fake{"shop": source}, func(t *testing.T, scrape func() string, _ *strings.Builder) {
		<-time.After(41 * time.Minute)
		require.Contains(t, scrape(), "lockregistry_fleet_up{lockregistry_prefix=\"shop\"} 1\n")
	})
}

// A look that does not end has failed.
func TestExporter_ALookThatHangs(t *testing.T) {
	source := &fake{}
	exported(t, map[string]*fake{"shop": source}, func(t *testing.T, scrape func() string, _ *strings.Builder) {
		<-time.After(time.Minute)
		require.Contains(t, scrape(), "lockregistry_fleet_up{lockregistry_prefix=\"shop\"} 1\n")
		source.set(func() { source.takes = 2 * exporter.LookLimit })
		<-time.After(exporter.LookLimit + time.Minute)
		require.Contains(t, scrape(), "lockregistry_fleet_up{lockregistry_prefix=\"shop\"} 0\n")
		source.set(func() { source.takes = 0 })
	})
}

// A look that takes long is followed by a pause that is as long. Scrapes ask for nothing.
func TestExporter_Pauses(t *testing.T) {
	source := &fake{takes: time.Minute}
	exported(t, map[string]*fake{"shop": source}, func(t *testing.T, scrape func() string, _ *strings.Builder) {
		for range 10 {
			<-time.After(time.Minute)
			scrape()
		}
		source.set(func() { require.InDelta(t, 5, source.looks, 1) })
		require.Contains(t, scrape(), "lockregistry_fleet_look_duration_seconds{lockregistry_prefix=\"shop\"} 60\n")
	})
}
