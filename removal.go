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

// What calls and holds have left in Redis is removed by package cleanup. Here is what that is told of a hold.

// watchAtLeast is the least time to look out for a late grant.
const watchAtLeast = time.Minute

// removal is for a hold that is over and whose key is still to be removed.
func (l *Lock) removal(h *hold.Hold) cleanup.Removal {
	r := l.abandoned(h)
	// The field of a hold that writes can outlive its lease: a reader under it keeps the hash.
	r.MayArrive = h.MayArrive() || l.pair != nil
	return r
}

// abandoned is for a hold of which a grant may arrive yet.
func (l *Lock) abandoned(h *hold.Hold) cleanup.Removal { return l.removalOf(h.Remains()) }

// removalOf is for what may be left of a hold, of which a grant may arrive yet.
func (l *Lock) removalOf(r hold.Remains) cleanup.Removal {
	format := l.redis.Format
	if l.redis.Many() { // one for all, so that two removals of a hold are known as such
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

// unclaimed is for a hold that was granted to nobody.
func (l *Lock) unclaimed(number string) cleanup.Removal {
	length := l.reg.lease.Length
	r := l.removalOf(hold.Remains{Value: l.reg.values + number, Longest: length, Term: length})
	r.MayArrive = false
	r.Keep = l.redis.ReservedUntil(number)
	return r
}

// removedPath is a lock that hears what was removed.
type removedPath Lock

// Removed notes that the key of the hold with a value was removed.
func (p *removedPath) Removed(value string, at clock.Instant) { (*Lock)(p).removed(value, at) }

// removed notes that the key of a hold was removed.
func (l *Lock) removed(value string, at clock.Instant) {
	if l.redis.Many() {
		l.reg.permits.removed(l, value, at)
		return
	}
	l.redis.Removed(value, at)
}

// cleanUp has what a call has left removed in the background. When the registry is closed nobody would, so this does, once.
func (r *Registry) cleanUp(m cleanup.Removal) {
	if r.background.cleaner.Remove(m, nil) {
		return
	}
	r.transport.AwaitAbandoned(r.transport.Shard(m.Key).RoundTrip().Plus(unlockGrace))
	r.removeLast(m)
}

// removeLast sends a removal now for which nobody waits any more.
func (r *Registry) removeLast(m cleanup.Removal) {
	r.removeOnce(transport.Wait{Ctx: context.Background(), Limit: r.transport.Shard(m.Key).RoundTrip().Plus(unlockGrace)}, m)
}

// removeOnce sends a removal now, and tells whether it was confirmed.
func (r *Registry) removeOnce(p transport.Wait, m cleanup.Removal) (gone bool) {
	p.Lease = m.Lease
	c := m.Call(r.clock.Now())
	a := r.transport.Do(&p, &c)
	return a.Error() == nil && !a.Late
}

// removeLater has the key of a hold that is over removed in the background, and waits for the outcome for what is left of
// the time of an Unlock. Failure is why it is not known yet.
func (l *Lock) removeLater(p transport.Wait, h *hold.Hold, failure error) error {
	reg := l.reg
	removed := make(chan bool, 1)
	over := func() {} // until then nobody has the lock here, and nobody knows whether somebody has it elsewhere
	freed := func(gone bool) {
		over()
		l.freeLocal()
		removed <- gone
	}
	removal := l.removal(h)
	if failure == nil { // the answer came late: a master that is none any more may have given it
		removal.MayArrive, failure = true, fault.Late
	}
	if errors.Is(failure, context.DeadlineExceeded) || errors.Is(failure, context.Canceled) { // the client has limits
		failure = fault.NoAnswer
	}
	if failure = fault.Classify(failure); errors.Is(failure, ErrUnavailable) {
		over = l.redis.Unavailable(failure)
	}
	if !reg.background.cleaner.Remove(removal, freed) {
		freed(reg.removeOnce(p, removal))
	}
	if l.shard().Within(p, removed) {
		return nil
	}
	return failure
}

// removing is the task that sends a removal. What it sends is the Call of the try.
type removing struct{ cleanup.Try }

func (r removing) Length() time.Duration { return r.Lease }
func (r removing) Wanted() bool          { return true }
func (r removing) Writes() bool          { return true }

func (r removing) Done(a transport.Reply, _ int64, err error) {
	if err == nil && a.Late {
		err = fault.Late // a master that is none any more may have said so
	}
	r.Answered(a.Came, err)
}
