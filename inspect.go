package lockregistry

import (
	"context"
	"iter"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/observe"
)

// Inspect returns the holders and waiters of path: of its plain lock in either layout, Java's holders included, of its
// read-write lock, or of its semaphore. It only reads, in two round trips, with read-only scripts (EVALSHA_RO, EVAL_RO), so a
// user without permission to write may call it. Holders and waiters are read at one moment, the labels just after it.
//
// Errors, each within a [*LockError]: [ErrWrongType] when the key is not a lock, [ErrUnavailable], the error of ctx,
// [ErrClosed], bad input such as an empty path, and other errors of Redis.
func (r *Registry) Inspect(ctx context.Context, path string) (observe.LockInfo, error) {
	l := r.newLock(path)
	info, err := r.inspectOne(ctx, l)
	if err != nil {
		return observe.LockInfo{}, l.fail("inspect", err)
	}
	return info, nil
}

func (r *Registry) inspectOne(ctx context.Context, l *Lock) (observe.LockInfo, error) {
	switch {
	case ctx == nil:
		return observe.LockInfo{}, errNilContext
	case l.path() == "":
		return observe.LockInfo{}, errNoPath
	case protocol.Reserved(l.redis.Key):
		return observe.LockInfo{}, errReserved
	}
	if err := l.reg.queues.Stopped(ctx); err != nil {
		return observe.LockInfo{}, err
	}
	return r.others.reader.Lock(ctx, l.redis.Key)
}

// Locks iterates over the paths under the registry's prefix that are held or waited for, in no order, each once, with the
// result of [Registry.Inspect]. It finds them by SCAN, on each master of a cluster. A path that is locked all the time is among
// them; one that is locked or released meanwhile may be. Keys that are not locks are left out, and so are plain locks whose
// holder's name does not follow the pattern of this package, Spring or Redisson.
//
// SCAN goes through all keys of the database, in steps of about two milliseconds of the server at most. The first 125 000 keys
// follow each other at once, in a fraction of a second. Further steps are spread so that they take a tenth of one of the server's
// cores, by its own clock. Locks are yielded as they are found. First come, without a SCAN, those that processes of this library
// have held or waited for longer than a second: the processes with a record are in a list in Redis. The caller should pause
// between passes, too. SCAN shows a user the names of all keys, whatever key patterns the user's permissions have.
//
// An error ends the iteration and comes last, within a [*LockError]: the error of ctx, [ErrUnavailable], [ErrClosed], or
// another error of Redis. To stop sooner, break out of the loop.
func (r *Registry) Locks(ctx context.Context) iter.Seq2[observe.LockInfo, error] {
	return func(yield func(observe.LockInfo, error) bool) {
		err := errNilContext
		if ctx != nil {
			err = r.others.reader.Each(ctx, func(info observe.LockInfo) bool { return yield(info, nil) })
		}
		if err != nil {
			yield(observe.LockInfo{}, &LockError{Op: "locks", Key: r.prefix + ":*", Err: r.transport.Farthest().Unsupported(err)})
		}
	}
}
