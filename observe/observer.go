// Package observe has the types that a registry uses to report about itself: events for an observer, figures, and deadlocks.
package observe

import (
	"context"
	"strconv"
	"time"
)

// Observer has functions that are called when something happens inside a registry, see [lockregistry.WithObserver]. Any of them
// may be nil. They may be called by many goroutines at the same time. A panic in any of them is recovered and logged.
//
// # Details
//
// Acquired and Released are about a call. The call's goroutine runs them, with the call's context, once the outcome is known.
// They delay only that call, but the lease of the new hold is already running while Acquired runs. If one of them ends the
// goroutine with [runtime.Goexit], the call releases what it has acquired.
//
// The others are about events in the background. One goroutine calls them one after another, in the order of the events and of
// the lines of [lockregistry.WithLogger]. They delay only each other. Events that arrive while 1024 wait are dropped, which is
// logged.
type Observer struct {
	// Acquired is called for each call that asked for a lock, whether or not it got it: Lock, TryLock, Do, Acquire, Once, and
	// calls that use them. AcquireAll counts as one call for each path. The calls of package leader have the kind KindLeader. A
	// candidate may wait for days, and its call fails when the process stops, so leave these calls out of measured durations.
	Acquired func(ctx context.Context, a Acquired)

	// Released is called for each hold that its last owner has released, by Unlock or Release, or at the end of Do or Once. Ctx
	// may have ended.
	Released func(ctx context.Context, r Released)

	// Lost is called once for each hold that was lost, when the loss is noticed, whether or not the hold is ever released.
	Lost func(l Lost)

	// Renewing is called when renewals and removals in the background begin to fail, and when they succeed again. In a cluster,
	// it is called when they fail at the first master, and when they no longer fail at any.
	Renewing func(r Renewing)

	// Deadlocked is called once for each cycle that is found: calls that wait for each other, see [lockregistry.ErrDeadlock].
	Deadlocked func(d Deadlock)
}

// Subject is the lock that an event is about.
type Subject struct {
	Path string
	Key  string // prefix + ":" + path
	Kind Kind   // KindLock, KindReader, KindWriter, KindSemaphore or KindLeader
}

// Kind is a kind of lock.
type Kind string

// The kinds.
const (
	KindNone      Kind = ""          // the path has no holder and no waiter
	KindLock      Kind = "lock"      // a plain lock
	KindReader    Kind = "reader"    // of a read-write lock
	KindWriter    Kind = "writer"    // of a read-write lock
	KindReadWrite Kind = "readwrite" // either side of a read-write lock
	KindSemaphore Kind = "semaphore"
	KindLeader    Kind = "leader"   // in events: the lock of a leader, or of a candidate, of package leader
	KindTooLong   Kind = "too long" // a key whose name has more than 8192 bytes
)

// Layout is the format of a lock in Redis.
type Layout string

// The formats.
const (
	LayoutSpring   Layout = "spring"   // a string, as Spring Integration's RedisLockRegistry writes it
	LayoutRedisson Layout = "redisson" // a hash, as Redisson's RLock and RReadWriteLock write it
)

// Acquired is a call that asked for a lock.
type Acquired struct {
	Subject

	Op      string        // "lock", "trylock", "do", "acquire" or "once"; "do" is also for DoValue
	How     How           // how it got the lock; HowNone: it did not
	Here    time.Duration // how long it waited for goroutines of this process
	Redis   time.Duration // how long the rest took: Redis, and waiting for other processes
	Wakeups Wakeups       // while it waited for other processes
	Err     error         // what the call returned; also nil when it reported false because another owner has the lock
}

// Waited reports whether the call waited for an owner, here or elsewhere.
func (a Acquired) Waited() bool { return a.Here > 0 || a.Wakeups != (Wakeups{}) }

// Wakeups counts what woke calls that waited for other processes: a woken call looks at Redis, or owns the lock already.
type Wakeups struct {
	Messages uint64 // a release by this library made the call the owner, or the next one
	Changes  uint64 // the server, or a release by Java, announced that the key has changed
	Polls    uint64 // wake-ups without a message: a poll, the end of a lease, or a check of the call's place
}

// How says how a call got its lock.
type How uint8

// The ways to get a lock, as far as this process can know them.
const (
	HowNone         How = iota // it did not get it
	HowFree                    // the lock was free
	HowAgain                   // its owner already had it
	HowShared                  // a reader joined others of this process
	HowHandedOver              // a goroutine of this process handed it off
	HowGranted                 // another process's release made the call the owner
	HowFoundFree               // the call waited, and found the lock free when it polled
	HowFoundExpired            // the same, but because the holder's lease was over
)

var hows = [...]string{"none", "free", "again", "shared", "handed_over", "granted", "found_free", "found_expired"}

// String returns a short name, such as "handed_over".
func (h How) String() string { return nameOf(hows[:], h) }

// Released is a hold that its last owner has released.
type Released struct {
	Subject

	Held time.Duration // since its owner got it; for a hold that readers share, since the first of them did
	How  End
	Err  error // nil, ErrLockLost, ErrUnavailable, or another error of Redis
}

// End says how a released hold ended.
type End uint8

// The ways in which a hold ends.
const (
	EndReleased   End = iota // its key was removed, or a waiter of another process owns it now
	EndHandedOver            // the next goroutine of this process has it
	EndKept                  // its path stays taken, see [lockregistry.AtLeast]
	EndLost                  // it had already been lost
	EndUnknown               // not known: whether its key was removed (the registry tries again), or whether it had been lost
)

var ends = [...]string{"released", "handed_over", "kept", "lost", "unknown"}

// String returns a short name, such as "handed_over".
func (e End) String() string { return nameOf(ends[:], e) }

// Lost is a hold that was lost.
type Lost struct {
	Subject

	Held time.Duration // as in Released
	Why  Loss
}

// Loss says why a hold was lost.
type Loss uint8

// The reasons.
const (
	LossUnknown        Loss = iota
	LossLeaseOver           // the lease was not renewed, or Redis could not be reached
	LossKeyGone             // the key was removed, has expired, or was lost in a failover
	LossKeyTaken            // the same, and another owner has the key
	LossRenewedTooLate      // the lease ended before its renewal was answered: it is too short for Redis or the network
	LossForced              // by ForceUnlock or ForceUnlockHolder of an inspect.Inspector of this registry
	LossGrantedTwice        // another server granted it again: a failover brought an old queue back
)

var losses = [...]string{"unknown", "lease_over", "key_gone", "key_taken", "renewed_too_late", "forced", "granted_twice"}

// String returns a short name, such as "lease_over".
func (l Loss) String() string { return nameOf(losses[:], l) }

// Renewing says that renewals and removals in the background began to fail, or succeed again.
type Renewing struct {
	Err      error // nil: they succeed again; it matches ErrUnavailable when Redis did not answer or cannot serve
	Commands int   // how many were sent together
}

func nameOf[N ~uint8](names []string, n N) string {
	if int(n) < len(names) {
		return names[n]
	}
	return strconv.Itoa(int(n))
}
