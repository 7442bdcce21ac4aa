package lockregistry

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Deadlock is a cycle of calls that wait for each other: each for a path that the next one holds, the last one for one of the
// first's. A reader may also wait for a writer that waits before it; that one is the next then, and need not hold the path.
type Deadlock struct {
	Waits []DeadlockWait
}

// DeadlockWait is one call in a [Deadlock].
type DeadlockWait struct {
	Path  string    // what it waits for
	Kind  string    // as Subject.Kind
	Owner string    // who waits, such as "goroutine 17"
	Holds []string  // paths that it holds, 16 at most; where a process finds the cycle by itself, those that the cycle is about
	Label Label     // of its registry
	Since time.Time // since when it waits
}

// String says who holds and waits for what, in one line, with the labels if there are several. Paths are quoted.
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
				quoted[i] = strconv.Quote(path)
			}
			b.WriteString(" holds " + strings.Join(quoted, ", ") + " and")
		}
		b.WriteString(" waits for ")
		if w.Kind != "lock" {
			b.WriteString("the " + w.Kind + " of ")
		}
		b.WriteString(strconv.Quote(w.Path))
	}
	return b.String()
}

// escaped is a text of another process in which nothing but its letters has an effect.
func escaped(text string) string {
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}

// WithoutDeadlockErrors has no call fail because it closes a cycle of goroutines that wait for each other: it waits, until its
// context or a lease ends. The cycle is logged, and told to an observer, all the same. Calls that ask for a path with the context
// of a hold on it still fail. Default: such a call returns [ErrDeadlock].
func WithoutDeadlockErrors() Option { return func(s *settings) { s.tolerant = true } }

// deadlocked is the error of a call that closes a cycle.
type deadlocked struct{ cycle Deadlock }

func (d deadlocked) Error() string { return "deadlock: " + d.cycle.String() }

func (d deadlocked) Is(target error) bool { return target == ErrDeadlock }

// report tells, in the background, of a cycle that was found for a call of this registry, the first one. It does so once: calls
// that are put into the graph at the same time may all find the cycle. The caller holds waitGraph.closing.
func (r *Registry) report(cycle []step) Deadlock {
	d := Deadlock{Waits: make([]DeadlockWait, len(cycle))}
	first := false
	for i, s := range cycle {
		first = first || !s.call.told
		s.call.told = true
		d.Waits[i] = s.call.describe()
		if s.held != nil {
			d.Waits[i].Holds = []string{s.held.path()}
		}
	}
	if first {
		r.tellDeadlock(d)
	}
	return d
}

func (r *Registry) tellDeadlock(d Deadlock) {
	r.dispatch.Log(slog.LevelWarn, "deadlock", slog.String("cycle", d.String()))
	if r.observer.Deadlocked == nil {
		return
	}
	r.dispatch.Put(func() {
		defer r.dispatch.Caught("Deadlocked")
		r.observer.Deadlocked(d)
	})
}

func (b *blockedCall) describe() DeadlockWait {
	who := fmt.Sprintf("goroutine %d", uint64(b.goroutine))
	if b.owner.Shared() {
		who += fmt.Sprintf(" as owner %d", b.owner.Number())
	}
	s := b.lock.subject()
	r := b.lock.reg
	return DeadlockWait{Path: s.Path, Kind: s.Kind, Owner: who, Label: r.inspection.label, Since: r.clock.Time(b.since)}
}
