// Package observe has what a registry tells of itself: to an observer when something happens, and to who asks for its
// figures, for who holds a lock and who waits for it, or for deadlocks.
package observe

import (
	"context"
	"strconv"
	"time"
)

// Observer has functions that are called when something happens inside a registry: see [lockregistry.WithObserver]. Any of
// its functions may be nil. They may be called by many goroutines at the same time.
//
// Acquired and Released are about a call. The goroutine of the call calls them, with the context of the call, when the
// outcome stands: they delay that call alone, and with Acquired the lease of what it has got runs. They must not end the
// goroutine.
//
// The others are about what happens in the background. One goroutine calls them, one after another, in the order of the
// events, also with the lines of [lockregistry.WithLogger]. They delay nothing but each other; what comes while 1024 wait is
// dropped, and logged.
//
// A panic in any of them is logged, and harms nobody.
type Observer struct {
	// Acquired is called for each call that asked for a lock, whether or not it got it: Lock, TryLock, Do, Acquire, Once, and what
	// stands on them. AcquireAll counts as a call for each path.
	Acquired func(ctx context.Context, a Acquired)

	// Released is called for each hold that its last owner has released, by Unlock or Release, or at the end of Do and Once. Its
	// context may have ended.
	Released func(ctx context.Context, r Released)

	// Lost is called for each hold that was lost, once: when it is noticed, whether or not it is ever released.
	Lost func(l Lost)

	// Renewing is called when renewals and removals in the background begin to fail, and when they succeed again: in a cluster,
	// when the first master fails, and when none does any more.
	Renewing func(r Renewing)

	// Deadlocked is called for each cycle of calls that wait for each other that is found, once; see [lockregistry.ErrDeadlock].
	Deadlocked func(d Deadlock)
}

// Subject is the lock that an event is about.
type Subject struct {
	Path string
	Key  string // prefix + ":" + path
	Kind Kind   // KindLock, KindReader, KindWriter or KindSemaphore
}

// Kind is what sort of lock something is about.
type Kind string

// The kinds.
const (
	KindNone      Kind = ""          // nobody holds the path, and nobody waits for it
	KindLock      Kind = "lock"      // a plain lock
	KindReader    Kind = "reader"    // of a read-write lock
	KindWriter    Kind = "writer"    // of a read-write lock
	KindReadWrite Kind = "readwrite" // either side of a read-write lock
	KindSemaphore Kind = "semaphore"
	KindTooLong   Kind = "too long" // a key whose name has more than 8192 bytes
)

// Acquired is a call that asked for a lock.
type Acquired struct {
	Subject

	Op      string        // "lock", "trylock", "do", "acquire" or "once"; "do" is also for DoValue
	How     How           // how it got the lock; HowNone when it did not
	Here    time.Duration // how long it waited for goroutines of this process
	Redis   time.Duration // how long the rest took: Redis, and waiting for other processes
	Wakeups Wakeups       // while it waited for other processes
	Err     error         // what the call returned; nil, too, when it returned false, and another owner has the lock
}

// Waited tells whether the call waited for anybody.
func (a Acquired) Waited() bool { return a.Here > 0 || a.Wakeups != (Wakeups{}) }

// Wakeups is why calls that waited for other processes looked at Redis, or had the lock.
type Wakeups struct {
	Messages uint64 // a release by this library made the call the owner, or the next one
	Changes  uint64 // the server, or a release by Java, announced that the key has changed
	Polls    uint64 // without a message: a poll, the end of a lease, or a look after the call's place
}

// How is how a call got its lock.
type How uint8

// The ways to get a lock. What happened elsewhere is judged by what this process can tell.
const (
	HowNone         How = iota // it did not
	HowFree                    // the lock was free
	HowAgain                   // its owner had it already
	HowShared                  // a reader joined others of this process
	HowHandedOver              // a goroutine of this process handed it over
	HowGranted                 // another process's release made the call the owner
	HowFoundFree               // the call waited, and found it free when it looked again
	HowFoundExpired            // the same, when the lease of its holder was over
)

var hows = [...]string{"none", "free", "again", "shared", "handed_over", "granted", "found_free", "found_expired"}

// String returns a short name, such as "handed_over".
func (h How) String() string { return nameOf(hows[:], h) }

// Released is a hold that its last owner has released.
type Released struct {
	Subject

	Held time.Duration // since its owner got it; a hold that readers share, since the first of them did
	How  End
	Err  error // nil, ErrLockLost, ErrUnavailable, or another error of Redis
}

// End is how a released hold ended.
type End uint8

// The ways in which a hold ends.
const (
	EndReleased   End = iota // its key was removed, or is about to be, or another process's waiter is the owner now
	EndHandedOver            // the next goroutine of this process has it
	EndKept                  // its path stays taken, see [lockregistry.AtLeast]
	EndLost                  // it was lost before
	EndUnknown               // it is not known whether it was removed; the registry tries again
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

// Loss is why a hold was lost.
type Loss uint8

// The reasons.
const (
	LossUnknown        Loss = iota
	LossLeaseOver           // nobody renewed it, or Redis could not be asked
	LossKeyGone             // the key was removed, has expired, or was lost by a failover
	LossKeyTaken            // the same, and another owner has the key
	LossRenewedTooLate      // the lease was over before its renewal was answered: it is too short for Redis or the network
	LossForced              // by ForceUnlock of this registry
	LossGrantedTwice        // another server has granted it once more: a failover brought an old queue back
)

var losses = [...]string{"unknown", "lease_over", "key_gone", "key_taken", "renewed_too_late", "forced", "granted_twice"}

// String returns a short name, such as "lease_over".
func (l Loss) String() string { return nameOf(losses[:], l) }

// Renewing is that renewals and removals in the background began to fail, or succeed again.
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
