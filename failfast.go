package lockregistry

import (
	"time"
)

// FailFast makes a waiting call return [ErrUnavailable] as soon as Redis cannot be asked, instead of trying again until its
// wait is over: at the first failure, when too few replicas have a hold, or once the server is silent. The server is silent
// when a command is not answered within half a second and two round trips, or 6.5 s while the round trip is not known, and
// within the time of [WithCommandTimeout] at most. While the call waits for its turn, the registry asks the server twice a
// second whether it answers. A call that waits for another goroutine of this process fails at most 100 ms after that goroutine
// meets the failure, or the server is silent. A call that does not wait for the lock waits just as long for its reply, at most.
// Spring and Redisson have no such option. Default: a call with [Wait] tries again.
func FailFast() LockOption {
	return LockOption{"FailFast", 0, func(q *request, _ time.Duration) { q.failFast = true }}
}
