package wake

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// doubt tells a waiter's wake-ups by tracking that were about a change of the key from those that were not. The server sends
// the latter when its tracking table is full and drops the key, and when a key of the same name changes in another
// database. A waiter that looks again has its key tracked again, which may well drop that of another waiter, and so on,
// as fast as the network is.
//
// A change shows in the moment at which the key expires: another owner, and a renewal, have a later one. PTTL tells it to
// within a round trip and a millisecond. A look that shows no change is followed by a pause before the next one, in which the
// waiter is not woken; then this package looks itself, and wakes it only if the key is gone or has surely changed. The pause
// doubles up to a poll interval, and ends with a change, or when nothing has come for a poll interval.
//
// Without the look, a pause between all wake-ups has a waiter miss releases: beside an owner of another library, which had
// the key for 3 ms and left it for 2 ms, a call waited for 8 to 12 ms, and with a pause of half a poll interval for 55 to 60
// ms.
type doubt struct {
	poll   time.Duration
	expiry span          // of the key, when a look last showed a change
	pause  time.Duration // before the next look
	since  time.Time     // of the last look; zero: there was none
}

const (
	shortestDoubt = 2 * time.Millisecond
	longDoubt     = 8 * time.Millisecond // a pause that is longer
)

// span is when something happens: neither before nor after. With none it never does.
type span struct {
	none           bool
	earliest, last time.Time
}

// expiry is when a key expires that had so many milliseconds left at a moment between two.
func expiry(sent, replied time.Time, pttl int64) span {
	if pttl < 0 {
		return span{none: true}
	}
	left := clock.Milliseconds(pttl) // the server counts whole ones of its clock
	return span{earliest: sent.Add(left - time.Millisecond), last: replied.Add(left)}
}

// maybe tells whether two spans may be about the same moment.
func (s span) maybe(o span) bool {
	if s.none || o.none {
		return s.none == o.none
	}
	return !s.last.Before(o.earliest) && !o.last.Before(s.earliest)
}

// looked takes in what a look showed, and tells whether the key has surely changed since an earlier one.
func (d *doubt) looked(now time.Time, seen span) (changed bool) {
	changed = d.since.IsZero() || !d.expiry.maybe(seen)
	d.since = now
	if changed {
		d.expiry, d.pause = seen, 0
	} else {
		d.pause = min(max(2*d.pause, shortestDoubt), d.poll)
	}
	return changed
}

// woken takes in a wake-up, and returns for how long to put off the look at the key; not at all without doubt.
func (d *doubt) woken(now time.Time) time.Duration {
	if now.Sub(d.since) >= d.poll {
		d.pause = 0
	}
	return d.pause
}

// in tells whether the waiter has been in doubt for a while.
func (d *doubt) in() bool { return d.pause > longDoubt }
