package fault

import (
	"context"
	"errors"
)

// kinds are the kinds of errors; the first one that matches counts.
var kinds = []struct {
	err  error
	name string
}{
	{Unavailable, "unavailable"},
	{Taken, "taken"},
	{Lost, "lost"},
	{Closed, "closed"},
	{Capacity, "capacity"},
	{Deadlock, "deadlock"},
	{WrongType, "wrong_type"},
	{context.DeadlineExceeded, "deadline_exceeded"},
	{context.Canceled, "canceled"},
}

// Kind returns a short name for the kind of an error, for metrics; "_OTHER", as in OpenTelemetry, for one without; empty for nil.
func Kind(err error) string {
	if err == nil {
		return ""
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	return "_OTHER"
}
