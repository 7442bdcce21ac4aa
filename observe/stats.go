package observe

import "time"

// Stats has figures about what a registry does now, and has done since it was made.
type Stats struct {
	Locks   int // lock objects that the registry keeps; a read-write lock counts as one
	Holds   int // holds of this registry whose lease is not over; readers that share a hold count as one
	Waiters int // calls that wait for an owner in this process or elsewhere
	Tickets int // how many of them have a place in a queue in Redis

	// Removals is the number of paths, and of holds of semaphores and read-write locks, that the registry removes in the
	// background, and whose removal Redis has not confirmed. While Redis answers, a removal takes a round trip, so a number that
	// stays up or grows means that removals fail. A confirmed removal does not count, although the registry repeats it for a
	// while in case a late command sets the key again.
	Removals int

	// Oldest is the age of the oldest hold, counted from when its owner got it or, if readers share it, from when the first of
	// them did. It is 0 without holds. A hold that is much older than its work takes belongs to an owner that hangs or forgot to
	// unlock. Leaders of package leader do not count: they lead for as long as they run.
	Oldest time.Duration

	// OldestWait is how long the oldest call that is still waiting has waited; 0 if none waits. A call waits for goroutines of
	// this process first; its time restarts when it moves on to waiting for other processes. Candidates of package leader do not
	// count: they wait for as long as another one leads.
	OldestWait time.Duration

	Handoffs uint64      // holds handed from one goroutine of this process to the next
	Windows  uint64      // times that a waiting call left a free lock to callers without a place in the queue, such as Java
	Wakeups  Wakeups     // since the registry was made; Messages counts only messages that made a call the owner
	Nodes    []NodeStats // by address
}

// NodeStats is about one server: a single one, the master that Sentinels name, or a master of a cluster. A former master stays
// listed while calls wait for wake-ups from it.
type NodeStats struct {
	Address string // host and port; empty: the client also has replicas, or does not name its servers

	// Wakeup is how waiting calls of this registry learn of changes: "tracking" or "pubsub" with a connection, else "poll". All
	// registries on the client share the connection.
	Wakeup  string
	Since   time.Time // when that connection was made; zero without one
	Lost    uint64    // connections for wake-ups lost since the first call waited
	Waiters int       // calls of this registry that rely on it for wake-ups

	// LastAnswer is when the server last answered a command about a lock, from any registry on the client; zero if it never did.
	LastAnswer time.Time

	// RenewalsFailing and RemovalsFailing are when renewals and removals in the background began to fail; zero if they do not
	// fail. A success resets them, and so does a minute without an attempt, for instance once all holds have been released.
	RenewalsFailing time.Time
	RemovalsFailing time.Time
}
