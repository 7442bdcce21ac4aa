package belief

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Trips measure the round trip to a master: the shortest of the last three samples, each of a command that was sent after the
// reply to the one before. So a silent master spoils only one of three samples, however many commands are under way, and one
// fast reply shows at once that the master is near. A smoothed estimate would mistake a freeze for a long round trip. A round
// trip that becomes longer is known after three samples.
//
// Until there are three, what is silent or late is judged by the time of the greeting on the client's connection, if it is
// known. A greeting takes at least a round trip; it may have taken longer because the process was starting, so nothing else is
// derived from it.
//
// Round trips longer than Farthest count as Farthest, and are not supported.
type Trips struct {
	// last has the last three samples, the newest in the lowest bits: in microseconds plus one, so that zero means none.
	last     atomic.Uint64
	came     atomic.Int64 // an instant: when the reply to the newest came
	greeting atomic.Int64 // how long a server took to greet the client; 0: not known
}

// Farthest is the longest supported round trip. A round trip that is not measured yet counts as that long; the silence of such
// a server is then a Pause. With a longer silence, an outage of that length could not be told from a failover.
const Farthest = (Pause - Silence) / 2

const (
	tripBits = 21
	tripMask = 1<<tripBits - 1
)

// Sample adds a round trip. Of two concurrent ones one may be lost: the next reply makes up for it.
func (r *Trips) Sample(sent, came clock.Instant) {
	newest := clock.Instant(r.came.Load())
	if sent < newest {
		return
	}
	last := r.last.Load()
	if last>>(2*tripBits) != 0 && newest.Until(came) < newsRest {
		return
	}
	if !r.came.CompareAndSwap(int64(newest), int64(came)) {
		return
	}
	took := min(max(sent.Until(came), 0), Farthest)
	r.last.Store(last<<tripBits&(1<<(3*tripBits)-1) | uint64(took/time.Microsecond+1))
}

// Sampled returns when the reply to the newest sample came.
func (r *Trips) Sampled() clock.Instant { return clock.Instant(r.came.Load()) }

// Greet notes how long the server took to greet the client's connection.
func (r *Trips) Greet(took time.Duration) {
	r.greeting.Store(int64(min(max(took, time.Microsecond), Farthest)))
}

// RoundTrip is what is known of the round trip to a master at some moment.
type RoundTrip struct {
	Base  time.Duration // the shortest sample; 0: there are none
	Known bool          // there are three samples

	greeting time.Duration // without three; 0: not known
}

// RoundTrip returns what is known now.
func (r *Trips) RoundTrip() RoundTrip {
	last, greeting := r.last.Load(), time.Duration(r.greeting.Load())
	a, b, c := last&tripMask, last>>tripBits&tripMask, last>>(2*tripBits)
	switch {
	case c != 0:
		return RoundTrip{Base: time.Duration(min(a, b, c)-1) * time.Microsecond, Known: true}
	case b != 0:
		return RoundTrip{Base: time.Duration(min(a, b)-1) * time.Microsecond, greeting: greeting}
	case a != 0:
		return RoundTrip{Base: time.Duration(a-1) * time.Microsecond, greeting: greeting}
	default:
		return RoundTrip{greeting: greeting}
	}
}

// Sure returns the round trip by which lateness is judged: Base, or, while there are not three samples, the time of the
// greeting, or Farthest.
func (t RoundTrip) Sure() time.Duration {
	switch {
	case t.Known:
		return t.Base
	case t.greeting > 0:
		return max(t.greeting, t.Base)
	default:
		return Farthest
	}
}

// Silence is how long a master may take to reply. After that it is suspect, since it may be frozen or deposed, and the reply is
// late.
func (t RoundTrip) Silence() time.Duration { return Silence + 2*t.Sure() }

// Late is when a reply about a lease is late: early enough in the lease to ask again. A lease of zero means none.
func (t RoundTrip) Late(lease time.Duration) time.Duration {
	if lease == 0 {
		return t.Silence()
	}
	return min(t.Silence(), max(lease/3, 2*t.Sure()))
}

// Plus adds two round trips to a limit that was chosen for a server nearby.
func (t RoundTrip) Plus(d time.Duration) time.Duration { return d + 2*t.Base }

// Connect is how long making a connection may take.
func (t RoundTrip) Connect() time.Duration { return Connect + 6*t.Base }

// ShortestLease is the shortest useful lease; 0 while the round trip is not known.
func (t RoundTrip) ShortestLease() time.Duration {
	if !t.Known {
		return 0
	}
	return 6 * t.Base
}

// Useless reports whether the reply to a command that is sent with this time left surely comes too late. Then it must not be
// sent: no call would take the grant.
func (t RoundTrip) Useless(left time.Duration) bool { return t.Known && left < t.Base }

// Far reports whether the master is too far away.
func (t RoundTrip) Far() bool { return t.Known && t.Base >= Farthest }

func (t RoundTrip) String() string {
	if t.Far() {
		return fmt.Sprintf("a round trip to Redis takes %v or more, which is not supported", Farthest)
	}
	return fmt.Sprintf("a round trip to Redis takes %v", t.Base.Round(time.Millisecond/10))
}
