package queue

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// Tickets, and goroutines of one process, would pass a lock on among themselves for ever. Others must have their chance: those in
// the queue before the next goroutine of a process, and those who have no ticket, Java's and calls that poll. What a process does
// about that when it releases is decided here.
//
// Where there is a queue the server decides, in internal/protocol/lua/windows.lua, by what the queue has noted of the newest
// windows. From a release with tickets on:
//
//	shut ──100 ms after the last window, and somebody listens for releases──▶ open for 10 ms ──▶ shut
//	 │ ╰───100 ms, and nobody listens──▶ noted, and shut
//	 ╰─────1.7 s of it, and the last long window as long ago──▶ open for 110 ms ──▶ shut
//
// While it is shut a release serves the first ticket. While it is open the key is removed, and free for whoever takes it; the
// first ticket looks when that is over. Readers leave no windows: for a writer without a ticket there is a guest in the queue,
// see internal/protocol/lua/readwrite.lua. The process says what it knows, see Fairness:
//
//	leads       the hold was a leader's: there is no long window
//	yields      goroutines of this process wait, and have had the lock for as long as they may
//	quiet       nobody is known of who tries without a ticket: there is a long window each 15 s
//	direct      the server need not look for windows: a short way serves the first ticket
//	nothing     whether others wait the mark in the key tells the server
//
// Those without a ticket show themselves in three ways. Java runs a script that the server knows from then on, see Shard.Quiet in
// internal/transport. Calls of this library that wait without a ticket leave a trace in the queue, and so does in Spring's format
// whoever has the key when one with a ticket looks: until the next long window has come these are due as if it were not quiet.
// What is left, a loop of SET NX by hand, is let in each 15 s, until it is seen. Where sections last for longer than a queue that
// nobody looks after, two minutes, each begins a new one, and there may never be a long window.
//
// Where there is no queue the process stands back, see contention.released:
//
//	keeps ──goroutines wait, and the last chance was 100 ms ago──▶ yields ──the next call pauses first──▶ keeps

// Fairness notes what the release of a hold is to do about others. Due tells that this process has had the lock for long enough.
func (p *Path) Fairness(m *protocol.Release, h *hold.Hold, due bool, now clock.Instant) {
	if h.Leads() {
		m.Leads = true
	} else if m.Yields || (due || p.side == "" && h.Watched()) && p.local.Contended() { // or its lease does not suit who waits
		m.Yields = true
	}
	c := p.anchor.others.Load()
	switch {
	case !m.Queued || c == nil && h.Queued() == 0: // nobody else is known to want it
	case p.direct(m, h, c, now):
		m.Known = protocol.Direct
	default:
		if p.Format.Brief() { // the sides of a read-write lock may release at a time
			p.contention().looked = now
		}
		if p.Shard().Quiet(h.Since().Add(-evidenceAge)) {
			m.Known = protocol.Quiet
		}
	}
}

const (
	// evidenceAge is how much older than a hold the evidence may be by which its release says that it is quiet. One who begins
	// to try while a lock is held for long may be missed by its release, and is seen by that of the next hold.
	evidenceAge = time.Second

	// lookEach is how often a process that releases all the time has the server look for windows. It is how often short windows are
	// due; see OFTEN in internal/protocol/lua/windows.lua.
	lookEach = 100 * time.Millisecond

	// retryEach is how far apart the tries of one may be who tries again and again. It is the distance of windows where nobody has
	// left a trace: for those that are further apart a trace changes little.
	retryEach = 15 * time.Second

	// longWait is from when on who waits is told that it is the next one: until then it looks by itself, see firstLook.
	longWait = firstLook
)

// direct tells whether a release needs no more than the first ticket. No window is open: the hold comes from the queue, which
// makes nobody the owner in one, and none opens before the owner releases. One that is due comes a little later. And nobody
// behind the first ticket has waited for so long that it is to be told that it is the next one: all have joined after this call.
func (p *Path) direct(m *protocol.Release, h *hold.Hold, c *contention, now clock.Instant) bool {
	return p.Format.Brief() && !m.Leads && !m.Yields && m.Keep == 0 && c != nil && c.looked != 0 && now < c.looked.Add(lookEach) &&
		h.Queued() != 0 && h.Queued().Until(now) < longWait
}

// tries is for a call that does not wait, and has found the lock taken. It tells whether another one has so not long
// ago: somebody tries again and again.
func (p *Path) tries() bool {
	now := p.Clock.Now()
	last := clock.Instant(p.contention().tried.Swap(int64(now)))
	return last != 0 && last.Until(now) < retryEach
}

// released is for a release without a queue: goroutines of this process wait that are not to have the lock at once, or not; and
// it is known that there is a window, or that others have the lock.
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

// standsBack tells, once, whether a call without a queue is to leave others their chance.
func (p *Path) standsBack() bool {
	c := p.anchor.others.Load()
	return c != nil && c.yields.Swap(false) // mutant: nobody stands back
}

// standBack gives others their chance, where there is no queue: this process has had the lock for as long as its goroutines
// may hand it to each other, and has released it for that reason.
func (a *acquisition) standBack() error {
	if !a.path.standsBack() {
		return nil
	}
	_, err := a.pause(min(a.path.all.StandBack, max(0, a.path.Clock.Now().Until(a.deadline))), nil, nil)
	return err
}
