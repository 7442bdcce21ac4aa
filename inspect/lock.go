package inspect

import (
	"time"

	"github.com/lockregistry/lockregistry/observe"
)

// Lock is what Redis knows about a path at one moment: its holders and its waiters.
type Lock struct {
	Path string
	Key  string // prefix + ":" + path

	// Kind is [observe.KindLock], KindReadWrite, KindSemaphore, KindNone or KindTooLong. For the last, [Inspector.Locks] gives only
	// the beginning of the key.
	Kind observe.Kind

	// Layout is the format of the key. For a plain lock it is the one found, or the registry's if Redis has no such key; for a
	// read-write lock it is Redisson's; for a semaphore it is the registry's, since semaphores have the same format in both.
	// Where it would be the registry's, an inspector without a registry says Spring's.
	Layout observe.Layout

	Permits int // of a semaphore: all of its permits, held or not

	Holders     []Holder // up to 100 in no particular order; readers and semaphores can have several
	HolderCount int      // all of them

	Waiters     []Waiter // the first 100 in the order of the queue
	WaiterCount int      // all of them

	// TooLong names whatever is longer in Redis than this package or its peers make it: "key", "token", "holder", "waiter" or
	// "record". If a name is too long, only its beginning is read; if anything else is, it is not read at all.
	TooLong []string
}

// Holder is one holder of a lock.
type Holder struct {
	// Holder is the holder's name in Redis: the key's value, a field of the hash, or a member of the set.
	// [Inspector.ForceUnlockHolder] takes it.
	Holder  string
	Label   observe.Label // of its registry; see [observe.Label.Known]
	Shared  bool          // it is a reader
	Permits int           // of a semaphore: how many the holder has

	// Since is when the call asked for the hold, by the wall clock of its process. For a call that waited in the queue, it is
	// when the call began to wait, or to wait again. The hold may have been handed to other goroutines since. Zero: not known, as
	// for Java and older versions.
	Since time.Time

	// Granted is when the owner got the lock, by the wall clock of its process, as of a second ago. Zero: not known, as for a hold
	// younger than a second; the owner got it at Since or later.
	Granted time.Time

	Behind int // further calls of the same process that wait for the path, not in Waiters, as of a second ago

	// BehindSince is when the first of them began to wait, by the wall clock of its process. Zero: not known, as for older versions.
	BehindSince time.Time

	// Renewed is the lease that the holder's process renews every third of its length, as of a second ago. 0: not known, or not
	// renewed. See Overdue.
	Renewed time.Duration

	// Silent is how long the holder's registry has been silent; 0: it is not silent, or that is not known. A registry is silent
	// when one of its holds that were read is overdue and it has renewed none of them since. It is also silent when it has not
	// reported for a minute or longer. Then its process is probably dead or frozen, whether or not it renews this hold.
	Silent time.Duration

	Lease time.Duration // the rest of the lease; negative: it never ends
	Kept  bool          // the lock was released, and [lockregistry.AtLeast] keeps the path taken

	// Token is the last fencing token drawn for the path; 0: none. Tokens are drawn in blocks of 100: the owner's is at most 99
	// lower, see [lockregistry.WithFencing].
	Token uint64
}

// Overdue returns how late the renewal of the lease is. A late renewal means that the process has died, is frozen, or cannot
// reach Redis. Overdue is 0 for delays below a second or a tenth of the lease, whichever is longer. It is also 0 if the holder
// is not known to renew, or the lease never ends.
func (h Holder) Overdue() time.Duration {
	if late := h.Renewed*2/3 - h.Lease; h.Renewed > 0 && h.Lease >= 0 && late >= max(time.Second, h.Renewed/10) {
		return late
	}
	return 0
}

// Waiter is a call that has a place in the queue of a path. Java, and calls that poll, have no place. A dead process's place is
// removed when its turn comes.
type Waiter struct {
	Registry string        // as in observe.Label
	Label    observe.Label // see [observe.Label.Known]
	Shared   bool          // it wants to read
	Permits  int           // how many it asks for, of a semaphore
	Since    time.Time     // when it got its place, by the server's clock
	Gone     bool          // nobody listens to its channel: its process has most likely died. Also false if that is not known
	Standby  bool          // it waits to lead, see package leader, which may take long
	Behind   int           // further calls of the same process that wait for the path, as of a second ago

	BehindSince time.Time // as in Holder
}
