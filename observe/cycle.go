package observe

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Deadlock is a cycle of calls that wait for each other: each waits for a path that the next one holds, and the last one for a
// path that the first one holds. A reader may also wait for a writer that waits ahead of it. Then that writer is the next call,
// and need not hold the path.
type Deadlock struct {
	Waits []DeadlockWait
}

// DeadlockWait is one call in a [Deadlock].
type DeadlockWait struct {
	Path  string    // what it waits for
	Kind  Kind      // KindLock, KindReader or KindWriter
	Owner string    // the caller, such as "goroutine 17"
	Holds []string  // paths that the caller holds, 16 at most; only the cycle's when one process found it
	Label Label     // of its registry
	Since time.Time // when it began to wait
}

// String describes the cycle in one line: which owner holds and waits for which path, with the labels if several processes take
// part. Paths are quoted.
func (d Deadlock) String() string {
	several := slices.ContainsFunc(d.Waits, func(w DeadlockWait) bool { return w.Label != d.Waits[0].Label })
	var b strings.Builder
	for i, w := range d.Waits {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(escaped(w.Owner))
		if several {
			b.WriteString(" (" + escaped(w.Label.String()) + ")")
		}
		if len(w.Holds) > 0 {
			quoted := make([]string, len(w.Holds))
			for i, path := range w.Holds {
				quoted[i] = quote(path)
			}
			b.WriteString(" holds " + strings.Join(quoted, ", ") + " and")
		}
		b.WriteString(" waits for ")
		if w.Kind != KindLock {
			b.WriteString("the " + string(w.Kind) + " of ")
		}
		b.WriteString(quote(w.Path))
	}
	return b.String()
}

// quote returns a path for a line of text: at most 200 bytes of it.
func quote(path string) string {
	const most = 200
	if len(path) > most {
		return strconv.Quote(strings.ToValidUTF8(path[:most], "")) + "..."
	}
	return strconv.Quote(path)
}

// escaped escapes control characters and quotes in a text from another process.
func escaped(text string) string {
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}
