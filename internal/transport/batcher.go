package transport

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/protocol"
)

// batcher sends the commands of many callers together. Rueidis has them share connections, but each goes through a queue by
// itself, and is written with few others. Where many are under way that is most of what they cost, and costs the server too.
// So here a goroutine takes all that wait, and sends them as one pipeline, while others gather for the next. A few such
// senders take turns, so that the server has something to do all the time. They end when nothing waits.
//
//	off ──so many are under way──▶ on ──there are fewer──▶ off
//	                               └─the shard becomes suspect─▶ over
//
// Two kinds of commands go through it however many there are: those that come while the shard is idle, so that a sender hangs
// and not a caller; and those for which there may be no room in the queue of a connection, where rueidis waits without a look at
// the context.
//
// A caller waits for its reply for as long as its own bound lasts, whatever becomes of the others and of the sender. The
// command of one that has given up before it was taken is not sent. When the shard becomes suspect, what nobody has taken goes
// another way.
//
// One of the client's connections may have become silent, and keep the senders that have written there. Therefore the watch
// over commands adds a sender when something waits and none has come for it.
//
// It is for clients of one address, as rueidis makes them; see ownConn. In a cluster it would send to nodes, beside the client,
// which would not learn then that one of them has failed.
type batcher struct {
	shard *Shard
	on    atomic.Bool

	mu      sync.Mutex
	over    bool
	waiting []*bound // of commands that nobody has taken yet
	spare   []*bound // memory for what a sender takes
	flying  int      // how many these are, and those under way
	senders int
	came    clock.Instant // when one of them took something last
	sends   func()        // send: to name it each time would take memory
}

const (
	batchFrom   = 40  // so many commands must be under way on a shard for them to go together
	batchTo     = 32  // below that they are not
	mostSenders = 6   // that take turns
	mostStuck   = 64  // of them, however many hang
	mostAtOnce  = 128 // commands at once: others want the server, too
)

// item is a command that goes with others.
type item struct {
	command rueidis.Completed
	replies chan rueidis.RedisResult // has room for two: the reply, and that the bound has ended
	obtains bool                     // see Client.AwaitAbandoned
	stage   atomic.Uint32
}

// The stages of an item.
//
//	waits ──▶ taken ──answered, or its caller gives up: whoever comes last counts it as abandoned no more──▶ done
//	  └─its caller gives up: it is not sent──▶ done
const (
	waits uint32 = iota
	taken
	done
)

func newBatcher(s *Shard) *batcher {
	b := &batcher{shard: s}
	b.sends = b.send
	return b
}

type batches struct {
	shard   *Shard
	now     atomic.Pointer[batcher] // nil: none
	senders atomic.Int32            // of it, and of those before
}

// batcher returns what is to send a command, nil when its caller is.
func (s *batches) batcher(of *bound) *batcher {
	if !s.shard.own.possible {
		return nil
	}
	b := s.now.Load()
	if b != nil && b.on.Load() {
		return b
	}
	if of.nth < batchFrom {
		return nil
	}
	if b = s.get(); b != nil {
		b.on.Store(true)
	}
	return b
}

// get returns the batcher, nil where there is to be none.
func (s *batches) get() *batcher {
	b := s.now.Load()
	if b != nil || !s.shard.own.possible || s.senders.Load() > mostStuck-mostSenders {
		return b
	}
	b = newBatcher(s.shard)
	if !s.now.CompareAndSwap(nil, b) {
		return s.now.Load()
	}
	return b
}

// mayCarry tells whether a command on a shard that is not healthy may go with others, whose senders may hang: the shard is idle,
// and its connections have been made.
func (s *batches) mayCarry(now clock.Instant) bool {
	return s.shard.own.possible && s.shard.warm() && !s.shard.IsSuspect(now)
}

// stop is for when the shard becomes suspect: what nobody has taken goes another way.
func (s *batches) stop() {
	b := s.now.Swap(nil)
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	for _, end := range b.waiting {
		if end.item.stage.CompareAndSwap(waits, taken) { // else its caller has given up
			end.answer(rueidis.NewErrorResult(fault.NotSent))
		}
	}
	b.waiting = nil
}

// doBatched is do for a command that goes with others.
func (s *Shard) doBatched(b *batcher, p *Wait, c *protocol.Call, end *bound, a *Reply) {
	t := s.client
	if s.own.inARow.Load() != 0 { // it is not alone, or comes after a pause
		s.own.inARow.Store(0)
	}
	end.pack(c, c.Command(t.redis.B(), false))
	end.callers = true
	end.begin(p, a.Sent, nil)
	a.RedisResult = b.do(end)
	if c.Script != nil && protocol.NoScript(a.Error()) {
		end.pack(c, c.BySource(t.redis.B()))
		a.RedisResult = b.do(end)
	}
	switch err := a.Error(); {
	case errors.Is(err, fault.NoAnswer) && end.over():
		if !end.giveUp() {
			a.RedisResult = rueidis.NewErrorResult(fault.NotSent)
		}
	case errors.Is(err, fault.NoAnswer), errors.Is(err, fault.NotSent): // see reroute; or the shard has become suspect
		s.reroute(p, c, end, a)
		return
	}
	a.Came = t.Clock.Now()
	excused := end.excuses(a.Sent, a.Came)
	alone := s.alone(end.nth)
	end.stop()
	s.takeIn(p, excused, alone, a)
}

// pack readies a bound for a command that goes with others.
func (b *bound) pack(c *protocol.Call, command rueidis.Completed) {
	if b.item.replies == nil {
		b.item.replies = make(chan rueidis.RedisResult, 2)
	}
	// For the connections that all share, however the client is made: what comes from its pool may be in any state, see ownConn.
	b.item.command = command.ToPipe()
	b.item.obtains = c.DropIfAbandoned
	b.item.stage.Store(waits)
}

// answer gives a command its reply, or says that it is to go another way.
func (b *bound) answer(reply rueidis.RedisResult) {
	if b.item.stage.Swap(done) == done && b.item.obtains {
		b.client.abandoned.Add(-1)
	}
	b.item.replies <- reply
}

// giveUp is for when the caller of a command waits no longer. It tells whether the command may have been sent, or may yet be.
func (b *bound) giveUp() bool {
	if b.item.stage.CompareAndSwap(waits, done) {
		return false
	}
	if b.item.obtains {
		b.client.abandoned.Add(1)
		if b.item.stage.Swap(done) == done { // it has just been answered
			b.client.abandoned.Add(-1)
		}
	}
	return true
}

// do has the command of a bound sent, and waits until it is answered or the bound ends. With fault.NotSent it is to go
// another way.
func (b *batcher) do(end *bound) rueidis.RedisResult {
	b.mu.Lock()
	if b.over {
		b.mu.Unlock()
		return rueidis.NewErrorResult(fault.NotSent)
	}
	b.waiting = append(b.waiting, end)
	b.flying++
	if b.flying < batchTo {
		b.on.Store(false)
	}
	begins := b.senders < mostSenders
	if begins {
		b.begin()
	}
	b.mu.Unlock()
	if !begins {
		end.client.watchdog.run() // it may have stopped before something waited
	}
	select {
	case reply := <-end.item.replies:
		return reply
	case <-end.ctx.Done():
		end.contextEnded(end.client.Clock.Now())
		return <-end.item.replies
	}
}

// hasten adds a sender when something waits, and none has come for it for a while. It tells whether something waits.
func (b *batcher) hasten(now clock.Instant) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.waiting) > 0 && b.came.Until(now) >= timedAfter && b.shard.batches.senders.Load() < mostStuck {
		b.begin()
	}
	return len(b.waiting) > 0
}

// begin adds a sender. The caller holds the mutex.
func (b *batcher) begin() {
	b.senders++
	b.shard.batches.senders.Add(1)
	go b.sends()
}

// send is what a sender does until nothing waits.
func (b *batcher) send() {
	defer b.shard.batches.senders.Add(-1)
	client, ctx := b.shard.client.redis, b.shard.client.ctx
	for of := b.take(nil); len(of) > 0; of = b.take(of) {
		n := 0
		for _, end := range of {
			if !end.over() && end.item.stage.CompareAndSwap(waits, taken) { // else nobody waits any more
				of[n] = end
				n++
			}
		}
		switch n {
		case 0:
		case 1:
			of[0].answer(client.Do(ctx, of[0].item.command))
		default:
			// Not in memory that was used before: when a connection breaks, rueidis may return while it still reads that.
			commands := make([]rueidis.Completed, n)
			for i, end := range of[:n] {
				commands[i] = end.item.command
			}
			for i, result := range client.DoMulti(ctx, commands...) {
				of[i].answer(result)
			}
		}
	}
}

// take returns what waits, for a sender that is done with what it has taken before.
func (b *batcher) take(of []*bound) []*bound {
	runtime.Gosched() // those that have just been answered are about to send their next commands
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flying -= len(of)
	if len(b.waiting) == 0 {
		clear(of)
		b.senders, b.spare = b.senders-1, of
		return nil
	}
	if of == nil {
		of, b.spare = b.spare, nil
	}
	b.came = b.shard.client.Clock.Now()
	n := min(len(b.waiting), mostAtOnce)
	of = append(of[:0], b.waiting[:n]...)
	b.waiting = append(b.waiting[:0], b.waiting[n:]...)
	return of
}
