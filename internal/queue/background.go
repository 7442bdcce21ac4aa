package queue

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
)

// Background has a registry's removals in the background: the calls that released the holds have returned. The registry's next
// call for the path may come while the removal is under way:
//
//	removed ──in the handoff limit, there is a queue, and nobody is known to wait in it──▶ asks at once ──▶ held
//	   └─else──▶ waits for the end of the removal ──▶ asks
//
// A call that asks at once and comes first takes the key over, see obtain.lua: its hold has a larger number, which the removal
// does not touch. So their order does not matter. Once the limit is over, the call waits, so that others have their turn: a
// ticket after the removal, a polling call in the window that the removal leaves. Without a queue there are no windows, and
// each call waits: so a polling call has the time of a round trip between any two holds, as without background releases.
//
// A goroutine waits for each reply. The transport sends at once, together for each master what comes together, so a sender for
// each master would only be one more queue.
type Background struct {
	limit   time.Duration // the handoff limit
	running atomic.Int32  // written with the mutex

	mu     sync.Mutex
	newest map[string]*removing // by key
	none   chan struct{}        // closed when there are no removals; nil: Close does not wait
	closed bool
}

// removing is one such removal. Background's mutex guards the fields that change.
type removing struct {
	key   string
	since clock.Instant // when this process got the key, with this hold or an earlier one
	began clock.Instant
	over  chan struct{} // closed when the server has replied, or the wait for it has ended

	next  follower
	by    *hold.Hold // the hold that was granted
	later bool       // see notOurs
	lost  func()     // see notOurs; nil: as far as is known the key was the hold's
}

// follower is what is known of the next call, which has not waited for the removal.
type follower uint8

const (
	nobody follower = iota
	asks
	refused // its first try found another owner's key
	granted // its first try got the lock
	unknown // unknown outcome, or no try
)

// mostInBackground limits the removals under way: further releases wait for theirs.
const mostInBackground = 64

// NewBackground makes an empty Background. Limit is the handoff limit.
func NewBackground(limit time.Duration) *Background {
	return &Background{limit: limit, newest: map[string]*removing{}}
}

// Yields reports whether a process must leave a window to calls without a ticket: it has had the key for the handoff limit,
// with several holds, between which the key was free only for moments. Had is how long the process has had the key, and owned
// how long the owner has had its hold; for a single hold they differ by a round trip.
func (b *Background) Yields(had, owned, trip time.Duration) bool {
	return b.limit > 0 && had >= b.limit && had-owned >= b.limit/2+2*trip
}

// begin begins the removal of a key. Had is how long this process has had it. It returns nil if the call must wait for the
// removal.
func (b *Background) begin(key string, had time.Duration, now clock.Instant) *removing {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.running.Load() >= mostInBackground {
		return nil
	}
	r := &removing{key: key, since: now.Add(-had), began: now, over: make(chan struct{})}
	b.running.Add(1)
	b.newest[key] = r
	return r
}

// notOurs notes that the key was not the hold's: it was free, or another hold's. Later: it belonged to a later hold of this
// registry. Lost is called once it is certain that the hold was lost: now, or when the outcome of the next call is known.
func (b *Background) notOurs(r *removing, later bool, lost func()) {
	b.mu.Lock()
	r.later, r.lost = later, lost
	b.unlockJudge(r)
}

// followed notes the outcome of the first try of the next call, which has not waited for the removal.
func (b *Background) followed(r *removing, how follower, by *hold.Hold) {
	b.mu.Lock()
	if r.next == asks {
		r.next, r.by = how, by
	}
	b.unlockJudge(r)
}

// unlockJudge unlocks the mutex, and calls lost once the loss is certain. A refused call has seen another owner's key. If the
// next call was granted, its key exists while its hold is valid: so unless the removal has met that key, the removal came
// before the grant, and the key was not the old hold's even then.
func (b *Background) unlockJudge(r *removing) {
	next, by, later, lost := r.next, r.by, r.later, r.lost
	if next != asks {
		r.lost = nil
	}
	b.mu.Unlock()
	if lost == nil {
		return
	}
	seen := next == refused
	cameFirst := !later && (next == nobody || next == granted && by.Fresh())
	if seen || cameFirst {
		lost()
	}
}

// end ends a removal: it is done, or the cleaner has taken it over.
func (b *Background) end(r *removing) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.newest[r.key] == r {
		delete(b.newest, r.key)
	}
	close(r.over)
	if b.running.Add(-1) == 0 && b.none != nil {
		close(b.none)
		b.none = nil
	}
}

// Close waits until no removal is under way, for limit at most. No further removal begins.
func (b *Background) Close(limit time.Duration) {
	b.mu.Lock()
	b.closed = true
	if b.running.Load() == 0 {
		b.mu.Unlock()
		return
	}
	none := make(chan struct{})
	b.none = none
	b.mu.Unlock()
	end := time.NewTimer(limit)
	defer end.Stop()
	select {
	case <-none:
	case <-end.C:
	}
}

// of returns the removal of a key that is under way, or nil. The caller has the local half. The last hold's release begins its
// removal before it frees that: so no mutex is needed to see that there is none.
func (b *Background) of(key string) *removing {
	if b == nil || b.running.Load() == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.newest[key]
}

// overtake notes a call that does not wait for the removal. An earlier such call may have obtained and released the key
// meanwhile, so the reply says nothing certain about the hold any more, unless that call was refused.
func (b *Background) overtake(r *removing) *removing {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch r.next {
	case nobody:
		r.next = asks
	case refused:
	default:
		r.next = unknown
	}
	return r
}

// follow runs before the first try of a call. If the removal of the previous hold is under way, the call either waits for it,
// or follow returns it, and the caller must call followed. The two sides of a read-write lock always wait: their key has another
// type.
func (a *attempt) follow(deadline clock.Instant) (before *removing, err error) {
	p := a.path
	b := p.all.Background
	r := b.of(p.Key)
	if r == nil {
		return before, nil
	}
	within := p.side == "" && p.queues() && p.Clock.Now() < r.since.Add(b.limit) // mutant: overtaken without end
	if within && !p.Contested() && a.ctx.Err() == nil {                          // mutant: contested is ignored
		a.hold.HadSince(r.since)
		return b.overtake(r), nil
	}
	err = a.await(r, deadline)
	if errors.Is(err, fault.NoAnswer) && deadline <= p.Clock.Now() && !p.Shard().Overdue(r.began) {
		err = nil // the call asks all the same, as for any first try at the end of its wait
	}
	return nil, err
}

// await waits for the end of a removal, for as long as a reply may take.
func (a *attempt) await(r *removing, deadline clock.Instant) error {
	p := a.path
	s := p.all.waitKit()
	defer p.all.putBack(s)
	s.timer.Reset(max(0, min(a.commandWait(deadline).Limit, p.Clock.Now().Until(deadline))))
	select {
	case <-r.over: // mutant: removal not waited for
		return nil
	case <-a.ctx.Done():
		a.cut = true
		if p.Shard().Overdue(r.began) {
			return fault.Explain(fault.Ended(a.ctx), fault.AsUnavailable(fault.NoAnswer))
		}
		return fault.Ended(a.ctx)
	case <-p.all.Closed:
		return fault.Closed
	case <-s.timer.C: // the call may still ask, see obtainLater
		b := p.all.Background
		b.followed(b.overtake(r), unknown, nil)
		return fault.AsUnavailable(fault.NoAnswer)
	}
}

// outcome returns the outcome of the first try, which may not have been made, for a removal.
func (a *attempt) outcome(err error) follower {
	switch {
	case a.won:
		return granted
	case err == nil && a.asked:
		return refused
	default:
		return unknown
	}
}
