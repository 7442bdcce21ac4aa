package cleanup

import (
	"slices"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// pending is an unfinished removal.
//
//	          ╭─────────── confirmed ──▶ over, unless a grant may arrive yet:
//	open ─────┼─ confirmed, it may ────▶ watched ── confirmed for Watch without a failure ──▶ over
//	  ▲       ╰─ unanswered, expired ──▶ over, unless it may
//	  ╰───────── unanswered, or merge with one whose grant may arrive ── in any state
//
//	state    | the next try comes                   | since
//	open     | after a pause that doubles           | 0
//	watched  | 10 times a second, later more rarely | since when Redis confirms
//	         | with tickets once a second, soon     |
//
// There is one per target, however many calls have failed: the removal of a value also removes what older holds of this registry
// have left there, see release.lua, so the newest value is enough. This harms no valid hold:
//
//  1. A call draws the number of its hold while it has the local half.
//  2. The call frees the local half only when the hold is over or abandoned.
//  3. So when a hold is here, all holds of the path with smaller numbers are over. A lost hold that its owner has not released
//     has the largest number so far, so this is true for it, too.
//  4. Later holds have larger numbers. None of these removals touches them, however late it arrives.
type pending struct {
	Removal
	freed    func(gone bool) // nil once called
	since    clock.Instant   // first confirmation since the last failure + time that this process stood still; 0: none
	failures int             // consecutive unanswered tries
	at       clock.Instant   // when it is due
	heap     int32           // its index in the heap; 0 while a try is under way
}

const (
	pace      = 100 * time.Millisecond // the pause between tries while Redis answers
	haste     = 100 * pace             // for this long; then tries become rarer
	ease      = 8                      // then the pause is this fraction of the time since the first confirmation
	queuePace = time.Second            // the pause where calls queue, soon: thousands may leave at once
)

// Timing implements the heap's interface.
func (p *pending) Timing() (due *clock.Instant, index *int32) { return &p.at, &p.heap }

// merge makes the removal of an older hold cover a newer one. The older hold's local half is free, since the newer hold had it,
// so at most a grant of the older hold may still arrive.
//
// A try for the older hold may be under way. Its reply does not count any more: it says nothing about the newer hold. It counts
// if both removals are for the same hold, which was lost first and then released. Then two tries may be under way, and the first
// reply ends both.
func (p *pending) merge(newer Removal, freed func(gone bool)) {
	newer.Watch = max(p.Watch, newer.Watch)
	newer.Leaving = tickets(p.Leaving, newer.Leaving)
	if newer.MayArrive {
		p.since = 0
	}
	newer.MayArrive = newer.MayArrive || p.MayArrive
	p.Removal, p.freed, p.failures = newer, freed, 0
}

// mostTickets is how many tickets one removal takes from the queue at most: the newest. A call that asks again and again during
// an outage leaves a ticket each time. An older one, whose command arrives after that many others, costs one grant: no call
// waits for it, so the registry passes it on.
const mostTickets = 32

// tickets returns the tickets of two removals, the newest at the end, each once.
func tickets(older, newer []string) (all []string) {
	for _, t := range older {
		if !slices.Contains(newer, t) {
			all = append(all, t)
		}
	}
	all = append(all, newer...)
	return all[max(0, len(all)-mostTickets):]
}

// confirmed handles a confirmed removal. It returns the pause before the next one, unless the removal is over.
func (p *pending) confirmed(now clock.Instant) (pause time.Duration, over bool) {
	p.failures = 0
	if !p.MayArrive { // mutant: one removal
		return 0, true
	}
	if late := p.at.Until(now); p.since == 0 {
		p.since = now
	} else if late > haste { // this process stood still: commands that it had not sent by then are sent only now
		p.since = p.since.Add(late)
	}
	answering := p.since.Until(now)
	pause = pace
	switch {
	case answering > haste:
		pause = max(pace, answering/ease)
	case p.Format.Many(), len(p.Leaving) > 0:
		// When a release serves a late ticket, this process gets a message. But when a late command finds the lock free and takes
		// it, no message comes: the lock is idle until the next try.
		pause = max(pace, min(answering, queuePace))
	}
	return pause, answering > p.Watch
}

// unanswered handles a removal that may not have been executed.
func (p *pending) unanswered(now clock.Instant) (pause time.Duration, over bool) {
	p.failures++
	p.since = 0
	pause = clock.Backoff(p.failures, p.Lease) // mutant: removal after a minute
	if now >= p.Expired {                      // the lease has ended anyway
		pause = clock.Pause(p.failures, clock.MostPause)
	}
	return pause, !p.MayArrive && now >= p.Expired
}
