package queue

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// How long a release waits for Redis, and how long once its context is done; two round trips are added to each.
const (
	ReleaseLimit = time.Second
	ReleaseGrace = 100 * time.Millisecond
)

// Ending is a hold that its owner has ended.
type Ending struct {
	Hold  *hold.Hold
	Owner owner.ID
	At    clock.Instant // when it ended
	Kept  clock.Instant // see NoteKept
	Due   bool          // this process has had the key for long enough, so that others have their turn
}

// Release removes the key of a hold that was valid until its owner ended it, and then frees the local half. Lost: Redis no
// longer had it. With an error it is not known whether the key is removed; the cleaner goes on.
//
// The order is what makes it safe, for the caller, too:
//
//  1. NoteKept, before the lock gives up its hold: so a message about the hold finds the hold, or what that has noted.
//  2. The end of the hold, before the command: so no owner relies on a key that another process may have by then.
//  3. Fairness, before the local half is free: what it looks at belongs to whoever has that.
//  4. The local half is free once the outcome is known, or the lease is over: so the next call here finds the key free. What is
//     still under way then names this hold, and the next hold, with its larger number, is not touched by it.
//
// With a removal in the background 4 comes before the command, and the next call knows of that, see Background.
func (p *Path) Release(ctx context.Context, e Ending) (lost fault.Loss, err error) {
	h := e.Hold
	m := protocol.Release{Key: p.Key, Value: h.Value(), Queued: p.mayQueue(), Keep: e.Kept.After(e.At)}
	removing := p.removesInBackground(&e, &m)
	p.fairness(&m, h, e.Due, e.At)
	if removing != nil {
		go p.removeInBackground(removing, h, m) //nolint:gosec // it outlives the call and its context
		p.lock.Free()
		return fault.NotLost, nil
	}
	w := p.releaseWait(ctx, h, e.At)
	w.Grace = p.Shard().RoundTrip().Plus(ReleaseGrace)
	reply, n, err := p.sendRelease(&w, m)
	p.NoteContention(n, m.Yields, reply.Came)
	if err == nil && !reply.Late { // mutant: late removal believed
		p.Removed(h.Value(), reply.Came)
		if h.MayArrive() {
			p.all.Cleaner.Remove(p.abandoned(h), nil)
		}
		p.lock.Free()
	} else if err = p.removeLater(w, h, err); err != nil {
		return fault.NotLost, err
	}
	if n <= 0 && (reply.Error() == nil || fault.IsWrongType(reply.Error())) {
		return fault.Without(n), nil
	}
	return fault.NotLost, nil
}

// releaseWait is how long a call waits for the removal of the key of a hold that ended at some time.
func (p *Path) releaseWait(ctx context.Context, h *hold.Hold, ended clock.Instant) transport.Wait {
	return transport.Wait{
		Ctx: ctx, Since: ended, Limit: p.Shard().Plus(ReleaseLimit), Near: ReleaseLimit, Lease: h.Term().Length,
	}
}

// sendRelease sends a release, and notes if the server has refused the queue.
func (p *Path) sendRelease(w *transport.Wait, m protocol.Release) (reply transport.Reply, n int64, err error) {
	c := p.Format.Release(m) // this may ask the server for its version
	reply = p.all.Transport.Do(w, &c)
	n, err = protocol.Confirmed(reply.RedisResult)
	if why := protocol.WhyNoQueue(reply.RedisResult); why != "" {
		p.NoQueue(why)
	}
	return reply, n, err
}

// removeLater removes the key of an ended hold in the background, and waits for the outcome for the rest of the time of a
// release. Failure is the error of the first removal.
func (p *Path) removeLater(w transport.Wait, h *hold.Hold, failure error) error {
	removed := make(chan bool, 1)
	settled := func() {} // from then on the state of the lock in Redis is known
	freed := func(gone bool) {
		settled()
		p.lock.Free()
		removed <- gone
	}
	removal := p.removal(h)
	if failure == nil { // the answer came late, perhaps from a former master
		removal.MayArrive, failure = true, fault.Late
	}
	if errors.Is(failure, context.DeadlineExceeded) || errors.Is(failure, context.Canceled) { // a timeout of the client
		failure = fault.NoAnswer
	}
	if failure = fault.Classify(failure); errors.Is(failure, fault.Unavailable) {
		settled = p.Unavailable(failure, w.Since)
	}
	if !p.all.Cleaner.Remove(removal, freed) {
		freed(p.all.removeOnce(w, removal))
	}
	if p.Shard().Within(w, removed) {
		return nil
	}
	return failure
}

// removesInBackground begins the removal of an ended hold's key in the background. It returns nil when the call must wait for
// the removal.
func (p *Path) removesInBackground(e *Ending, m *protocol.Release) *removing {
	b, h := p.all.Background, e.Hold
	if b == nil || p.side != "" || m.Keep > 0 || h.Leads() || h.MayArrive() || e.Owner.IsOnce() || e.Owner.IsGroup() {
		return nil
	}
	to := p.Shard()
	if !to.IsFar(e.At) || to.IsSuspect(e.At) {
		return nil
	}
	owned, had, _ := h.Held(e.At)
	r := b.begin(p.Key, had, e.At)
	m.Yields = r != nil && p.queues() && b.Yields(had, owned, to.RoundTrip().Base)
	return r
}

// removeInBackground removes the key of an ended hold. The local half is free: the lock may be in use again, or dropped from the
// cache.
func (p *Path) removeInBackground(r *removing, h *hold.Hold, m protocol.Release) {
	b := p.all.Background
	defer b.end(r)
	w := p.releaseWait(context.Background(), h, r.began)
	w.Observer = (*silence)(p.whole()) // the next call may wait for the removal
	reply, n, err := p.sendRelease(&w, m)
	switch {
	case err != nil || reply.Late:
		// If the removal of a later hold failed before, the cleaner already has a removal that covers this hold.
		left := p.removal(h)
		left.MayArrive = left.MayArrive || err == nil
		if !p.all.Cleaner.Expedite(left) { // mutant: removal tried once
			p.all.removeLast(left)
		}
		return
	case n > 0 && m.Yields:
		p.noteWindow(n, true, reply.Came)
	case n > 0:
		p.NoteContention(n, false, reply.Came)
	case !h.Expired(reply.Came): // else the key may have expired after the release
		b.notOurs(r, n == protocol.Later, func() { p.lostInBackground(h, r.began, fault.Without(n)) })
	}
	p.Removed(h.Value(), reply.Came)
}

// lostInBackground reports that a hold's key was no longer its own when it was released.
func (p *Path) lostInBackground(h *hold.Hold, released clock.Instant, why fault.Loss) {
	p.Log(slog.LevelWarn, "lock lost before it was released", slog.String("key", p.Key), slog.String("reason", why.String()))
	owned, _, _ := h.Held(released)
	p.lock.LostInBackground(owned, why)
}
