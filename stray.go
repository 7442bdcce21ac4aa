package lockregistry

import (
	"context"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scheduler"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// stray is what may be in Redis although nobody holds it: the removal of a hold has not been confirmed, or a grant whose reply
// was lost may still be executed. It is removed again and again, so that the path is not blocked for a whole lease.
//
// There is one stray for a path, however many calls have failed: the removal of a value also removes what an older hold of
// this registry has left there, see release.lua, so it is enough to ask for that of the newest. This harms nobody.
// A call draws the number of its hold while it has the local half, and frees that only when the hold is over or
// abandoned. So when there is a stray with some number, all holds of this path with smaller ones are over, and those to
// come have larger ones, which no removal of this stray touches, however late it arrives. One of a hold that is lost, and whose
// owner has not released it, has the largest number that was drawn so far: so that is true of it, too.
type stray struct {
	lock *Lock
	at   place

	// The mutex of all strays guards the rest.

	value   string           // of the newest hold that is over, or lost
	lease   time.Duration    // the longest that this hold has had
	gone    clock.Instant    // removals only: when the key has expired even if no command ever arrives
	freed   func(gone bool)  // removals only: frees the local half; gone: the key is known to be gone; nil once called
	late    bool             // a grant may arrive yet, so one removal is not enough
	watch   time.Duration    // for how long to look out for it, once Redis answers
	leaving protocol.Leaving // what to remove from the queue
	kept    clock.Instant    // until when the path is to stay taken, if the key is that of value; 0: it is not
	calm    clock.Instant    // since when Redis answers; 0 while it does not
	failed  int              // removals in a row that were not answered

	due   clock.Instant
	place int32 // among the sweeps; 0 while the removal of value is under way
}

// place is where a stray is. The reading and the writing half of a path are two, since a hold of one may be younger than a
// valid one of the other.
type place struct {
	kind  *kind
	key   string
	value string // where the layout removes no more than that
}

const (
	strayWatch = time.Minute            // the least time to look out for a late grant
	strayPace  = 100 * time.Millisecond // how often, while Redis answers
	strayHaste = 10 * time.Second       // for so long; then ever more rarely
	strayEase  = 8                      // afterwards the pause is this fraction of the calm
)

// removal is the stray of a hold that is over and whose key is still to be removed.
func (h *hold) removal(freed func(gone bool)) *stray {
	s := h.abandoned()
	// The field of a hold that writes can outlive its lease: a reader under it keeps the hash.
	s.freed, s.late = freed, h.lease.Late || h.lock.pair != nil // mutant: free too soon
	return s
}

// abandoned is the stray of a hold of which a grant may arrive yet.
func (h *hold) abandoned() *stray {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leftover()
}

// leftover is what a hold leaves behind. The caller holds the mutex.
func (h *hold) leftover() *stray {
	l := h.lock
	longest := h.lease.Longest()
	s := &stray{
		lock:  l,
		at:    place{kind: l.kind, key: l.key},
		value: h.value,
		lease: longest,
		gone:  l.reg.clock.Now().Add(longest).Add(lease.Margin(longest)),
		late:  true,
		kept:  h.extra().kept, // mutant: kept path let go
		watch: max(h.lease.Term.Length, strayWatch),
	}
	if !l.kind.layout.RemovesOlder() {
		s.at.value = h.value
	}
	return s
}

// unclaimed is the stray of a hold that was granted to nobody.
func (l *Lock) unclaimed(number string) *stray {
	h := &hold{lock: l, value: l.reg.values + number, lease: lease.State{Term: l.reg.lease}}
	s := h.abandoned()
	s.late = false
	if k := l.keeping(); k != nil && k.number == number {
		s.kept = k.until
	}
	return s
}

// merge makes the stray of an older hold that of a newer one too. The older one's local half is free, since the newer one
// had it, so what remains of the older one is a grant that may arrive. The answer to a removal of the older one that is under
// way counts no more: it says nothing about the newer one. It does if both are of the same hold, which was lost first; then
// another removal may be under way, too, and the first that is answered ends the stray.
func (t *stray) merge(newer *stray) {
	t.value, t.lease, t.gone, t.freed, t.kept = newer.value, newer.lease, newer.gone, newer.freed, newer.kept
	t.watch = max(t.watch, newer.watch)
	if t.leaving != newer.leaving && t.leaving != (protocol.Leaving{}) {
		t.leaving = protocol.Leaving{All: true}
	} else {
		t.leaving = newer.leaving
	}
	t.failed = 0
	if newer.late {
		t.late, t.calm = true, 0
	}
}

// strays are those of a registry.
type strays struct {
	background *background

	mu     sync.Mutex
	all    map[place]*stray
	sweeps scheduler.Heap[*stray] // the strays but for those that are being removed at this moment
	recess clock.Instant          // no further worker begins to sweep before
	closed bool
}

// len is how many there are.
func (s *strays) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all)
}

// sweep has a stray removed at once. It reports false, and does nothing, after close.
func (s *strays) sweep(t *stray) bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false
	}
	if older := s.all[t.at]; older == nil {
		s.all[t.at] = t
	} else {
		older.merge(t)
		t = older
	}
	now := s.background.reg.clock.Now()
	s.sweeps.Put(t, now)
	s.recess = 0 // a worker that is held up must not hold this one up
	s.unlockClean(now)
	return true
}

// claim has a stray removed that may be older than one of the same place, which will remove it too: that one is seen to at once.
func (s *strays) claim(t *stray) {
	s.mu.Lock()
	known := s.all[t.at]
	switch {
	case s.closed, known != nil && known.place == 0: // its removal is under way; another one follows, or it has just been executed
		s.mu.Unlock()
		return
	case known == nil:
		s.all[t.at] = t
	default:
		t = known
	}
	now := s.background.reg.clock.Now()
	s.sweeps.Put(t, now)
	s.unlockClean(now)
}

// unlockClean has a worker sweep if that is due, and unlocks the mutex.
func (s *strays) unlockClean(now clock.Instant) {
	again, due := s.clean(now)
	s.mu.Unlock()
	if due {
		s.background.removals.Hire(1)
	}
	s.background.scheduler.Soon(again)
}

// Turn has a worker sweep if that is due.
func (s *strays) Turn(now clock.Instant) clock.Instant {
	s.mu.Lock()
	again, due := s.clean(now)
	s.mu.Unlock()
	if due {
		s.background.removals.Hire(1)
	}
	return again
}

// clean tells whether a worker is to sweep now, and when to look again. The worker goes on until nothing is due; when it is
// held up by a server that does not answer, the next one comes a moment later. The caller holds the mutex.
func (s *strays) clean(now clock.Instant) (again clock.Instant, due bool) {
	if s.sweeps.Len() == 0 {
		return clock.Never, false
	}
	if next := max(s.sweeps.Next(), s.recess); next > now {
		return next, false
	}
	s.recess = now.Add(strayPace)
	return s.recess, true
}

// hasten makes everything due that Redis has not answered to, since it answers again.
func (s *strays) hasten() {
	s.mu.Lock()
	now := s.background.reg.clock.Now()
	for _, t := range s.sweeps.All() {
		if t.calm == 0 {
			s.sweeps.Put(t, min(t.due, now))
		}
	}
	s.mu.Unlock()
	s.background.scheduler.Soon(now)
}

// take returns what is to be removed now. After close that is everything.
func (s *strays) take(most int) (tasks []task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.background.reg.clock.Now()
	for s.sweeps.Len() > 0 && len(tasks) < most && (s.closed || s.sweeps.Next() <= now) {
		t := s.sweeps.Pop()
		tasks = append(tasks, sweeping{t, t.value, t.leaving, t.lease, t.kept, s.closed})
	}
	if len(tasks) == 0 {
		s.recess = 0
	}
	return tasks
}

// close has everything removed once more.
func (s *strays) close() {
	s.mu.Lock()
	s.closed = true
	left := s.sweeps.Len()
	s.mu.Unlock()
	s.background.removals.Hire(left)
}

// cleanUp has a stray removed that nobody waits for.
func (r *Registry) cleanUp(t *stray) { r.sweep(t, transport.Wait{Ctx: context.Background()}) }

// sweep has a stray removed in the background. When the registry is closed nobody would, so it does so itself, once.
func (r *Registry) sweep(t *stray, p transport.Wait) {
	if r.background.strays.sweep(t) {
		return
	}
	if t.freed == nil {
		r.transport.AwaitAbandoned(r.transport.Shard(t.at.key).RoundTrip().Plus(unlockGrace))
	}
	p.Lease = t.lease
	if t.freed == nil { // else it is the rest of an Unlock's
		p.Limit = r.transport.Shard(t.at.key).RoundTrip().Plus(unlockGrace)
	}
	c := sweeping{t, t.value, t.leaving, t.lease, t.kept, true}.call()
	a := r.transport.Do(&p, &c)
	if t.freed != nil {
		t.freed(a.Error() == nil && !a.Late)
	}
}

// sweeping is the task that removes a stray as it is at that moment.
type sweeping struct {
	*stray
	value   string
	leaving protocol.Leaving
	longest time.Duration
	kept    clock.Instant
	last    bool // the registry is closed: what was given up has arrived by now, or is not waited for
}

func (e sweeping) call() protocol.Call {
	keep := e.kept.After(e.lock.reg.clock.Now())
	return e.at.kind.layout.Release(protocol.Release{
		Key: e.at.key, Value: e.value, Queued: true, Leaving: e.leaving, Keep: keep,
	})
}

func (e sweeping) term() time.Duration { return e.longest }

func (e sweeping) wanted() bool { return true }

func (e sweeping) writes() bool { return true }

func (e sweeping) done(a transport.Reply, _ int64, err error) {
	if err == nil && a.Late {
		err = fault.Late // a master that is none any more may have said so
	}
	s := &e.lock.reg.background.strays
	if err == nil {
		e.lock.released(e.value, a.Came)
	}
	s.mu.Lock()
	freed, again := s.swept(e, err)
	s.mu.Unlock()
	e.lock.reg.background.scheduler.Soon(again)
	if freed != nil {
		freed(err == nil)
	}
}

// swept takes in the answer to a removal, and decides when the next one follows, if any. It returns what is to be called
// now, if anything, and when the next one is due. The caller holds the mutex.
func (s *strays) swept(e sweeping, err error) (freed func(gone bool), again clock.Instant) {
	t, now := e.stray, s.background.reg.clock.Now()
	if e.value != t.value || s.all[t.at] != t { // see merge
		return nil, clock.Never
	}
	again = clock.Never
	// No more than a pipeline of them in each pause, or, when Redis begins to answer, as fast as it does: see hasten.
	pause := strayPace
	finished := s.closed && (e.last || !t.late)
	if err != nil {
		t.failed++
		t.calm = 0
		pause = clock.Backoff(t.failed, t.lease) // mutant: removal after a minute
		finished = finished || !t.late && now >= t.gone
	} else {
		t.failed = 0
		switch {
		case !t.late: // mutant: one removal
			finished = true
		case t.calm == 0:
			t.calm = now
		default:
			calm := t.calm.Until(now)
			if calm > strayHaste {
				pause = max(pause, calm/strayEase)
			}
			finished = finished || calm > t.watch
		}
	}
	if finished {
		delete(s.all, t.at)
		s.sweeps.Remove(t)
	} else {
		again = now.Add(pause * time.Duration(max(1, len(s.all)/scheduler.Batch)))
		s.sweeps.Put(t, again)
	}
	if err == nil || now >= t.gone || finished {
		freed, t.freed = t.freed, nil
	}
	return freed, again
}

// Timing is for the heap.
func (t *stray) Timing() (due *clock.Instant, place *int32) { return &t.due, &t.place }
