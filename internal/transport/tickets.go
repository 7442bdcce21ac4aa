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

// tickets are those of the calls that wait for a message of a server. Nothing tells such a call that the whole queue is gone:
// after FLUSHALL or SWAPDB a server without data would leave a free lock idle until the call looks by itself, which may take half
// a minute. So in place of each third question of keepAlive the server is asked for one of these tickets.
//
// If the answer is lost or late, the next question is for a ticket, too, but only that one: a proxy may end connections in which
// it is asked, and the other questions find that out.
//
// One is enough. It is the one that was last seen the longest time ago. When all keys are gone, either that
// ticket is, too, or each call of this process has looked since, and has seen it. If one is missing, its call looks, and the next
// one is asked for at once. If several are missing in a row, all calls look.
//
// A grant takes a ticket out of a queue, too. Where many locks or permits change hands the oldest tickets are the next ones to
// be granted, so several in a row may be missing. The server has sent the messages of these grants before it said that the
// tickets are missing. So the calls look a moment later, and a call that a message has granted meanwhile does not count. Any
// other one counts, even one that has looked by itself in the meantime: a lost ticket was missing, too.
//
// When all keys are deleted just after such grants, they may hide that from one question. The next one finds no more grants.
type tickets struct {
	mu       sync.Mutex
	all      map[Queued]ticket
	suspects []Queued // that are asked for or were missing; nothing has cleared them since
}

// Queued is a call that waits for a message with a ticket in a queue.
type Queued interface {
	Queue() string // the key of the queue
	Look()         // makes the call ask for its ticket; it may have ended meanwhile
}

// ticket is one, and when it was last known to be there.
type ticket struct {
	member string
	seen   clock.Instant
}

const (
	verifyEach  = 3 // questions
	mostMissing = 3 // tickets, until all calls look
)

// Expect notes that a call waits with a ticket, which was there at some time. The call has begun to wait, see KeepAlive.
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

// suspect returns the call whose ticket was seen the longest time ago, and notes that it is asked for now; nil: there is none.
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

// lost takes out the calls that must look: the suspects, or all.
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
	if !k.unlisted.Allowed(k.now()) {
		return false
	}
	for missing < mostMissing {
		call, member := k.tickets.suspect(k.now())
		if call == nil {
			break
		}
		asked = true
		queue := call.Queue()
		reply, late := k.question(func(b rueidis.Builder) rueidis.Completed {
			return b.Arbitrary("ZSCORE").Keys(queue).Args(member).Build() // not as a command that reads: replicas may lag behind
		})
		err := reply.Error()
		if k.repeats = (late || !fault.Answered(err)) && !k.repeats; k.repeats {
			k.asked-- // the next question is for a ticket, too
		}
		if late || !rueidis.IsRedisNil(err) {
			if fault.Refusal(err) {
				k.unlisted.Refused(k.now())
			} else if fault.Answered(err) {
				k.unlisted.Answered()
			}
			k.tickets.cleared(call)
			break
		}
		missing++
	}
	if missing > 0 {
		<-time.After(k.belief.RoundTrip().Plus(belief.Tick)) // a grant's message may come later than what was sent after it
		for _, call := range k.tickets.lost() {
			call.Look() // mutant: lost ticket is no matter
		}
	}
	return asked
}
