// Package local has what the goroutines of a process wait in before one of them asks Redis: a queue, and a read-write mutex that
// is built on it. It knows neither Redis nor the locks of the API.
package local

// Admission says how a goroutine came into the local half of a lock.
type Admission uint8

// The admissions.
const (
	Refused    Admission = iota // it did not: another owner is in
	Entered                     // it is alone in, and the Redis half has yet to be obtained
	Reentered                   // its owner held the lock already and holds it once more
	HandedOver                  // it is in, and has taken over the hold of the one that left
	Joined                      // it is in with others, whose hold it shares
	Upgrade                     // it is not and would wait for itself: it reads, and asks to write
	Denied                      // it is not, and does not wait any longer: see [ReadWrite.enter]
	Evicted                     // it is not: its owner lost the lock, was evicted, and has yet to unlock
)

// Departure says what an owner that unlocked leaves behind.
type Departure uint8

// The departures.
const (
	NotIn  Departure = iota // nothing happened: it did not hold the lock
	Stays                   // it holds the lock still, having locked it more often
	Leaves                  // it is out; others hold the lock still
	Last                    // it is out, and nobody holds the lock: the hold is to be released, then Free to be called
	Lost                    // nothing happened: it was evicted before, because the hold was lost
)
