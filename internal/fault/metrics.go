package fault

import (
	"context"
	"errors"
	"strings"

	"github.com/redis/rueidis"
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

// Reason returns a short name for why Redis could not be asked, for metrics: of an error that is [Unavailable]. There are about
// twenty.
//
//   - "no_answer": the server did not answer in time
//   - "not_sent": it had not answered earlier commands
//   - "late": it answered too late
//   - how the server's reply began, such as "readonly", "loading" or "oom"; "refused" for another reply
//   - "few_replicas": too few replicas have the lock
//   - "unreachable": the connection broke, or could not be made
func Reason(err error) string {
	switch {
	case errors.Is(err, NotSent):
		return "not_sent"
	case errors.Is(err, NoAnswer):
		return "no_answer"
	case errors.Is(err, Late), errors.Is(err, Unproven):
		return "late"
	case errors.Is(err, FewReplicas):
		return "few_replicas"
	}
	var reply *rueidis.RedisError
	if !errors.As(err, &reply) {
		return "unreachable"
	}
	text := strings.TrimPrefix(reply.Error(), "ERR ")
	for _, word := range passing {
		if strings.HasPrefix(text, word) || strings.Contains(text, "-"+word+" ") {
			return strings.ReplaceAll(strings.ToLower(strings.TrimSpace(word)), " ", "_")
		}
	}
	return "refused"
}
