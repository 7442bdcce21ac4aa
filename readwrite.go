package lockregistry

import (
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/cache"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/queue"
)

// ReadWriteLock is a pair of locks on one path: any number of owners may hold the reader at a time, or one may hold the writer.
// It is safe for use by many goroutines. Get it from [Registry.ReadWrite].
//
// Both locks are reentrant. An owner of the writer may also lock the reader, then unlock the writer, and go on reading without a
// gap. An owner of the reader cannot lock the writer: it gets [ErrDeadlock] at once, and must unlock the reader first.
//
// # Order
//
// The goroutines of a process, and the processes, are served in order of arrival, so that readers do not starve writers. The
// readers of a process share one hold in Redis. While they come and go, the process asks Redis whether a writer waits elsewhere,
// every 100 ms or at the interval of [WithHandoff] if that is shorter. If so, new readers wait until the others have left and the
// writer has had its turn. Readers that do not wait, as by TryLock, join all the same: a stream of them that never ends keeps
// writers out.
//
// A writer that polls, see [WithPolling], and a writer of Redisson have no place in the queue. New readers wait for such a writer
// for at most 300 ms. Then new readers may read for 300 ms, and so on. Readers notice a Redisson writer only while the readers of
// some process share a hold. A writer that does not wait, but tries from time to time, gets the lock only when there is no
// reader, as in Redisson.
//
// # Leases
//
// A reader is renewed every third of its lease until it is unlocked, in either layout, unless Lock or TryLock names a [Lease]. So
// a goroutine that forgets to unlock keeps writers out for as long as its process lives. That also applies to a goroutine that
// has named a Lease, once a reader without one has shared its hold. A crash keeps writers out for at most one lease. When the
// lease of a process's readers ends, readers of other processes keep theirs. The readers of that process get [ErrLockLost] when
// they unlock.
//
// The reason for these renewals is Redisson. When a Java reader renews its lease, it sets the lease of the whole lock to its own
// lockWatchdogTimeout, 30 s by default; before version 4.4, those of all other readers, too. A longer lease then ends early and
// unnoticed in Redis, and a writer gets the lock: unless the reader's next renewal arrives before, which it does not while Redis
// cannot be reached. So alongside such readers follow one rule: no reader's lease is longer than lockWatchdogTimeout, whether or
// not it is renewed. The defaults keep to it, in either layout.
//
// Renewals by Java do not change a writer's lease: writers are renewed like plain locks.
//
// # In Redis
//
// The format is that of Redisson's RReadWriteLock: one hash, and for each read hold a key with its lease, all in one slot of a
// cluster. On a cluster, paths with braces that would spread these keys over slots, such as "a{b" or "{}a", get an error.
type ReadWriteLock struct {
	reader Lock
	writer Lock
	local  local.ReadWrite
	wrote  atomic.Pointer[hold.Hold] // the writer's newest hold, until its key is surely gone; see under
	sought clock.Instant             // when Redis was last asked whether a writer waits elsewhere; the local half's mutex guards it
	entry  cache.Entry
}

func (r *Registry) newReadWrite(path string) *ReadWriteLock {
	key := r.prefix + ":" + path
	rw := &ReadWriteLock{}
	for _, side := range []struct {
		lock *Lock
		kind *queue.Kind
	}{{&rw.reader, r.read}, {&rw.writer, r.write}} {
		side.lock.pair = rw
		side.lock.begin(r, side.kind, key, &rw.writer)
	}
	rw.local.Init(redisHalf{rw})
	return rw
}

// Reader returns the lock that many owners may hold at a time. All methods of [Lock] work as on a plain lock, separately for each
// owner.
//
// The readers of a process share one hold in Redis, and lose it together. While several share it, the lease can only be
// lengthened: [Lock.Renew] with a shorter lease keeps the present length. If another goroutine has just asked Redis for the
// reader, TryLock waits for that reply, which decides both calls, unless a writer of this process waits, too.
func (rw *ReadWriteLock) Reader() *Lock { return &rw.reader }

// Writer returns the lock that excludes all other owners, readers and writers.
func (rw *ReadWriteLock) Writer() *Lock { return &rw.writer }

// redisHalf is the half in Redis as seen by the local half, which calls it with its mutex held.
type redisHalf struct{ *ReadWriteLock }

func (rw redisHalf) Sharable() bool { return rw.reader.hold.Load().Fresh() }

func (rw redisHalf) LookAgain() time.Duration {
	if handoff := rw.reader.reg.handoff; handoff > 0 {
		return min(handoff, defaultHandoff)
	}
	return defaultHandoff
}

// LookDue reports whether LookAgain has passed since the hold began and since the last look. So a writer waits for little more
// than twice that time, plus the sections under way.
func (rw redisHalf) LookDue() bool {
	h, every := rw.reader.hold.Load(), rw.LookAgain()
	if h == nil {
		return false
	}
	now := rw.reader.reg.now()
	return h.Held(now).Had >= every && now >= rw.sought.Add(every)
}

// Look asks Redis in the background whether a writer waits elsewhere, and tells the local half. If one does, no more readers
// join the hold, and it ends when its readers have left. Look reports whether it asks.
func (rw redisHalf) Look() bool {
	if rw.reader.hold.Load() == nil || rw.reader.reg.isClosed() {
		return false
	}
	rw.sought = rw.reader.reg.now()
	go rw.ask()
	return true
}

func (rw *ReadWriteLock) ask() {
	l := &rw.reader
	if waits, known := l.redis.WriterWaits(l.reg.formats.WriterWaits(l.redis.Key)); known {
		rw.local.Answer(waits)
	} else {
		rw.local.Unknown()
	}
}

// under returns the value of the writer's hold, for a goroutine that asks Redis for the reader and whose owner has the writer;
// empty when the writer is free. It returns the value until the removal of the writer's key is confirmed: one goroutine may
// unlock the writer while another goroutine of the same owner locks the reader, and the script must not mistake a key that is
// about to be removed for an abandoned grant.
func (rw *ReadWriteLock) under() string {
	h := rw.wrote.Load()
	if h == nil || !rw.local.Writing() {
		return ""
	}
	return h.Value()
}

// String returns the lock's key, and which of the two locks this process holds.
func (rw *ReadWriteLock) String() string {
	held := "not held"
	switch reads, writes := rw.reader.holds(), rw.writer.holds(); {
	case reads && writes:
		held = "both held"
	case reads:
		held = "reader held"
	case writes:
		held = "writer held"
	}
	return "ReadWriteLock(" + rw.writer.redis.Key + ", " + held + ")"
}
