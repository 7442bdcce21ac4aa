package lockregistry

import (
	"context"
	"iter"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/observe"
)

// Inspect tells who holds the lock of path, and who waits for it: its plain lock in either layout, Java's holders included, its
// read-write lock, or its semaphore. It reads, in two round trips, and changes nothing, so a user without permission to write
// may call it: scripts that only read (EVALSHA_RO, EVAL_RO). The holders and waiters are those of one moment, the labels of one
// just after it.
//
// Errors, each within a [*LockError]: [ErrWrongType] when the key is no lock at all, [ErrUnavailable], that of ctx,
// [ErrClosed], bad input such as an empty path, and other ones of Redis.
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

// Locks goes through the paths under the registry's prefix that somebody holds or waits for, in no order, each once, with what
// [Registry.Inspect] tells of it. It finds them by SCAN, on each master of a cluster: one that is locked all the time is among
// them, one that is locked or released meanwhile may be. A key that has no lock's content is left out, and so is a plain lock
// whose holder is named neither as this package, nor as Spring, nor as Redisson name theirs.
//
// SCAN goes through all keys of the database, 500 in a call. The first 250 calls follow one another, enough for 100 000 keys
// in a fraction of a second. In a database with more, the further calls are spread so that they take 5 % of the server's time
// at most. Locks are told as they are found. The caller should wait between passes, too. SCAN
// shows a user the names of all keys, whatever the key patterns of the user's access list.
//
// An error is the last thing that it gives, within a [*LockError]: that of ctx, [ErrUnavailable], [ErrClosed], or another one
// of Redis. To stop sooner, break out of the loop.
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
