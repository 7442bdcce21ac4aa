package lockregistry

import (
	"log/slog"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/wake"
)

// wakeup is how a waiting call learns that the lock is free, see WithPolling. Tests can restrict the default to one of its
// ways.
type wakeup int

const (
	wakeupAuto     wakeup = iota
	wakeupPoll            // see WithPolling
	wakeupPubSub          // messages alone
	wakeupTracking        // CLIENT TRACKING alone; nothing is published for Java
)

var wakeups = map[string]wakeup{"auto": wakeupAuto, "poll": wakeupPoll, "pubsub": wakeupPubSub, "tracking": wakeupTracking}

// publishes reports whether releases are published.
func (m wakeup) publishes() bool { return m == wakeupAuto || m == wakeupPubSub }

// listen sets up what wakes the registry's waiting calls.
func (r *Registry) listen(m wakeup, log *slog.Logger) {
	r.queues.Own = r.prefix + "-channel@" + strings.TrimSuffix(r.queues.Values, ":")
	to := r.transport.Client
	o := wake.Options{
		Track:     m == wakeupAuto || m == wakeupTracking,
		Subscribe: m.publishes(),
		Common:    r.plain.Holds.Format.CommonChannel(),
		Poll:      r.queues.Poll,
		RoundTrip: func() time.Duration { return to.Farthest().RoundTrip().Base },
		Demoted:   to.Demoted,
		Slots:     to.Slots,
		Log:       r.reports.dispatch.Log,
		Sink:      log,
		Message:   func(_, text string) { r.deliver(text) },
		Connection: func(c wake.Connection) {
			if !c.Up {
				r.record.MayBeGone()
				r.verifyHolds(c.Node)
			}
		},
	}
	if o.Track || o.Subscribe {
		r.queues.Listening = wake.Listen(r.client, o)
	}
}

// verifyHolds is called when the connection for wake-ups is lost, or leads to a former master. It verifies all holds on that
// server, and repeats recent removals. Server is the address in a cluster, otherwise empty.
//
// Holds whose server is not known are verified, too. So are those on a suspect server, because of this failover:
//
//  1. A master freezes, and becomes suspect.
//  2. The nodes name its successor, which inherits the suspicion. From now on the master's holds are the successor's.
//  3. The connection to the old master is lost.
func (r *Registry) verifyHolds(server string) {
	now := r.now()
	elsewhere := func(p *queue.Path) bool {
		at := p.Node()
		return server != "" && at.Address != "" && at.Address != server && !at.IsSuspect(now) // mutant: successor not looked at
	}
	for l := range r.everyLock() {
		if elsewhere(&l.redis) {
			continue
		}
		if h := l.hold.Load(); h != nil {
			h.Verify()
		}
		l.redis.Recall(now)
	}
	r.queues.RecallEach(now, elsewhere)
}

// deliver handles a message from a script. The goroutine that reads the connection calls it.
func (r *Registry) deliver(text string) {
	m, ok := queue.ParseMessage(text)
	if !ok || len(m.Key) <= len(r.prefix) {
		return
	}
	r.transport.Node(m.Key).GotMessage(r.now())
	path := m.Key[len(r.prefix)+1:]
	for l := range r.cache.of(path) {
		if l.redis.Deliver(m) {
			return
		}
	}
	if l, ok := r.permits.Named(m.Number); ok && l.redis.Key == m.Key && l.redis.Deliver(m) || !m.Grants() {
		return
	}
	if anchor, ok := r.permits.Known(m.Key); ok { // to a call that is gone
		anchor.redis.RemoveUnclaimed(m.Number)
	}
	for l := range r.cache.of(path) {
		if l.redis.Wake() {
			return
		}
	}
	// No call waits for this grant. The call that gave up removes it, too, but this is quicker. The grant may be for any kind
	// of lock.
	for l := range r.cache.of(path) {
		l.redis.RemoveUnclaimed(m.Number) // mutant: grant to nobody
	}
}
