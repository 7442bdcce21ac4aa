package observe

import "time"

// Stats is what a registry does at the moment, and has done since it was made.
type Stats struct {
	Locks   int // lock objects that the registry keeps; a read-write lock counts as one
	Holds   int // locks, readers and writers that are held here, with a lease that is not over; readers that share count as one
	Waiters int // calls that wait: for an owner in this process, or for one elsewhere
	Tickets int // of these, calls with a place in a queue in Redis

	Strays int // removals that are not confirmed, and grants without an answer, that are removed in the background

	// Oldest is the age of the oldest of the holds, since its owner has it; of one that readers share, since the first of them
	// had it. It is 0 without holds. One that is much older than its work takes is of an owner that hangs, or that has
	// forgotten to unlock.
	Oldest time.Duration

	HandOvers uint64      // holds that went from one goroutine of this process to the next
	Windows   uint64      // times that a waiting call left a free lock to callers without a place in the queue, in Java say
	Wakeups   Wakeups     // since the registry was made; Messages are those that made a call the owner
	Nodes     []NodeStats // by address
}

// NodeStats is about one server: a single one, the master that Sentinels name, or a master of a cluster. A server that calls wait
// for a word of is there although it is no master any more.
type NodeStats struct {
	Address string // host and port; empty: nobody knows the master, or the client does not name its servers

	// Wakeup is how waiting calls of this registry learn of changes: "tracking" or "pubsub" with a connection, else "poll". The
	// connection is that of all registries on the client.
	Wakeup  string
	Since   time.Time // since when there is that connection; zero when there is none
	Lost    uint64    // connections for wake-ups to it that were lost since the first call waited
	Waiters int       // calls of this registry that rely on it for wake-ups

	// LastAnswer is when it answered a command about a lock last, of any registry on the client; zero when it has not. In a
	// cluster it is that of its slots, 256 of them together.
	LastAnswer time.Time

	// RenewalsFailing and RemovalsFailing tell since when those that the registry sends in the background fail, zero when they
	// do not. One that succeeds ends that, or a minute in which none is tried: their holds were released, say.
	RenewalsFailing time.Time
	RemovalsFailing time.Time
}
