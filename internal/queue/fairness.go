package queue

import (
	"strconv"
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
//	due         when the next window is, as the newest grant has told: until then a short way serves the first ticket
//	nothing     whether others wait the mark in the key tells the server
//
// Where there is no queue the process stands back, see contention.released:
//
//	keeps ──goroutines wait, and the last chance was 100 ms ago──▶ yields ──the next call pauses first──▶ keeps

// Fairness notes what the release of a hold is to do about others. Due tells that this process has had the lock for long enough.
func (p *Path) Fairness(m *protocol.Release, h *hold.Hold, due bool, now clock.Instant) {
	switch {
	case h.Leads():
		m.Leads = true
	case (due || p.side == "" && h.Watched()) && p.local.Contended(): // or its lease does not suit who waits
		m.Yields = true
	case p.Format.Brief() && m.Keep == 0 && m.Queued:
		p.brief(m, h, now)
	}
}

// longWait is from when on who waits is told that it is the next one: until then it looks by itself, see firstLook.
const longWait = firstLook

// brief has the release of a hold rely on what is known of others. A window that is due is left to a release in full.
func (p *Path) brief(m *protocol.Release, h *hold.Hold, now clock.Instant) {
	if c := p.anchor.others.Load(); c != nil && h.Queued() != 0 && now < c.gap.due {
		m.Due, m.Warns = c.gap.text, h.Queued().Until(now) >= longWait
	}
}

// gap is what this process knows of when the lock is next left to those without a ticket.
type gap struct {
	due  clock.Instant // not before this
	text string        // the same, in milliseconds of the server's clock
}

// mostDue is how long after a release the next window is due, at most; see OFTEN in internal/protocol/lua/windows.lua.
const mostDue = 100 * time.Millisecond

// gapOf is what a process knows now that is told when the next window is due by the server's clock. A ticket that was asked for
// at asked has got a place that is the time of that clock in microseconds then, or later: so what is noted is not later than it
// is. What is further away than a window can be is of a clock that went back since.
func gapOf(asked, now clock.Instant, place, due string) (g gap, known bool) {
	micros, err := strconv.ParseInt(place, 10, 64)
	ms, err2 := strconv.ParseInt(due, 10, 64)
	at := asked.Add(time.Duration(ms*1000-micros) * time.Microsecond)
	if err != nil || err2 != nil || at > now.Add(mostDue) {
		return gap{}, false
	}
	return gap{at, due}, true
}

// foresee notes when the next window is due.
func (p *Path) foresee(asked clock.Instant, place, due string) {
	if g, known := gapOf(asked, p.Clock.Now(), place, due); known || p.anchor.others.Load() != nil {
		p.contention().gap = g
	}
}

// released is for a release without a queue: goroutines of this process wait that are not to have the lock at once, or not; and
// it is known that there is a window, or that others have the lock.
func (c *contention) released(waits, others bool, now clock.Instant) {
	since := clock.Instant(c.yielded.Load())
	due := since != 0 && since.Until(now) >= mostDue
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
