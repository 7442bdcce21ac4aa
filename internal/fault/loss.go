package fault

// Loss is why a hold was lost.
type Loss uint8

// Why holds are lost.
const (
	NotLost        Loss = iota // it was not
	Somehow                    // nobody knows any more
	LeaseOver                  // nobody renewed it, or Redis could not be asked
	KeyGone                    // removed, expired, or lost by a failover
	KeyTaken                   // the same, and another owner has the lock
	RenewedTooLate             // the lease was over before its renewal was answered
	Forced                     // by ForceUnlock
	GrantedTwice               // another server has granted it once more
	Unreachable                // nobody can reach the hold
	GoroutineGone              // its goroutine has ended without Unlock
)

// KeepsKey tells whether the key may still be there although the hold is lost.
func (l Loss) KeepsKey() bool { return l == LeaseOver || l == RenewedTooLate || l == GrantedTwice }
