package lockregistry

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/queue"
	"github.com/lockregistry/lockregistry/internal/seam"
	"github.com/lockregistry/lockregistry/internal/tenure"
)

// LockOption changes one call of a [Lock], or of [Registry.Acquire] or [Registry.Do]. It is [AtLeast] or an [AcquireOption]. If
// an option is given several times, the last one counts, and all must be valid.
type LockOption interface{ ofLock() }

// SemaphoreOption changes one call of a [Semaphore]. It is [Permits] or an [AcquireOption].
type SemaphoreOption interface{ ofSemaphore() }

// AcquireOption changes one call that acquires a lock, permits of a semaphore, or several paths with [Registry.AcquireAll]. It is
// [Lease], [AtMost], [Wait], [NoWait] or [FailFast].
type AcquireOption interface {
	LockOption
	SemaphoreOption
}

// OnceOption changes one call of [Registry.Once]. It is [Lease] or [RetryOnError].
type OnceOption interface{ ofOnce() }

// LeaseOption is what [Lease] returns. It is an option of calls that acquire, of [Registry.Once], and of New in package leader.
type LeaseOption interface {
	AcquireOption
	OnceOption
	seam.LeaderOption
}

// option is one option of one call. It has no pointers, and its methods are not called through an interface: so neither the
// options of a call nor its request move to the heap.
type option struct {
	kind  optionKind
	value time.Duration // or a number of permits
}

type optionKind uint8

const (
	isLease optionKind = iota
	isWait
	isNoWait
	isAtLeast
	isAtMost
	isFailFast
	isPermits
	isRetryOnError
	isLeads    // see package seam
	isUnlogged // likewise
)

// The types behind the interfaces: one for each set of calls. None fits another call, even by a type assertion.
type (
	lockOption      struct{ option }
	semaphoreOption struct{ option }
	acquireOption   struct{ option }
	onceOption      struct{ option }
	leaseOption     struct {
		seam.ForLeader
		option
	}
)

func (lockOption) ofLock()           {}
func (semaphoreOption) ofSemaphore() {}
func (acquireOption) ofLock()        {}
func (acquireOption) ofSemaphore()   {}
func (onceOption) ofOnce()           {}
func (leaseOption) ofLock()          {}
func (leaseOption) ofSemaphore()     {}
func (leaseOption) ofOnce()          {}

// optionIn returns the option in an interface of this package. Nil has none, nor has a user's type that embeds an option.
func optionIn(o any) (_ option, found bool) {
	switch o := o.(type) {
	case lockOption:
		return o.option, true
	case semaphoreOption:
		return o.option, true
	case acquireOption:
		return o.option, true
	case onceOption:
		return o.option, true
	case leaseOption:
		return o.option, true
	default:
		return option{}, false
	}
}

// Lease sets the lease of one call: how long its lock stays locked in Redis if it is neither released nor renewed. It is from two
// milliseconds to 30 days; fractions of a millisecond are cut off. Default: the registry's lease, see [WithLease]; for an owner
// that locks again, the lease of its hold.
//
// # Details
//
// Renewals of the hold use the same lease, and [AtMost] limits them. A run of [Registry.Once] and a leader's lock are always
// renewed, so their lease only says how long a crash keeps others out.
//
// A call that nests in a hold never shortens the hold's lease, since the calls around it rely on that lease. A longer lease
// counts until the nested call is undone. Then the hold has the lease of the other calls again. In Spring an inner lock sets the
// lease for all of them. [Lock.Renew] may shorten the lease.
func Lease(d time.Duration) LeaseOption { return leaseOption{option: option{isLease, d}} }

// Wait limits how long the call waits, for goroutines of this process and for Redis together. When the time is over, TryLock
// returns false, and Lock, Do and Acquire return [ErrTaken]. Default: TryLock does not wait; the others wait until their context
// is done.
//
// If d is not positive, the call does not wait, as with [NoWait]. So d may be the time left until a deadline.
func Wait(d time.Duration) AcquireOption { return acquireOption{option{isWait, d}} }

// NoWait makes the call try once, without a place in any queue, either here or in Redis. Lock, Do and Acquire return [ErrTaken]
// at once when another owner has the lock, and [ErrUnavailable] when Redis cannot be asked. It cannot be combined with Wait.
// TryLock does not need it. Default: see [Wait].
func NoWait() AcquireOption { return acquireOption{option{kind: isNoWait}} }

// AtLeast keeps the path taken for d after this call has obtained the lock, even if the lock is released sooner. Until d is over,
// no owner gets the lock, in this process or elsewhere, Java included. Default: the path is free when the lock is released.
//
// It is ShedLock's lockAtLeastFor: for jobs that are shorter than the difference between the clocks that start them. See
// [Registry.Once] for such jobs.
//
// # Details
//
// D must be positive; fractions of a millisecond are rounded up. D is independent of the lease and may be longer: while the lock
// is held, and after a crash or a loss, only the lease counts. ForceUnlock of package inspect frees the path sooner.
//
// It is only for plain locks. A reader or a writer returns an error, and so does a call by an owner that already holds the lock.
func AtLeast(d time.Duration) LockOption { return lockOption{option{isAtLeast, d}} }

// AtMost limits how long the lock is held, whatever renews it, [Lock.Renew] included. Contexts of the hold end before d is over,
// by the margin for clocks, with [ErrLockLost]. Default: the lock is held for as long as it is renewed.
//
// It is ShedLock's lockAtMostFor, and AtMost(10*time.Second) is Redisson's leaseTime.
//
// # Details
//
// D must be from two milliseconds to 30 days, and not less than [AtLeast].
//
//   - The key in Redis lives for at most d, counted from the grant, plus the time that a slow renewal takes to arrive.
//   - If the call waited for another process, d may begin before the call returns, usually by at most half a second.
//   - The registry does not remove the key before its lease must have ended.
//   - When the lock is handed to another owner, only that owner's AtMost counts from then on.
//   - A reader returns an error, and so does a call by an owner that already holds the lock.
func AtMost(d time.Duration) AcquireOption { return acquireOption{option{isAtMost, d}} }

// FailFast makes a waiting call return [ErrUnavailable] as soon as Redis is unavailable. Default: a call with [Wait] retries
// until its wait is over. Spring and Redisson have no such option.
//
// # Details
//
// The call fails in these cases:
//
//   - at its first failure, even if only too few replicas have the hold
//   - when the server is silent
//   - while it waits for another goroutine of this process, at most 100 ms after that goroutine meets a failure or the server is
//     silent
//
// The server is silent when it has not answered a command for half a second and two round trips, or a quarter of a second more
// with [WithReplicas], but at most for the time of [WithCommandTimeout]. While the call waits for its turn, the registry asks the
// server twice a second whether it answers. A call that does not wait for the lock waits just as long for its reply.
//
// Until three commands have been answered, the round trip is taken to be the time that [Open] took to connect. With a client of
// your own, the round trip is not yet known, so the limit is that of WithCommandTimeout, 5 s by default, and at most 6.5 s.
func FailFast() AcquireOption { return acquireOption{option{kind: isFailFast}} }

// request is a call that locks: what its options say, who makes it, and how it went. Most of that is also what it asks Redis for.
// By is a Hold, or a run of Once; otherwise acquire sets the caller that the context names.
type request struct {
	queue.Request

	plain   bool           // the call named no lease: Terms has the registry's
	permits int            // of a semaphore; 0: not given
	retries bool           // see RetryOnError
	in      tenure.In      // what the context carries: it is asked once for each call
	nested  *tenure.Tenure // the call has entered another owner's hold; nil: it has not
	here    time.Duration  // how long it has waited for goroutines of this process; for the observer
}

// apply applies the options of a call to q. The error lists all that is wrong.
func apply[O any](q *request, opts []O) (failed error) {
	if len(opts) == 0 {
		return nil
	}
	var waits, tries bool
	for _, one := range opts {
		o, found := optionIn(one)
		if !found {
			failed = fault.Join(failed, errors.New("an option is nil, or was not made by a function of this package"))
			continue
		}
		failed = fault.Join(failed, o.check())
		waits, tries = waits || o.kind == isWait, tries || o.kind == isNoWait
		q.set(o)
	}
	failed = fault.Join(failed, checkAtMost(q))
	if waits && tries {
		failed = fault.Join(failed, errors.New("NoWait and Wait: a call cannot have both"))
	}
	return failed
}

func (q *request) set(o option) {
	switch o.kind {
	case isLease:
		q.Terms.Lease = lease.NewTerm(o.value)
	case isWait:
		q.Wait = max(o.value, notAtAll)
	case isNoWait:
		q.Wait = notAtAll
	case isAtLeast:
		q.Terms.AtLeast = o.value
	case isAtMost:
		q.Terms.AtMost = o.value
	case isFailFast:
		q.FailFast = true
	case isPermits:
		q.permits = int(o.value)
	case isRetryOnError:
		q.retries = true
	case isLeads:
		q.Terms.Leads = true
	case isUnlogged:
		q.Terms.Unlogged = true
	}
}

// check returns why the value makes no sense, if it does not.
func (o option) check() error {
	switch o.kind {
	case isLease:
		if err := positive("Lease", o.value); err != nil {
			return err
		}
		return leasable("Lease", o.value)
	case isAtLeast:
		return positive("AtLeast", o.value)
	case isAtMost:
		return positive("AtMost", o.value)
	case isPermits:
		return fewPermits(o.value)
	default:
		return nil
	}
}

// chooseTerms sets the lease that a call asks for: its own, or the registry's, and no more than AtMost. It also sets whether the
// hold is renewed until its end: Do, and Acquire of a reader, use hold.StartRenewing instead. Readers that name no lease always
// are, see ReadWriteLock.
func (c *config) chooseTerms(q *request, reads bool) {
	t := &q.Terms
	if t.Lease == nil {
		t.Lease, q.plain = c.lease, true
		if reads {
			t.Lease = c.readers
		}
	}
	if t.AtMost > 0 && t.AtMost < t.Lease.Length {
		t.Lease = lease.NewTerm(t.AtMost)
	}
	t.Renewed = c.renewal || t.Leads || q.By.IsHold() && !reads || q.plain && (reads || c.layout.watchdog)
}

// checkAtMost validates AtMost together with the other options of a call.
func checkAtMost(q *request) error {
	switch {
	case q.Terms.AtMost == 0:
		return nil
	case q.Terms.AtMost < leastLease || q.Terms.AtMost > longestLease:
		return leasable("AtMost", q.Terms.AtMost)
	case q.Terms.AtMost < q.Terms.AtLeast:
		return fmt.Errorf("AtMost(%v): it is shorter than AtLeast(%v)", q.Terms.AtMost, q.Terms.AtLeast)
	default:
		return nil
	}
}
