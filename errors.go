package lockregistry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// What a lock's errors are about. Each arrives wrapped in a [*LockError]; test for it with [errors.Is].
var (
	// ErrNotOwner: the caller does not hold the lock, so nothing was changed. Spring throws IllegalStateException
	// ("You do not own lock at ...") here.
	ErrNotOwner = errors.New("not the owner of the lock")

	// ErrLockLost: the lease ended, or the key was removed or taken over, while the lock was held. Another owner may have
	// worked on what the lock protects. Spring throws ConcurrentModificationException ("Lock was released in
	// the store due to expiration ...") here. It is also the cause of the contexts that [Lock.Context] makes.
	// The text says how, in the words of [Loss]. Compare with errors.Is, not with ==.
	ErrLockLost = errors.New("the lock was lost")

	// ErrTimeout: the time given by [Wait] is over, and the lock was not free in time; or another owner has it, and the call
	// does not wait, see [NoWait]. With [ErrUnavailable] Redis could not be asked before the wait was over.
	// The text says how long the call waited, and which owner of this process has the lock, or that it is taken in Redis.
	ErrTimeout = errors.New("the lock was not free in time")

	// ErrUnavailable: Redis did not answer, or cannot serve now: a broken connection, no answer in time, a failover
	// (READONLY, CLUSTERDOWN, MASTERDOWN), a server that starts (LOADING) or is out of memory, an answer that came too late
	// to be believed. The same call may succeed later. Together with the error of a context: that context ended while Redis
	// did not answer. The error of a context without ErrUnavailable means that another owner had the lock.
	ErrUnavailable = errors.New("no answer from Redis, or it cannot serve now")

	// ErrClosed: the registry is closed.
	ErrClosed = errors.New("the registry is closed")

	// ErrUpgrade: the caller holds the reader and asks for the writer, so it would wait for itself forever, as it does in
	// Redisson. The other way, from writer to reader, is fine.
	ErrUpgrade = errors.New("cannot lock the writer while holding the reader; unlock the reader first")

	// ErrWrongType: the key in Redis is no lock of the kind that is asked for: a read-write lock where a plain lock is
	// expected, a lock of another layout, or no lock at all. Nothing was changed.
	ErrWrongType = errors.New("the key holds something other than this kind of lock")

	// ErrDeadlock: the call would wait for itself, in one of two ways.
	//
	// The context belongs to a hold on the same path. A [Hold] excludes everybody, also calls with its own context; only Do and
	// Lock nest, in the contexts of [Registry.Do] and [Lock.Context].
	//
	// Or goroutines of this process wait for each other: each for a path that the next one holds. The call that closes the cycle
	// returns this at once, if nothing but a cancelled context, the end of a lease, or ForceUnlock would end it. So every hold in
	// it is a goroutine's own, by Lock, TryLock or Do, and no call in it has [Wait], a context with a deadline or one of
	// [NewOwner]. The error names the paths and the goroutines all around; the other calls go on waiting. See
	// [WithoutDeadlockErrors]; docs/semantics.md has the rest: other cycles are logged, and told to [Observer].
	ErrDeadlock = errors.New("the call would wait for itself")

	// ErrCapacity: as many locks as the registry may cache are in use; see [WithCapacity].
	ErrCapacity = errors.New("all locks that the registry may keep are in use: unlock some, or raise the capacity")
)

// LockError says which operation failed on which key. It wraps every error that a lock returns.
type LockError struct {
	// Op is "lock", "trylock", "unlock", "renew", "do", "acquire", "once", "release", "forceunlock", "inspect",
	// "locks", "deadlocks" or "leader".
	Op  string
	Key string // the lock's key in Redis
	Err error  // why
}

func (e *LockError) Error() string {
	key := e.Key
	if strings.HasSuffix(key, ":") { // no colon is to follow it
		key = strconv.Quote(key)
	}
	return "lockregistry: " + e.Op + " " + key + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *LockError) Unwrap() error { return e.Err }

// loss is why a hold was lost.
type loss uint8

const (
	notLost loss = iota
	somehow      // nobody knows any more
	leaseOver
	keyGone
	keyTaken
	renewedTooLate
	forced
	grantedTwice
	unreachable
	goroutineGone
)

// losses are their names, and lostErrors what callers get.
var (
	losses = [...]Loss{
		leaseOver: LeaseOver, keyGone: KeyGone, keyTaken: KeyTaken, renewedTooLate: RenewedTooLate, forced: Forced,
		grantedTwice: GrantedTwice, unreachable: "nobody can reach the hold",
		goroutineGone: "its goroutine has ended without Unlock",
	}
	lostErrors = func() (all [len(losses)]error) {
		for i, why := range losses {
			if all[i] = ErrLockLost; why != "" {
				all[i] = fmt.Errorf("%w: %s", ErrLockLost, string(why))
			}
		}
		return all
	}()
)

// without is the loss that a reply shows which says that the key is not the hold's; see confirmed.
func without(n int64) loss {
	if n < 0 {
		return keyTaken
	}
	return keyGone
}

// keeps tells whether the key may still be there although the hold is lost.
func (l loss) keeps() bool { return l == leaseOver || l == renewedTooLate || l == grantedTwice }

func (l loss) err() error { return lostErrors[l] }

// ended is the error for a context that is done: its error, with the cause when there is another one.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return fault.Join(err, cause)
	}
	return err
}

// withEnd adds to an error that the context is done, if it is.
func withEnd(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return fault.Join(err, ended(ctx))
}

// errLate: an answer took so long that a failover may have happened meanwhile, and could not be confirmed since, or a grant
// arrived when its lease was over.
var errLate = errors.New("the answer of Redis came too late")

// outage is an error that means that Redis did not answer or cannot serve now. It matches [ErrUnavailable].
type outage struct{ error }

func (o outage) Error() string { return ErrUnavailable.Error() + ": " + o.error.Error() }

func (o outage) Is(target error) bool { return target == ErrUnavailable }

func (o outage) Unwrap() error { return o.error }

// classified makes an error of Redis or the network one that says what it means: an outage when it may pass.
func classified(err error) error {
	switch {
	case err == nil || errors.Is(err, ErrUnavailable):
		return err
	case protocol.WrongType(err):
		return ErrWrongType // the server's text is that of a script
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded): // not the caller's, see explain: the client's
		return outage{errors.New(err.Error())}
	case transient(err):
		return outage{err}
	default:
		return err
	}
}

// passing are the first words of replies after which the same command may succeed later: the server starts, fails over,
// or lacks something for now.
var passing = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "NOREPLICAS", "BUSY", "NOSCRIPT",
	"OOM", "MISCONF", "UNBLOCKED", "max number of clients",
}

// nonLocal is in the text with which a script is refused a key that it has not named, while the slot of the key moves.
const nonLocal = "attempted to access a non local key in a cluster"

// failed begins the text with which servers before version 7 wrap an error within a script: the word comes later then,
// after a hyphen.
const failed = "Error running script"

// transient tells whether a call that waits anyway should try again after err: one of the network, or one that passes.
func transient(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	if !ok {
		short := shortLeaseError{}
		return !errors.Is(err, ErrWrongType) && !errors.As(err, &short)
	}
	text := reply.Error()
	return passes(strings.TrimPrefix(text, "ERR "), strings.HasPrefix(text, failed))
}

// passes tells whether the text of an error says that the same command may succeed later. Within is for the text of one that a
// script has met, or may have: servers before version 7 put where it was in front of the word.
func passes(text string, within bool) bool {
	return strings.Contains(text, nonLocal) || slices.ContainsFunc(passing, func(word string) bool {
		return strings.HasPrefix(text, word) || within && strings.Contains(text, "-"+word+" ")
	})
}

// betweenNodes tells whether an error is that of a command whose keys are at two nodes, because their slot moves.
func betweenNodes(err error) bool {
	text := err.Error()
	return strings.Contains(text, nonLocal) || strings.Contains(text, "TRYAGAIN") || strings.Contains(text, "ASK ")
}

// unknown tells whether the server may have executed a command that ended with err, or may still do so: it may unless it
// said itself that it failed, or the command never left. [rueidis.ErrClosing] does not say so: commands that were pending
// on a connection that rueidis replaces end with it too. Scripts of this package fail before they write, or take back what
// they wrote.
func unknown(err error) bool {
	if err == nil || errors.Is(err, errNotSent) {
		return false
	}
	if _, ok := rueidis.IsRedisErr(err); ok {
		return false
	}
	var dial *net.OpError
	return !errors.As(err, &dial) || dial.Op != "dial"
}
