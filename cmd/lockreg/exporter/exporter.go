// Package exporter reports the locks of prefixes to Prometheus, as Redis knows them: of all processes, Java's included. It is
// what `lockreg metrics` and `lockreg serve --metrics` answer. It only reads.
//
// Redis is asked in the background: one prefix after another, and then a pause. A scrape asks nothing, and returns what the
// last passes found:
//
//   - lockregistry_fleet_up: 1, or 0 when the last look failed; then the others are left out
//   - lockregistry_fleet_holds, lockregistry_fleet_waiters: holders of locks, and calls that wait
//   - lockregistry_fleet_wait_oldest_seconds: how long the oldest call has waited; 0 if none waits. Candidates of package leader
//     do not count, since they wait for as long as another one leads, nor do calls whose process is dead
//   - lockregistry_fleet_dead_holders: holders whose process is probably dead, by its record or since it has none
//   - lockregistry_fleet_holds_without_expiry: locks that never expire
//   - lockregistry_fleet_deadlocks: cycles of calls that wait for each other
//   - lockregistry_fleet_look_timestamp_seconds: when the last look that succeeded ended
//   - lockregistry_fleet_look_duration_seconds: how long it took
//
// Each has one label, lockregistry_prefix.
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

// Source has the locks of a prefix: an [*inspect.Inspector].
type Source interface {
	Locks(ctx context.Context) iter.Seq2[inspect.Lock, error]
	Deadlocks(ctx context.Context) ([]observe.Deadlock, error)
}

// Exporter looks at prefixes, and is the handler that tells what it has seen. Make it with [New].
type Exporter struct {
	every    time.Duration
	log      *slog.Logger
	prefixes []string
	sources  map[string]Source

	mu   sync.Mutex
	seen map[string]sight
}

// sight is what the last look at a prefix has found.
type sight struct {
	failed error
	at     time.Time // when it ended
	took   time.Duration

	holds, waiters, dead, endless, deadlocks int
	oldest                                   time.Duration
}

// LookLimit bounds one look at a prefix: longer than a pass through a hundred million keys takes. A look that has not ended by
// then has failed.
const LookLimit = 10 * time.Minute

// New makes an exporter of the sources, by prefix. After each look there is a pause, as long as the look took; and after all of
// them another one, so that a prefix is not looked at more often than each every.
func New(sources map[string]Source, every time.Duration, log *slog.Logger) *Exporter {
	prefixes := slices.Sorted(maps.Keys(sources))
	return &Exporter{every: every, log: log, prefixes: prefixes, sources: sources, seen: map[string]sight{}}
}

// Run looks until ctx ends.
func (e *Exporter) Run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		for _, prefix := range e.prefixes {
			s := look(ctx, e.sources[prefix])
			if ctx.Err() != nil {
				return
			}
			e.keep(prefix, s)
			clock.Rest(ctx, s.took)
		}
		clock.Rest(ctx, e.every-time.Since(began))
	}
}

// keep notes what a look has found, and logs the first of several that fail, and the end of that.
func (e *Exporter) keep(prefix string, s sight) {
	e.mu.Lock()
	before, looked := e.seen[prefix]
	e.seen[prefix] = s
	e.mu.Unlock()
	switch {
	case s.failed != nil && (!looked || before.failed == nil):
		e.log.Warn("cannot look at locks; trying again", "prefix", prefix, "error", s.failed)
	case s.failed == nil && before.failed != nil:
		e.log.Info("looking at locks again", "prefix", prefix)
	}
}

// look looks once. Deadlocks are looked for only where two calls wait.
func look(ctx context.Context, source Source) (s sight) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, LookLimit)
	defer cancel()
	for lock, err := range source.Locks(ctx) {
		if err != nil {
			return sight{failed: err, took: time.Since(began)}
		}
		s.add(&lock, time.Now())
	}
	if s.waiters > 1 {
		found, err := source.Deadlocks(ctx)
		if err != nil {
			return sight{failed: err, took: time.Since(began)}
		}
		s.deadlocks = len(found)
	}
	s.at = time.Now()
	s.took = s.at.Sub(began)
	return s
}

// add counts one lock.
func (s *sight) add(lock *inspect.Lock, now time.Time) {
	s.holds += lock.HolderCount
	s.waiters += view.Waiting(*lock)
	for _, h := range lock.Holders {
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
	for _, prefix := range e.prefixes {
		up := 0.0
		if s, looked := e.seen[prefix]; looked && s.failed == nil {
			up = 1
		}
		value("up", prefix, up)
	}
	for _, m := range metrics {
		family(m.name, m.help)
		for _, prefix := range e.prefixes {
			if s, looked := e.seen[prefix]; looked && s.failed == nil {
				value(m.name, prefix, m.of(&s))
			}
		}
	}
	return out.String()
}

// label writes a text as the value of a label.
var label = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
