package belief

import "time"

// The six times. All others with which commands are sent are derived from them, or from the round trip, which is measured.
// A test shows for most what breaks when one is halved or doubled.
const (
	// Tick is the shortest time that tells anything: a caller that waits for less learns nothing of the server, and a timer that
	// is late by more tells that this process, or its machine, stood still.
	//
	// Half of it: on a busy machine timers are late by 50 ms for no reason, and each of them excuses a server that is silent.
	// Twice: a stop of 150 ms makes a server suspect that has answered.
	Tick = 100 * time.Millisecond

	// Silence, plus two round trips, is for how long a server may leave a command without a reply. Later it is suspect, and the
	// reply is late: a successor may have taken over before it came.
	//
	// Half of it: a server is suspect that forks, or deletes a large key, for 300 ms.
	// Twice: a call that may wait for a second ends before it goes another way; and Sentinels that replace a master after a second
	// do so while its replies are still in time.
	Silence = 500 * time.Millisecond

	// Connect, plus six round trips, is how long making a connection may take: TCP, TLS, HELLO and CLIENT INFO are five.
	//
	// Half of it: an attempt is over before TCP repeats its first packet, after a second: none succeeds whose packet is lost.
	// Twice: a connection is taken for new that was begun before Sentinels replaced a frozen master, and that it greeted later.
	Connect = time.Second

	// Pause is for how long this process may have stood still, and still believe what it finds then. After a longer stop a
	// failover may have begun and ended unnoticed.
	//
	// Half of it: less than a way of a second may need that is not measured yet, see Farthest; and an ordinary stop of a machine
	// makes its server suspect.
	// Twice: a failover of three to four seconds fits in it.
	Pause = 2500 * time.Millisecond

	// Old is after how long no dedicated connection is used any more, and for how long a deposed master may be believed where
	// nobody can be asked: longer than it can answer on connections from before. Rueidis breaks connections that were silent for
	// its ConnWriteTimeout, 10 s by default, which it notices within 2 s; so a master that comes back to them was frozen for 12 s
	// at most. Sentinel demotes it 8 to 10 s later.
	//
	// Half of it: a deposed master is believed while it still answers.
	// Twice: after each silence commands go over one connection for a minute, and as long with a password that was replaced.
	Old = 30 * time.Second // mutant: trusted too soon

	// Again is after how long the server is asked again what it has refused: each time is an entry in its log. It doubles with
	// each refusal, up to MostAgain.
	//
	// Half of it: twice the entries, for what an administrator seldom changes.
	// Twice: a permission that was granted is used two minutes later.
	Again = time.Minute
)

// MostAgain is the longest Again: of what was refused for long, and, from the first time on, of a question that ends a connection
// which others share.
const MostAgain = 60 * Again

// AgainAfter returns when to ask again after this many refusals in a row, at least one.
func AgainAfter(refusals int) time.Duration {
	return min(Again<<min(max(refusals, 1)-1, 6), MostAgain)
}
