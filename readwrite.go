package lockregistry

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
	scattered bool // see errScattered
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
	rw.local.sharing = rw.reader.sharing
	rw.local.fresh = rw.reader.IsHeld
	rw.local.again = r.handoff
	if r.handoff == 0 {
		rw.local.again = defaultHandoff
	}
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

// sharing tells whether one more goroutine may share the hold of a reader now. After the handoff limit those who come are
// held back for much longer, so that the hold ends if the sections of those who are in are not very long, and a writer
// elsewhere gets the lock.
func (l *Lock) sharing() bool {
	h := l.hold.Load()
	if h == nil {
		return false
	}
	ok, _ := h.shared(lease{})
	return ok && int64(h.age()/l.pair.local.again)%(1+heldBack) == 0
}
