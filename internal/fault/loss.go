package fault

import "fmt"

// Loss says why a hold was lost.
type Loss uint8

// Why holds are lost.
const (
	NotLost        Loss = iota // not lost
	Somehow                    // the reason is forgotten
	LeaseOver                  // the lease was not renewed, or Redis could not be asked
	KeyGone                    // removed, expired, or lost by a failover
	KeyTaken                   // the same, and another owner has the lock
	RenewedTooLate             // the lease was over before its renewal was answered
	Forced                     // by ForceUnlock
	GrantedTwice               // another server has granted it again
	Unreachable                // the program can no longer reach the hold
	GoroutineGone              // its goroutine ended without Unlock
)

// losses are the texts of the losses.
var losses = [...]string{
	LeaseOver:      "the lease is over",
	KeyGone:        "the key is gone",
	KeyTaken:       "another owner has the key",
	RenewedTooLate: "the lease was over before its renewal was answered",
	Forced:         "the lock was removed by force",
	GrantedTwice:   "another server granted it again",
	Unreachable:    "the program dropped the hold",
	GoroutineGone:  "its goroutine ended without Unlock",
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

// Err returns the error of a hold that was lost for this reason.
func (l Loss) Err() error { return lostErrors[l] }

// Without returns the loss that the reply to a renewal or a removal shows, when it says that the key is not the hold's.
func Without(reply int64) Loss {
	if reply < 0 {
		return KeyTaken
	}
	return KeyGone
}

// KeepsKey reports whether the key may still be in Redis although the hold is lost.
func (l Loss) KeepsKey() bool { return l == LeaseOver || l == RenewedTooLate || l == GrantedTwice }
