package lockregistry

import (
	"context"
	"log/slog"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// recorded is what package presence sees of a registry.
type recorded struct {
	reg    *Registry
	key    string
	chases clock.Instant // when to look for cycles next, after an error
}

const (
	recordFor   = "60000" // milliseconds: as long as the locks of a process that has crashed, by default
	recordLimit = time.Second
)

// present has the registry keep a record of itself.
func (r *Registry) present() {
	own := r.inspection.label
	r.presence.Start(&recorded{reg: r, key: presence.Key(r.prefix, own.Registry)}, r.clock,
		presence.Record{Host: own.Host, PID: own.PID, Name: own.Name})
}

// parseRecord reads the record of a registry. One that is no record is nobody's.
func parseRecord(registry, text string) (presence.Record, Label) {
	if text == tooLong {
		return presence.Record{}, Label{Registry: registry, Name: tooLong}
	}
	r, ok := presence.Parse(text)
	if !ok {
		return r, Label{}
	}
	if len(r.Host) > mostHost {
		r.Host = tooLong
	}
	if len(r.Name) > longestName {
		r.Name = tooLong
	}
	return r, Label{Registry: registry, Host: r.Host, PID: r.PID, Name: r.Name}
}

// Newest is the number of the newest hold.
func (w *recorded) Newest() uint64 { return w.reg.holds.Load() }

// Waits are those of this registry's calls that its record tells of. When one ends the record is written anew.
func (w *recorded) Waits() (all []presence.Wait) {
	for _, far := range w.reg.lastingWaits() {
		if waiting.Record(far.call) {
			all = append(all, far.Wait)
		}
	}
	return all
}

// InUse tells whether the registry holds a lock or waits for one, and whether any of that has lasted a second.
func (w *recorded) InUse(now clock.Instant) (used, lasting bool) {
	for l := range w.reg.cache.all() {
		if l.anchor().pins.Load() <= 0 {
			continue
		}
		if h := l.hold.Load(); h != nil {
			h.mu.Lock()
			if h.fresh() {
				used, lasting = true, h.since.Until(now) >= presence.Lasting
			}
			h.mu.Unlock()
		}
		if p := l.pursuit.Load(); p != nil && p.call {
			used, lasting = true, lasting || p.begun.Until(now) >= presence.Lasting
		}
		if lasting {
			break
		}
	}
	return used, lasting
}

// Write writes the record.
func (w *recorded) Write(ctx context.Context, text string) (refused bool, err error) {
	t := w.reg.transport
	p := transport.Wait{Ctx: ctx, Limit: t.Shard(w.key).RoundTrip().Plus(min(recordLimit, w.reg.limit))}
	w.reg.askEach(&p, []string{w.key}, func(ctx context.Context, way rueidis.CoreClient, _ []int) []rueidis.RedisResult {
		return []rueidis.RedisResult{way.Do(ctx, way.B().Arbitrary("SET").Keys(w.key).Args(text, "PX", recordFor).Build())}
	}, func(_ int, _ rueidis.RedisResult, failure error) { err = failure })
	return forbidden(err), err
}

// Broke is what the shard says of its last connection that broke.
func (w *recorded) Broke() clock.Instant {
	return w.reg.transport.Shard(w.key).LastBreak()
}

// Lasts looks for cycles with calls of this registry.
func (w *recorded) Lasts(ctx context.Context) { w.chase(ctx) }

// Refused logs that the user may not write the record.
func (w *recorded) Refused(err error) {
	w.reg.dispatch.Log(slog.LevelInfo, "the server refuses the record of this registry's host and process",
		slog.String("key", w.key), slog.Any("error", err))
}
