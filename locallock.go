package lockregistry

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// localLock is the local half of a lock: a reentrant mutex that serves the goroutines of this process in the order in
// which they came. It is a state machine of four states:
//
//	free       owner == nobody
//	acquiring  owner == o, holds == 0   o has the local half and asks Redis for the other one
//	held       owner == o, holds >= 1   o has both
//	leaving    owner == leaving         its hold is being released; nobody has the local half
//
//	free ──Enter──▶ acquiring ──Granted──▶ held ──Exit, Evict──▶ leaving ──Free──▶ free
//	                    └───────────────Free─────────────────────────────────────▶ free
//	                                        ▲────HandOff──────────┘
//
// When a transition ends in free and there are waiters, the first waiter becomes acquiring instead. So no call waits while the
// lock is free, and a newcomer cannot overtake. With HandOff the first waiter gets both halves at once. The mutex is never held
// while this process talks to Redis or sleeps. The work under it is constant for each lock, unlock and cancellation.
type localLock struct {
	mu        sync.Mutex
	owner     owner.ID
	holds     int32 // how often owner locked, less how often it unlocked
	queue     local.Line
	evictions local.Evictions
}

// Enter gives o the local half if that needs no waiting. Otherwise, if wait is set, it queues o and returns a waiter, which may
// come from the pool; the caller must call Wait with it. Lease is the lease that o asks for.
func (l *localLock) Enter(o owner.ID, lease time.Duration, wait bool, pool *local.Pool) (local.Admission, *local.Waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.evictions.Why(o) != fault.NotLost:
		return local.Evicted, nil
	case l.owner == owner.Nobody:
		l.owner = o
		return local.Entered, nil
	case l.owner == o && l.holds > 0:
		l.holds++
		return local.Reentered, nil
	case !wait:
		return local.Refused, nil
	}
	// A second goroutine of the same shared owner also queues while the first one still asks Redis: it must not hold the lock
	// before the reply is there. Granted admits it.
	return local.Refused, l.queue.Push(o, lease, pool)
}

// Wait waits for the turn of w. When ctx is done, timeout fires or w is cancelled first, it returns Refused and leaves nothing
// behind: a turn that came at the same moment is passed on.
func (l *localLock) Wait(ctx context.Context, w *local.Waiter, timeout <-chan time.Time) local.Admission {
	if how, came := w.Await(ctx, timeout); came {
		return how
	}
	l.mu.Lock()
	how := l.queue.Leave(w)
	l.mu.Unlock()
	if how == local.Entered {
		l.Free()
		return local.Refused
	}
	// Unless Refused, the caller got the lock at the very moment its time ran out. It keeps the lock: giving it up could end the
	// hold, which the local half cannot do.
	return how
}

// Cancel ends the wait of w, if it still waits, because the registry is closed. A waiter does not select on the registry's end
// itself: one more channel in a select costs as much as several transitions.
func (l *localLock) Cancel(w *local.Waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.Cancel(w)
}

// Taken does nothing: only a [local.Side] needs to know that the acquiring goroutine waits for another process.
func (l *localLock) Taken() {}

// Granted turns acquiring into held: the hold is obtained. Other goroutines of the same owner that queued meanwhile now
// hold the lock, too; otherwise they would wait for themselves. It reports whether others still wait.
func (l *localLock) Granted() (contended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold()
	return l.queue.First() != nil
}

// HandOff turns leaving into held by the first waiter. It reports false if there is no waiter, or the running lease does not suit
// the first.
func (l *localLock) HandOff(running time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.queue.First()
	if w == nil || !w.Suits(running) {
		return false
	}
	l.owner = w.Owner()
	l.queue.Admit(w, local.HandedOff)
	l.hold()
	return true
}

// hold makes the owner hold the lock, and admits all waiters of the same owner. The caller holds the mutex.
func (l *localLock) hold() {
	l.holds = 1
	for w := range l.queue.SameOwner(l.owner, false) {
		l.holds++
		l.queue.Admit(w, local.Reentered)
	}
}

// Exit undoes one lock of o. After the last one the state is leaving, and the caller must call Free once the outcome of the
// removal from Redis is known.
func (l *localLock) Exit(o owner.ID) (local.Departure, fault.Loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owner != o || l.holds == 0 {
		return l.evictions.Exit(o)
	}
	l.holds--
	if l.holds > 0 {
		return local.Stays, fault.NotLost
	}
	l.owner = owner.Leaving
	return local.Last, fault.NotLost
}

// ExitLost undoes one lock of o if o was evicted, and returns why; otherwise it does nothing.
func (l *localLock) ExitLost(o owner.ID) fault.Loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, why := l.evictions.Exit(o)
	return why
}

// Evict turns held into leaving without an exit of the owner, which may never unlock, if lost says that the hold is lost. If
// Evict reports true, the caller must do what it does after the last exit.
func (l *localLock) Evict(lost func() fault.Loss) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds == 0 {
		return false
	}
	why := lost()
	if why == fault.NotLost {
		return false
	}
	l.evictions.Add(why, maps.All(map[owner.ID]int32{l.owner: l.holds}))
	l.owner, l.holds = owner.Leaving, 0
	return true
}

// Free passes the local half to the first waiter, which is then acquiring; without waiters it becomes free.
func (l *localLock) Free() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds = 0
	if w := l.queue.First(); w != nil {
		l.owner = w.Owner()
		l.queue.Admit(w, local.Entered)
		return
	}
	l.owner = owner.Nobody
}

// HeldBy reports whether o holds the lock.
func (l *localLock) HeldBy(o owner.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owner == o && l.holds > 0
}

// Owners returns the owner that holds the lock, if there is one.
func (l *localLock) Owners() []owner.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds == 0 {
		return nil
	}
	return []owner.ID{l.owner}
}

// Lost returns why o was evicted, until o has unlocked.
func (l *localLock) Lost(o owner.ID) fault.Loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.evictions.Why(o)
}

// Queued returns the number of waiters, and when the first one began to wait, see [local.Line.Since].
func (l *localLock) Queued() (n int, since clock.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.Len(), l.queue.Since()
}

// Nest counts one more lock of o. It reports false when o does not hold the lock.
func (l *localLock) Nest(o owner.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owner != o || l.holds == 0 {
		return false
	}
	l.holds++
	return true
}

// Obstacles returns what a waiter of l waits for; nothing when its turn has come. Of is the lock of this local half.
func (l *localLock) Obstacles(w *local.Waiter, of deadlock.Lock) (all deadlock.Obstacles) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// An acquiring owner is no obstacle: it waits for no goroutine here.
	if w.Queued() && l.holds > 0 {
		all.Add(deadlock.Obstacle{Owner: l.owner, Held: of})
	}
	return all
}
