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

// Removals of keys in the background, see WithBackgroundRelease and package queue.

// removesBehind begins the removal of an ended hold's key in the background. It returns nil when Unlock must wait for the
// removal.
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

// removeBehind removes the key of an ended hold. The local half is free: the lock may be in use again, or dropped from the
// cache.
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
		// If the removal of a later hold failed before, the cleaner already has a removal that covers this hold.
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
	case !h.Expired(reply.Came): // else the key may have expired after the release
		reg.queues.Behind.NotOurs(r, n == protocol.Later, func() { l.lostBehind(h, r.Began, fault.Without(n)) })
	}
	l.redis.Removed(h.Value(), reply.Came)
}

// lostBehind reports that a hold's key was no longer its own when it was released.
func (l *Lock) lostBehind(h *hold.Hold, released clock.Instant, why fault.Loss) {
	l.reg.others.presence.Doubt()
	l.reg.reports.dispatch.Log(slog.LevelWarn, "lock lost before it was released",
		slog.String("key", l.redis.Key), slog.String("reason", why.String()))
	owned, _, _ := h.Held(released)
	l.tellLost(owned, why)
}
