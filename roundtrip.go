package lockregistry

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// roundTrips measures how far away a master is. What counts is the least of the last three round trips that followed each
// other: a command was sent after the answer to the one before had come. So a master that is silent for a while, with any
// number of commands under way, spoils one sample of three, and one fast answer says at once that the master is near. A smoothed
// estimate would take a freeze for a long way, for as long as its memory is. Where the way becomes longer it is known after three
// round trips.
//
// Nothing is learned of a way that is longer than farthest: it counts as that, and is not supported.
type roundTrips struct {
	// last has the last three, the newest in the lowest bits: in microseconds plus one, so that zero stands for none.
	last atomic.Uint64
	came atomic.Int64 // an instant: when the answer to the newest came
}

const (
	farthest   = time.Second
	tripBits   = 21
	tripMask   = 1<<tripBits - 1
	tripUnit   = time.Microsecond
	sampleRest = calmFor / 8 // once three are known, an answer so soon after a sample is none: a write for each would cost more
)

// sample takes in a round trip. Of two that come at the same time one may be lost.
func (r *roundTrips) sample(sent, came clock.Instant) {
	newest := clock.Instant(r.came.Load())
	if sent < newest {
		return
	}
	last := r.last.Load()
	if last>>(2*tripBits) != 0 && newest.Until(came) < sampleRest {
		return
	}
	if !r.came.CompareAndSwap(int64(newest), int64(came)) {
		return
	}
	took := min(max(sent.Until(came), 0), farthest)
	r.last.Store(last<<tripBits&(1<<(3*tripBits)-1) | uint64(took/tripUnit+1))
}

// trip is what is known of the way to a master at some moment.
type trip struct {
	base  time.Duration // the least of the samples there are; 0: there are none
	known bool          // there are three
}

func (r *roundTrips) trip() trip {
	last := r.last.Load()
	a, b, c := last&tripMask, last>>tripBits&tripMask, last>>(2*tripBits)
	switch {
	case c != 0:
		return trip{time.Duration(min(a, b, c)-1) * tripUnit, true}
	case b != 0:
		return trip{time.Duration(min(a, b)-1) * tripUnit, false}
	case a != 0:
		return trip{time.Duration(a-1) * tripUnit, false}
	default:
		return trip{}
	}
}

// sure is the base that what is late is judged by: as long as it is not known, the longest that there may be.
func (t trip) sure() time.Duration {
	if t.known {
		return t.base
	}
	return farthest
}

// silence is for how long a master may leave a command without an answer until it is suspect: that it was frozen, or deposed.
// What comes later is late.
func (t trip) silence() time.Duration { return lateAnswer + 2*t.sure() }

// late is when an answer about a lease is late: early enough to ask once more. Zero stands for no lease.
func (t trip) late(lease time.Duration) time.Duration {
	if lease == 0 {
		return t.silence()
	}
	return min(t.silence(), max(lease/3, 2*t.sure()))
}

// plus is a time for an answer that was chosen for a server nearby.
func (t trip) plus(d time.Duration) time.Duration { return d + 2*t.base }

// connect is how long it may take to make a connection: TCP, TLS, HELLO and CLIENT INFO are five round trips.
func (t trip) connect() time.Duration { return detourWait + 6*t.base }

// shortest is the shortest lease that makes sense, once that is known.
func (t trip) shortest() time.Duration {
	if !t.known {
		return 0
	}
	return 6 * t.base
}

// useless tells whether a command that is sent with so much time left has its answer too late for certain. Nothing is to be sent
// then: what it obtained would be nobody's.
func (t trip) useless(left time.Duration) bool { return t.known && left < t.base }

// far tells whether the master is farther away than is supported.
func (t trip) far() bool { return t.known && t.base >= farthest }

func (t trip) String() string {
	if t.far() {
		return fmt.Sprintf("a round trip to Redis takes %v or more, which is not supported", farthest)
	}
	return fmt.Sprintf("a round trip to Redis takes %v", t.base.Round(time.Millisecond/10))
}

// farError: Redis did not answer in time, and is farther away than is supported.
type farError struct {
	error
	trip trip
}

func (e farError) Error() string { return e.error.Error() + "; " + e.trip.String() }

func (e farError) Unwrap() error { return e.error }

// unsupported adds to an error of a command without an answer in time that the master is too far away, if it is.
func (l *lane) unsupported(err error) error {
	trip := l.trip()
	if !trip.far() || !errors.Is(err, fault.NoAnswer) && !errors.Is(err, fault.NotSent) && !errors.Is(err, fault.Late) {
		return err
	}
	return farError{err, trip}
}
