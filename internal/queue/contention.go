package queue

import (
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// contention is what a path of this process knows of others that want it. Where there is a queue the scripts decide who is
// next, and when those without a ticket have their chance. Where there is none, the goroutines of this process, which take the
// lock from each other, must leave others their chance now and then.
type contention struct {
	contested atomic.Bool   // others waited when the lock was last released: the next call asks for a ticket at once
	since     atomic.Int64  // an instant: when that was, the last time
	deaf      atomic.Bool   // no message of a grant can reach the calls of this process, so they do not queue
	queueless atomic.Int64  // an instant: until when there is no queue, because the server has refused it
	yields    atomic.Bool   // without a queue: the next call stands back first
	yielded   atomic.Int64  // an instant: since when the process has had the lock without a chance for others
	looked    clock.Instant // when its release last had the server look for windows; for the owner of the local half
	tried     atomic.Int64  // an instant: when a call that does not wait found the lock taken
	keeping   atomic.Pointer[keeping]
	expected  [2]atomic.Pointer[expected] // of the writer, or of a plain lock, and of the readers
	line      line                        // of the calls of a semaphore
}

// spare is what a call needs to wait.
type spare struct {
	timer *time.Timer   // stopped
	came  chan struct{} // see mailbox. A message for an earlier call may yet wake a later one, once, which finds no mail then
}

// spare takes what the call before has put back, where there is one.
func (all *Shared) spare() *spare {
	if s, ok := all.spares.Get().(*spare); ok {
		return s
	}
	s := &spare{time.NewTimer(time.Hour), make(chan struct{}, 1)}
	s.timer.Stop()
	return s
}

func (all *Shared) putBack(s *spare) {
	s.timer.Stop()
	select {
	case <-s.came:
	default:
	}
	all.spares.Put(s)
}

// expected is a hold that was found by a look, and may be over before the message of its grant comes. That must not be taken for
// the grant of a hold that is nobody's: the removal which is under way would find nothing to remove.
type expected struct {
	number string
	until  clock.Instant
}

// keeping is that the removal of a hold leaves its path taken until some time. Whoever else removes that hold, because they know
// no more of it than its number, has to do the same.
type keeping struct {
	number string
	until  clock.Instant
}

// Reserve notes that for a hold that is about to be over, if so, and returns until when; 0: it is not.
func (p *Path) Reserve(h *hold.Hold) (until clock.Instant) {
	kept, found := h.Keeps()
	if kept != 0 {
		p.whole().noted().keeping.Store(&keeping{h.Number(), kept})
	}
	if found != 0 {
		p.whole().noted().expectedBy(p.side).Store(&expected{h.Number(), found})
	}
	return kept
}

// expectedBy is what a side of a lock expects. Each has a place of its own: their holds follow each other closely, and a message
// may come after both.
func (c *contention) expectedBy(side string) *atomic.Pointer[expected] {
	if side == Reads {
		return &c.expected[1]
	}
	return &c.expected[0]
}

// expects tells whether the message of a grant was to come.
func (p *Path) expects(number string) bool {
	c := p.whole().others.Load()
	if c == nil {
		return false
	}
	e := c.expectedBy(p.side).Load()
	return e != nil && e.number == number && p.Clock.Now() < e.until
}

// ReservedUntil is until when the removal of a hold with such a number leaves the path taken; 0: it does not.
func (p *Path) ReservedUntil(number string) clock.Instant {
	c := p.whole().others.Load()
	if c == nil {
		return 0
	}
	if k := c.keeping.Load(); k != nil && k.number == number {
		return k.until
	}
	return 0
}

// queuelessFor is for how long a path goes without a queue after the server has refused one.
const queuelessFor = time.Minute

// contention returns what the path's calls know of others.
func (p *Path) contention() *contention { return p.anchor.noted() }

// noted is what is kept here.
func (p *Path) noted() *contention {
	for p.others.Load() == nil {
		p.others.CompareAndSwap(nil, &contention{})
	}
	return p.others.Load()
}

// Contested tells whether a call is not to try first, but to wait in the queue or to stand back, since others waited when the
// lock was last released, or a moment ago.
func (p *Path) Contested() bool {
	c := p.anchor.others.Load()
	return c != nil && (c.contested.Load() || c.yields.Load() || p.busy()) // mutant: tries first
}

// busyFor is for how long others most likely go on waiting for a lock after they did.
const busyFor = 500 * time.Millisecond

// busy tells whether others have waited for the lock just now, so that its queue is there.
func (p *Path) busy() bool {
	c := p.anchor.others.Load()
	if c == nil {
		return false
	}
	since := clock.Instant(c.since.Load())
	return since != 0 && since.Until(p.Clock.Now()) < busyFor
}

// MayQueue tells whether calls of the path may wait in a queue.
func (p *Path) MayQueue() bool {
	c := p.anchor.others.Load()
	return c == nil || p.Clock.Now() >= clock.Instant(c.queueless.Load())
}

// Queues tells whether they do.
func (p *Path) Queues() bool { return p.MayQueue() && p.all.Waker.Listening != nil }

// NoQueue is for when the server has refused the queue of a path. What it refuses for now only, out of memory for instance, costs
// nobody their place: who waits looks again. That is logged once a minute at most.
func (p *Path) NoQueue(why string) {
	now := p.Clock.Now()
	if fault.Passes(why, true) {
		next := clock.Instant(p.all.postponed.Load())
		if now >= next && p.all.postponed.CompareAndSwap(int64(next), int64(now.Add(queuelessFor))) {
			p.Log(slog.LevelWarn, "the server refuses the queue of a lock for now: who waits looks again",
				slog.String("key", p.Key), slog.String("error", why))
		}
		return
	}
	p.contention().queueless.Store(int64(now.Add(queuelessFor)))
	if !p.all.unqueued.Swap(true) {
		p.Log(slog.LevelWarn, "the server refuses the queue of a lock: its waiters are woken by chance, or poll",
			slog.String("key", p.Key), slog.String("error", why))
	}
}

// deaf notes whether messages of grants can reach calls of this process.
func (p *Path) deaf(is bool) {
	c := p.anchor.others.Load()
	if c == nil {
		if !is {
			return
		}
		c = p.contention()
	}
	if c.deaf.Load() != is {
		c.deaf.Store(is)
		if is && c.contested.Load() {
			c.yields.Store(true)
		}
	}
}

// NoteContention takes in what a release has replied, and whether goroutines of this process wait that were not to have the
// lock at once, because it has had it for a handoff limit or, without hand-over, has released it.
func (p *Path) NoteContention(reply int64, others bool, at clock.Instant) {
	p.NoteWindow(reply, others, at)
	if reply == protocol.Contended {
		p.contention().since.Store(int64(at))
	}
}

// NoteWindow is the same for a release that may have replied so because it has opened a window. The next call asks for a ticket
// then, and so leaves the window to those without one. But it is no sign that they are there.
func (p *Path) NoteWindow(reply int64, others bool, at clock.Instant) {
	c := p.anchor.others.Load()
	if c == nil {
		if !others && reply != protocol.Contended && reply != protocol.NoQueue {
			return
		}
		c = p.contention()
	}
	if was := c.contested.Load(); reply != protocol.NoQueue && was != (reply == protocol.Contended) {
		c.contested.Store(!was)
	}
	if (others || reply == protocol.Contended) && !p.many { // who has no ticket never has permits: nobody asks who may be there
		p.Shard().Contended(at)
	}
	if !p.Queues() || c.deaf.Load() {
		c.released(others, reply == protocol.Contended, p.Clock.Now())
	}
}

// Removed notes that the key of the hold with a value was removed.
func (p *Path) Removed(value string, at clock.Instant) {
	n := p.all.NumberIn(value)
	for last := p.last.Load(); n > 0 && n >= last; last = p.last.Load() { // removals may end at the same time
		if p.last.CompareAndSwap(last, n) {
			p.lastAt.Store(int64(at))
			return
		}
	}
}

// RecallFor is for how long a removal may be lost by a failover: a replica lags behind by no more, most likely.
const RecallFor = 2 * time.Second

// Recall has removals sent once more that were confirmed just now, since a server may have taken over that has not got them.
// Later holds have larger numbers, and are not touched.
func (p *Path) Recall(now clock.Instant) {
	if n := p.last.Load(); n > 0 && clock.Instant(p.lastAt.Load()).Until(now) < RecallFor {
		p.all.Expedite(p.local.Unclaimed(strconv.FormatUint(n, 10)))
	}
}
