package lockregistry

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// grants and renews tell whether there is something to acknowledge.
func grants(c *protocol.Call, result rueidis.RedisResult) bool {
	s, err := c.Decode(result)
	return err == nil && s.Granted
}

func renews(_ *protocol.Call, result rueidis.RedisResult) bool {
	n, err := result.AsInt64()
	return err == nil && n > 0
}

// demand has replicas have what a call writes, if the registry wants that. Wrote tells whether it has written.
func (r *Registry) demand(c *protocol.Call, wrote func(*protocol.Call, rueidis.RedisResult) bool) {
	if r.replicas != nil {
		c.Replicas, c.Wrote = r.replicas, wrote
	}
}

// acknowledging is how long a renewal may wait for replicas.
func (r *Registry) acknowledging() time.Duration {
	if r.replicas == nil {
		return 0
	}
	return r.replicas.Timeout + transport.WaitAtMost
}

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
