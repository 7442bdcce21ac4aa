package lockregistry

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/redis/rueidis"
)

// What a lock's errors are about. Each arrives wrapped in a [*LockError]; test for it with [errors.Is].
var (
	// ErrNotOwner: who calls does not hold the lock, so nothing was changed. Spring throws IllegalStateException
	// ("You do not own lock at ...") here.
	ErrNotOwner = errors.New("not the owner of the lock")

	// ErrLockLost: the lease ended, or the key was removed or taken over, while the lock was held. What the lock
	// protects may have been touched by another. Spring throws ConcurrentModificationException ("Lock was released in
	// the store due to expiration ...") here. It is also the cause of the contexts that [Lock.Context] makes.
	ErrLockLost = errors.New("the lock was lost: its lease is over or its key is no longer this hold's")

	// ErrTimeout: the time given by [Wait] is over and somebody else still holds the lock.
	ErrTimeout = errors.New("somebody else held the lock for as long as this call may wait")

	// ErrClosed: the registry is closed.
	ErrClosed = errors.New("the registry is closed")

	// ErrCapacity: as many locks as the registry may cache are in use; see [WithCapacity].
	ErrCapacity = errors.New("every lock that the registry may keep is in use: unlock some, or raise the capacity")
)

// LockError says which operation failed on which key. It wraps every error that a lock returns.
type LockError struct {
	Op  string // "lock", "trylock", "unlock", "renew" or "do"
	Key string // the lock's key in Redis
	Err error  // why
}

func (e *LockError) Error() string {
	return "lockregistry: " + e.Op + " " + e.Key + ": " + e.Err.Error()
}

// Unwrap returns the reason.
func (e *LockError) Unwrap() error { return e.Err }

// ended is the error for a context that is done: its error, with the cause when there is another one.
func ended(ctx context.Context) error {
	err := ctx.Err()
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return errors.Join(err, cause)
	}
	return err
}

// passing are the first words of replies after which the same command may succeed later: the server starts, fails over,
// or lacks something for now.
var passing = []string{
	"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "MOVED", "ASK", "NOREPLICAS", "BUSY", "NOSCRIPT",
	"OOM", "MISCONF", "UNBLOCKED", "ERR max number of clients",
}

// transient tells whether a call that waits anyway should try again after err.
func transient(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	if !ok { // the network; but a client that its user closed stays closed
		return !errors.Is(err, rueidis.ErrClosing)
	}
	for _, word := range passing {
		if strings.HasPrefix(reply.Error(), word) {
			return true
		}
	}
	return false
}

// unknown tells whether the server may have executed a command that ended with err, or may still do so: it may unless it
// said itself that it failed, or the command never left. Scripts of this package fail before they write, or not at all.
func unknown(err error) bool {
	if err == nil || errors.Is(err, rueidis.ErrClosing) {
		return false
	}
	if _, ok := rueidis.IsRedisErr(err); ok {
		return false
	}
	var dial *net.OpError
	return !errors.As(err, &dial) || dial.Op != "dial"
}

// wrongType tells whether the key holds something that is no lock of this layout.
func wrongType(err error) bool {
	reply, ok := rueidis.IsRedisErr(err)
	return ok && strings.Contains(reply.Error(), "WRONGTYPE")
}
