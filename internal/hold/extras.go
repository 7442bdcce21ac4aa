package hold

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// extras has the fields that few holds need. The hold's mutex guards it.
type extras struct {
	kept       clock.Instant         // AtLeast keeps the path until then; 0: it does not
	atLeast    time.Duration         // see Terms
	found      clock.Instant         // until then the grant's message may come although the hold is live
	token      uint64                // the owner's fencing token; 0: it has none
	tokensLeft int32                 // how many tokens are left for owners to whom the hold is handed
	unlogged   bool                  // a long hold is not logged, or was logged; see Terms
	atMost     time.Duration         // see Terms
	takers     map[owner.ID]owner.ID // of a reader's hold: the goroutines that acquired it, by Hold
	orphans    map[owner.ID]bool     // owners that will never release it, see Orphan
}

// extra returns the extras for reading. The caller holds the mutex.
func (h *Hold) extra() extras {
	if e := h.extras.Load(); e != nil {
		return *e
	}
	return extras{}
}

// own returns the extras for writing. The caller holds the mutex, or is the only one that knows the hold.
func (h *Hold) own() *extras {
	e := h.extras.Load()
	if e == nil {
		e = &extras{}
		h.extras.Store(e)
	}
	return e
}

// keep sets until when AtLeast keeps the path, for an owner that has obtained the hold now.
func (h *Hold) keep(now clock.Instant) {
	switch e := h.extra(); {
	case e.atLeast > 0:
		h.own().kept = now.Add(e.atLeast)
	case e.kept != 0: // the former owner's
		h.own().kept = 0
	}
}

// Unkeep drops AtLeast: the path is free when the hold is over.
func (h *Hold) Unkeep() {
	h.mu.Lock()
	if e := h.extras.Load(); e != nil {
		e.atLeast, e.kept = 0, 0
	}
	h.mu.Unlock()
}

// Keeps returns until when AtLeast keeps the path, and until when the grant's message may come; 0 for neither.
func (h *Hold) Keeps() (kept, found clock.Instant) {
	if h.extras.Load() == nil { // both are set before the owner has the hold, if at all
		return 0, 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.extra()
	return e.kept, e.found
}

// AwaitMessage notes that a look has found a grant before its message came, which may come until then.
func (h *Hold) AwaitMessage(until clock.Instant) {
	h.mu.Lock()
	h.own().found = until
	h.mu.Unlock()
}

// GrantAgain handles the message of a grant for a live hold. If a look has found that grant before, the message is late, and
// nothing happens. Otherwise a new master has granted the hold again, with a lease that this process does not know: the hold is
// lost.
func (h *Hold) GrantAgain() {
	h.mu.Lock()
	if e := h.extras.Load(); e != nil {
		until := e.found
		e.found = 0
		if h.path.Clock.Now() < until {
			h.mu.Unlock()
			return
		}
	}
	h.unlockLose(fault.GrantedTwice)
}

// tokensDrawn is how many tokens the scripts draw at a time: so few that the counter does not overtake the clock, in
// microseconds, at up to 10 000 draws a second, the most for one path.
const tokensDrawn = 100

// Draw gives the hold its tokens, beginning with first. Only the call that obtains the hold knows it yet.
func (h *Hold) Draw(first uint64) {
	if h.path.Format.Fencing {
		e := h.own() // mutant: tokens used up
		e.token, e.tokensLeft = first, tokensDrawn-1
	}
}

// Token returns the owner's token; 0 if it has none.
func (h *Hold) Token() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.extra().token
}

// nextToken gives the next token to the next owner. It reports false when none is left. The caller holds the mutex.
func (h *Hold) nextToken() bool {
	if !h.path.Format.Fencing {
		return true
	}
	if h.extra().tokensLeft == 0 {
		return false
	}
	e := h.own()
	e.token++ // mutant: same token
	e.tokensLeft--
	return true
}
