package lockregistry

import (
	"context"
	"log/slog"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/queue"
)

// Removals of keys for which no Unlock waits, see WithBackgroundRelease and package queue.

// removesBehind tells whether the key of a hold that is over is removed without its owner waiting for that: nil when it waits.
func (l *Lock) removesBehind(h *hold.Hold, m *protocol.Release, o owner.ID, now clock.Instant) *queue.Removing {
	behind := l.reg.queues.Behind
	if behind == nil || l.pair != nil || l.redis.Many() || m.Keep > 0 || h.Leads() || h.MayArrive() || o.IsOnce() || o.IsGroup() {
		return nil
	}
	to := l.shard()
	if !to.IsFar(now) || to.IsSuspect(now) {
		return nil
	}
	owned, had, _ := h.Held(now)
	r := behind.Begin(l.redis.Key, had, now)
	m.Yields = r != nil && l.redis.Queues() && behind.Yields(had, owned, to.RoundTrip().Base)
	return r
}

// removeBehind removes the key of a hold that is over. The local half is free, and the lock may be in use again, or dropped.
func (l *Lock) removeBehind(r *queue.Removing, h *hold.Hold, m protocol.Release) {
	reg := l.reg
	defer reg.queues.Behind.End(r)
	p := l.removalWait(context.Background(), h, r.Began)
	p.Observer = l.redis.Silence()
	c := l.redis.Format.Release(m)
	reply := reg.transport.Do(&p, &c)
	n, err := protocol.Confirmed(reply.RedisResult)
	if why := protocol.WhyNoQueue(reply.RedisResult); why != "" {
		l.redis.NoQueue(why)
	}
	switch {
	case err != nil || reply.Late:
		// The removal of a later hold may have failed before, and stands for this one, too.
		left := l.removal(h)
		left.MayArrive = left.MayArrive || err == nil
		if !reg.background.cleaner.Expedite(left) { // mutant: removal tried once
			reg.removeLast(left)
		}
		return
	case n > 0 && m.Yields:
		l.redis.NoteWindow(n, true, reply.Came)
	case n > 0:
		l.redis.NoteContention(n, false, reply.Came)
	case !h.Expired(reply.Came): // else it was valid when it was released, and its key may have expired on the way
		reg.queues.Behind.NotOurs(r, n == protocol.Later, func() { l.lostBehind(h, r.Began, fault.Without(n)) })
	}
	l.redis.Removed(h.Value(), reply.Came)
}

// lostBehind tells of a hold that was released, and whose key was not its own any more by then.
func (l *Lock) lostBehind(h *hold.Hold, released clock.Instant, why fault.Loss) {
	l.reg.others.presence.Doubt()
	l.reg.reports.dispatch.Log(slog.LevelWarn, "lock lost before it was released",
		slog.String("key", l.redis.Key), slog.String("reason", why.String()))
	owned, _, _ := h.Held(released)
	l.tellLost(owned, why)
}
