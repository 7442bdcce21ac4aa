package wake

import (
	"math"
	"time"
)

// doubt tells a waiter's wake-ups by tracking that were about a change of the key from those that were not. The server sends
// the latter when its tracking table is full and drops the key, and when a key of the same name changes in another
// database. A waiter that looks again has its key tracked again, which may well drop that of another waiter, and so on,
// as fast as the network is.
//
// A change shows in the moment at which the key expires: another owner, and a renewal, have a later one. PTTL tells it to
// within a round trip and a millisecond. So a look either shows that the key has changed, or leaves it open. When several
// wake-ups in a row leave it open, the waiter is in doubt: it is no longer woken, but after a pause this package looks
// itself, and wakes it only if the key is gone or has surely changed. The pause doubles up to a poll interval.
//
// Where many processes take the lock from each other within a millisecond, some wake-ups leave it open too; the moment
// moves on with each owner, and soon shows.
//
//	trusting ──patience wake-ups that leave it open──▶ in doubt
//	    ▲                                                │ │ each one that leaves it open: pauses for twice as long
//	    └── the key has surely changed, or was quiet ────┘ └─▶
//	        for a poll interval
type doubt struct {
	poll   time.Duration
	expiry span          // of the key, when a look last showed a change
	open   int           // wake-ups since then
	pause  time.Duration // before the next look
	since  time.Time     // tracked since then
}

const (
	patience      = 16
	shortestDoubt = 2 * time.Millisecond
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
	left := milliseconds(pttl) // the server counts whole ones of its clock
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
	d.since = now
	if d.open > 0 && d.expiry.maybe(seen) {
		return false
	}
	d.expiry, d.open, d.pause = seen, 0, 0
	return true
}

// woken takes in a wake-up, and returns for how long to put off the look at the key; not at all without doubt.
func (d *doubt) woken(now time.Time) time.Duration {
	if now.Sub(d.since) >= d.poll {
		d.open, d.pause = min(d.open, patience-2), 0
	}
	d.open++
	if !d.in() {
		return 0
	}
	d.pause = min(max(2*d.pause, shortestDoubt), d.poll)
	return d.pause
}

// in tells whether the waiter is in doubt.
func (d *doubt) in() bool { return d.open > patience }

// milliseconds is how long so many are. What is too long for a duration is as long as it can be.
func milliseconds(n int64) time.Duration {
	if n > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Millisecond
}
