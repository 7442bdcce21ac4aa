package queue

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/barging"
	"github.com/lockregistry/lockregistry/internal/clock"
)

// A call that waits in the queue is woken by messages, and looks by itself in case a message is lost, or nobody sends one. This
// file says when. Many calls of many processes may wait for one key, so their looks must not coincide, and calls far from the
// head must look rarely. But if the process that has the lock dies together with that of the first ticket, the second ticket's
// must notice soon.
//
//	the holder's lease is over    all look, one after another: a poll interval later for each call in front
//	the first ticket              after 10 ms the server is asked to report changes of the key; at once when the holder is no
//	                              process of this library, and then for the second ticket, too. Once in 30 s, in case the report
//	                              is lost
//	the others                    1 s + 100 ms × (tickets in front, at most ten) after they have queued: until then no message
//	                              tells them that they are the next. Later every 5 s × (tickets in front), at most 30 s
//	told to be the next           when the message says, and as the first ticket from then on
//	permits                       the same, see times; the first ticket every 5 s, since any of several leases may be over
//
// Nothing here asks a clock or a server: what a reply has shown goes in, times come out.
const (
	// refreshing is the longest time between two looks at a ticket. The queue expires after 2 minutes without a look. Calls near
	// the head look more often, every lookEvery × (tickets in front): if only their queue disappears, no message tells them. If all
	// queues disappear, the process notices by one of its tickets, see tickets in internal/transport.
	refreshing = 30 * time.Second
	lookEvery  = refreshing / time.Duration(farBack)
	farBack    = 6 // with this many tickets in front or more, a call looks once per refreshing, like the first one: see nextLook

	// firstLook is when a call first looks at its ticket; lookStep is added for each ticket in front, up to mostSteps. Until then a
	// release that serves another call does not tell this one that it is the next: see internal/protocol/lua/queue.lua.
	firstLook = barging.NotifyAfter
	lookStep  = firstLook / mostSteps
	mostSteps = 10

	// mostPatient limits how many calls of other processes look before a call for permits when a lease is over.
	mostPatient = 10

	// nearHead is the last place in a semaphore's queue at which a process does not let the processes in front look first: all
	// the calls in front may belong to one frozen process. Scripts search as many tickets for another process, see permits.lua.
	nearHead = 100

	// watchAfterFirst is how long the first call in the queue relies on the holder's release alone. Then it also asks the server
	// to report changes of the key, which costs a command and a wake-up.
	watchAfterFirst = 10 * time.Millisecond

	// afterEnd is added to the time that a lease has left: Redis counts whole milliseconds, so only then is it surely over.
	afterEnd = time.Millisecond
)

// standing is how a ticket stands in the queue, as the last reply has shown it.
type standing struct {
	rank     int           // how many tickets are in front
	left     time.Duration // what is left of the holder's lease; 0 or less: it has no end
	foreign  bool          // the holder does not use this library
	shown    clock.Instant // when the command was sent that showed it
	notified clock.Instant // from then on a message says when it is the next one
	poll     time.Duration // the poll interval
	permits  bool          // of a semaphore
	ahead    int           // of a semaphore: the calls of this process in front
}

// lookTimes are the times at which a sleeping call looks, or asks the server to report changes, unless it is woken before.
type lookTimes struct {
	due      clock.Instant // the holder's lease is over
	refresh  clock.Instant // to keep the ticket, and in case a message was lost
	watch    clock.Instant // from then on the server reports changes of the key
	patience time.Duration // how long after the end of the lease: calls in front look first
	window   bool          // the key is left to calls without a ticket for now
	permits  bool          // of a semaphore
}

// times computes the times at now, when the reply has come.
func (s *standing) times(now clock.Instant) lookTimes {
	l := lookTimes{due: clock.Never, refresh: nextLook(now, s.notified), watch: clock.Never, permits: s.permits}
	// How many of the calls in front look before this one when a lease is over, and how many otherwise. For permits these are not
	// all the calls in front, which may belong to one frozen process.
	atEnd, rank := s.rank, s.rank
	if s.permits {
		atEnd = min(rank, mostPatient+s.ahead) // mutant: patient with each call
		if rank <= nearHead {
			rank = min(rank, 1+s.ahead) // mutant: patient near the head
		}
	}
	l.patience = clock.Plus(clock.Times(atEnd, s.poll), afterEnd)
	if s.left > 0 {
		l.due = s.shown.Add(clock.Plus(s.left, l.patience))
	}
	switch {
	case s.rank > 0 && s.shown < s.notified: // also after an early look, when something woke the call
		l.refresh = s.notified.Add(time.Duration(min(s.rank, mostSteps)) * lookStep)
	case s.rank > 0:
		if rank < farBack {
			l.refresh = now.Add(time.Duration(rank) * lookEvery)
		}
	case s.permits: // the key changes with each holder's lease, and no release passes over waiting calls
		l.refresh = now.Add(lookEvery) // another lease than the first one may be over before
	case !s.foreign:
		l.watch = now.Add(watchAfterFirst)
	}
	if s.foreign && s.rank < 2 { // a foreign release does not pass over a dead process: the second ticket must
		l.watch = 0
	}
	return l
}

// isNext notes a message at now: the ticket is the next one, and its call may look once m.next has passed. With permits another
// lease may be over sooner, see times.
func (l *lookTimes) isNext(now clock.Instant, m mail) {
	l.patience, l.window, l.watch = afterEnd, m.window, now.Add(watchAfterFirst)
	due := now.Add(clock.Plus(m.next, l.patience))
	if l.permits {
		l.watch, l.window = clock.Never, false
		due = min(due, l.due)
		l.refresh = min(l.refresh, now.Add(lookEvery))
	}
	l.due = due
}

// isWatched notes that the server reports changes of the key from now on. Left is what is left of the key's lease; 0: no end.
func (l *lookTimes) isWatched(now clock.Instant, left time.Duration) {
	if left > 0 {
		l.due = now.Add(clock.Plus(left, l.patience))
	}
}

// isUnwatched notes that the server does not report changes. If the ticket is the next one and the key disappears, only a look
// can notice it.
func (l *lookTimes) isUnwatched(now clock.Instant, poll time.Duration) {
	if l.patience == afterEnd {
		l.refresh = min(l.refresh, now.Add(poll))
	}
}

// chore is what a sleeping call has to do by itself.
type chore uint8

const (
	rests   chore = iota
	looks         // at its ticket
	watches       // asks the server to report changes of the key
)

// chore returns what there is to do at now. If there is nothing, the call rests until the instant returned. The call asks only
// once for the key to be watched.
func (l *lookTimes) chore(now clock.Instant) (what chore, until clock.Instant) {
	look := min(l.due, l.refresh)
	switch {
	case look <= now:
		return looks, now
	case l.watch <= now:
		l.watch = clock.Never
		return watches, now
	default:
		return rests, min(look, l.watch)
	}
}

// nextLook returns when a call with no ticket in front, or with many, looks again: once in each refreshing, at a phase that is
// derived from an instant of the call. Thousands of calls may have queued at the same moment, for one path or for a path each,
// for instance after FLUSHALL. With one phase for all, the server would idle for half a minute and then face a thundering herd.
func nextLook(now, of clock.Instant) clock.Instant {
	const golden = 0x9E3779B97F4A7C15                                     // multiplying by it scatters neighbours
	phase := time.Duration(uint64(of) * golden >> 1 % uint64(refreshing)) //nolint:gosec // no instant is negative
	return now.Add(refreshing - (refreshing+time.Duration(now)-phase)%refreshing)
}
