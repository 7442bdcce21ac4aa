package queue

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// Tickets, and goroutines of one process, could pass a lock among themselves forever. Others must have their turn: calls in the
// queue before the next goroutine of the process, and calls without a ticket, which are Java's and polling calls. This file
// decides what a release does about that.
//
// With a queue the server decides, in internal/protocol/lua/windows.lua, by the newest windows, which the queue has noted. From
// a release with tickets on:
//
//	shut ──100 ms after the last window, and somebody listens for releases──▶ open for 10 ms ──▶ shut
//	 │ ╰───100 ms, and nobody listens──▶ noted, and shut
//	 ╰─────1.7 s of it, and the last long window as long ago──▶ open for 110 ms ──▶ shut
//
// While it is shut, a release serves the first ticket. While it is open, the key is removed, and the first call without a
// ticket may take it; the first ticket looks when the window is over. Readers leave no windows: a writer without a ticket has a
// guest ticket in the queue, see internal/protocol/lua/readwrite.lua. The releasing process says what it knows, see fairness:
//
//	leads       the hold was a leader's: there is no long window
//	yields      goroutines of this process wait, and have had the lock for as long as they may
//	quiet       no process is known to try without a ticket: there is a long window each 15 s
//	direct      the server need not look for windows: a short way serves the first ticket
//	nothing     whether others wait the mark in the key tells the server
//
// Calls without a ticket are noticed in three ways. Java runs a script that the server knows from then on, see Shard.Quiet in
// internal/transport. Calls of this library that wait without a ticket leave a trace in the queue. In Spring's format an owner
// without a ticket is noticed when a call with a ticket looks. After the last two, long windows are due as if it were not
// quiet, until the next one has come. In Redisson's format, and for read-write locks, a holder's name does not show whether it
// has a ticket: its script does, until somebody flushes the scripts while it holds the lock. Anything else, such as a loop of
// SET NX by hand, gets a long window each 15 s, until it is noticed. If sections last for longer than an untended queue, two
// minutes, each of them begins a new queue, and there may never be a long window.
//
// Without a queue the process stands back, see contention.released:
//
//	keeps ──goroutines wait, and the last chance was 100 ms ago──▶ yields ──the next call pauses first──▶ keeps

// fairness sets what the release of a hold does about others. Due: this process has had the lock for long enough.
func (p *Path) fairness(m *protocol.Release, h *hold.Hold, due bool, now clock.Instant) {
	if h.Leads() {
		m.Leads = true
	} else if (due || p.side == "" && h.Watched()) && p.lock.Contended() { // or its lease does not suit the next waiter
		m.Yields = true
	}
	c := p.anchor.others.Load()
	switch {
	case !m.Queued || c == nil && h.Queued() == 0: // no other process is known to want it
	case p.direct(m, h, c, now):
		m.Known = protocol.Direct
	default:
		if p.Format.HasShortWay() { // looked has no mutex: not for read-write locks, whose two sides may release at the same time
			p.contention().looked = now
		}
		if p.Shard().Quiet(h.Since().Add(-evidenceAge)) {
			m.Known = protocol.Quiet
		}
	}
}

const (
	// evidenceAge is by how much the evidence for quiet may be older than the hold that is released. A call that begins to try
	// during a long hold may be missed by its release; the release of the next hold notices it. It is half a second more than the
	// longest time between two questions for it, see keepAlive in internal/transport.
	evidenceAge = 1500 * time.Millisecond

	// lookEach is how often a process that releases all the time asks the server to look for windows. It is the distance of short
	// windows, see OFTEN in internal/protocol/lua/windows.lua.
	lookEach = 100 * time.Millisecond

	// retryEach is the longest distance of tries that count as repeated. It is the distance of long windows without a trace: for
	// tries that are further apart a trace changes little.
	retryEach = 15 * time.Second

	// longWait is after how long a waiting call is told that it is the next one: until then it looks by itself, see firstLook.
	longWait = firstLook
)

// direct reports whether a release needs to look only at the first ticket. No window is open: the hold comes from the queue,
// which grants nothing during a window, and none opens before this release. A window that is due comes a little later. And no
// call behind the first ticket has waited for so long that it must be told that it is the next one: all came after this hold's
// call.
func (p *Path) direct(m *protocol.Release, h *hold.Hold, c *contention, now clock.Instant) bool {
	return p.Format.HasShortWay() && !m.Leads && !m.Yields && m.Keep == 0 &&
		c != nil && c.looked != 0 && now < c.looked.Add(lookEach) && h.Queued() != 0 && h.Queued().Until(now) < longWait
}

// tries notes that a call that does not wait found the lock taken. It reports whether another such call did within retryEach:
// then tries are repeated.
func (p *Path) tries() bool {
	now := p.Clock.Now()
	last := clock.Instant(p.contention().tried.Swap(int64(now)))
	return last != 0 && last.Until(now) < retryEach
}

// released notes a release without a queue. Waits: goroutines of this process wait, and must let others go first. Others: there
// is a window, or others have the lock.
func (c *contention) released(waits, others bool, now clock.Instant) {
	since := clock.Instant(c.yielded.Load())
	due := since != 0 && since.Until(now) >= lookEach
	if waits && (due || others) {
		c.yields.Store(true)
	} else if waits && since != 0 {
		return
	}
	c.yielded.Store(int64(now))
}

// standBack lets others go first, once, without a queue: this process has had the lock for the handoff limit, and has released
// it for that reason.
func (a *acquisition) standBack() state {
	c := a.path.anchor.others.Load()
	if c == nil || !c.yields.Swap(false) { // mutant: nobody stands back
		return statePoll
	}
	if _, err := a.pause(min(a.path.all.StandBack, a.left()), nil, nil); err != nil {
		return a.ends(err)
	}
	return statePoll
}
