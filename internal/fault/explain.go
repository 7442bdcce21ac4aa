package fault

import "errors"

// Busy means that another owner has the lock, and the call may not wait, or no longer. The root package turns it into false
// or ErrTaken.
var Busy = errors.New("busy")

// OverdueError means that the call may not wait, or no longer, and it is not known whether the lock is free.
type OverdueError struct{ Failure error }

func (o OverdueError) Error() string { return o.Failure.Error() }

func (o OverdueError) Unwrap() error { return o.Failure }

// Explain adds, to the reason for which a call gives up, why Redis could not be asked, if it could not.
func Explain(why, failure error) error {
	switch {
	case failure == nil || errors.Is(why, Closed):
		return why
	case why == Busy: //nolint:errorlint // never wrapped
		return OverdueError{failure}
	default:
		return Join(why, failure)
	}
}
