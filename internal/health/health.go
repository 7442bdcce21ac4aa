// Package health tells whether what is sent in the background succeeds, for each server. It knows neither what is sent nor how.
package health

import (
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Kind is what tasks are for.
type Kind uint8

// The kinds.
const (
	Renewals Kind = iota
	Removals
	kinds
)

// Outcome is what became of tasks that were sent to one server together.
type Outcome struct {
	Kind  Kind
	Tasks int
	Sent  clock.Instant // before they were

	Failure   error         // of one of them; nil: none has failed
	Refused   bool          // the server has said so itself
	Retried   time.Duration // for the longest, until what failed has been tried again
	Succeeded bool          // one of them was answered, and did not fail
	Wrote     bool          // and has written something
}

// Change is that tasks begin to fail, or succeed again.
type Change struct {
	Failure error // nil: they succeed again
	Refused bool
	Tasks   int // how many were sent together
}

// Monitor is told what becomes of tasks, and tells when they begin to fail at any server, and when they succeed again at all.
// S names a server.
type Monitor[S comparable] struct {
	clock clock.Clock
	tell  func(Change)
	used  func(S) bool

	mu      sync.Mutex
	servers map[S]*server // at which something fails
	failing bool          // which was told
}

// New is a monitor to which all is well. Both functions are called with the mutex held: so changes are told in the order in which
// they happen, and neither may wait for anything. Used tells whether anything is still sent to a server.
func New[S comparable](c clock.Clock, tell func(Change), used func(S) bool) *Monitor[S] {
	return &Monitor[S]{clock: c, tell: tell, used: used, servers: map[S]*server{}}
}

// Note takes in what became of tasks at a server, and tells whether they succeed again there.
func (m *Monitor[S]) Note(at S, o Outcome) (recovered bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, now := m.servers[at], m.clock.Now()
	switch {
	case o.Failure != nil:
		if m.failing = m.counts(now, func(S) bool { return true }); m.servers[at] == nil {
			s = &server{}
			m.servers[at] = s
		}
		s.fail(o, now)
		m.conclude(o, true)
		return false
	case !o.Succeeded: // that nothing is left to fail, because a hold was lost, is no all-clear
		return false
	case s != nil:
		if recovered = s.succeed(o, now); s.well() {
			delete(m.servers, at)
		}
	}
	m.conclude(o, m.counts(now, m.used))
	return recovered
}

// counts forgets servers that are quiet, or do not count, and tells whether tasks fail at any other.
func (m *Monitor[S]) counts(now clock.Instant, count func(S) bool) (failing bool) {
	for at, s := range m.servers {
		if s.quiet(now) || !count(at) {
			delete(m.servers, at)
		} else {
			failing = failing || s.failing
		}
	}
	return failing
}

// conclude tells what has changed for all servers.
func (m *Monitor[S]) conclude(o Outcome, failing bool) {
	if failing != m.failing {
		m.failing = failing
		m.tell(Change{Failure: o.Failure, Refused: o.Refused, Tasks: o.Tasks})
	}
}

// Since is since when tasks of a kind fail at a server; 0: they do not.
func (m *Monitor[S]) Since(at S, k Kind) clock.Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.servers[at]; s != nil && !s.quiet(m.clock.Now()) {
		return s.of[k].since
	}
	return 0
}

// server is one at which tasks fail.
//
//	well ──fail──▶ failing ──succeed, sent after the last failure came──▶ well
//	                  └──refused──▶ refusing ──the same, and it wrote, or all that was refused was tried again──▶ well
//
// What was sent before a failure came may have been executed before what failed, so it says nothing about the time after. A
// server that takes no writes for now (MISCONF, NOREPLICAS) answers questions, and removals that find nothing to remove: that is
// no all-clear, unless what was refused has been tried again and was not refused.
//
// What fails is tried again for as long as somebody wants it. So when a server has been quiet for longer than until another try,
// what failed there is wanted no more: its hold was released, say, or lost. Of such a server nothing is known.
type server struct {
	of      [kinds]failures
	failing bool
	retried clock.Instant // by then all that was refused has been tried again; 0: nothing was
	awaited clock.Instant // by then another try is noted, or nothing is wanted
}

// quietAfter is for how long nothing is noted at a server that is quiet, at least. Many holds on many servers without an answer
// may have to wait for a worker.
const quietAfter = time.Minute

// failures are those of one kind.
type failures struct {
	since clock.Instant // the first; 0: there are none
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

// succeed tells whether tasks succeed again.
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
	s.awaited = max(s.awaited, now.Add(max(o.Retried, quietAfter)))
}

// quiet tells whether nothing that has failed is tried again.
func (s *server) quiet(now clock.Instant) bool { return now > s.awaited }

// well tells whether nothing fails any more.
func (s *server) well() bool {
	for _, f := range s.of {
		if f.since != 0 {
			return false
		}
	}
	return !s.failing
}
