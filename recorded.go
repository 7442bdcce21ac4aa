package lockregistry

import (
	"context"
	"strings"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/record"
	"github.com/lockregistry/lockregistry/observe"
)

// ownRecord is the record that a registry keeps of itself in Redis, and the registry as seen by package presence.
type ownRecord struct {
	presence.Recorder
	record.Writer

	reg      *Registry
	label    observe.Label
	detector *detector.Detector
}

// keepRecord makes the registry keep a record of itself, with its name if it has one, and look for cycles across processes.
func (r *Registry) keepRecord(name *string) {
	own := presence.Own(strings.TrimSuffix(r.queues.Values, ":"), name)
	o := &r.reader
	o.Apart = &r.queues.Apart
	o.Prefix, o.Sharded, o.Cluster, o.Clock, o.Client = r.prefix, r.formats.Sharded(), r.queues.Cluster, r.transport.Clock, r.client
	o.Transport, o.Calls = r.transport.Client, &r.queues
	p := &ownRecord{reg: r, label: observe.Label(own)}
	r.record = p
	p.Init(record.Of{
		Prefix: r.prefix, Registry: own.Registry, Clock: r.transport.Clock, Transport: r.transport.Client, Limit: r.queues.Limit,
		Log: r.reports.dispatch.Log,
	})
	p.detector = detector.New(forDetector{o, r}, own, &waiting, r.transport.Clock)
	p.Start(p, r.transport.Clock, own)
}

func (w *ownRecord) Newest() uint64 { return w.reg.numbers.Newest() }

func (w *ownRecord) Waits() []presence.Wait { return w.detector.Waits() }

func (w *ownRecord) Locks() (all []presence.Lock) {
	now := w.reg.now()
	for l := range w.reg.locksInUse() {
		if lock, lasts := w.describe(l, now); lasts {
			all = append(all, lock)
		}
		if len(all) == 2*presence.MostLocks {
			all = presence.Upper(all)
		}
	}
	return all
}

// of returns what the record says about a path, or is about to say.
func (w *ownRecord) of(path string) (all []presence.Lock) {
	for l := range w.reg.locksOf(path) {
		if is, lasts := w.describe(l, w.reg.now()); lasts {
			all = append(all, is)
		}
	}
	return all
}

// describe returns what the record says about a lock, and whether the lock belongs in the record.
func (w *ownRecord) describe(l *Lock, now clock.Instant) (is presence.Lock, lasts bool) {
	is.Path = l.Path()
	if h := l.hold.Load(); h != nil {
		if held := h.Held(now); held.Fresh && held.Had >= presence.Lasting {
			is.Hold, is.Since = h.Number(), w.reg.transport.Clock.Time(now.Add(-held.Owned)).UnixMicro()
			is.Lease, is.Lasts = h.RenewalLease().Milliseconds(), h.Lasts(now)
		}
	}
	if l == l.anchor() { // the waiters for either side of a pair are together
		n, first := l.half().Queued()
		since, queued, leads := l.redis.Waits()
		waits := since > 0
		is.Waiting = n
		lasts = l.pair != nil && is.Waiting > 0 || waits && since.Until(now) >= presence.Lasting
		if waits && !queued {
			is.Waiting++
			if first == 0 || since < first {
				first = since
			}
		}
		if first != 0 && first.Until(now) >= presence.Lasting {
			is.Oldest = w.reg.transport.Clock.Time(first).UnixMicro()
		}
		is.Standby = queued && leads
	}
	return is, lasts || is.Hold != "" || is.Standby
}

// InUse counts a call from its beginning: the reply may come when nothing else is asked for any more.
func (w *ownRecord) InUse(now clock.Instant) (used, lasting bool) {
	for l := range w.reg.locksInUse() {
		if h := l.hold.Load(); h != nil {
			held := h.Held(now)
			lasting = held.Fresh && held.Had >= presence.Lasting
		}
		if since, _, _ := l.redis.Waits(); since > 0 && since.Until(now) >= presence.Lasting {
			lasting = true
		}
		if lasting {
			break
		}
	}
	return w.reg.inUse(), lasting
}

func (w *ownRecord) Lasts(ctx context.Context) { w.detector.Look(ctx) }
