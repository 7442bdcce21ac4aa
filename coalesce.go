package lockregistry

import (
	"errors"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// coalescer sends the commands of many callers together. Rueidis has them share connections, but each goes through a queue by
// itself, and is written with few others. Where many are under way that is most of what they cost, and costs the server too. So
// here a goroutine takes all that wait, and sends them as one pipeline, while others gather for the next. A few such senders take
// turns, so that the server has something to do all the time. They end when nothing waits.
//
//	off ──so many are under way──▶ on ──there are fewer──▶ off
//	                               └─the lane becomes wary─▶ over
//
// A caller waits for its answer for as long as its own limit lasts, whatever becomes of the others and of the sender. The command
// of one that has given up before it was taken is not sent. When the lane becomes wary, what nobody has taken goes another way.
//
// One of the client's connections may have become silent, and keep the senders that have written there. Therefore the watch over
// commands adds a sender when something waits and none has come for it.
//
// It is for clients of one address, as rueidis makes them; see private.
type coalescer struct {
	lane *lane
	on   atomic.Bool

	mu      sync.Mutex
	over    bool
	waiting []*limit // of commands that nobody has taken yet
	flying  int      // how many these are, and those under way
	senders int
	came    clock.Instant // when one of them took something last
}

const (
	coalesceFrom = 40  // so many commands must be under way on a lane for them to go together
	coalesceTo   = 32  // below that they are not
	mostSenders  = 6   // that take turns
	mostStuck    = 64  // of them, however many hang
	mostAtOnce   = 128 // commands at once: others want the server, too
)

// parcel is a command that goes with others.
type parcel struct {
	command rueidis.Completed
	answers chan rueidis.RedisResult // has room for two: the answer, and that the limit has ended
}

// coalescer returns what is to send a command, nil when its caller is.
func (l *lane) coalescer(of *limit) *coalescer {
	if !l.private.possible {
		return nil
	}
	b := l.coalescing.Load()
	if b != nil && b.on.Load() {
		return b
	}
	if bits.OnesCount64(of.group.taken.Load()) < coalesceFrom/len(l.limits) || l.underWay() < coalesceFrom {
		return nil
	}
	if b == nil {
		b = &coalescer{lane: l}
		if l.senders.Load() > mostStuck-mostSenders || !l.coalescing.CompareAndSwap(nil, b) {
			return nil
		}
	}
	b.on.Store(true)
	return b
}

// underWay is how many commands are that have a limit with a place.
func (l *lane) underWay() int {
	n := 0
	for i := range l.limits {
		if g := l.limits[i].Load(); g != nil {
			n += bits.OnesCount64(g.taken.Load())
		}
	}
	return n
}

// scatter is for when the lane becomes wary: what nobody has taken goes another way.
func (l *lane) scatter() {
	b := l.coalescing.Swap(nil)
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	for _, end := range b.waiting {
		end.parcel.answers <- rueidis.NewErrorResult(fault.NotSent)
	}
	b.waiting = nil
}

// doTogether is do for a command that goes with others.
func (l *lane) doTogether(b *coalescer, p *patience, c *protocol.Call, end *limit, a *answer) {
	t := l.transport
	end.pack(c)
	end.begin(p, a.sent, nil)
	a.RedisResult = c.Repair(end, t.client, b.do(end))
	if errors.Is(a.Error(), fault.NotSent) { // the lane has become wary
		rest := *p
		rest.since, rest.limit = 0, end.left(t.clock.Now())
		end.stop()
		l.doApart(&rest, c, a)
		return
	}
	a.came = t.clock.Now()
	excused := end.excuses(a.sent, a.came)
	end.stop()
	l.takeIn(p, excused, a)
}

// pack readies a limit that is idle for a command that goes with others.
func (l *limit) pack(c *protocol.Call) {
	if l.parcel.answers == nil {
		l.parcel.answers = make(chan rueidis.RedisResult, 2)
	}
	// For the connections that all share, however the client is made: what comes from its pool may be in any state, see private.
	l.parcel.command = c.Command(l.watch.transport.client.B(), false).ToPipe()
}

// do has the command of a limit sent, and waits until it is answered or the limit ends. With fault.NotSent it is to go
// another way.
func (b *coalescer) do(end *limit) rueidis.RedisResult {
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return rueidis.NewErrorResult(fault.NotSent)
	}
	b.waiting = append(b.waiting, end)
	b.flying++
	if b.flying < coalesceTo {
		b.on.Store(false)
	}
	begins := b.senders < mostSenders
	if begins {
		b.begin()
	}
	b.mu.Unlock()
	if !begins {
		end.watch.run() // it may have stopped before something waited
	}
	return <-end.parcel.answers
}

// hasten adds a sender when something waits, and none has come for it for a while. It tells whether something waits.
func (b *coalescer) hasten(now clock.Instant) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) > 0 && b.came.Until(now) >= watchAfter && b.lane.senders.Load() < mostStuck {
		b.begin()
	}
	return len(b.waiting) > 0
}

// begin adds a sender. The caller holds the mutex.
func (b *coalescer) begin() {
	b.senders++
	b.lane.senders.Add(1)
	go b.send()
}

// send is what a sender does until nothing waits.
func (b *coalescer) send() {
	defer b.lane.senders.Add(-1)
	client, ctx := b.lane.transport.client, b.lane.transport.ctx
	for of := b.take(nil); len(of) > 0; of = b.take(of) {
		// Not in memory that was used before: when a connection breaks, rueidis may return while it still reads that.
		commands := make([]rueidis.Completed, 0, len(of))
		for _, end := range of {
			if !end.over.Load() { // else nobody waits any more
				of[len(commands)] = end
				commands = append(commands, end.parcel.command)
			}
		}
		if len(commands) == 0 {
			continue
		}
		for i, result := range client.DoMulti(ctx, commands...) {
			of[i].parcel.answers <- result
		}
	}
}

// take returns what waits, for a sender that is done with what it has taken before.
func (b *coalescer) take(of []*limit) []*limit {
	runtime.Gosched() // those that have just been answered are about to send their next commands
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flying -= len(of)
	if len(b.waiting) == 0 {
		b.senders--
		return nil
	}
	b.came = b.lane.transport.clock.Now()
	n := min(len(b.waiting), mostAtOnce)
	of = append(of[:0], b.waiting[:n]...)
	b.waiting = append(b.waiting[:0], b.waiting[n:]...)
	return of
}
