package transport

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// estimate measures the round trip to a master: the shortest of the last three consecutive round trips, each of a command that
// was sent after the reply of the previous one. So a silent master, with any number of commands under way, spoils only one of
// three samples, and one fast reply shows at once that the master is near. A smoothed estimate would mistake a freeze for a
// long round trip. When the round trip becomes longer, that is known after three of them.
//
// Until there are three, the greeting of the client's connection counts, if it is known, for what is silent or late: it took a
// round trip, and the process's start made it no shorter. For everything else it may be too long.
//
// Round trips longer than farthest count as farthest, and are not supported.
type estimate struct {
	// last has the last three samples, the newest in the lowest bits: in microseconds plus one, so that zero means none.
	last     atomic.Uint64
	came     atomic.Int64 // an instant: when the reply to the newest came
	greeting atomic.Int64 // how long a server took to greet the client; 0: not known
}

const (
	farthest   = time.Second
	tripBits   = 21
	tripMask   = 1<<tripBits - 1
	tripUnit   = time.Microsecond
	sampleRest = healthyFor / 8 // once three are known, replies this soon after a sample are not sampled: it would cost more
)

// sample adds a round trip. Of two concurrent ones one may be lost: the next reply makes up for it.
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

// RoundTrip is what is known of the round trip to a master at some moment.
type RoundTrip struct {
	Base  time.Duration // the shortest sample; 0: there are none
	Known bool          // there are three samples

	greeting time.Duration // without three; 0: not known
}

func (r *estimate) roundTrip() RoundTrip {
	last, greeting := r.last.Load(), time.Duration(r.greeting.Load())
	a, b, c := last&tripMask, last>>tripBits&tripMask, last>>(2*tripBits)
	switch {
	case c != 0:
		return RoundTrip{Base: time.Duration(min(a, b, c)-1) * tripUnit, Known: true}
	case b != 0:
		return RoundTrip{Base: time.Duration(min(a, b)-1) * tripUnit, greeting: greeting}
	case a != 0:
		return RoundTrip{Base: time.Duration(a-1) * tripUnit, greeting: greeting}
	default:
		return RoundTrip{greeting: greeting}
	}
}

// Greeted notes how long the server took to greet the client's connection. All: the client needs no other one for commands. On a
// cluster that says nothing of other nodes.
func (t *Client) Greeted(took time.Duration, all bool) {
	if t.resolver != nil {
		return
	}
	t.First.estimate.greeting.Store(int64(min(max(took, tripUnit), farthest)))
	if all {
		t.First.replies.Store(manyReplies)
	}
}

// sure returns Base; while Base is not known the time of the greeting, or the longest supported round trip: lateness is judged by
// it.
func (t RoundTrip) sure() time.Duration {
	switch {
	case t.Known:
		return t.Base
	case t.greeting > 0:
		return max(t.greeting, t.Base)
	default:
		return farthest
	}
}

// Silence is for how long a master may leave a command without a reply before it is suspect: frozen or deposed. Later replies
// are late.
func (t RoundTrip) Silence() time.Duration { return lateReply + 2*t.sure() }

// Late is after how long a reply about a lease is late: early enough to ask again. Zero means no lease.
func (t RoundTrip) Late(lease time.Duration) time.Duration {
	if lease == 0 {
		return t.Silence()
	}
	return min(t.Silence(), max(lease/3, 2*t.sure()))
}

// Plus adds two round trips to a limit that was chosen for a server nearby.
func (t RoundTrip) Plus(d time.Duration) time.Duration { return d + 2*t.Base }

// Connect is how long making a connection may take: TCP, TLS, HELLO and CLIENT INFO are five round trips.
func (t RoundTrip) Connect() time.Duration { return freshWait + 6*t.Base }

// ShortestLease is the shortest useful lease; 0 while the round trip is not known.
func (t RoundTrip) ShortestLease() time.Duration {
	if !t.Known {
		return 0
	}
	return 6 * t.Base
}

// Useless reports whether the reply to a command sent with this time left surely comes too late. Then nothing must be sent: no
// call would take the grant.
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

// Unsupported adds to an error of a command without a timely reply that the master is too far away, if it is.
func (s *Shard) Unsupported(err error) error {
	trip := s.RoundTrip()
	if !trip.far() || !errors.Is(err, fault.NoAnswer) && !errors.Is(err, fault.NotSent) && !errors.Is(err, fault.Late) {
		return err
	}
	return farError{err, trip}
}
