package observe

import "time"

// LockInfo is what Redis knows of a path at one moment: who holds it, and who waits for it.
type LockInfo struct {
	Path string
	Key  string // prefix + ":" + path

	// Kind is KindLock, KindReadWrite, KindSemaphore or KindNone; or KindTooLong, of which [lockregistry.Registry.Locks] tells
	// no more than the beginning.
	Kind Kind

	// Layout is that of a plain lock, as its key has it, or, when nobody holds it, of this registry. That of a read-write lock
	// is LayoutRedisson.
	Layout Layout

	Permits int // of a semaphore: how many there are

	Holders     []HolderInfo // the first 100 in no order; one, but for readers and a semaphore
	HolderCount int          // all of them

	Waiters     []WaiterInfo // the first 100 in the order of the queue
	WaiterCount int          // all of them

	// TooLong names what is longer in Redis than this package or its peers make it, "key", "token", "holder",
	// "waiter", or "record". It is not read: of names there is the beginning, and the rest is as if it were not there.
	TooLong []string
}

// HolderInfo is somebody who holds a lock.
type HolderInfo struct {
	// Holder is as it is in the key: its value, a field of the hash, or a member of the set.
	// [lockregistry.Registry.ForceUnlockHolder] takes it.
	Holder  string
	Label   Label // of its registry; see [Label.Known]
	Shared  bool  // it is a reader
	Permits int   // of a semaphore: how many it has

	// Since is when the call that holds the lock asked for it, by the wall clock of its process: for one that waited in the
	// queue, when it began to wait, or to wait anew. It may have been handed from one goroutine to another since. Zero: not
	// known, as for Java and older versions.
	Since time.Time

	// Granted is since when the owner has the lock, by the wall clock of its process, as of a second ago. Zero: not known, as
	// for a hold younger than a second; it has the lock since Since or later.
	Granted time.Time

	Behind int // calls of the same process that wait for the path and are not in Waiters, as of a second ago

	// Renewed is the lease that the holder's process sets anew each third of it, as of a second ago. 0: not known, or not
	// renewed. See Overdue.
	Renewed time.Duration

	Lease time.Duration // what is left of it, if it is not renewed; negative when it has no end
	Kept  bool          // nobody holds the lock any more, and [lockregistry.AtLeast] keeps the path

	// Token is the last fencing token that was drawn for the path; 0: none. They are drawn by the hundred, so that of the
	// present owner is at most 99 less, see [lockregistry.WithFencing].
	Token uint64
}

// Overdue is how late the renewal of the lease is: the process has died, is frozen, or cannot reach Redis. It is 0 while that
// may be chance, for a second or a tenth of the lease, and where it is not known that the holder renews.
func (h HolderInfo) Overdue() time.Duration {
	if late := h.Renewed*2/3 - h.Lease; h.Renewed > 0 && h.Lease >= 0 && late >= max(time.Second, h.Renewed/10) {
		return late
	}
	return 0
}

// WaiterInfo is a call that has a place in the queue of a path. Java, and calls that poll, have none. The place of a process
// that has died goes when its turn comes.
type WaiterInfo struct {
	Registry string    // as in Label
	Label    Label     // see [Label.Known]
	Shared   bool      // it wants to read
	Permits  int       // how many it asks for, of a semaphore
	Since    time.Time // since when it has its place, by the server's clock
	Gone     bool      // nobody listens to its channel: its process has died, most likely. False also where that is not known
	Standby  bool      // it waits to lead, see package leader: for long, most likely
	Behind   int       // further calls of the same process that wait for the path, as of a second ago
}

// Layout is the format of locks in Redis.
type Layout int

// The formats.
const (
	// LayoutSpring is a string per lock, as Spring Integration's RedisLockRegistry writes it.
	LayoutSpring Layout = iota

	// LayoutRedisson is a hash per lock, as Redisson's RLock writes it. As in Redisson, a lock taken without a lease has a lease
	// of 30 s (or what [lockregistry.WithLease] says, Redisson's lockWatchdogTimeout), which is renewed for as long as the lock
	// is held; a lease that the call names ends unless [lockregistry.WithRenewal] is set too. The name of the RLock is prefix +
	// ":" + path.
	LayoutRedisson
)
