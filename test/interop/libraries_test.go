package interop

import (
	"flag"
	"slices"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// library is one lock library in one mode, and what it can and says. To test
// another one, add a row.
type library struct {
	name     string
	module   string      // of the Maven project; empty for this library
	settings peer.Fields // what opening a registry in this mode takes
	kind     string      // of lock: empty for the plain one, else read or write

	leases   bool // takes a lease for a single lock
	renews   bool // renews a lock on demand
	renewal  bool // renews held locks by itself, when asked to
	watchdog bool // does so unasked, unless the lock was taken with a lease

	lateUnlock peer.RemoteError // unlocking after the lease
	// unnoticed: unlocking a reader or writer after the lease is no failure when nobody
	// has the lock.
	unnoticed bool
	// cutsReaders: the renewal of a reader sets the leases of all readers.
	cutsReaders bool
	// sharded: on a cluster it publishes and listens on sharded channels. Before 3.29
	// some clients of Redisson do and others do not, as it happens at their start.
	sharded  bool
	notOwner peer.RemoteError // unlocking what another thread holds
	notHeld  peer.RemoteError // renewing what is not held

	// middling: the rows of an older and a newer version say as much about soaks and
	// latencies, so only -all runs those.
	middling bool

	// tries is how often a waiter asks Redis before only a wake-up or the time can
	// make it ask again.
	tries int
	// sleepsIn is the Java class in which a waiter must be asleep before a writer's
	// release by the same library is sure to wake it; empty where that needs no more
	// than its tries.
	sleepsIn string
	// dozes: a waiter without a thread of its own, for a fencing token too, may miss a
	// release, and sleeps until the lease that it saw is over.
	dozes bool
	// polls: nothing but the time makes a waiter ask again.
	polls bool
	// sleepsOutItsLease: a waiter that no message wakes asks again only after the lease
	// of its own registry.
	sleepsOutItsLease bool
	// queues: a waiter has a place in the queue in Redis, before which its tries do
	// not count.
	queues bool
	// eager are settings with which a side that polls has its turn more often.
	eager peer.Fields
	// unhurried are settings with which polling comes too late to explain a waiter
	// that has the lock soon after its release.
	unhurried peer.Fields
	// unlockChannel is where a release is published, as a format of prefix and
	// key; empty if nowhere.
	unlockChannel string
}

// program names what can serve several modes in one process.
func (l library) program() string {
	if l.module == "" {
		return "go"
	}
	return l.module
}

const (
	expired = "Lock was released in the store due to expiration. " +
		"The integrity of data protected by this lock may have been compromised."
	illegalState = "java.lang.IllegalStateException"
	// The unlock channel of Spring's registries before and since 6.4.8, 6.5.3 and 7.0.
	sharedChannel = "%[1]s-channel"
	keyChannel    = "%[1]s-channel:%[2]s"
	// Redisson's, for a key without braces.
	redissonChannel = "redisson_lock__channel:{%[2]s}"
)

var springs = []library{
	spring(peer.Spring71, "spin_lock", newSpring, spins, pauses),
	spring(peer.Spring71, "pub_sub_lock", newSpring, publishes(keyChannel)),
	spring(peer.Spring65, "spin_lock", renewingSpring, spins, pauses, middling),
	spring(peer.Spring65, "pub_sub_lock", renewingSpring, publishes(keyChannel), middling),
	spring(peer.Spring62, "spin_lock", spins, pauses),
	spring(peer.Spring62, "pub_sub_lock", publishes(sharedChannel)),
	spring(peer.Spring55, "spin_lock", spins),
	spring(peer.Spring55, "pub_sub_lock", publishes(sharedChannel)),
}

func spring(module, mode string, traits ...func(*library)) library {
	l := library{
		name:       module + " " + mode,
		module:     module,
		settings:   peer.Fields{"mode": mode},
		lateUnlock: peer.RemoteError{Class: illegalState, Message: expired},
		notOwner:   peer.RemoteError{Class: illegalState, Message: "You do not own lock at"},
	}
	for _, trait := range traits {
		trait(&l)
	}
	return l
}

// renewingSpring is what came with 6.4: renewal, and an exception of its own for a
// late unlock.
func renewingSpring(l *library) {
	l.renewal = true
	l.lateUnlock.Class = "java.util.ConcurrentModificationException"
}

// newSpring is what came with 7.0: leases for each lock besides.
func newSpring(l *library) {
	renewingSpring(l)
	l.leases, l.renews = true, true
	l.notHeld = peer.RemoteError{Class: illegalState, Message: "Could not renew mutex at"}
}

// middling: see library.middling.
func middling(l *library) { l.middling = true }

// spins: a waiter tries every 100 ms.
func spins(l *library) {
	l.polls = true
	l.tries = 1
}

// pauses: how long a waiter pauses can be set.
func pauses(l *library) { l.eager = peer.Fields{"idle": "2"} }

// publishes: a waiter tries, subscribes, tries again, and then waits for a message
// for as long as its registry's lease.
func publishes(channel string) func(*library) {
	return func(l *library) {
		l.unlockChannel = channel
		l.tries = 2
		l.sleepsOutItsLease = true
	}
}

// redissonRow is the newest Redisson.
var (
	redissonRow  = redisson(peer.Redisson, shards)
	oldRedissons = []library{
		redisson(peer.Redisson352, shards, cutsReaders, middling),
		redisson(peer.Redisson327, cutsReaders, unnoticed, dozes, middling),
	}
)

func shards(l *library)      { l.sharded = true }
func cutsReaders(l *library) { l.cutsReaders = true }
func unnoticed(l *library)   { l.unnoticed = true }
func dozes(l *library)       { l.dozes = true }

// redisson is Redisson, which waits on its channel and renews what is taken without
// a lease.
func redisson(module string, traits ...func(*library)) library {
	l := library{
		name:          module,
		module:        module,
		leases:        true,
		renewal:       true,
		watchdog:      true,
		lateUnlock:    notRedissons,
		notOwner:      notRedissons,
		tries:         2,
		unlockChannel: redissonChannel,
		// Redisson's release of a writer wakes as many as it finds asleep. Who is between
		// its last try and its sleep misses it, and sleeps until the holder's lease would
		// have ended. This library's release does not miss one.
		sleepsIn: "java.util.concurrent.Semaphore",
	}
	for _, trait := range traits {
		trait(&l)
	}
	return l
}

// notRedissons is what Redisson says of any unlock that is not the owner's.
var notRedissons = peer.RemoteError{
	Class:   "java.lang.IllegalMonitorStateException",
	Message: "attempt to unlock lock, not locked by current thread by node id: ",
}

// golang is this library with one way to learn of a release.
func golang(wakeup string) library {
	return library{
		name:       "go " + wakeup,
		settings:   peer.Fields{"wakeup": wakeup},
		leases:     true,
		renews:     true,
		renewal:    true,
		lateUnlock: peer.RemoteError{Class: "ErrLockLost", Message: "the lock was lost"},
		notOwner:   peer.RemoteError{Class: "ErrNotOwner", Message: "not the owner of the lock"},
		notHeld:    peer.RemoteError{Class: "ErrNotOwner", Message: "not the owner of the lock"},
		tries:      1,
		polls:      wakeup == "poll",
		queues:     wakeup != "poll",
		unhurried:  peer.Fields{"idle": "10000"},
	}
}

// inRedissonsFormat is a row of this library that keeps its locks as Redisson does.
func inRedissonsFormat(l library) library {
	l.name += " redisson"
	l.settings["layout"] = "redisson"
	l.watchdog = true
	return l
}

// javas are all Java libraries and modes.
func javas() []library { return append(slices.Clone(springs), redissons()...) }

// redissons are all versions of Redisson, the newest one first.
func redissons() []library { return append([]library{redissonRow}, oldRedissons...) }

// pair is this library beside a Java one.
type pair struct{ golang, java library }

// beside is this library as it is set up where that Java library runs too.
func beside(java library, wakeup string) pair {
	l := golang(wakeup)
	switch java.unlockChannel {
	case sharedChannel:
		l.settings["oldchannel"] = "true"
	case redissonChannel:
		l = inRedissonsFormat(l)
	}
	return pair{l, java}
}

// plainPairs are this library beside every Java one with plain locks.
func plainPairs() (pairs []pair) {
	for _, java := range javas() {
		pairs = append(pairs, beside(java, "auto"))
	}
	return pairs
}

// all has the long tests run with every row.
var all = flag.Bool("all", false, "run soaks and latencies with every version of the Java libraries")

// long are the pairs for a long test.
func long(pairs []pair) []pair {
	return slices.DeleteFunc(pairs, func(p pair) bool { return p.java.middling && !*all })
}

// contractPairs are for the tests of what a lock promises that one holds at a
// time. It must not depend on how a waiter learns of a release: this library's
// default does.
func contractPairs() []pair {
	pairs := plainPairs()
	for _, p := range readWritePairs() {
		pairs = append(pairs, pair{writing(p.golang), writing(p.java)})
	}
	return pairs
}

// writing is a row for the write locks of a library's read-write locks.
func writing(l library) library {
	l.name += " writer"
	l.kind = "write"
	return l
}

// wakeupPairs are for the tests of how soon a waiter learns of a release: with
// every means by which it can learn of one of that Java library.
func wakeupPairs() (pairs []pair) {
	for _, java := range javas() {
		means := "pubsub"
		if java.unlockChannel == "" {
			means = "tracking"
		}
		pairs = append(pairs, beside(java, means), beside(java, "auto"))
	}
	return pairs
}

// readWritePairs are for the tests of read-write locks, which this library keeps in
// one format, whatever that of its plain locks is: only their leases differ then.
func readWritePairs() (pairs []pair) {
	for _, redisson := range redissons() {
		pairs = append(pairs, pair{golang("auto"), redisson}, beside(redisson, "auto"))
	}
	return pairs
}
