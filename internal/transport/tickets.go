package transport

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// tickets has the tickets of calls that wait for a message from a server. Nothing tells such a call that its whole queue is
// gone. After FLUSHALL or SWAPDB a free lock would stay idle until the call polls, which may take half a minute. So every third
// question of keepAlive is for one of these tickets.
//
// If the answer is lost or late, the next question is for a ticket, too, but not the one after that: a proxy may end each
// connection on which a ticket is asked for, and the other questions must find that out.
//
// One ticket is enough: the one that has not been seen for the longest time. If all keys are gone, either this ticket is
// missing, or each call of this process has polled since, and knows. If it is missing, its call looks, and the next ticket is
// asked for at once. If mostMissing tickets in a row are missing, all calls look.
//
// A ticket also leaves its queue when it is granted. Where many locks or permits change hands, the next grants go to the oldest
// tickets, so several of these in a row may be missing for that reason:
//
//	1  the server grants a ticket, and sends the message
//	2  it answers the question: the ticket is missing
//	3  this process waits a moment; a call that is granted by a message meanwhile does not count
//	4  the other calls look
//
// A call counts even if it has polled in step 3, since its ticket may have been lost. If all keys are deleted just after such
// grants, the grants may hide that from one question. The next question finds it.
type tickets struct {
	mu       sync.Mutex
	all      map[Queued]ticket
	suspects []Queued // calls whose tickets are asked for or were missing, unless cleared since
}

// Queued is a call that waits for a message with a ticket in a queue.
type Queued interface {
	Queue() string // the key of the queue
	Look()         // makes the call look at its ticket; the call may have ended meanwhile
}

// ticket is a ticket, and when it was last known to be in its queue.
type ticket struct {
	member string
	seen   clock.Instant
}

const (
	verifyEach  = 3 // one question in three is for a ticket
	mostMissing = 3 // when this many tickets in a row are missing, all calls look
)

// Expect notes that a call waits with a ticket. Seen is when the ticket was last known to be in its queue. The call must have
// called KeepAlive.
func (s *Node) Expect(call Queued, member string, seen clock.Instant) {
	t := &s.keepAlive.tickets
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[Queued]ticket{}
	}
	t.all[call] = ticket{member, seen}
}

// Expected undoes Expect.
func (s *Node) Expected(call Queued) {
	t := &s.keepAlive.tickets
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, call)
}

// Granted notes that a message has granted what a call waits for: that is why its ticket is missing.
func (s *Node) Granted(call Queued) {
	s.keepAlive.tickets.cleared(call)
}

func (t *tickets) cleared(call Queued) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.suspects = slices.DeleteFunc(t.suspects, func(c Queued) bool { return c == call })
}

// suspect returns the call whose ticket has not been seen for the longest time, and notes that it is asked for now; nil: there
// is none.
func (t *tickets) suspect(now clock.Instant) (call Queued, member string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := clock.Never
	for c, its := range t.all {
		if (call == nil || its.seen < first) && !slices.Contains(t.suspects, c) {
			call, member, first = c, its.member, its.seen
		}
	}
	if call != nil {
		t.all[call] = ticket{member, now}
		t.suspects = append(t.suspects, call)
	}
	return call, member
}

// lost removes and returns the calls that must look: the suspects, or all.
func (t *tickets) lost() (calls []Queued) {
	t.mu.Lock()
	defer t.mu.Unlock()
	calls, t.suspects = t.suspects, nil
	for _, c := range calls {
		delete(t.all, c) // it comes back when it has looked
	}
	if len(calls) == mostMissing {
		calls = slices.AppendSeq(calls, maps.Keys(t.all))
		clear(t.all)
	}
	return calls
}

// verify asks for a ticket. It reports false if nothing was asked.
func (k *keepAlive) verify() (asked bool) {
	missing := 0
	if !k.unlisted.Allowed(k.judge.clock.Now()) {
		return false
	}
	for missing < mostMissing {
		call, member := k.tickets.suspect(k.judge.clock.Now())
		if call == nil {
			break
		}
		asked = true
		queue := call.Queue()
		reply, late := k.question(func(b rueidis.Builder) rueidis.Completed {
			return b.Arbitrary("ZSCORE").Keys(queue).Args(member).Build().ToPipe() // not as a read command: replicas may lag behind
		})
		err := reply.Error()
		if k.repeats = (late || !fault.Answered(err)) && !k.repeats; k.repeats {
			k.asked-- // the next question is for a ticket, too
		}
		if late || !rueidis.IsRedisNil(err) {
			if fault.Refusal(err) {
				k.unlisted.Refused(k.judge.clock.Now())
			} else if fault.Answered(err) {
				k.unlisted.Answered()
			}
			k.tickets.cleared(call)
			break
		}
		missing++
	}
	if missing > 0 {
		<-time.After(k.judge.RoundTrip().Plus(belief.Tick)) // a grant's message may come after replies that were sent later
		for _, call := range k.tickets.lost() {
			call.Look() // mutant: lost ticket is no matter
		}
	}
	return asked
}
