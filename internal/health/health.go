// Package health tracks, for each server, whether background tasks succeed. It knows neither what is sent nor how.
//
// What comes in: the [Outcome] of tasks that were sent together. What goes out: the outcome with which tasks begin to fail or to
// succeed again, and since when they fail. [NewShortage] tells the same of writes that too few replicas acknowledge.
package health

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
)

// Kind is the kind of a task.
type Kind uint8

// The kinds.
const (
	Renewals Kind = iota
	Removals
	kinds
)

// Outcome is the outcome of tasks that were sent to one server together.
type Outcome struct {
	Kind  Kind
	Tasks int
	Sent  clock.Instant // before they were sent

	Failure   error         // the error of one of the tasks; nil: none has failed
	Refused   bool          // the server itself refused that task
	Retried   time.Duration // the longest time until a failed task has been tried again
	Succeeded bool          // one of the tasks succeeded
	Wrote     bool          // one of those that succeeded has written something
}

// Log logs that tasks begin to fail with the outcome, or succeed again.
func (o Outcome) Log(log func(level slog.Level, message string, about ...slog.Attr)) {
	switch {
	case o.Failure == nil:
		log(slog.LevelInfo, "Redis accepts renewals and removals again")
	case o.Refused:
		log(slog.LevelWarn, "Redis refuses renewals or removals; retrying",
			slog.Any("error", o.Failure), slog.Int("commands", o.Tasks))
	default:
		log(slog.LevelWarn, "Redis does not answer renewals or removals; retrying",
			slog.Any("error", o.Failure), slog.Int("commands", o.Tasks))
	}
}

// Monitor collects the outcomes of tasks, and reports when tasks begin to fail at any server, and when they succeed again at
// all servers. S identifies a server.
type Monitor[S comparable] struct {
	clock clock.Clock
	tell  func(Outcome)
	used  func(S) bool

	mu      sync.Mutex
	servers map[S]*server // servers at which tasks fail
	failing bool          // failures were reported
}

// New makes a monitor. It calls both functions with its mutex held, so changes are reported in order, and the functions must
// not block. Tell gets the outcome with which tasks begin to fail, or succeed again. Used reports whether tasks are still sent
// to a server.
func New[S comparable](c clock.Clock, tell func(Outcome), used func(S) bool) *Monitor[S] {
	return &Monitor[S]{clock: c, tell: tell, used: used, servers: map[S]*server{}}
}

// Note adds an outcome, and reports whether to try the failed tasks again at once. That is so in two cases: tasks succeed again
// at this server, or another server has taken over from one at which they failed, and to which nothing is sent any more.
func (m *Monitor[S]) Note(at S, o Outcome) (recovered bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, now := m.servers[at], m.clock.Now()
	switch {
	case o.Failure != nil:
		if m.failing, _ = m.counts(now, func(S) bool { return true }); m.servers[at] == nil {
			s = &server{}
			m.servers[at] = s
		}
		s.fail(o, now)
		m.conclude(o, true)
		return false
	case !o.Succeeded: // there was no task left, for instance since a hold was lost: that is no recovery
		return false
	case s != nil:
		if recovered = s.succeed(o, now); s.well() {
			delete(m.servers, at)
		}
	}
	failing, left := m.counts(now, m.used)
	m.conclude(o, failing)
	return recovered || left
}

// counts forgets the servers that are dropped, and those that do not count. It reports whether tasks fail at any of the others.
// Left: tasks failed at a server that does not count.
func (m *Monitor[S]) counts(now clock.Instant, count func(S) bool) (failing, left bool) {
	for at, s := range m.servers {
		switch {
		case s.dropped(now):
			delete(m.servers, at)
		case !count(at):
			delete(m.servers, at)
			left = left || s.failing
		default:
			failing = failing || s.failing
		}
	}
	return failing, left
}

// conclude reports a change that concerns all servers together.
func (m *Monitor[S]) conclude(o Outcome, failing bool) {
	if failing != m.failing {
		m.failing = failing
		m.tell(o)
	}
}

// Since returns when tasks of a kind began to fail at a server; 0: they do not.
func (m *Monitor[S]) Since(at S, k Kind) clock.Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.servers[at]; s != nil && !s.dropped(m.clock.Now()) {
		return s.of[k].since
	}
	return 0
}

// server is a server at which tasks fail.
//
//	well ──fail──▶ failing ──succeed, sent after the last failure came──▶ well
//	                  └──refused──▶ refusing ──the same, and it wrote, or all that was refused was tried again──▶ well
//
// If a task was sent before a failure came, it may have been executed before the failed task, so its success says nothing about
// the time after. A server that refuses writes for now (MISCONF, NOREPLICAS) still answers questions, and removals that find
// nothing to remove. Such a success is no recovery, unless the refused tasks have been tried again and were not refused.
//
// Failed tasks are tried again as long as they are wanted. So if a server has no outcomes for longer than the next try takes,
// its failed tasks are no longer wanted: for instance the hold was released or lost. It is not known whether tasks would fail
// at such a server, so it is dropped.
type server struct {
	of      [kinds]failures
	failing bool
	retried clock.Instant // by then all refused tasks have been tried again; 0: none was refused
	awaited clock.Instant // without an outcome until then, no task is wanted any more
}

// dropAfter is the shortest time without outcomes after which a server is dropped. It is long because the tasks of many servers
// that do not answer may have to wait for a worker.
const dropAfter = belief.Again

// failures are the failures of one kind of task.
type failures struct {
	since clock.Instant // of the first failure; 0: there is none
	last  clock.Instant
}

func (s *server) fail(o Outcome, now clock.Instant) {
	f := &s.of[o.Kind]
	if f.last = now; f.since == 0 {
		f.since = now
	}
	s.failing = true
	s.note(o, now)
	if o.Refused {
		s.retried = max(s.retried, now.Add(o.Retried))
	}
}

// succeed notes a success, and reports whether tasks succeed again.
func (s *server) succeed(o Outcome, now clock.Instant) (recovered bool) {
	s.note(o, now)
	if f := &s.of[o.Kind]; o.Sent > f.last {
		f.since = 0
	}
	for _, f := range s.of {
		if o.Sent <= f.last {
			return false
		}
	}
	if !s.failing || !o.Wrote && o.Sent < s.retried {
		return false
	}
	s.failing, s.retried = false, 0
	return true
}

func (s *server) note(o Outcome, now clock.Instant) {
	s.awaited = max(s.awaited, now.Add(max(o.Retried, dropAfter)))
}

// dropped reports whether the failed tasks are no longer wanted.
func (s *server) dropped(now clock.Instant) bool { return now > s.awaited }

// well reports whether no kind of task fails.
func (s *server) well() bool {
	for _, f := range s.of {
		if f.since != 0 {
			return false
		}
	}
	return !s.failing
}

// NewShortage returns a function to call after each write of a registry that waited for replicas, with the reason why the write
// does not count; nil: it counts. A single failure is only the error of its call. If all writes fail for seconds, the function
// logs one line, and another when a write succeeds again.
func NewShortage(c clock.Clock, log func(level slog.Level, message string, about ...slog.Attr)) (told func(why error)) {
	var since atomic.Int64 // an instant: since when too few have acknowledged; 0: they are not too few
	var logged atomic.Bool
	return func(why error) {
		now := c.Now()
		if why == nil {
			since.Store(0)
			if logged.Swap(false) {
				log(slog.LevelInfo, "replicas acknowledge locks again")
			}
			return
		}
		// Now may be from before the success of a concurrent call. At worst the line comes seconds early or late.
		if since.CompareAndSwap(0, int64(now)) {
			return
		}
		if began := clock.Instant(since.Load()); began != 0 && began.Until(now) >= 3*belief.Connect && !logged.Swap(true) {
			log(slog.LevelWarn, "too few replicas acknowledge locks: none is granted", slog.Any("error", why))
		}
	}
}
