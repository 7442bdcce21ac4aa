package interop

import (
	"flag"
	"slices"

	"github.com/lockregistry/lockregistry/internal/peer"
)

// library is one lock library in one mode: what it can do, and what it says. To test another one, add a row.
type library struct {
	name     string
	module   string      // of the Maven project; empty for this library
	settings peer.Fields // needed to open a registry in this mode
	kind     string      // of lock: empty for the plain one, otherwise read or write

	leases   bool // takes a lease for a single lock
	renews   bool // renews a lock on demand
	renewal  bool // renews held locks by itself, if asked to
	watchdog bool // does so without being asked, unless the lock was taken with a lease

	lateUnlock peer.RemoteError // unlocking after the lease
	// unnoticed: unlocking a reader or writer after the lease is no failure if nobody has the lock.
	unnoticed bool
	// cutsReaders: the renewal of a reader sets the leases of all readers.
	cutsReaders bool
	// sharded: on a cluster it publishes and listens on sharded channels. Before 3.29
	// some clients of Redisson do and others do not, as it happens at their start.
	sharded  bool
	notOwner peer.RemoteError // unlocking what another thread holds
	notHeld  peer.RemoteError // renewing what is not held

	// middling: the rows of an older and a newer version say as much in soaks and latencies, so only -all runs this one there.
	middling bool

	// tries is how often a waiter asks Redis before it sleeps until a wake-up or a timeout.
	tries int
	// sleepsIn is the Java class in which a waiter must be asleep before a writer's release by the same library is sure to wake
	// it; empty if its tries are enough.
	sleepsIn string
	// dozes: a waiter without a thread of its own, or for a fencing token, may miss a release, and then sleeps until the lease
	// that it saw is over.
	dozes bool
	// polls: a waiter asks again only after a pause.
	polls bool
	// sleepsOutItsLease: a waiter that no message wakes asks again only after the lease of its own registry.
	sleepsOutItsLease bool
	// queues: a waiter has a place in the queue in Redis. Tries before that do not count.
	queues bool
	// eager are settings with which a polling side gets its turn more often.
	eager peer.Fields
	// unhurried are settings with which a poll would come too late to explain why a waiter has the lock soon after the release.
	unhurried peer.Fields
	// unlockChannel is where a release is published, as a format of prefix and
	// key; empty if nowhere.
	unlockChannel string
}

// program returns the name of a process that can serve several modes.
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

// renewingSpring adds what came with 6.4: renewal, and a separate exception for a late unlock.
func renewingSpring(l *library) {
	l.renewal = true
	l.lateUnlock.Class = "java.util.ConcurrentModificationException"
}

// newSpring adds what came with 7.0: leases for each lock.
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

// pauses: the pause of a waiter can be set.
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

// redisson is Redisson, which waits on its channel and renews locks taken without a lease.
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
		// Redisson's release of a writer wakes as many threads as it finds asleep. A thread between its last try and its sleep misses
		// it, and sleeps until the holder's lease would have ended. This library's release misses none.
		sleepsIn: "java.util.concurrent.Semaphore",
	}
	for _, trait := range traits {
		trait(&l)
	}
	return l
}

// notRedissons is Redisson's error for any unlock that is not the owner's.
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

// beside is this library, configured to run together with that Java library, and the Java library.
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

// all has the long tests run every row.
var all = flag.Bool("all", false, "run soaks and latencies with every version of the Java libraries")

// long returns the pairs for a long test.
func long(pairs []pair) []pair {
	return slices.DeleteFunc(pairs, func(p pair) bool { return p.java.middling && !*all })
}

// contractPairs are for the tests of what an exclusive lock promises. That must not depend on how a waiter learns of a release,
// so these run with this library's default.
func contractPairs() []pair {
	pairs := plainPairs()
	for _, p := range readWritePairs() {
		pairs = append(pairs, pair{writing(p.golang), writing(p.java)})
	}
	return pairs
}

// writing returns a row for the write locks of a library's read-write locks.
func writing(l library) library {
	l.name += " writer"
	l.kind = "write"
	return l
}

// wakeupPairs are for the tests of how soon a waiter learns of a release, by every means that the Java library allows.
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

// readWritePairs are for the tests of read-write locks, which this library keeps in one format, whatever the format of its
// plain locks: only their leases differ.
func readWritePairs() (pairs []pair) {
	for _, redisson := range redissons() {
		pairs = append(pairs, pair{golang("auto"), redisson}, beside(redisson, "auto"))
	}
	return pairs
}
