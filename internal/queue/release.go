package queue

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/lockregistry/lockregistry/internal/barging"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// How long a release waits for Redis, and how long once its context is done; two round trips are added to each.
const (
	releaseLimit = time.Second
	ReleaseGrace = releaseLimit / 10
)

// Ending is a hold that its owner has ended.
type Ending struct {
	Hold *hold.Hold
	At   clock.Instant // when it ended; of several holds, when its turn came
	Kept clock.Instant // see NoteKept
	Due  bool          // this process has had the key for long enough, so that others get their turn
}

// Release removes the key of a hold that was valid until its owner ended it, and then frees the local half. Lost says that Redis
// no longer had the key. After an error it is not known whether the key is removed; the cleaner goes on. After [fault.Unproven]
// the key is gone, but it is not known since when.
//
// The order makes it safe; steps 1 and 2 are the caller's:
//
//  1. NoteKept, before the lock gives up its hold: a message about the hold finds the hold, or the note.
//  2. The end of the hold, before the command: no owner relies on a key that another process may have by then.
//  3. What the command says about other waiters, before the local half is free: only the holder of the local half may read it.
//  4. The local half is free once the outcome is known, or the lease is over: the next call here finds the key free. A command
//     that is still under way then names this hold, so it does not touch the next one, whose number is larger.
func (p *Path) Release(ctx context.Context, e Ending) (lost fault.Loss, err error) {
	answered := false
	defer func() {
		if !answered { // code of the user has panicked: a method of ctx, or a hook of the client
			p.forsakeEnded(e.Hold) // mutant: panic keeps the local half leaving
		}
	}()
	h := e.Hold
	m := protocol.Release{Key: p.Key, Value: h.Value(), Queued: p.mayQueue(), Keep: e.Kept.After(e.At), Leads: h.Leads}
	if !h.Leads && (e.Due || p.side == "" && h.Watched()) { // Watched: its lease does not suit the next waiter
		m.Yields = p.lock.Contended()
	}
	if m.Queued && (p.anchor.others.Load() != nil || h.Queued) { // otherwise no other process is known to want it
		m.Quiet = p.Node().Quiet(h.Since().Add(-barging.EvidenceAge))
	}
	w, c := p.releaseWait(ctx, &e), p.Format.Release(m) // this may ask the server for its version
	reply := p.all.Transport.Do(&w, &c)
	answered = true
	n, err := protocol.Confirmed(reply.RedisResult)
	if why := protocol.WhyNoQueue(reply.RedisResult); why != "" {
		p.noQueue(why)
	}
	return p.released(&e, &releaseReply{w, reply, n, err, m.Yields})
}

// forsakeEnded removes the key of an ended hold in the background, and then frees the local half.
func (p *Path) forsakeEnded(h *hold.Hold) {
	removal := p.removal(h)
	removal.MayArrive = true // the release may be under way
	if !p.all.Cleaner.Remove(removal, func(bool) { p.lock.Free() }) {
		p.lock.Free() // the registry is closed: the key stays until its lease is over
	}
}

// releaseWait returns how long the release of a hold waits for its reply.
func (p *Path) releaseWait(ctx context.Context, e *Ending) transport.Wait {
	to := p.Node()
	return transport.Wait{
		Ctx: ctx, Since: e.At, Limit: to.Plus(releaseLimit), Near: releaseLimit, Lease: e.Hold.Term().Length,
		Grace: to.RoundTrip().Plus(ReleaseGrace),
	}
}

// releaseReply is what a reply to a release says about one path.
type releaseReply struct {
	wait   transport.Wait // values: pointers would have both allocated
	reply  transport.Reply
	n      int64 // from [protocol.Confirmed]
	err    error
	yields bool // goroutines of this process wait, and must let others go first
}

// released ends a release by its reply.
func (p *Path) released(e *Ending, r *releaseReply) (lost fault.Loss, err error) {
	h, reply := e.Hold, &r.reply
	p.NoteContention(r.n, r.yields, reply.Came)
	if r.err == nil && !reply.Late { // mutant: late removal believed
		p.Removed(h.Value(), reply.Came)
		if h.MayArrive() {
			p.all.Cleaner.Remove(p.remains(h), nil)
		}
		p.lock.Free()
	} else if err = p.removeLater(r.wait, h, r.err); err != nil {
		return fault.NotLost, err
	}
	if r.n <= 0 && (reply.Error() == nil || fault.IsWrongType(reply.Error())) {
		return e.missed(r.n, reply.Came)
	}
	return fault.NotLost, nil
}

// missed returns what it means that a removal, answered at came, has not found the hold's key. The hold was valid when its owner
// ended it. So there are two cases:
//
//	the key was removed, or became another's, within the lease    the hold was lost
//	the server executed the removal after the lease               the section ended in time
//
// A reply that came within the lease proves the first case. A later reply proves neither: the outcome is unproven. The first case
// is assumed all the same
//
//   - if the hold was unverified: the connection or the master had changed, and the server had not confirmed the hold since; and
//   - with AtLeast, as in Once, since the key had to stay.
func (e *Ending) missed(n int64, came clock.Instant) (fault.Loss, error) {
	h := e.Hold
	if !h.Expired(came) || h.Unverified() || h.Terms().AtLeast > 0 { // mutant: late removal is a loss
		return fault.Without(n), nil
	}
	return fault.NotLost, fault.AsUnavailable(fault.Unproven)
}

// removeLater removes the key of an ended hold in the background, after a first removal that failed with failure, or was
// answered late. It waits for the outcome at most until the release's own time is over.
func (p *Path) removeLater(w transport.Wait, h *hold.Hold, failure error) error {
	removed := make(chan bool, 1)
	settled := func() {} // called when the state of the lock in Redis is known
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
	if p.Node().Within(w, removed) {
		return nil
	}
	return failure
}

// Removed notes that the key of the hold with this value was removed.
func (p *Path) Removed(value string, at clock.Instant) {
	switch number := strings.TrimPrefix(value, p.all.Values); {
	case p.Format.Many():
		p.all.freed.add(freedHold{p.anchor, number, at})
		return
	case !p.Format.RemovesOlder():
		p.all.freed.add(freedHold{p, number, at}) // the newest is noted below, too, however many others there are
	}
	n := p.all.numberIn(value)
	for last := p.last.Load(); n > 0 && n >= last; last = p.last.Load() { // removals may end at the same time
		p.lastAt.Store(int64(at)) // first: a Recall in between repeats an older removal, which is harmless
		if p.last.CompareAndSwap(last, n) {
			return
		}
	}
}

// recallFor is the age up to which a failover may have lost a removal: a replica most likely lags by less.
const recallFor = 2 * time.Second

// Recall sends the newest removal again if it was confirmed just now, since a server may have taken over without it. For a plain
// lock that removes older holds, too; for other formats see [Shared.RecallEach]. Later holds have larger numbers, and are not
// touched.
func (p *Path) Recall(now clock.Instant) {
	if n := p.last.Load(); n > 0 && clock.Instant(p.lastAt.Load()).Until(now) < recallFor {
		p.RemoveUnclaimed(strconv.FormatUint(n, 10))
	}
}
