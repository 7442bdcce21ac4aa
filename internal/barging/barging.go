// Package barging decides when a process leaves a lock to others. Calls with tickets, or goroutines of one process, could pass a
// lock among themselves forever. Others must get their turn, too:
//
//   - Calls in the queue get theirs before the next goroutine of the process.
//   - Java's calls and polling calls have no ticket. They barge: they take a lock that is free, however many others wait.
//
// With a queue the server opens barging windows, see internal/protocol/lua/windows.lua. The queue notes the newest windows, and
// the next window depends on them. From a release with tickets on:
//
//	shut ──100 ms after the last window, and somebody listens for releases──▶ open for 10 ms ──▶ shut
//	 │ ╰───100 ms, and nobody listens──▶ noted, and shut
//	 ╰─────1.7 s after the first such release, and after the last long window──▶ open for 110 ms ──▶ shut
//
// While the window is shut, a release serves the first ticket. While it is open, the key is removed, and the first call without
// a ticket may take it; the first ticket looks when the window is over. Readers leave no windows: a writer without a ticket has
// a guest ticket in the queue, see internal/protocol/lua/readwrite.lua. The releasing process says what it knows:
//
//	leads       the hold was a leader's: there is no long window
//	yields      goroutines of this process wait, and have had the lock for as long as they may
//	quiet       no process is known to try without a ticket: there is a long window every 15 s
//	nothing     the server learns from the mark in the key whether others wait, and from the queue whether a window is due
//
// Calls without a ticket are noticed in three ways:
//
//   - Java runs a script that the server knows from then on, see Node.Quiet in internal/transport.
//   - A call of this library that waits without a ticket leaves a trace in the queue.
//   - In Spring's format, a call with a ticket that looks sees an owner without one. In Redisson's format, and for read-write
//     locks, a holder's name does not show whether it has a ticket. There the holder's script shows it, unless the server's
//     scripts are flushed while the lock is held.
//
// After the last two, long windows are due as if it were not quiet, until the next one has come. Any other client, such as a
// loop of SET NX by hand, gets a long window every 15 s, until it is noticed. An untended queue lasts two minutes. If each hold
// lasts longer than that, each begins a new queue, and there may never be a long window.
//
// Without a queue the process backs off:
//
//	keeps ──goroutines wait, and the last chance was 100 ms ago──▶ backs off ──the next call pauses first──▶ keeps
//
// Nothing here asks a clock or a server: events go in, with their times, and what to do comes out.
package barging

import (
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

const (
	// turnaround is the length of a short barging window: a waiter in another process can wake up and take a released lock in it,
	// even on a busy machine. Often is the time between two such windows. These and the next two are SHORT, OFTEN, WIDE and SELDOM
	// in internal/protocol/lua/windows.lua.
	turnaround = 10 * time.Millisecond
	often      = 10 * turnaround

	// Window is the length of a long barging window: a process that tries every 100 ms surely tries in it. Seldom is the time
	// between two long windows while it is quiet and no trace was left.
	Window = often + turnaround
	seldom = 15 * time.Second

	// NotifyAfter is how long a call must have waited before a message tells it that it is the next one. Until then it looks by
	// itself. It is a second in internal/protocol/lua/queue.lua, too.
	NotifyAfter = time.Second

	// EvidenceAge is how much older than the released hold the evidence for quiet may be. If a call begins to try during a long
	// hold, the release of that hold may miss it; the next release notices it. EvidenceAge is half a second more than the longest
	// time between two questions for the evidence, see keepAlive in internal/transport.
	EvidenceAge = 1500 * time.Millisecond

	// busyFor is how long others are assumed to wait for a lock after they were seen waiting.
	busyFor = 500 * time.Millisecond
)

// State is what a process knows of others that want a path. The zero value knows of none. Its methods may be called at the same
// time: by the two sides of a read-write lock, and by the calls of a semaphore.
type State struct {
	mu        sync.Mutex
	contested bool          // others waited when the lock was last released
	seen      clock.Instant // when that was last so
	tried     clock.Instant // when a call that does not wait found the lock taken
	backsOff  bool          // without a queue: the next call backs off first
	chance    clock.Instant // without a queue: when others last had a turn
}

// Contested reports whether a call must queue or back off instead of trying first: others waited when the lock was last
// released, or a moment ago.
func (s *State) Contested(now clock.Instant) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.contested || s.backsOff || s.busy(now) // mutant: tries first
}

// Busy reports whether others waited for the lock a moment ago, so that its queue most likely exists.
func (s *State) Busy(now clock.Instant) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy(now)
}

func (s *State) busy(now clock.Instant) bool { return s.seen != 0 && s.seen.Until(now) < busyFor }

// Tried notes that a call that does not wait found the lock taken. It reports whether such calls are repeated: whether another
// one found the lock taken in the 15 s before. For tries that are further apart a trace changes little, since a long window is
// due every 15 s without one.
func (s *State) Tried(now clock.Instant) (repeated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.tried
	s.tried = now
	return last != 0 && last.Until(now) < seldom
}

// Released notes the reply to a release. Yields says that goroutines of this process wait, and must let others go first. Without
// a queue, the next call then backs off, if others wait or have had no chance for a while. Replies that come at the same time are
// noted in any order: a wrong note costs one try, and the next reply corrects it.
func (s *State) Released(reply int64, yields, queues bool, at clock.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	contended := reply == protocol.Contended
	if reply != protocol.NoQueue {
		s.contested = contended
	}
	if contended {
		s.seen = at
	}
	if queues {
		return
	}
	due := s.chance != 0 && s.chance.Until(at) >= often
	if yields && (due || contended) {
		s.backsOff = true
	} else if yields && s.chance != 0 {
		return
	}
	s.chance = at
}

// Unqueued notes that messages of grants do not reach this process any more, so that its calls do not queue.
func (s *State) Unqueued() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backsOff = s.backsOff || s.contested
}

// BackOff reports whether a call without a queue must let others go first, once: this process has had the lock for the handoff
// limit, and has released it for that reason. Pause is how long the call waits. It is short if the others are woken, and longer
// than the poll interval if they poll.
func (s *State) BackOff(poll time.Duration, woken bool) (pause time.Duration, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due = s.backsOff // mutant: nobody backs off
	s.backsOff = false
	if woken {
		return turnaround, due
	}
	return clock.Plus(poll, poll/10), due // long enough for a poll
}
