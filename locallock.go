package lockregistry

import (
	"context"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// localLock is the local half of a lock: a reentrant mutex that serves the goroutines of this process in the order in
// which they came. It is a state machine of four states:
//
//	free       owner == nobody
//	acquiring  owner == o, holds == 0   o has the local half and asks Redis for the other one
//	held       owner == o, holds >= 1   o has both
//	leaving    owner == leaving         the Redis half is being released; nobody has the local one
//
//	free ──enter──▶ acquiring ──granted──▶ held ──exit, evict──▶ leaving ──free──▶ free
//	                    └───────────────free─────────────────────────────────────▶ free
//	                                        ▲─────pass────────────┘
//
// When a transition ends in free and there are waiters, the first one is made acquiring instead. So nobody waits while the
// lock is free, and a newcomer cannot overtake. With pass the first waiter gets both halves at once. The mutex
// is never held while this process talks to Redis or sleeps. The work under it is constant for each lock, unlock and
// cancellation.
type localLock struct {
	mu      sync.Mutex
	owner   owner.ID
	holds   int32 // how often owner locked, less how often it unlocked
	queue   waiterQueue
	evicted *evictions // nil until one was
}

// localHalf is what a [Lock] needs of its local half. A plain lock's is a localLock, that of a reader or a writer is its
// side of a localReadWrite.
type localHalf interface { //nolint:interfacebloat // each transition of the state machine, and what is asked of it
	enter(o owner.ID, lease time.Duration, wait bool, pool *waiterPool) (entry, *waiter)
	wait(ctx context.Context, w *waiter, timeout <-chan time.Time) entry
	turnAway(w *waiter)
	waits()
	granted() (contended bool)
	exit(o owner.ID) (departure, fault.Loss)
	evict(lost func() fault.Loss) bool
	free()
	pass(running time.Duration) bool
	contended() bool
	queued() int
	heldBy(o owner.ID) bool
	owned() []owner.ID
	nest(o owner.ID) bool
	expelled(o owner.ID) fault.Loss
}

// entry says how a goroutine came into the local half.
type entry uint8

const (
	refused   entry = iota // it did not: another owner is in
	entered                // it is alone in, and the Redis half has yet to be obtained
	reentered              // its owner held the lock already and holds it once more now
	handed                 // it is in, and has taken over the hold of the one that left
	joined                 // it is in with others, whose hold it shares
	upgrade                // it is not and would wait for itself: it reads, and asks to write
	denied                 // it is not, and does not wait any longer: see localReadWrite.enter
	outcast                // it is not: its owner lost the lock, was evicted, and has yet to unlock
)

// departure says what an owner that unlocked leaves behind.
type departure uint8

const (
	notIn   departure = iota // nothing happened: it did not hold the lock
	stays                    // it holds the lock still, having locked it more often
	leaves                   // it is out; others hold the lock still
	last                     // it is out, and nobody holds the lock: the hold is to be released, then free to be called
	evicted                  // nothing happened: it was evicted before, because the hold was lost
)

// waiter is one goroutine in the queue. Taking it out of the queue, under mu, decides what becomes of it: either it takes
// itself out and leaves, or it is admitted and finds in turn how. So a waiter is never both, and turn never blocks.
type waiter struct {
	twin
	lease       time.Duration // what it asks for
	tries       bool          // in a localReadWrite: it waits for no more than an answer that is under way
	turn        chan entry    // has room for one
	queued      bool
	call        deadlock.Call // whose waiter it is
	prev, next  *waiter       // in the queue
	left, right *waiter       // in the ring of its twins
}

// twin is what waiters have in common that are let in together once their owner is in.
type twin struct {
	owner  owner.ID
	writes bool // in a localReadWrite: it asks to write
}

// enter lets o in when that needs no waiting. Otherwise, when wait is set, it queues o and returns its waiter, with which
// the caller must call wait. Lease is what it asks for; its waiter may come from the pool.
func (l *localLock) enter(o owner.ID, lease time.Duration, wait bool, pool *waiterPool) (entry, *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.evicted.has(o):
		return outcast, nil
	case l.owner == owner.Nobody:
		l.owner = o
		return entered, nil
	case l.owner == o && l.holds > 0:
		l.holds++
		return reentered, nil
	case !wait:
		return refused, nil
	}
	// Also here: a second goroutine of the same shared owner, while the first one still asks Redis. It must not believe
	// that it holds the lock before the answer is there; granted admits it.
	return refused, l.queue.push(twin{owner: o}, lease, o.Shared(), pool)
}

// wait waits for the turn of w. When ctx is done, timeout fires or w is turned away first, it returns refused and leaves
// nothing behind: if the turn came at the same moment, it is passed on as if it had never come.
func (l *localLock) wait(ctx context.Context, w *waiter, timeout <-chan time.Time) entry {
	if how, came := w.await(ctx, timeout); came {
		return how
	}
	l.mu.Lock()
	how := l.queue.leave(w)
	l.mu.Unlock()
	if how == entered {
		l.free()
		return refused
	}
	// Unless refused, the owner holds the lock through w. Giving that up may end the hold, which is more than the local
	// half can do: the caller got the lock at the very moment at which its time was over.
	return how
}

// obstacles are what is in the way of a waiter of l, the local half of a lock; none when its turn has come.
func (l *localLock) obstacles(w *waiter, of deadlock.Lock) (all deadlock.Obstacles) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// An owner that has yet to get the hold in Redis waits for nobody here.
	if w.queued && l.holds > 0 {
		all.Add(deadlock.Obstacle{Owner: l.owner, Held: of})
	}
	return all
}

// await waits until w has its turn, or is turned away. Otherwise w is to give up.
func (w *waiter) await(ctx context.Context, timeout <-chan time.Time) (how entry, came bool) {
	select {
	case how = <-w.turn:
		return how, true
	case <-ctx.Done():
	case <-timeout:
	}
	return refused, false
}

// turnAway ends the waiting of w, if it waits still: the registry is closed. The end of the registry is not among what a waiter
// waits for itself, since a select with one channel more costs as much as several transitions.
func (l *localLock) turnAway(w *waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.turnAway(w)
}

// suits tells whether a waiter may take over a hold with a lease of some length: no shorter than the one that it asks for,
// and not longer by more than a half, since its crash would keep everybody out for as long.
func (w *waiter) suits(running time.Duration) bool {
	return w.lease <= running && running-w.lease <= w.lease/2
}

// waits: the goroutine that is acquiring has learned that others have the Redis half, and waits for them.
func (l *localLock) waits() {}

// granted turns acquiring into held: the Redis half is obtained. Other goroutines of the same owner that queued
// meanwhile hold it too now; they would wait for themselves otherwise. It tells whether others wait still.
func (l *localLock) granted() (contended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold()
	return l.queue.first != nil
}

// pass turns leaving into held by the first waiter, if there is one and the running lease suits it. It reports whether it
// did.
func (l *localLock) pass(running time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.queue.first
	if w == nil || !w.suits(running) {
		return false
	}
	l.owner = w.owner
	l.queue.admit(w, handed)
	l.hold()
	return true
}

// hold makes the owner hold the lock, and with it every waiter of the same owner. The caller holds the mutex.
func (l *localLock) hold() {
	l.holds = 1
	for w := range l.queue.twins(twin{owner: l.owner}) {
		l.holds++
		l.queue.admit(w, reentered)
	}
}

// exit undoes one lock of o. When it was the last one, the state is leaving, and the caller must call free once the
// outcome of the removal from Redis is known.
func (l *localLock) exit(o owner.ID) (departure, fault.Loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owner != o || l.holds == 0 {
		return l.evicted.exit(o)
	}
	l.holds--
	if l.holds > 0 {
		return stays, fault.NotLost
	}
	l.owner = owner.Leaving
	return last, fault.NotLost
}

// evict turns held into leaving although the owner has not unlocked, if lost says why the hold is lost: the owner may
// never unlock. When evict reports true, the caller must do what it would do after the last exit.
func (l *localLock) evict(lost func() fault.Loss) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds == 0 {
		return false
	}
	why := lost()
	if why == fault.NotLost {
		return false
	}
	l.evicted = l.evicted.add(l.owner, l.holds, why)
	l.owner, l.holds = owner.Leaving, 0
	return true
}

// free passes the local half to the first waiter, which is then acquiring, or to nobody.
func (l *localLock) free() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds = 0
	if w := l.queue.first; w != nil {
		l.owner = w.owner
		l.queue.admit(w, entered)
		return
	}
	l.owner = owner.Nobody
}

// contended reports whether there are waiters.
func (l *localLock) contended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.first != nil
}

// heldBy tells whether o holds the lock.
func (l *localLock) heldBy(o owner.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owner == o && l.holds > 0
}

// owned are those that hold the lock.
func (l *localLock) owned() []owner.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds == 0 {
		return nil
	}
	return []owner.ID{l.owner}
}

// expelled tells why o was evicted, if it was and has yet to unlock.
func (l *localLock) expelled(o owner.ID) fault.Loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.evicted.why(o)
}
