// Package local is the local half of a lock: the queue in which the goroutines of a process wait before one of them asks Redis,
// and a read-write mutex that is built on it. It knows neither Redis nor the locks of the API.
//
// What comes in: owners that enter and leave, and what happened in Redis, such as [Side.Granted] and [Side.Free]. What goes out:
// an [Admission] or a [Departure], which says whether to ask Redis or to release the hold. A [ReadWrite] asks its lock about the
// half in Redis through [Redis].
package local

// Admission says whether and how a goroutine got the local half of a lock.
type Admission uint8

// The admissions.
const (
	Refused   Admission = iota // not admitted: another owner has the local half
	Entered                    // admitted alone: it must obtain the hold
	Reentered                  // its owner held the lock already, and holds it once more
	HandedOff                  // admitted with the hold of the owner that unlocked
	Joined                     // admitted with others, whose hold it shares
	Upgrade                    // not admitted: it reads and asks to write, so it would wait for itself
	Denied                     // not admitted, and does not wait any longer: see [Side.Enter]
	Evicted                    // not admitted: its owner lost the lock, was evicted, and has yet to unlock
)

// Departure says what an unlock left behind.
type Departure uint8

// The departures.
const (
	NotIn  Departure = iota // nothing happened: the owner did not hold the lock
	Stays                   // the owner still holds the lock, having locked it more often
	Leaves                  // the owner has left; others still hold the lock
	Last                    // the last owner has left: the caller must release the hold, then call Free
	Lost                    // nothing happened: the owner was evicted before, because the hold was lost
)
