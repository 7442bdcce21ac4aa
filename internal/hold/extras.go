package hold

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// extras is what few holds have. The hold's mutex guards it.
type extras struct {
	kept     clock.Instant         // the path is to stay taken until then; 0 when it is not
	atLeast  time.Duration         // see Terms
	found    clock.Instant         // until when the message of the grant may come although the hold is live
	token    uint64                // the owner's fencing token; 0: it has none
	spare    int32                 // how many more of them there are, for the owners to which the hold is handed
	quiet    bool                  // it is not logged that it is had for long, or was; see Terms
	atMost   time.Duration         // see Terms
	takers   map[owner.ID]owner.ID // of a reader's: the goroutines that have acquired it, by Hold
	stranded map[owner.ID]bool     // its owners that will never release it, see Strand
}

// extra is what a hold has of that, to be read. The caller holds the mutex.
func (h *Hold) extra() extras {
	if e := h.extras.Load(); e != nil {
		return *e
	}
	return extras{}
}

// own is the same, to be changed. The caller holds the mutex, or nobody else knows the hold yet.
func (h *Hold) own() *extras {
	e := h.extras.Load()
	if e == nil {
		e = &extras{}
		h.extras.Store(e)
	}
	return e
}

// keep notes until when the path is to stay taken for an owner that has obtained it now.
func (h *Hold) keep(now clock.Instant) {
	switch e := h.extra(); {
	case e.atLeast > 0:
		h.own().kept = now.Add(e.atLeast)
	case e.kept != 0: // by the owner before
		h.own().kept = 0
	}
}

// Unkeep has the path free when the hold is over.
func (h *Hold) Unkeep() {
	h.mu.Lock()
	if e := h.extras.Load(); e != nil {
		e.atLeast, e.kept = 0, 0
	}
	h.mu.Unlock()
}

// Keeps is until when the path is to stay taken, and until when the message of its grant may come; 0: it is not, or not any more.
func (h *Hold) Keeps() (kept, found clock.Instant) {
	if h.extras.Load() == nil { // what concerns this was noted before the owner had the hold, if at all
		return 0, 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.extra()
	return e.kept, e.found
}

// AwaitMessage notes until when the message of the hold's grant may come, which a look has found before.
func (h *Hold) AwaitMessage(until clock.Instant) {
	h.mu.Lock()
	h.own().found = until
	h.mu.Unlock()
}

// Regranted is for a grant that arrives for a live hold. Unless it is the one that a look has found before, another server,
// which is the master now, has granted the hold once more, with a lease that this process does not know.
func (h *Hold) Regranted() {
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

// tokensDrawn is how many tokens the scripts draw at a time. So few that the counter does not get ahead of the clock while no
// more than 10 000 draws a second are made, which is what one path can have.
const tokensDrawn = 100

// Draw gives the hold tokens, from this one on. Nobody but the call that obtains it knows the hold yet.
func (h *Hold) Draw(first uint64) {
	if h.path.Fencing {
		e := h.own() // mutant: tokens used up
		e.token, e.spare = first, tokensDrawn-1
	}
}

// Token is the token of the hold's owner; 0 when it has none.
func (h *Hold) Token() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.extra().token
}

// nextToken makes the next token that of the owner to be. It reports false when there is none left. The caller holds the mutex.
func (h *Hold) nextToken() bool {
	if !h.path.Fencing {
		return true
	}
	if h.extra().spare == 0 {
		return false
	}
	e := h.own()
	e.token++ // mutant: same token
	e.spare--
	return true
}
