package view

import (
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/observe"
)

// A registry says who it is once it has held or waited for a second.
const unknownGo = "a Go process, not known"

// Who is a holder for people.
func Who(h inspect.Holder) string {
	if h.Kept {
		return "nobody: kept for a while after its release"
	}
	return who(h.Label, h.Holder, h.Since)
}

// WhoWaits describes a waiter for people. Java has no place in the queue.
func WhoWaits(w inspect.Waiter) string { return Process(w.Label) }

// Process describes a process of this library.
func Process(l observe.Label) string {
	if !l.Known() {
		return unknownGo
	}
	return l.String()
}

// who describes the holder of a value, from its label if there is one. Values of this library contain a time; Spring's is a
// UUID, Redisson's is a UUID with the number of a thread.
func who(l observe.Label, value string, since time.Time) string {
	registry, thread, numbered := strings.Cut(value, ":")
	switch {
	case l.Known() || !since.IsZero():
		return Process(l)
	case uuid.Validate(registry) != nil || len(registry) != len(uuid.Nil.String()):
		return "unknown"
	case numbered:
		return "Java (Redisson), thread " + strings.TrimSuffix(thread, ":write")
	}
	return "Java (Spring)"
}

// A process that holds a lock for a second has a record a second later; one that is slow gets more time.
const recordedWithin = 5 * time.Second

// Unrecorded reports whether a holder of this library has no record, although it has held, or waited, for long enough: it died
// before it wrote one, or so long ago that the record has expired, or it may not write.
func Unrecorded(h inspect.Holder) bool {
	return !h.Kept && !h.Label.Known() && !h.Since.IsZero() && !Young(h)
}

// Dead reports whether a holder is probably dead or frozen.
func Dead(h inspect.Holder) bool { return h.Overdue() > 0 || h.Silent > 0 || Unrecorded(h) }

// Young reports whether a call of this library asked so lately that its process may not have a record of it yet.
func Young(h inspect.Holder) bool { return UntilRecorded(h) > 0 }

// UntilRecorded is how long it takes at most until there is such a record.
func UntilRecorded(h inspect.Holder) time.Duration {
	return max(0, min(recordedWithin, recordedWithin-time.Since(h.Since)))
}

// FirstLease is how long the lease of a holder was when it was taken, if it has not been renewed since; if it has been, it is
// shorter. It is 0 for a lease without an end, and if it is not known since when the lock is held.
func FirstLease(h inspect.Holder) time.Duration {
	if h.Since.IsZero() || h.Lease < 0 {
		return 0
	}
	return (time.Since(h.Since) + h.Lease).Round(time.Second)
}
