// Package barging decides when a process leaves a lock to others. Calls with tickets, or goroutines of one process, could pass a
// lock among themselves forever. Others must get their turn, too:
//
//   - Calls in the queue have it before the next goroutine of the process.
//   - Java's calls and polling calls have no ticket. They barge: they take a lock that is free, however many others wait.
//
// With a queue the server opens barging windows, see internal/protocol/lua/windows.lua. The queue notes the newest windows, and
// the next window depends on them. From a release with tickets on:
//
//	shut ──100 ms after the last window, and somebody listens for releases──▶ open for 10 ms ──▶ shut
//	 │ ╰───100 ms, and nobody listens──▶ noted, and shut
//	 ╰─────1.7 s of it, and the last long window as long ago──▶ open for 110 ms ──▶ shut
//
// While it is shut, a release serves the first ticket. While it is open, the key is removed, and the first call without a
// ticket may take it; the first ticket looks when the window is over. Readers leave no windows: a writer without a ticket has a
// guest ticket in the queue, see internal/protocol/lua/readwrite.lua. The releasing process says what it knows:
//
//	leads       the hold was a leader's: there is no long window
//	yields      goroutines of this process wait, and have had the lock for as long as they may
//	quiet       no process is known to try without a ticket: there is a long window each 15 s
//	nothing     the server learns from the mark in the key whether others wait, and from the queue whether a window is due
//
// Calls without a ticket are noticed in three ways. Java runs a script that the server knows from then on, see Node.Quiet in
// internal/transport. Calls of this library that wait without a ticket leave a trace in the queue. In Spring's format an owner
// without a ticket is noticed when a call with a ticket looks. After the last two, long windows are due as if it were not
// quiet, until the next one has come. In Redisson's format, and for read-write locks, a holder's name does not show
// whether the holder has a ticket. The holder's script shows it, until the server's scripts are flushed while the lock is held.
// Any other client, such as a loop of SET NX by hand, gets a long window each 15 s, until it is noticed. An untended queue lasts
// two minutes. If each hold lasts longer than that, each begins a new queue, and there may never be a long window.
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
	// even on a busy machine. Often is the distance of two. These and the next two are SHORT, OFTEN, WIDE and SELDOM in
	// internal/protocol/lua/windows.lua.
	turnaround = 10 * time.Millisecond
	often      = 10 * turnaround

	// Window is the length of a long barging window: a process that tries each 100 ms surely tries in it. Seldom is the distance of
	// long ones while it is quiet and no trace was left.
	Window = often + turnaround
	seldom = 15 * time.Second

	// NotifyAfter is after how long a waiting call is told that it is the next one: until then it looks by itself. It is a second in
	// internal/protocol/lua/queue.lua, too.
	NotifyAfter = time.Second

	// EvidenceAge is by how much the evidence for quiet may be older than the hold that is released. A call that begins to try
	// during a long hold may be missed by its release; the release of the next hold notices it. It is half a second more than the
	// longest time between two questions for it, see keepAlive in internal/transport.
	EvidenceAge = 1500 * time.Millisecond

	// busyFor is for how long others are assumed to wait for a lock after they were seen waiting.
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
	chance    clock.Instant // without a queue: since when others have had no turn
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

// Tried notes that a call that does not wait found the lock taken. It reports whether such calls are repeated: another one did
// before, no longer ago than the distance of long windows without a trace. For tries that are further apart a trace changes
// little.
func (s *State) Tried(now clock.Instant) (repeated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.tried
	s.tried = now
	return last != 0 && last.Until(now) < seldom
}

// Released notes the reply to a release, and whether goroutines of this process wait that must let others go first. Where calls
// do not queue, the next one backs off then if others have the lock, or have had no chance for a while. Replies that come at
// the same time are noted in any order: the next one decides, and a wrong note costs a try.
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

// BackOff reports whether the call lets others go first, once, without a queue: this process has had the lock for the handoff
// limit, and has released it for that reason. Pause is for how long: others poll, or are woken.
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
