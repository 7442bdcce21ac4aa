package fault

import (
	"errors"
	"time"
)

// Busy means that another owner has the lock, and the call may not wait, or no longer. The root package turns it into false
// or ErrTaken.
var Busy = errors.New("busy")

// NotFreeError is [Taken], with how long the call waited, and who has the lock, if known.
type NotFreeError struct {
	Wait time.Duration
	Who  string
}

// Is reports whether target is Taken.
func (n NotFreeError) Is(target error) bool { return target == Taken }

func (n NotFreeError) Error() string {
	text := "the lock was not free"
	if n.Wait > 0 {
		text += " within " + n.Wait.String()
	}
	if n.Who != "" {
		text += ": " + n.Who
	}
	return text
}

// HeldError is the end of a call's context while another owner had the lock: who that was, if known.
type HeldError struct {
	End error
	Who string
}

func (h HeldError) Error() string {
	if h.Who == "" {
		return h.End.Error()
	}
	return h.End.Error() + ": " + h.Who
}

func (h HeldError) Unwrap() error { return h.End }

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
