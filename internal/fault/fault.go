// Package fault has the errors of this module, and says what an error of Redis means. It sends nothing.
//
// What comes in: an error of a client, a reply or a context. What goes out: the same as an error that users test for
// ([Classify]), and answers to questions: whether it passes ([Transient]), whether the server may have executed the command
// ([OutcomeUnknown]), how metrics name it ([Kind], [Reason]).
package fault

import "strings"

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
