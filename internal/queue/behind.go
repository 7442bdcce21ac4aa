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

// Behind are the removals of a registry that go on although the calls which have released the holds have returned. Each is of a
// hold that is over. The path's next call of the registry comes while its removal is under way:
//
//	removed ──in the handoff limit, there is a queue, and nobody is known to wait in it──▶ asks at once ──▶ held
//	   └─else──▶ waits for the end of the removal ──▶ asks
//
// What asks at once takes the key over where it comes first, see obtain.lua: it has a larger number, which the removal does not
// touch then. So their order harms nobody. When the limit is over others have had their chance: a ticket since the removal, a
// call that polls by the window that the removal leaves. Without a queue there is no window, and each call waits: so a call that
// polls has the time of a round trip between any two holds, as it has where releases wait.
type Behind struct {
	limit   time.Duration // the handoff limit
	running atomic.Int32  // written with the mutex

	mu     sync.Mutex
	newest map[string]*Removing // by key
	none   chan struct{}        // closed when there are none; nil: nobody waits for that
	closed bool
}

// Removing is one of them. Behind's mutex guards what is not written once.
type Removing struct {
	key   string
	since clock.Instant // since when this process has had the key, with this hold and those before
	Began clock.Instant
	over  chan struct{} // closed when the server has replied, or is not waited for any more

	next  follower
	by    *hold.Hold // that was granted
	later bool       // see NotOurs, as is lost
	lost  func()     // nil: the key was the hold's, as far as is known
}

// follower is what is known of the call that has not waited for a removal.
type follower uint8

const (
	nobody follower = iota
	asks
	refused // by its first try: another owner had the key
	granted // by its first try
	unknown // or there was none
)

// mostBehind is how many there are at most: the rest of a rush waits for its removals.
const mostBehind = 64

// NewBehind has none yet. Limit is the handoff limit.
func NewBehind(limit time.Duration) *Behind {
	return &Behind{limit: limit, newest: map[string]*Removing{}}
}

// Yields tells whether a process is to leave those without a ticket their chance: it has had the key for so long, with several
// holds, and between them the key was free for a moment only. Of a single hold the two times differ by a round trip.
func (b *Behind) Yields(had, owned, trip time.Duration) bool {
	return b.limit > 0 && had >= b.limit && had-owned >= b.limit/2+2*trip
}

// Begin is before the removal of a key that this process has had for so long. It returns nil when the call is to wait for it.
func (b *Behind) Begin(key string, had time.Duration, now clock.Instant) *Removing {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.running.Load() >= mostBehind {
		return nil
	}
	r := &Removing{key: key, since: now.Add(-had), Began: now, over: make(chan struct{})}
	b.running.Add(1)
	b.newest[key] = r
	return r
}

// NotOurs is that the key was not the hold's: it was free, or another's. Later tells that it was one's of this registry that has
// asked for it since. Lost is called when the hold was lost for certain, now or when the call that has not waited for the removal
// knows.
func (b *Behind) NotOurs(r *Removing, later bool, lost func()) {
	b.mu.Lock()
	r.later, r.lost = later, lost
	b.unlockJudge(r)
}

// told takes in what has become of the first try of the call that has not waited for a removal.
func (b *Behind) told(r *Removing, how follower, by *hold.Hold) {
	b.mu.Lock()
	if r.next == asks {
		r.next, r.by = how, by
	}
	b.unlockJudge(r)
}

// unlockJudge tells of a loss once it is known, and unlocks the mutex. A call that was refused has seen that another owner had
// the key. As long as the hold is valid of one that was granted, its key is there: unless the removal has met that key, it came
// before the grant, and found that the key was not its own.
func (b *Behind) unlockJudge(r *Removing) {
	next, by, later, lost := r.next, r.by, r.later, r.lost
	if next != asks {
		r.lost = nil
	}
	b.mu.Unlock()
	if lost != nil && (next == refused || !later && (next == nobody || next == granted && by.Fresh())) {
		lost()
	}
}

// End is after a removal, and after what is left of it is the cleaner's.
func (b *Behind) End(r *Removing) {
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

// Close waits until there are none, for a while. No further one begins.
func (b *Behind) Close(limit time.Duration) {
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

// of is the removal of a key that is under way.
func (b *Behind) of(key string) *Removing {
	if b == nil || b.running.Load() == 0 {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.newest[key]
}

// overtake is for a call that does not wait for a removal. Of one before it something may have been removed, and the key with it:
// so what the reply says about the hold is not known any more, unless that one was refused.
func (b *Behind) overtake(r *Removing) *Removing {
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

// follow is before the first try of a call. Where its registry has the removal of the hold before under way it returns that when
// the call does not wait: told is to be called then. The two sides of a read-write lock always wait: their key has another type.
func (a *attempt) follow(deadline clock.Instant) (before *Removing, err error) {
	p := a.path
	b := p.all.Behind
	r := b.of(p.Key)
	if r == nil {
		return before, nil
	}
	within := p.side == "" && p.Queues() && p.Clock.Now() < r.since.Add(b.limit) // mutant: overtaken without end
	if within && !p.Contested() && a.ctx.Err() == nil {                          // mutant: contested is ignored
		a.hold.HadSince(r.since)
		return b.overtake(r), nil
	}
	err = a.await(r, deadline)
	if errors.Is(err, fault.NoAnswer) && deadline <= p.Clock.Now() && !p.Shard().Overdue(r.Began) {
		err = nil // it asks all the same, as a first try at the end of its wait does
	}
	return nil, err
}

// await waits for the end of a removal, for as long as an answer may take.
func (a *attempt) await(r *Removing, deadline clock.Instant) error {
	p := a.path
	s := p.all.spare()
	defer p.all.putBack(s)
	s.timer.Reset(max(0, min(a.commandWait(deadline).Limit, p.Clock.Now().Until(deadline))))
	select {
	case <-r.over: // mutant: removal not waited for
		return nil
	case <-a.ctx.Done():
		a.cut = true
		if p.Shard().Overdue(r.Began) {
			return fault.Explain(fault.Ended(a.ctx), fault.AsUnavailable(fault.NoAnswer))
		}
		return fault.Ended(a.ctx)
	case <-p.all.Closed:
		return fault.Closed
	case <-s.timer.C: // the call may ask all the same, see obtainLater
		b := p.all.Behind
		b.told(b.overtake(r), unknown, nil)
		return fault.AsUnavailable(fault.NoAnswer)
	}
}

// outcome is what a removal is told of the first try, which may not have been made.
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
