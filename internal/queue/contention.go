package queue

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/barging"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/hold"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// contention is what a path knows about other processes that want it.
type contention struct {
	barging   barging.State // when they have their turn
	deaf      atomic.Bool   // messages of grants cannot reach this process, so its calls do not queue
	queueless atomic.Int64  // an instant: until then there is no queue, because the server has refused it
	endless   atomic.Int64  // an instant: until then it is not logged again that the key has no expiry
	line      line          // the calls of a semaphore

	// keeping says until when the removal of a hold leaves its path taken. Other removals of that hold, which know only its number,
	// must do the same.
	keeping atomic.Pointer[numbered]

	// expected names a hold that a look found granted, and says until when the message of that grant may still come. It prevents
	// this:
	//
	//  1. A look finds the hold granted. The message of the grant is still on its way.
	//  2. The hold ends, and its removal is under way.
	//  3. The message comes. It would be taken for a grant that no call waits for, and the key would be removed for that.
	//  4. The removal of step 2 would find nothing, and report a loss.
	//
	// Each side of a read-write lock has its own, unlike the other fields: the holds of the two sides may follow each other
	// closely, and a message may come after both.
	expected atomic.Pointer[numbered]
}

// numbered is an instant that concerns the hold with this number.
type numbered struct {
	number string
	until  clock.Instant
}

// of returns the instant if it concerns the hold with this number; otherwise, and for nil, 0.
func (n *numbered) of(number string) clock.Instant {
	if n == nil || n.number != number {
		return 0
	}
	return n.until
}

// NoteKept records until when AtLeast keeps the path taken after a hold that is about to end, and returns it; 0 without AtLeast.
// It also records until when a message about the hold's grant is expected.
func (p *Path) NoteKept(h *hold.Hold) (until clock.Instant) {
	kept, found := h.Keeps()
	if kept != 0 {
		p.whole().contention().keeping.Store(&numbered{h.Number(), kept})
	}
	if found != 0 {
		p.contention().expected.Store(&numbered{h.Number(), found})
	}
	return kept
}

// expects reports whether the message of a grant with this number was expected.
func (p *Path) expects(number string) bool {
	c := p.others.Load()
	return c != nil && p.Clock.Now() < c.expected.Load().of(number)
}

// keptUntil returns the instant until which the removal of the hold with this number leaves the path taken; 0: it does not.
func (p *Path) keptUntil(number string) clock.Instant {
	if c := p.whole().others.Load(); c != nil {
		return c.keeping.Load().of(number)
	}
	return 0
}

// queuelessFor is how long a path goes without a queue after the server has refused one.
const queuelessFor = time.Minute

// contention returns what is noted at this path about others that want its key. Most of it is at the anchor.
func (p *Path) contention() *contention {
	for p.others.Load() == nil {
		p.others.CompareAndSwap(nil, &contention{})
	}
	return p.others.Load()
}

// Contested reports whether a call must queue or back off instead of trying first.
func (p *Path) Contested() bool {
	c := p.anchor.others.Load()
	return c != nil && c.barging.Contested(p.Clock.Now())
}

// mayQueue reports whether calls of the path may wait in a queue.
func (p *Path) mayQueue() bool {
	if p.Format.Unqueued() != "" {
		return false
	}
	c := p.anchor.others.Load()
	return c == nil || p.Clock.Now() >= clock.Instant(c.queueless.Load())
}

// noQueue notes that the server has refused the queue of a path. A refusal for now only, for instance because it is out of
// memory, costs no call its place: waiting calls look again. Such a refusal is logged once a minute at most, a lasting one only
// once.
func (p *Path) noQueue(why string) {
	now := p.Clock.Now()
	if fault.Passes(why, true) {
		next := clock.Instant(p.all.postponed.Load())
		if now >= next && p.all.postponed.CompareAndSwap(int64(next), int64(now.Add(queuelessFor))) {
			p.Log(slog.LevelWarn, "the server refuses the queue of a lock for now: waiting calls poll",
				slog.String("key", p.Key), slog.String("error", why))
		}
		return
	}
	p.anchor.contention().queueless.Store(int64(now.Add(queuelessFor)))
	if !p.all.unqueued.Swap(true) {
		p.Log(slog.LevelWarn, "the server refuses the queue of a lock: waiting calls poll, and are not served in order",
			slog.String("key", p.Key), slog.String("error", why))
	}
}

// WriterWaits asks Redis whether a writer waits elsewhere while readers of this process hold the key.
func (p *Path) WriterWaits(c protocol.Call) (waits, known bool) {
	if !p.mayQueue() {
		return false, false
	}
	w := p.all.CommandWait(context.Background(), p.all.Transport.Node(c.Key))
	w.Lease = p.all.Lease
	n, err := protocol.Confirmed(p.all.Transport.Do(&w, &c).RedisResult)
	if err != nil && !fault.Transient(fault.Classify(err)) {
		p.noQueue(err.Error())
	}
	return n == 1, err == nil
}

// deaf notes whether messages of grants cannot reach calls of this process.
func (p *Path) deaf(is bool) {
	c := p.anchor.others.Load()
	if c == nil {
		if !is {
			return
		}
		c = p.anchor.contention()
	}
	if c.deaf.Load() != is { // two calls may disagree for a moment; each notes it anew
		if c.deaf.Store(is); is {
			c.barging.Unqueued()
		}
	}
}

// NoteContention notes the reply to a release. Others says that goroutines of this process wait, and must let other processes go
// first, because this process has had the lock for the handoff limit or, without handoff, has released it.
func (p *Path) NoteContention(reply int64, others bool, at clock.Instant) {
	c := p.anchor.others.Load()
	if c == nil {
		if !others && reply != protocol.Contended && reply != protocol.NoQueue {
			return
		}
		c = p.anchor.contention()
	}
	if (others || reply == protocol.Contended) && !p.Format.Many() { // nobody gets permits without a ticket
		p.Node().Contended(at)
	}
	queues := p.mayQueue() && p.all.Listening != nil && !c.deaf.Load()
	c.barging.Released(reply, others, queues, at)
}
