package transport

import (
	"sync"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// tickets are those of the calls that wait for a message of a server. Nothing tells such a call that the whole queue is gone:
// after FLUSHALL or SWAPDB a server without data would leave a free lock idle until the call looks by itself, which may take half
// a minute. So in place of each third question of keepAlive the server is asked for one of these tickets.
//
// One is enough. It is the one of which it is known for the longest time that it was there. When all keys are gone, either that
// ticket is, too, or each call of this process has looked since, and has seen it. If one is missing, its call looks, and the next
// one is asked for at once. A grant takes a single ticket out of a queue, a moment before its message comes; several that are
// missing in a row are no chance, and all calls look.
type tickets struct {
	mu  sync.Mutex
	all map[Queued]ticket
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
func (s *Shard) Expect(call Queued, member string, seen clock.Instant) {
	t := &s.keepAlive.tickets
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all == nil {
		t.all = map[Queued]ticket{}
	}
	t.all[call] = ticket{member, seen}
}

// Expected undoes Expect.
func (s *Shard) Expected(call Queued) { s.keepAlive.tickets.remove(call) }

func (t *tickets) remove(call Queued) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.all, call)
}

// oldest returns the call whose ticket was seen the longest time ago, and notes that it is seen now; nil: there is none.
func (t *tickets) oldest(now clock.Instant) (call Queued, member string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := clock.Never
	for c, its := range t.all {
		if call == nil || its.seen < first {
			call, member, first = c, its.member, its.seen
		}
	}
	if call != nil {
		t.all[call] = ticket{member, now}
	}
	return call, member
}

// take takes all calls out.
func (t *tickets) take() (calls []Queued) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.all {
		calls = append(calls, c)
	}
	clear(t.all)
	return calls
}

// verify asks for a ticket. It reports false if nothing was asked.
func (k *keepAlive) verify(p Wait, plain bool) bool {
	s := k.shard
	if s.client.Clock.Now() < k.unverified {
		return false
	}
	for missing := 0; ; missing++ {
		call, member := k.tickets.oldest(s.client.Clock.Now())
		if call == nil {
			return missing > 0
		}
		queue, w := call.Queue(), p
		reply, late := k.question(&w, plain, func(b rueidis.Builder) rueidis.Completed {
			return b.Arbitrary("ZSCORE").Keys(queue).Args(member).Build() // not as a command that reads: replicas may lag behind
		})
		if err := reply.Error(); late || !rueidis.IsRedisNil(err) {
			if fault.Refusal(err) {
				k.unverified = s.client.Clock.Now().Add(refusedFor)
			}
			return true
		}
		k.tickets.remove(call) // it comes back when it has looked
		call.Look()            // mutant: lost ticket is no matter
		if missing+1 == mostMissing {
			for _, call := range k.tickets.take() {
				call.Look()
			}
			return true
		}
	}
}
