package lockregistry

import (
	"context"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/local"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// ReadWriteLock is a pair of locks on one path: any number of owners may hold the reader at a time, or one may hold the
// writer. It is safe for use by many goroutines; get it from [Registry.ReadWrite].
//
// Both locks are reentrant. An owner of the writer may lock the reader too, and then unlock the writer to go on reading
// without a gap. An owner of the reader that locks the writer gets [ErrUpgrade] at once instead of a deadlock.
//
// The goroutines of this process are served in the order in which they come, so that readers do not starve writers.
// So are processes: readers do not overtake a waiting writer. The readers of a process share one hold in Redis. While they
// come and go the process asks Redis every 100 ms, or as often as [WithHandoff] says, whether a writer waits elsewhere.
// If so, new readers wait until the others have left and the writer has had its turn. For a writer that polls every 100 ms, see
// [WithPolling], and for Redisson's, which nobody sees while readers of no process share, new readers wait for 300 ms at most,
// then may read for as long, and so on. A writer that only tries now and then cannot be seen, and gets in when nobody reads, as
// in Redisson.
//
// In Redis it is Redisson's RReadWriteLock: one hash, and a key per read hold for its lease, all in one slot of a cluster. A
// name with braces that do not hold it together, such as "a{b" or "{}a", gets an error there.
// A reader whose lease ends does not end the lease of another. It gets [ErrLockLost] when it unlocks.
//
// A reader that is locked without [Lease], by Do, or by Acquire, is renewed until it is unlocked, each third of its lease, in
// either layout. So a goroutine that forgets to unlock keeps writers out for as long as its process lives, a crash for a lease at
// most. The reason is Redisson: before version 4.6 a renewal by a Java reader sets the leases of all readers to its own
// lockWatchdogTimeout, 30 s by default. A longer lease that is not renewed then ends early and unnoticed, and a writer gets
// in. So a third of the lease should be shorter than lockWatchdogTimeout, and no lease of a reader longer than it. Java
// renewals do not touch a writer: it is renewed as a plain lock.
type ReadWriteLock struct {
	reader    Lock
	writer    Lock
	local     local.ReadWrite
	wrote     string        // value of the newest hold that was granted the writer; for the goroutine that asks Redis for either
	scattered bool          // see errScattered
	sought    clock.Instant // when Redis was last asked whether a writer waits elsewhere; the local half's mutex guards it
}

func (r *Registry) newReadWrite(path string) *ReadWriteLock {
	key := r.prefix + ":" + path
	rw := &ReadWriteLock{scattered: r.queues.Cluster && protocol.Scattered(key)}
	for _, side := range []struct {
		lock *Lock
		kind *kind
	}{{&rw.reader, r.read}, {&rw.writer, r.write}} {
		side.lock.pair = rw
		side.lock.begin(r, side.kind, key, &rw.writer)
	}
	rw.local.Init(redisHalf{rw}, rw.lookEvery())
	return rw
}

// reads tells whether l is the reader of a read-write lock, and writes whether it is the writer.
func (l *Lock) reads() bool  { return l.pair != nil && l == &l.pair.reader }
func (l *Lock) writes() bool { return l.pair != nil && l == &l.pair.writer }

// Reader returns the lock that many owners may hold at a time. All methods of [Lock] work as for a plain lock, for each
// owner by itself; readers that share a hold in Redis lose it together. So while several share it, its lease only gets longer:
// [Lock.Renew], and locking again with [Lease], with a shorter lease than the hold has, renew that one. TryLock also waits for
// the answer when another goroutine has just asked Redis for the reader: if it may read, both may.
func (rw *ReadWriteLock) Reader() *Lock { return &rw.reader }

// Writer returns the lock that excludes all others.
func (rw *ReadWriteLock) Writer() *Lock { return &rw.writer }

// several reports whether more than one owner shares the hold now. It may be called with the hold's mutex held, since it needs
// none: an owner that comes in after the answer looks at the hold later still, and finds there what the answer led to.
func (l *Lock) several() bool { return l.owners() > 1 }

// owners is how many share the hold that is there.
func (l *Lock) owners() int64 {
	if l.reads() {
		return l.pair.local.Reader().Count()
	}
	return 1
}

// lookEvery is how often Redis is asked whether a writer waits elsewhere.
func (rw *ReadWriteLock) lookEvery() time.Duration {
	if handoff := rw.reader.reg.handoff; handoff > 0 {
		return min(handoff, defaultHandoff)
	}
	return defaultHandoff
}

// redisHalf is what the local half asks about the half in Redis. The local half's mutex is held.
type redisHalf struct{ *ReadWriteLock }

// Sharable reports whether the hold of a reader can be shared.
func (rw redisHalf) Sharable() bool {
	h := rw.reader.hold.Load()
	if h == nil {
		return false
	}
	ok, _ := h.Shares(0)
	return ok
}

// LookDue reports that the hold is a while old and nobody has looked for a writer for as long. So a writer waits for little
// more than twice that time and the sections that are under way.
func (rw redisHalf) LookDue() bool {
	h, every := rw.reader.hold.Load(), rw.lookEvery()
	if h == nil {
		return false
	}
	now := rw.reader.reg.clock.Now()
	_, had, _ := h.Held(now)
	return had >= every && now >= rw.sought.Add(every)
}

// Look asks Redis in the background whether a writer waits elsewhere, and tells the local half: if so nobody else shares the
// hold, which ends when those that do have left. It reports whether it asks.
func (rw redisHalf) Look() bool {
	if rw.reader.hold.Load() == nil || rw.reader.reg.isClosed() {
		return false
	}
	rw.sought = rw.reader.reg.clock.Now()
	go rw.ask()
	return true
}

// ask asks Redis whether a writer waits elsewhere.
func (rw *ReadWriteLock) ask() {
	l := &rw.reader
	if !l.redis.MayQueue() {
		rw.local.Unknown()
		return
	}
	c := l.reg.formats.WriterWaits(l.redis.Key)
	p := l.reg.queues.CommandWait(context.Background(), l.reg.transport.Shard(c.Key))
	p.Lease = l.reg.lease.Length
	n, err := protocol.Confirmed(l.reg.transport.Do(&p, &c).RedisResult)
	switch {
	case err == nil:
		rw.local.Told(n == 1)
		return
	case !fault.Transient(fault.Classify(err)):
		l.redis.NoQueue(err.Error())
	}
	rw.local.Unknown()
}

// under is for a goroutine that asks Redis for the reader: the value of the hold with which its owner writes already; empty
// when the writer is free. It counts until the removal of the writer's key is known: one goroutine may unlock the writer
// while another one of the same owner locks the reader, and the script must not take a key that is about to be removed for
// an abandoned grant.
func (rw *ReadWriteLock) under() string {
	if !rw.local.Writing() {
		return ""
	}
	return rw.wrote
}
