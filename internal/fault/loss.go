package fault

import "fmt"

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

// losses are those in words.
var losses = [...]string{
	LeaseOver:      "the lease is over",
	KeyGone:        "the key is gone",
	KeyTaken:       "another owner has the key",
	RenewedTooLate: "the lease was over before its renewal was answered",
	Forced:         "the lock was removed by force",
	GrantedTwice:   "another server has granted it once more",
	Unreachable:    "nobody can reach the hold",
	GoroutineGone:  "its goroutine has ended without Unlock",
}

var lostErrors = func() (all [len(losses)]error) {
	for i, why := range losses {
		if all[i] = Lost; why != "" {
			all[i] = fmt.Errorf("%w: %s", Lost, why)
		}
	}
	return all
}()

func (l Loss) String() string { return losses[l] }

// Err is the error of a hold that was lost for that reason.
func (l Loss) Err() error { return lostErrors[l] }

// Without is the loss that the reply of a renewal shows, or of a removal, which says that the key is not the hold's.
func Without(reply int64) Loss {
	if reply < 0 {
		return KeyTaken
	}
	return KeyGone
}

// KeepsKey tells whether the key may still be there although the hold is lost.
func (l Loss) KeepsKey() bool { return l == LeaseOver || l == RenewedTooLate || l == GrantedTwice }
