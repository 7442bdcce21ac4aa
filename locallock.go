package lockregistry

import (
	"context"
	"sync"
	"time"

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
	mu        sync.Mutex
	owner     owner.ID
	holds     int32 // how often owner locked, less how often it unlocked
	queue     local.Queue
	evictions local.Evictions
}

// Enter lets o in when that needs no waiting. Otherwise, when wait is set, it queues o and returns its waiter, with which
// the caller must call Wait. Lease is what it asks for; its waiter may come from the pool.
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
	// Also here: a second goroutine of the same shared owner, while the first one still asks Redis. It must not believe
	// that it holds the lock before the reply is there; Granted admits it.
	return local.Refused, l.queue.Push(o, lease, pool)
}

// Wait waits for the turn of w. When ctx is done, timeout fires or w is cancelled first, it returns Refused and leaves
// nothing behind: if the turn came at the same moment, it is passed on as if it had never come.
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
	// Unless Refused, the owner holds the lock through w. Giving that up may end the hold, which is more than the local
	// half can do: the caller got the lock at the very moment at which its time was over.
	return how
}

// Cancel ends the waiting of w, if it waits still: the registry is closed. The end of the registry is not among what a waiter
// waits for itself, since a select with one channel more costs as much as several transitions.
func (l *localLock) Cancel(w *local.Waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue.Cancel(w)
}

// Taken is for the goroutine that acquires: it waits for others, which have the Redis half.
func (l *localLock) Taken() {}

// Granted turns acquiring into held: the Redis half is obtained. Other goroutines of the same owner that queued
// meanwhile hold it too now; they would wait for themselves otherwise. It tells whether others wait still.
func (l *localLock) Granted() (contended bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold()
	return l.queue.Len() > 0
}

// Pass turns leaving into held by the first waiter, if there is one and the running lease suits it. It reports whether it
// did.
func (l *localLock) Pass(running time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.queue.First()
	if w == nil || !w.Suits(running) {
		return false
	}
	l.owner = w.Owner()
	l.queue.Admit(w, local.HandedOver)
	l.hold()
	return true
}

// hold makes the owner hold the lock, and with it every waiter of the same owner. The caller holds the mutex.
func (l *localLock) hold() {
	l.holds = 1
	for w := range l.queue.SameOwner(l.owner) {
		l.holds++
		l.queue.Admit(w, local.Reentered)
	}
}

// Exit undoes one lock of o. When it was the last one, the state is leaving, and the caller must call free once the
// outcome of the removal from Redis is known.
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

// Evict turns held into leaving although the owner has not unlocked, if lost says why the hold is lost: the owner may
// never unlock. When evict reports true, the caller must do what it would do after the last exit.
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
	l.evictions.Add(l.owner, l.holds, why)
	l.owner, l.holds = owner.Leaving, 0
	return true
}

// Free passes the local half to the first waiter, which is then acquiring, or to nobody.
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

// Contended reports whether there are waiters.
func (l *localLock) Contended() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.Len() > 0
}

// HeldBy tells whether o holds the lock.
func (l *localLock) HeldBy(o owner.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owner == o && l.holds > 0
}

// Owners are those that hold the lock.
func (l *localLock) Owners() []owner.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holds == 0 {
		return nil
	}
	return []owner.ID{l.owner}
}

// Lost tells why o was evicted, if it was and has yet to unlock.
func (l *localLock) Lost(o owner.ID) fault.Loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.evictions.Why(o)
}

// Queued is how many wait.
func (l *localLock) Queued() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.Len()
}

// Nest counts one more lock of an owner that holds the lock, and reports false when it does not.
func (l *localLock) Nest(o owner.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owner != o || l.holds == 0 {
		return false
	}
	l.holds++
	return true
}

// Obstacles are what is in the way of a waiter of l, the local half of a lock; none when its turn has come.
func (l *localLock) Obstacles(w *local.Waiter, of deadlock.Lock) (all deadlock.Obstacles) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// An owner that has yet to get the hold in Redis waits for nobody here.
	if w.Queued() && l.holds > 0 {
		all.Add(deadlock.Obstacle{Owner: l.owner, Held: of})
	}
	return all
}
