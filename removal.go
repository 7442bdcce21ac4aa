package lockregistry

import (
	"context"
	"errors"
	"time"

	"github.com/lockregistry/lockregistry/internal/cleanup"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Package cleanup removes what calls and holds have left in Redis. This file makes its removals from holds.

// watchAtLeast is the shortest time for which a removal waits for a late grant.
const watchAtLeast = time.Minute

// removal returns the removal for an ended hold whose key was not removed.
func (l *Lock) removal(h *hold.Hold) cleanup.Removal {
	r := l.abandoned(h)
	// A writer's field can outlive its lease: a reader of the same owner keeps the hash.
	r.MayArrive = h.MayArrive() || l.pair != nil
	return r
}

// abandoned returns the removal for a hold of which a late grant may still arrive.
func (l *Lock) abandoned(h *hold.Hold) cleanup.Removal { return l.removalOf(h.Remains()) }

// removalOf returns the removal for what may be left of a hold, including a late grant.
func (l *Lock) removalOf(r hold.Remains) cleanup.Removal {
	format := l.redis.Format
	if l.redis.Many() { // the same for all, so that two removals of one hold are equal
		format = l.reg.permit.Format
	}
	return cleanup.Removal{
		Path:      (*removedPath)(l),
		Format:    format,
		Key:       l.redis.Key,
		Value:     r.Value,
		Number:    l.reg.queues.NumberIn(r.Value),
		Lease:     r.Longest,
		Expired:   l.reg.clock.Now().Add(r.Longest).Add(lease.Margin(r.Longest)),
		Keep:      r.Kept, // mutant: kept path let go
		MayArrive: true,
		Watch:     max(r.Term, watchAtLeast),
	}
}

// unclaimed returns the removal for a hold that was granted to a call that is gone.
func (l *Lock) unclaimed(number string) cleanup.Removal {
	length := l.reg.lease.Length
	r := l.removalOf(hold.Remains{Value: l.reg.values + number, Longest: length, Term: length})
	r.MayArrive = false
	r.Keep = l.redis.ReservedUntil(number)
	return r
}

// removedPath is a lock as seen by package cleanup.
type removedPath Lock

// Removed notes that the key of the hold with this value was removed.
func (p *removedPath) Removed(value string, at clock.Instant) { (*Lock)(p).removed(value, at) }

// removed notes that the key of a hold was removed.
func (l *Lock) removed(value string, at clock.Instant) {
	if l.redis.Many() {
		l.reg.permits.removed(l, value, at)
		return
	}
	l.redis.Removed(value, at)
}

// cleanUp removes what a call has left, in the background. When the registry is closed, cleanUp sends the removal itself, once.
func (r *Registry) cleanUp(m cleanup.Removal) {
	if r.background.cleaner.Remove(m, nil) {
		return
	}
	r.transport.AwaitAbandoned(r.transport.Shard(m.Key).RoundTrip().Plus(unlockGrace))
	r.removeLast(m)
}

// removeLast sends a removal now, with little time, since no call waits for it.
func (r *Registry) removeLast(m cleanup.Removal) {
	r.removeOnce(transport.Wait{Ctx: context.Background(), Limit: r.transport.Shard(m.Key).RoundTrip().Plus(unlockGrace)}, m)
}

// removeOnce sends a removal now, and reports whether it was confirmed.
func (r *Registry) removeOnce(p transport.Wait, m cleanup.Removal) (gone bool) {
	p.Lease = m.Lease
	c := m.Call(r.clock.Now())
	a := r.transport.Do(&p, &c)
	return a.Error() == nil && !a.Late
}

// removeLater removes the key of an ended hold in the background, and waits for the outcome for the rest of the time of an
// Unlock. Failure is the error of the first removal.
func (l *Lock) removeLater(p transport.Wait, h *hold.Hold, failure error) error {
	reg := l.reg
	removed := make(chan bool, 1)
	over := func() {} // until then the lock is not held here, and its state in Redis is unknown
	freed := func(gone bool) {
		over()
		l.freeLocal()
		removed <- gone
	}
	removal := l.removal(h)
	if failure == nil { // the answer came late, perhaps from a former master
		removal.MayArrive, failure = true, fault.Late
	}
	if errors.Is(failure, context.DeadlineExceeded) || errors.Is(failure, context.Canceled) { // a timeout of the client
		failure = fault.NoAnswer
	}
	if failure = fault.Classify(failure); errors.Is(failure, ErrUnavailable) {
		over = l.redis.Unavailable(failure, p.Since)
	}
	if !reg.background.cleaner.Remove(removal, freed) {
		freed(reg.removeOnce(p, removal))
	}
	if l.shard().Within(p, removed) {
		return nil
	}
	return failure
}

// removing is the task that sends a removal.
type removing struct{ cleanup.Try }

func (r removing) Length() time.Duration { return r.Lease }
func (r removing) Wanted() bool          { return true }
func (r removing) Writes() bool          { return true }

func (r removing) Done(a transport.Reply, _ int64, err error) {
	if err == nil && a.Late {
		err = fault.Late // perhaps from a former master
	}
	r.Answered(a.Came, err)
}
