// Package inspect shows operators the locks of a prefix, with their holders and waiters in all processes, and frees locks whose
// holders are gone. A service that only locks need not import it.
//
//	inspector := inspect.Of(registry)
//	for lock, err := range inspector.Locks(ctx) {
//		...
//	}
//	err := inspector.ForceUnlock(ctx, "42") // its holder is gone
//
// [Of] uses an existing registry. [New] needs only a client, for programs that do not lock.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/detector"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/presence"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/readonly"
	"github.com/lockregistry/lockregistry/internal/seam"
	"github.com/lockregistry/lockregistry/observe"
)

// Inspector shows and frees the locks of a prefix, whichever processes hold them. It is safe for use by many goroutines, and
// needs no Close.
//
// Each method's error is a [*lockregistry.LockError].
type Inspector struct {
	reader reader
	found  bool // the layout of a plain lock is found out, since there is no registry
}

// Of returns the inspector of a registry's locks. The registry's settings limit how long its commands take, and the inspector
// fails with [lockregistry.ErrClosed] once the registry is closed. R must not be nil.
func Of(r *lockregistry.Registry) *Inspector {
	return &Inspector{reader: reader{seam.Lockregistry.Parts(r)}}
}

// New returns an inspector of the locks with the keys "prefix:path" on the server of client, without a registry. It starts
// nothing in the background, publishes nothing about this process, and knows plain locks in both layouts. It fails when client is
// nil or prefix is empty.
//
// # Details
//
// New does not close the client. Set DisableCache in the client's options. A command waits 5 s for its answer, plus two round
// trips if these are long.
//
// With Sentinel, make a registry with [lockregistry.Open], or with [lockregistry.WithSentinels], and use [Of]. Otherwise a master
// that was frozen and answers again after it was replaced is trusted until the client leaves it. So a lock that was freed there
// may not be free on the new master.
func New(client rueidis.Client, prefix string) (*Inspector, error) {
	var err error
	if client == nil {
		err = errors.New("the client is nil")
	}
	if prefix == "" {
		err = fault.Join(err, errors.New("the prefix is empty"))
	}
	if err != nil {
		return nil, fmt.Errorf("inspect: new: %w", err)
	}
	return &Inspector{reader: reader{parts(client, prefix)}, found: true}, nil
}

const commandLimit = 5 * time.Second // as of a registry

// parts are what a registry would say that does nothing.
func parts(client rueidis.Client, prefix string) seam.Parts {
	r := readonly.Bystander(client, prefix, commandLimit)
	return seam.Parts{
		Reader:   r,
		Detector: detector.Bystander(r, r.Clock),
		Formats:  protocol.Config{Prefix: prefix, Cluster: r.Cluster, Publishes: true, Beside: protocol.NewBeside(r.Clock)},
		Layout:   observe.LayoutSpring,
		Values:   "\x00", // no value begins so
		Own:      func(string) []presence.Lock { return nil },
		Held:     func(string) map[string]*hold.Hold { return nil },
	}
}

// Inspect returns the holders and waiters of path: of its plain lock in either layout, Java's holders included, of its read-write
// lock, or of its semaphore, whichever it is.
//
// It only reads, in two round trips, with read-only scripts (EVALSHA_RO, EVAL_RO), so a user without permission to write may call
// it. Holders and waiters are read at one moment, and the labels just after it.
//
// # Errors
//
// Each is within a [*lockregistry.LockError]: [lockregistry.ErrWrongType] when the key is not a lock,
// [lockregistry.ErrUnavailable], the error of ctx, [lockregistry.ErrClosed], bad input such as an empty path, and other errors of
// Redis.
func (i *Inspector) Inspect(ctx context.Context, path string) (Lock, error) {
	info, err := i.inspect(ctx, path)
	if err != nil {
		return Lock{}, i.fail("inspect", path, err)
	}
	return info, nil
}

func (i *Inspector) inspect(ctx context.Context, path string) (Lock, error) {
	if err := i.check(ctx, path); err != nil {
		return Lock{}, err
	}
	if err := i.reader.Calls.Stopped(ctx); err != nil {
		return Lock{}, err
	}
	return i.reader.Lock(ctx, i.key(path))
}

// Locks iterates over the paths under the prefix that are held or waited for, in no particular order, each once, with the result
// of [Inspector.Inspect]. A path that is locked throughout is among them, unless a server restarts meanwhile or a replica is
// promoted in a cluster; a path that is locked or released during the iteration may be.
//
// # Details
//
// Locks finds the paths with SCAN, on each master of a cluster, and yields them as they are found. Paths that processes of this
// library have held or waited for longer than a second come first, without a SCAN: each registry keeps a record of them in Redis,
// and Redis has a list of these registries. Keys that are not locks are left out, as are plain locks whose holder's name does not
// follow the pattern of this library, Spring or Redisson.
//
// The lock "shop:eu:42" of a registry with the prefix "shop:eu" is also one of the prefix "shop", with the path "eu:42". An
// inspector of "shop" finds its holders, but not its fencing tokens, and calls in its queue only if the path has a hash tag.
//
// SCAN goes through all keys of the database, in steps that take at most about two milliseconds of the server's time. The first
// 125 000 keys take a fraction of a second, without pauses. Further steps are spread out to take a tenth of one of the server's
// cores, by its own clock. The caller should also pause between passes.
//
// SCAN shows a user the names of all keys, whatever key patterns the user is permitted.
//
// # Errors
//
// An error ends the iteration, and is yielded last: the error of ctx, [lockregistry.ErrUnavailable], [lockregistry.ErrClosed], or
// another error of Redis. To stop sooner, break out of the loop.
func (i *Inspector) Locks(ctx context.Context) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		for found, err := range LocksOf(ctx, i) {
			if !yield(found.Lock, err) {
				return
			}
		}
	}
}

// Deadlocks returns the cycles of calls that wait for each other, in all processes that have registries with this prefix. Cycles
// within one process, see [lockregistry.ErrDeadlock], are included while they last. [observe.Observer] has a function that is
// called for cycles that a registry is in.
//
// # Details
//
// Deadlocks reads the records that the registries keep in Redis, so it finds a call once the call has waited for one to two
// seconds. If the first pass shows a cycle, Deadlocks checks again half a second later.
//
// A call that waits for permits of a semaphore is in a cycle only while every hold of these permits belongs to a call in such a
// cycle. A hold belongs to a call that has the hold's context, see [lockregistry.Hold.Context].
//
// Deadlocks does not see calls of Java or of older versions of this library, or paths of other prefixes. Across processes it
// does not see paths that are not UTF-8, semaphores with more than 100 holds, and more than 1000 paths of one caller; fewer, if
// what a process's waiting calls hold takes more than 1 MiB.
//
// Deadlocks uses SCAN, takes as long as [Inspector.Locks], and returns the same errors.
func (i *Inspector) Deadlocks(ctx context.Context) ([]observe.Deadlock, error) {
	found, errs := DeadlocksOf(ctx, i)
	return found[0], errs[0]
}

func (i *Inspector) key(path string) string { return i.reader.Prefix + ":" + path }

// check returns the error that every call about a path fails with, if there is one.
func (i *Inspector) check(ctx context.Context, path string) error {
	if ctx == nil {
		return fault.NilContext
	}
	return protocol.CheckPath(path, i.key(path))
}

func (i *Inspector) fail(op, path string, err error) error {
	key := i.key(path)
	return &lockregistry.LockError{Op: op, Key: key, Err: i.reader.Transport.Node(key).Unsupported(err)}
}

// failAll is fail for a call about all paths.
func (i *Inspector) failAll(op string, err error) error {
	return &lockregistry.LockError{Op: op, Key: i.key("*"), Err: i.reader.Transport.Farthest().Unsupported(err)}
}
