// Package exporter reports the locks of prefixes to Prometheus, as Redis knows them: of all processes, Java's included. It is
// what `lockreg metrics` and `lockreg serve --metrics` answer. It only reads.
//
// Redis is asked in the background: for all prefixes in one pass, but for those that begin with another one and a colon, and then
// a pause. A scrape asks nothing. It returns what the last pass has found, and no values before the first one has ended:
//
//   - lockregistry_fleet_up: 1, or 0 when the last look failed; then the others are left out
//   - lockregistry_fleet_holds, lockregistry_fleet_waiters: holders of locks, and calls that wait. A path that AtLeast keeps
//     taken after its release has no holder
//   - lockregistry_fleet_wait_oldest_seconds: how long the oldest call has waited; 0 if none waits. Candidates of package leader
//     do not count, since they wait for as long as another one leads, nor do calls whose process is dead
//   - lockregistry_fleet_dead_holders: holders whose process is probably dead, by its record or since it has none
//   - lockregistry_fleet_holds_without_expiry: locks that never expire
//   - lockregistry_fleet_deadlocks: cycles of calls that wait for each other
//   - lockregistry_fleet_look_timestamp_seconds: when the last look that succeeded ended
//   - lockregistry_fleet_look_duration_seconds: how long it took
//
// Each has one label, lockregistry_prefix. A lock of two prefixes, such as "shop:eu:42" of "shop" and of "shop:eu", counts for
// the longer one.
package exporter

import (
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/printable"
	"github.com/lockregistry/lockregistry/cmd/lockreg/internal/view"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/observe"
)

// source has the locks of the prefixes, and numbers these.
type source interface {
	Locks(ctx context.Context) iter.Seq2[inspect.Found, error]
	Deadlocks(ctx context.Context, of []int) (found [][]observe.Deadlock, errs []error)
}

// inspectors are a source. Those with the same client share their passes over the keys.
type inspectors []*inspect.Inspector

func (s inspectors) Locks(ctx context.Context) iter.Seq2[inspect.Found, error] {
	return inspect.LocksOf(ctx, s...)
}

func (s inspectors) Deadlocks(ctx context.Context, of []int) (found [][]observe.Deadlock, errs []error) {
	some := make([]*inspect.Inspector, len(of))
	for k, i := range of {
		some[k] = s[i]
	}
	return inspect.DeadlocksOf(ctx, some...)
}

// Exporter looks at prefixes, and is the handler that tells what it has seen. Make it with [New].
type Exporter struct {
	every    time.Duration
	log      *slog.Logger
	prefixes []string
	source   source

	mu   sync.Mutex
	seen []sight // by the numbers of the prefixes; nil: the first look has not ended
}

// sight is what the last look has found of a prefix.
type sight struct {
	failed error
	at     time.Time // when it ended
	took   time.Duration

	holds, waiters, dead, endless, deadlocks int
	oldest                                   time.Duration
}

// LookLimit bounds one look: two passes, one for locks and one for deadlocks, through a hundred million keys take 40 minutes. A
// look that has not ended by then has failed.
const LookLimit = time.Hour

// New makes an exporter of the inspectors, by prefix. After each look there is a pause, at least as long as the look took, and so
// long that a look begins at most once each every.
func New(all map[string]*inspect.Inspector, every time.Duration, log *slog.Logger) *Exporter {
	prefixes := slices.Sorted(maps.Keys(all))
	s := make(inspectors, len(prefixes))
	for i, prefix := range prefixes {
		s[i] = all[prefix]
	}
	return newExporter(prefixes, s, every, log)
}

func newExporter(prefixes []string, s source, every time.Duration, log *slog.Logger) *Exporter {
	return &Exporter{every: every, log: log, prefixes: prefixes, source: s}
}

// Run looks until ctx ends.
func (e *Exporter) Run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		seen := e.look(ctx)
		if ctx.Err() != nil {
			return
		}
		e.keep(seen)
		took := time.Since(began)
		clock.Rest(ctx, max(took, e.every-took))
	}
}

// keep notes what a look has found, and logs the first of several that fail, and the end of that.
func (e *Exporter) keep(seen []sight) {
	e.mu.Lock()
	before := e.seen
	e.seen = seen
	e.mu.Unlock()
	for i, prefix := range e.prefixes {
		failing := before != nil && before[i].failed != nil
		switch {
		case seen[i].failed != nil && !failing:
			e.log.Warn("cannot look at locks; trying again", "prefix", prefix, "error", seen[i].failed)
		case seen[i].failed == nil && failing:
			e.log.Info("looking at locks again", "prefix", prefix)
		}
	}
}

// look looks once. Deadlocks are looked for only where two calls wait.
func (e *Exporter) look(ctx context.Context) []sight {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, LookLimit)
	defer cancel()
	seen := make([]sight, len(e.prefixes))
	for found, err := range e.source.Locks(ctx) {
		if err != nil {
			seen[found.Of].failed = err
			continue
		}
		if !e.nested(found.Of, found.Lock.Key) {
			seen[found.Of].add(&found.Lock, time.Now())
		}
	}
	var crowded []int
	for i := range seen {
		if seen[i].failed == nil && seen[i].waiters > 1 {
			crowded = append(crowded, i)
		}
	}
	if len(crowded) > 0 {
		found, errs := e.source.Deadlocks(ctx, crowded)
		for k, i := range crowded {
			seen[i].deadlocks, seen[i].failed = len(found[k]), errs[k]
		}
	}
	at := time.Now()
	for i := range seen {
		seen[i].at, seen[i].took = at, at.Sub(began)
	}
	return seen
}

// nested reports whether a key of a prefix is also one of a longer prefix, for which it is counted.
func (e *Exporter) nested(of int, key string) bool {
	return slices.ContainsFunc(e.prefixes, func(other string) bool {
		return len(other) > len(e.prefixes[of]) && strings.HasPrefix(key, other+":")
	})
}

// add counts one lock.
func (s *sight) add(lock *inspect.Lock, now time.Time) {
	s.holds += lock.HolderCount
	s.waiters += view.Waiting(*lock)
	for _, h := range lock.Holders {
		if h.Kept { // nobody holds it
			s.holds--
		}
		if view.Dead(h) {
			s.dead++
		}
		if h.Lease < 0 {
			s.endless++
		}
	}
	for since := range view.WaitsSince(*lock) {
		s.oldest = max(s.oldest, now.Sub(since))
	}
}

// metrics are what is reported of a look that succeeded.
var metrics = []struct {
	name, help string
	of         func(s *sight) float64
}{
	{"holds", "Holders of locks.", func(s *sight) float64 { return float64(s.holds) }},
	{"waiters", "Calls that wait.", func(s *sight) float64 { return float64(s.waiters) }},
	{"wait_oldest_seconds", "How long the oldest call has waited.", func(s *sight) float64 { return s.oldest.Seconds() }},
	{"dead_holders", "Holders whose process is probably dead.", func(s *sight) float64 { return float64(s.dead) }},
	{"holds_without_expiry", "Locks that never expire.", func(s *sight) float64 { return float64(s.endless) }},
	{"deadlocks", "Cycles of calls that wait for each other.", func(s *sight) float64 { return float64(s.deadlocks) }},
	{"look_timestamp_seconds", "When the last look ended.", func(s *sight) float64 { return float64(s.at.UnixMilli()) / 1000 }},
	{"look_duration_seconds", "How long the last look took.", func(s *sight) float64 { return s.took.Seconds() }},
}

// ServeHTTP returns what the last looks have found, in the text format of Prometheus.
func (e *Exporter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = io.WriteString(w, e.text())
}

func (e *Exporter) text() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out strings.Builder
	family := func(name, help string) {
		fmt.Fprintf(&out, "# HELP lockregistry_fleet_%s %s\n# TYPE lockregistry_fleet_%[1]s gauge\n", name, help)
	}
	value := func(name, prefix string, v float64) {
		fmt.Fprintf(&out, "lockregistry_fleet_%s{lockregistry_prefix=\"%s\"} %s\n", name, label.Replace(printable.Valid(prefix)),
			strconv.FormatFloat(v, 'g', -1, 64))
	}
	family("up", "Whether the last look succeeded.")
	for i := range e.seen {
		up := 0.0
		if e.seen[i].failed == nil {
			up = 1
		}
		value("up", e.prefixes[i], up)
	}
	for _, m := range metrics {
		family(m.name, m.help)
		for i := range e.seen {
			if s := &e.seen[i]; s.failed == nil {
				value(m.name, e.prefixes[i], m.of(s))
			}
		}
	}
	return out.String()
}

// label writes a text as the value of a label.
var label = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
