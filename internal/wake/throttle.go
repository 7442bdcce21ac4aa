package wake

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// throttle finds out whether wake-ups by tracking are true, because the key has changed, or false. The server sends false ones
// when it drops the key from a full tracking table, and when a key of the same name changes in another database. A waiter that
// looks again has its key tracked again, which may drop another waiter's key, and so on, as fast as the network allows.
//
// A change shows in the key's expiry: a new owner or a renewal makes it later. PTTL gives it to within a round trip and a
// millisecond. After a look without a change, the next wake-up starts a pause, in which the waiter is not woken. After the
// pause this package looks itself, and wakes the waiter only if the key is gone or has surely changed. The pause doubles up to
// a poll interval. It ends with a change, or after a poll interval without wake-ups.
//
// A pause without the look would miss releases. An owner of another library had the key for 3 ms, and left it free for 2 ms,
// again and again. With the look a call waited for 8 to 12 ms, with a pause of half a poll interval for 55 to 60 ms.
type throttle struct {
	poll   time.Duration
	expiry span          // the key's expiry when a look last showed a change
	pause  time.Duration // before the next look
	since  time.Time     // the last look; zero: none
}

const (
	shortestPause = 2 * time.Millisecond
	longPause     = 4 * shortestPause // with longer pauses it is on
)

// span bounds the time at which something happens. If none is set, it never does.
type span struct {
	none           bool
	earliest, last time.Time
}

// maybe reports whether two spans may be about the same moment.
func (s span) maybe(o span) bool {
	if s.none || o.none {
		return s.none == o.none
	}
	return !s.last.Before(o.earliest) && !o.last.Before(s.earliest)
}

// looked notes the result of a look: the key had pttl milliseconds left at some moment between sent and replied. It reports
// whether the key has surely changed since an earlier look.
func (t *throttle) looked(sent, replied time.Time, pttl int64) (changed bool) {
	expiry := span{none: pttl < 0}
	if !expiry.none {
		left := clock.Milliseconds(pttl) // the server counts whole ones by its clock
		expiry.earliest, expiry.last = sent.Add(left-time.Millisecond), replied.Add(left)
	}
	changed = t.since.IsZero() || !t.expiry.maybe(expiry)
	t.since = replied
	if changed {
		t.expiry, t.pause = expiry, 0
	} else {
		t.pause = min(max(2*t.pause, shortestPause), t.poll)
	}
	return changed
}

// woken notes a wake-up, and returns for how long to delay the look at the key; 0: not at all.
func (t *throttle) woken(now time.Time) time.Duration {
	if now.Sub(t.since) >= t.poll {
		t.pause = 0
	}
	return t.pause
}

// gone notes that the key is not there, or that nothing is known about it.
func (t *throttle) gone() {
	*t = throttle{poll: t.poll}
}

// on reports whether wake-ups have been false for a while.
func (t *throttle) on() bool { return t.pause > longPause }
