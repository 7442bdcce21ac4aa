package belief

import "time"

// The six times. All other times for sending commands are derived from these, or from the measured round trip. For most of the
// six a test shows what breaks if the time is halved or doubled.
const (
	// Tick is the shortest time that means something. A caller that waits for less learns nothing about the server. A timer that
	// is late by more shows that this process, or its machine, stood still.
	//
	// Half of it: on a busy machine timers are late by 50 ms for no reason, and each of them excuses a silent server.
	// Twice: a stop of 150 ms is not excused, and makes a server suspect that has answered.
	Tick = 100 * time.Millisecond

	// Silence, plus two round trips, is how long a server may take to reply. After that it is suspect, and the reply is late: a
	// successor may have taken over before the reply came.
	//
	// Half of it: a server that forks, or deletes a large key, for 300 ms becomes suspect.
	// Twice: a call that may wait for a second is over before it tries another way; and Sentinels may replace a master after a
	// second, while its replies still count as in time.
	Silence = 500 * time.Millisecond

	// Connect, plus six round trips, is how long making a connection may take: TCP, TLS, HELLO and CLIENT INFO are five.
	//
	// Half of it: TCP repeats a lost first packet only after a second, so no attempt succeeds whose first packet is lost.
	// Twice: a connection counts as new although it was begun before Sentinels replaced a frozen master, which greeted it later.
	Connect = time.Second

	// Pause is how long this process may have stood still and yet believe what it finds afterwards. During a longer stop a
	// failover may have begun and ended unnoticed.
	//
	// Half of it: a round trip of a second, while it is not measured yet, needs more than that, see Farthest; and an ordinary stop
	// of a machine makes its server suspect.
	// Twice: a failover of three to four seconds fits into a stop.
	Pause = 2500 * time.Millisecond

	// Old is how long a dedicated connection is used at most, and how long a server stays suspect where nobody can be asked about
	// it. It is longer than a deposed master can answer on old connections:
	//
	//	 0 s  the master freezes
	//	12 s  by now it has resumed, or rueidis has broken the connections: it does when they were silent for its
	//	      ConnWriteTimeout, 10 s by default, and notices that within 2 s
	//	22 s  by now Sentinel has demoted it, 8 to 10 s after it resumed
	//
	// Half of it: a deposed master is believed while it still answers.
	// Twice: after each silence commands go over one connection for a minute, and as long over one with a password that was
	// replaced.
	Old = 30 * time.Second // mutant: trusted too soon

	// Again is the pause before the server is asked again what it has refused, since it logs each refusal. The pause doubles with
	// each refusal, up to MostAgain.
	//
	// Half of it: twice the entries in the log, for what an administrator seldom changes.
	// Twice: a permission that was granted is used two minutes later.
	Again = time.Minute
)

// MostAgain is the longest pause: after many refusals, and after a question that has ended a connection which others share.
const MostAgain = 60 * Again

// AgainAfter returns when to ask again after this many refusals in a row, at least one.
func AgainAfter(refusals int) time.Duration {
	return min(Again<<min(max(refusals, 1)-1, 6), MostAgain)
}
