// Package fault has the errors of this module, and says what an error of Redis means. It sends nothing.
//
// What comes in: an error of a client, a reply or a context. What goes out: the same as an error that users test for
// ([Classify]), and answers to questions: whether it passes ([Transient]), whether the server may have executed the command
// ([OutcomeUnknown]), how metrics name it ([Kind], [Reason]).
package fault

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The errors of locks. Package lockregistry exports them under its own names, and documents when callers get each.
var (
	NotOwner    = errors.New("not the owner of the lock")
	Lost        = errors.New("the lock was lost")
	Taken       = errors.New("another owner has the lock")
	Unavailable = errors.New("Redis did not answer, or cannot serve now") //nolint:staticcheck // a name begins with a capital
	Closed      = errors.New("the registry is closed")
	WrongType   = errors.New("the key holds something other than this kind of lock")
	Deadlock    = errors.New("the call would wait for itself")
	Capacity    = errors.New("all locks that the registry may keep are in use: unlock some, or raise the number with SetCapacity")
)

// Upgrade is [Deadlock] for an owner of the reader that asks for the writer.
var Upgrade = fmt.Errorf("%w: it asks for the writer while its owner holds the reader; unlock the reader first", Deadlock)

// NilContext is what is wrong with a call before anything is sent.
var NilContext = errors.New("the context is nil")

// Number is [WrongType] for a number without a lease, which no lock of any format is. Errors of scripts end in number then.
var Number = fmt.Errorf("%w: a number, as Redisson's RSemaphore and RPermitExpirableSemaphore keep there", WrongType)

const number = "the key holds a number"

// The outcomes of a command without a valid answer.
var (
	// NoAnswer: the server did not answer in time. It may still execute the command.
	NoAnswer = Whole("Redis did not answer in time")

	// NotSent: too many commands wait for answers already, or the server cannot be reached.
	NotSent = Whole("Redis has not answered earlier commands, so this one was not sent")

	// Late: an answer took so long that a failover may have happened meanwhile, and could not be confirmed since; or a grant
	// arrived when its lease was over.
	Late = Whole("the answer from Redis came too late")

	// Unproven: a removal did not find the key, and was answered after the end of the lease.
	Unproven = Whole("the lock was valid until this call, but Redis answered after the end of its lease, without the key: " +
		"it is not known whether it was lost before")
)

// InTransaction says that the server has queued a command for EXEC, instead of executing it. It may still do so.
var InTransaction = errors.New("the command was queued in a transaction: the program must send MULTI only on dedicated " +
	"connections, and end it there")

// FewReplicas matches errors of writes that too few replicas have acknowledged in time. The master has them.
var FewReplicas = errors.New("too few replicas have the lock")

// Apart says that no script can obtain the paths of one call at once: a proxy keeps them on several servers, or their slot moves.
var Apart = errors.New("the paths are on several servers")

// OutOfTime says that a call's time ended before it could ask for all of its paths, and it has seen none taken.
var OutOfTime = AsUnavailable(Whole("there was no time to ask Redis for all paths"))

// Whole returns an error whose text says by itself that Redis did not answer, or cannot serve: [AsUnavailable] adds nothing.
func Whole(text string) error { return &wholeError{text} }

type wholeError struct{ text string }

func (w *wholeError) Error() string { return w.text }

// AsUnavailable wraps an error so that it matches [Unavailable].
func AsUnavailable(err error) error { return unavailable{err} }

type unavailable struct{ error }

// Error says once what is wrong: what Redis has replied, or that there is no reply, and why.
func (u unavailable) Error() string {
	var whole *wholeError
	switch {
	case errors.As(u.error, &whole):
		return u.error.Error()
	case Answered(u.error):
		return "Redis cannot serve now: " + u.error.Error()
	default:
		return "Redis did not answer: " + u.error.Error()
	}
}

func (u unavailable) Is(target error) bool { return target == Unavailable }

func (u unavailable) Unwrap() error { return u.error }

// Lasting matches errors after which the same call does not succeed later, although Redis has not said so.
var Lasting = errors.New("it will not succeed later")

// AsLasting wraps an error so that it matches [Lasting]: no call tries again.
func AsLasting(err error) error { return lasting{err} }

type lasting struct{ error }

func (l lasting) Is(target error) bool { return target == Lasting }

func (l lasting) Unwrap() error { return l.error }

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

// Short returns a name for the text of an error: at most 200 bytes of it, and three dots if there are more. It may be a path of a
// megabyte, and errors are logged.
func Short(name string) string {
	const most = 200
	if len(name) <= most {
		return name
	}
	return strings.ToValidUTF8(name[:most], "") + "..."
}

// Join is [errors.Join] on one line: a log line, and a line of a command's output, is about one failure. Nil errors do not count,
// and a single error stays as it is.
func Join(errs ...error) error {
	var all []error
	for _, err := range errs {
		if err != nil {
			all = append(all, err)
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	default:
		return &joined{all}
	}
}

type joined struct{ errs []error }

func (j *joined) Error() string {
	texts := make([]string, len(j.errs))
	for i, err := range j.errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (j *joined) Unwrap() []error { return j.errs }
