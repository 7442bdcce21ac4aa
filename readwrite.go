package lockregistry

import "time"

// ReadWriteLock is a pair of locks on one path: any number of owners may hold the reader at a time, or one may hold the
// writer. It is safe for use by many goroutines; get it from [Registry.ReadWrite].
//
// Both locks are reentrant. Who holds the writer may lock the reader too, and then unlock the writer to go on reading
// without a gap; who holds the reader and locks the writer gets [ErrUpgrade] at once instead of a deadlock.
//
// The goroutines of this process are served in the order in which they come, so that readers do not starve writers.
// Those who read at the same time share one hold in Redis, for as long as [WithHandoff] says; then those who come wait
// until the others are out and the hold is released, so that a writer elsewhere has its chance. They wait for ten times as
// long at most: a writer that sections of such a length keep out would not get in either way. With WithHandoff(0) that time
// is 100 ms.
//
// In Redis it is Redisson's RReadWriteLock: one hash, and a key per read hold for its lease, all in one slot of a cluster. A
// name with braces that do not hold it together, such as "a{b" or "{}a", gets an error there.
// A reader whose lease ends does not end the lease of another, and learns of it when it unlocks: [ErrLockLost].
//
// A reader that is locked without [TTL] is renewed until it is unlocked, each third of its lease, in either layout; so a
// goroutine that forgets to unlock keeps writers out for as long as its process lives, while a crash does so for a lease at
// most. The reason is Redisson: before version 4.6 a renewal by a Java reader sets the leases of all readers to its own
// lockWatchdogTimeout, 30 s unless set. A lease that is longer and not renewed ends that early, untold, and a writer comes
// in. So let a third of the lease be shorter than lockWatchdogTimeout, and give readers no TTL above it. Java renewals do
// not touch a writer: it is renewed with LayoutRedisson or [WithRenewal], and otherwise lasts for its lease, as a plain lock.
type ReadWriteLock struct {
	reader    Lock
	writer    Lock
	local     localReadWrite
	wrote     string // value of the newest hold on writing; for the only goroutine that asks Redis for either
	scattered bool   // see errScattered
}

func (r *Registry) newReadWrite(path string) *ReadWriteLock {
	key := r.prefix + ":" + path
	rw := &ReadWriteLock{scattered: r.cluster && scattered(key)}
	for _, side := range []struct {
		lock *Lock
		kind *kind
	}{{&rw.reader, r.read}, {&rw.writer, r.write}} {
		side.lock.reg = r
		side.lock.kind = side.kind
		side.lock.key = key
		side.lock.pair = rw
		side.lock.lockedAt.Store(int64(r.clock.now()))
	}
	rw.local.fresh = rw.reader.sharable
	rw.local.opens = rw.reader.opens
	return rw
}

// Reader returns the lock that many owners may hold at a time. All methods of [Lock] work as for a plain lock, for each
// owner by itself; those who share a hold in Redis lose it together. So while several share it, its lease gets longer only:
// [Lock.Renew], and locking again with [TTL], with a shorter lease than the hold has, renew that one. TryLock also waits for
// the answer when another goroutine has just asked Redis for the reader: if it may read, both may.
func (rw *ReadWriteLock) Reader() *Lock { return &rw.reader }

// Writer returns the lock that excludes all others.
func (rw *ReadWriteLock) Writer() *Lock { return &rw.writer }

// several tells whether more than one owner shares the hold now. Who has the hold's mutex may ask, since this needs none:
// who comes in after the answer looks at the hold later still, and finds there what the answer led to.
func (l *Lock) several() bool {
	return l.pair != nil && l == &l.pair.reader && l.pair.local.read.crowd.Load() > 1
}

// heldBack is how many times as long as they may join readers are held back.
const heldBack = 10

// sharable tells whether the hold of a reader can be shared.
func (l *Lock) sharable() bool {
	h := l.hold.Load()
	if h == nil {
		return false
	}
	ok, _ := h.shared(lease{})
	return ok
}

// opens is how long a goroutine that comes now is held back before it may share the hold of a reader; 0 when it may at once.
// Newcomers share for a handoff limit, then they are held back for much longer, and so on in turn: so the hold ends if the
// sections of those who are in are not very long, and a writer elsewhere gets the lock.
func (l *Lock) opens() time.Duration {
	h := l.hold.Load()
	if h == nil {
		return 0
	}
	window := l.reg.handoff
	if window == 0 {
		window = defaultHandoff
	}
	age := h.age()
	gone := int64(age/window) % (1 + heldBack) // windows since the last one in which newcomers could share
	if gone == 0 {
		return 0
	}
	return time.Duration(1+heldBack-gone)*window - age%window
}

// under is for a goroutine that asks Redis for the reader: the value of the hold with which its owner writes already; empty
// when the writer is free. It counts until the removal of the writer's key is known: one goroutine may unlock the writer
// while another one of the same owner locks the reader, and the script must not take a key that is about to be removed for
// an abandoned grant.
func (rw *ReadWriteLock) under() string {
	if !rw.local.writing() {
		return ""
	}
	return rw.wrote
}
