package lockregistry

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// shortage is for how long too few replicas have acknowledged what a registry writes, see [WithReplicas]. One call that
// fails says so itself; that all do for seconds is logged, once, and so is that it is over.
type shortage struct {
	since  atomic.Int64 // an instant; 0: there is none
	logged atomic.Bool
}

// shortFor is how long a shortage lasts before it is logged.
const shortFor = 3 * time.Second

// replicated is told of each write for which replicas were waited for: why it does not count, or nil.
func (r *Registry) replicated(why error) {
	s, now := &r.reports.shortage, r.clock.Now()
	if why == nil {
		s.since.Store(0)
		if s.logged.Swap(false) {
			r.reports.dispatch.Log(slog.LevelInfo, "replicas acknowledge locks again")
		}
		return
	}
	if s.since.CompareAndSwap(0, int64(now)) {
		return
	}
	if since := clock.Instant(s.since.Load()); since != 0 && since.Until(now) >= shortFor && !s.logged.Swap(true) {
		r.reports.dispatch.Log(slog.LevelWarn, "too few replicas acknowledge locks: none is granted", slog.Any("error", why))
	}
}
