package transport

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// estimate measures how far away a master is. What counts is the least of the last three round trips that followed each other:
// a command was sent after the reply to the one before had come. So a master that is silent for a while, with any number of
// commands under way, spoils one sample of three, and one fast reply says at once that the master is near. A smoothed estimate
// would take a freeze for a long way, for as long as its memory is. Where the way becomes longer it is known after three round
// trips.
//
// Nothing is learned of a way that is longer than farthest: it counts as that, and is not supported.
type estimate struct {
	// last has the last three, the newest in the lowest bits: in microseconds plus one, so that zero stands for none.
	last atomic.Uint64
	came atomic.Int64 // an instant: when the reply to the newest came

	// least is the shortest of all, where somebody wants to know: nothing takes less than the way. 0: there was none. What waits
	// behind others takes longer, so it counts once there were enough of commands that had the way for themselves.
	least atomic.Int64
	alone atomic.Int32 // how many such there were, up to sureAlone
	quick atomic.Int64 // an instant: when a reply came last, or a moment before, that took less than remote; 0: none has
}

const (
	farthest   = time.Second
	tripBits   = 21
	tripMask   = 1<<tripBits - 1
	tripUnit   = time.Microsecond
	sureAlone  = 8 // so many make sure that one was not held up by a busy machine
	nearby     = 200 * time.Microsecond
	remote     = 10 * nearby
	sureRemote = 2 * time.Second // without a quicker reply
	sampleRest = healthyFor / 8  // once three are known, a reply so soon after a sample is none: a write for each would cost more
)

// sample takes in a round trip. Of two that come at the same time one may be lost.
func (r *estimate) sample(sent, came clock.Instant) {
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

// compare takes in a round trip as one that may be the shortest. Of two at the same time a longer one may win.
func (r *estimate) compare(took time.Duration, came clock.Instant, alone bool) {
	if took < remote && came >= clock.Instant(r.quick.Load()).Add(sureRemote/20) {
		r.quick.Store(int64(came))
	}
	if n := r.alone.Load(); alone && n < sureAlone {
		r.alone.Store(n + 1)
	}
	if least := r.least.Load(); took > 0 && (least == 0 || int64(took) < least) {
		r.least.Store(int64(took))
	}
}

// RoundTrip is what is known of the way to a master at some moment.
type RoundTrip struct {
	Base  time.Duration // the least of the samples there are; 0: there are none
	Known bool          // there are three
}

func (r *estimate) roundTrip() RoundTrip {
	last := r.last.Load()
	a, b, c := last&tripMask, last>>tripBits&tripMask, last>>(2*tripBits)
	switch {
	case c != 0:
		return RoundTrip{time.Duration(min(a, b, c)-1) * tripUnit, true}
	case b != 0:
		return RoundTrip{time.Duration(min(a, b)-1) * tripUnit, false}
	case a != 0:
		return RoundTrip{time.Duration(a-1) * tripUnit, false}
	default:
		return RoundTrip{}
	}
}

// sure is the base that what is late is judged by: as long as it is not known, the longest that there may be.
func (t RoundTrip) sure() time.Duration {
	if t.Known {
		return t.Base
	}
	return farthest
}

// Silence is for how long a master may leave a command without a reply until it is suspect: that it was frozen, or deposed.
// What comes later is late.
func (t RoundTrip) Silence() time.Duration { return lateReply + 2*t.sure() }

// Late is when a reply about a lease is late: early enough to ask once more. Zero stands for no lease.
func (t RoundTrip) Late(lease time.Duration) time.Duration {
	if lease == 0 {
		return t.Silence()
	}
	return min(t.Silence(), max(lease/3, 2*t.sure()))
}

// Plus is a time for a reply that was chosen for a server nearby.
func (t RoundTrip) Plus(d time.Duration) time.Duration { return d + 2*t.Base }

// Connect is how long it may take to make a connection: TCP, TLS, HELLO and CLIENT INFO are five round trips.
func (t RoundTrip) Connect() time.Duration { return freshWait + 6*t.Base }

// ShortestLease is the shortest lease that makes sense, once that is known.
func (t RoundTrip) ShortestLease() time.Duration {
	if !t.Known {
		return 0
	}
	return 6 * t.Base
}

// Useless tells whether a command that is sent with so much time left has its reply too late for certain. Nothing is to be sent
// then: what it obtained would be nobody's.
func (t RoundTrip) Useless(left time.Duration) bool { return t.Known && left < t.Base }

func (t RoundTrip) far() bool { return t.Known && t.Base >= farthest }

func (t RoundTrip) String() string {
	if t.far() {
		return fmt.Sprintf("a round trip to Redis takes %v or more, which is not supported", farthest)
	}
	return fmt.Sprintf("a round trip to Redis takes %v", t.Base.Round(time.Millisecond/10))
}

type farError struct {
	error
	trip RoundTrip
}

func (e farError) Error() string { return e.error.Error() + "; " + e.trip.String() }

func (e farError) Unwrap() error { return e.error }

// Unsupported adds to an error of a command without a reply in time that the master is too far away, if it is.
func (s *Shard) Unsupported(err error) error {
	trip := s.RoundTrip()
	if !trip.far() || !errors.Is(err, fault.NoAnswer) && !errors.Is(err, fault.NotSent) && !errors.Is(err, fault.Late) {
		return err
	}
	return farError{err, trip}
}
