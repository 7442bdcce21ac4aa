package lockregistry

import (
	"time"
)

// FailFast has a call that waits return [ErrUnavailable] as soon as Redis cannot be asked, instead of trying again until its
// wait is over: at the first failure, when too few replicas have a hold, or once the server is silent. Silent it is half a
// second and two round trips after a command was sent to it, 6.5 s as long as the round trip is not known, and after the time
// of [WithCommandTimeout] at most. While the call waits for its turn, the server is asked twice a second whether it is there.
// A call that waits for another goroutine of this process fails with what that one meets, within a tenth of a second. A call
// that does not wait for the lock waits no longer for its reply than that, either. Default: a call with [Wait] tries again.
func FailFast() LockOption {
	return LockOption{"FailFast", 0, func(q *request, _ time.Duration) { q.failFast = true }}
}
