package cleanup

import (
	"cmp"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// pending is a removal that is not over.
//
//	          ╭─────────── confirmed ──▶ over, unless a grant may arrive yet:
//	open ─────┼─ confirmed, it may ────▶ watched ── confirmed for Watch without a failure ──▶ over
//	  ▲       ╰─ unanswered, expired ──▶ over, unless it may
//	  ╰───────── unanswered, or merge with one whose grant may arrive ── in any state
//
//	state    | the next try comes                   | since
//	open     | after a pause that doubles           | 0
//	watched  | 10 times a second, later more rarely | since when Redis confirms
//	         | for permits once a second, soon      |
//
// There is one for a place, however many calls have failed: the removal of a value also removes what an older hold of this
// registry has left there, see release.lua, so the newest value is enough. This harms nobody. A call draws the number of
// its hold while it has the local half, and frees that only when the hold is over or abandoned. So when a hold is here, all holds
// of the path with smaller numbers are over, and those to come have larger ones, which none of these removals touches, however
// late it arrives. A hold that is lost, and whose owner has not released it, has the largest number that was drawn so far: so
// that is true of it, too.
type pending struct {
	Removal
	freed    func(gone bool) // nil once called
	since    clock.Instant   // when Redis confirmed first, without a failure after it; 0: it has not
	failures int             // tries in a row that were not answered
	at       clock.Instant   // when it is due
	heap     int32           // its place among those that are due; 0 while a try is under way
}

const (
	pace  = 100 * time.Millisecond // between two tries, while Redis answers
	haste = 10 * time.Second       // for so long; then ever more rarely
	ease  = 8                      // afterwards the pause is this fraction of the time for which Redis has confirmed
	spare = time.Second            // between two tries of one of many, soon
)

// Timing is for the heap.
func (p *pending) Timing() (due *clock.Instant, place *int32) { return &p.at, &p.heap }

// merge makes the removal of an older hold that of a newer one too. The older one's local half is free, since the newer one
// had it, so what remains of the older one is a grant that may arrive. The answer to a try for the older one that is under
// way counts no more: it says nothing about the newer one. It does if both are of the same hold, which was lost first; then
// another try may be under way, too, and the first that is answered ends both.
func (p *pending) merge(newer Removal, freed func(gone bool)) {
	newer.Watch = max(p.Watch, newer.Watch)
	switch {
	case p.Leaving == (protocol.Leaving{}) || p.Leaving == newer.Leaving:
	case newer.Format.Many(): // both are of one value, and other tickets of its registry are of calls that wait
		newer.Leaving.Ticket = cmp.Or(newer.Leaving.Ticket, p.Leaving.Ticket)
	default:
		newer.Leaving = protocol.Leaving{All: true}
	}
	if newer.MayArrive {
		p.since = 0
	}
	newer.MayArrive = newer.MayArrive || p.MayArrive
	p.Removal, p.freed, p.failures = newer, freed, 0
}

// confirmed is that Redis has executed the removal. It returns when the next one follows, unless this is over.
func (p *pending) confirmed(now clock.Instant) (pause time.Duration, over bool) {
	p.failures = 0
	if !p.MayArrive { // mutant: one removal
		return 0, true
	}
	if p.since == 0 {
		p.since = now
	}
	answering := p.since.Until(now)
	pause = pace
	switch {
	case answering > haste:
		pause = max(pace, answering/ease)
	case p.Format.Many(): // a rush of calls that give up leaves a removal for each
		pause = max(pace, min(answering, spare))
	}
	return pause, answering > p.Watch
}

// unanswered is that it may not have been executed.
func (p *pending) unanswered(now clock.Instant) (pause time.Duration, over bool) {
	p.failures++
	p.since = 0
	pause = clock.Backoff(p.failures, p.Lease) // mutant: removal after a minute
	if now >= p.Expired {                      // no lease is at stake any more
		pause = clock.Pause(p.failures, clock.MostPause)
	}
	return pause, !p.MayArrive && now >= p.Expired
}
