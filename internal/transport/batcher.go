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

// batcher sends the commands of many callers together. In rueidis they share connections, but each passes a queue by itself,
// and is written with few others. With many commands under way that is most of their cost, also at the server. So here a
// goroutine takes all waiting commands, and sends them as one pipeline, while others gather for the next. A few such senders
// take turns, so that the server is always busy. They end when nothing waits.
//
//	off ──so many are under way──▶ on ──there are fewer──▶ off
//	                               └─the shard becomes suspect─▶ over
//
// Two kinds of commands always go through it: commands that come while the shard is idle, so that a sender hangs and not a
// caller; and commands for which a connection's queue may have no room, since rueidis then waits without regard to the context.
//
// A caller waits for its reply for as long as its own bound lasts, whatever happens to the others and the sender. If it gives
// up before a sender has taken its command, the command is not sent. When the shard becomes suspect, commands that were not
// taken go another way.
//
// A connection of the client may become silent, and block the senders that have written there. Therefore the watchdog adds a
// sender when commands wait and no sender has come.
//
// It is only for plain rueidis clients of one address, see ownConn. In a cluster it would have to send to nodes itself, and the
// client would not notice a failed node.
type batcher struct {
	shard *Shard
	on    atomic.Bool

	mu      sync.Mutex
	over    bool
	waiting []*bound // the bounds of commands that no sender has taken
	spare   []*bound // memory for what a sender takes
	flying  int      // how many commands wait or are under way
	senders int
	came    clock.Instant // when a sender last took commands
	sends   func()        // send: a method value allocates each time
}

const (
	batchFrom   = 40  // with this many commands under way on a shard batching begins
	batchTo     = 32  // below this it ends
	mostSenders = 6   // senders that take turns
	mostStuck   = 64  // the most senders, however many hang
	mostAtOnce  = 128 // commands in a pipeline: others want the server, too
)

// item is a command of a batch.
type item struct {
	command rueidis.Completed
	replies chan rueidis.RedisResult // has room for two: the reply, and the end of the bound
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
	now     atomic.Pointer[batcher] // nil: off
	senders atomic.Int32            // of this batcher and earlier ones
}

// batcher returns the batcher that sends a command; nil if its caller does.
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

// get returns the batcher, and makes it if there is none; nil if there must be none.
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

// mayCarry reports whether a batcher may send commands on a shard that is not healthy: it is idle, and its connections have
// been made.
func (s *batches) mayCarry(now clock.Instant) bool {
	return s.shard.own.possible && s.shard.belief.Warm() && !s.shard.IsSuspect(now)
}

// stop is called when the shard becomes suspect: commands that no sender has taken go another way.
func (s *batches) stop() {
	b := s.now.Swap(nil)
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	for _, end := range b.waiting {
		if end.item.stage.CompareAndSwap(waits, taken) { // else the caller has given up
			end.answer(rueidis.NewErrorResult(fault.NotSent))
		}
	}
	b.waiting = nil
}

// doBatched is Do through a batcher.
func (s *Shard) doBatched(b *batcher, p *Wait, c *protocol.Call, end *bound, a *Reply) {
	t := s.client
	if s.own.inARow.Load() != 0 { // not one at a time, or after a pause; see take
		s.own.inARow.Store(0)
	}
	end.pack(c, c.Command(t.redis.B(), false))
	end.callers = true
	end.begin(p, a.Sent, nil)
	a.RedisResult = b.do(end)
	for c.Again(a.RedisResult) {
		end.pack(c, c.Command(t.redis.B(), false))
		a.RedisResult = b.do(end)
	}
	switch err := a.Error(); {
	case errors.Is(err, fault.NoAnswer) && end.over():
		if !end.giveUp() {
			a.RedisResult = rueidis.NewErrorResult(fault.NotSent)
		}
	case errors.Is(err, fault.NoAnswer), errors.Is(err, fault.NotSent): // see reroute, or the shard has become suspect
		s.reroute(p, c, end, a)
		return
	}
	a.Came = t.Clock.Now()
	excused := end.excuses(a.Sent, a.Came)
	end.stop()
	s.takeIn(p, excused, a)
}

// pack prepares a bound's item for a command.
func (b *bound) pack(c *protocol.Call, command rueidis.Completed) {
	if b.item.replies == nil {
		b.item.replies = make(chan rueidis.RedisResult, 2)
	}
	// ToPipe: always over the shared connections, since pooled ones may be in any state, see ownConn.
	b.item.command = command.ToPipe()
	b.item.obtains = c.DropIfAbandoned
	b.item.stage.Store(waits)
}

// answer gives a command its reply, or the error that sends it another way.
func (b *bound) answer(reply rueidis.RedisResult) {
	if b.item.stage.Swap(done) == done && b.item.obtains {
		b.client.abandoned.Add(-1)
	}
	b.item.replies <- reply
}

// giveUp ends the caller's wait. It reports whether the command may have been sent, or may still be.
func (b *bound) giveUp() bool {
	if b.item.stage.CompareAndSwap(waits, done) {
		return false
	}
	if b.item.obtains {
		b.client.abandoned.Add(1)
		if b.item.stage.Swap(done) == done { // the reply has just come
			b.client.abandoned.Add(-1)
		}
	}
	return true
}

// do queues the command of a bound, and waits for its reply or the end of the bound. With fault.NotSent the command must go
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
		end.client.watchdog.run() // it may have stopped before this command waited
	}
	select {
	case reply := <-end.item.replies:
		return reply
	case <-end.ctx.Done():
		end.contextEnded(end.client.Clock.Now())
		return <-end.item.replies
	}
}

// hasten adds a sender when commands have waited for a while and no sender has come. It reports whether commands wait.
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

// send is the loop of a sender, until nothing waits.
func (b *batcher) send() {
	defer b.shard.batches.senders.Add(-1)
	client, ctx := b.shard.client.redis, b.shard.client.ctx
	for of := b.take(nil); len(of) > 0; of = b.take(of) {
		n := 0
		for _, end := range of {
			if !end.over() && end.item.stage.CompareAndSwap(waits, taken) { // else the caller no longer waits
				of[n] = end
				n++
			}
		}
		switch n {
		case 0:
		case 1:
			of[0].answer(client.Do(ctx, of[0].item.command))
		default:
			// Not reused memory: when a connection breaks, rueidis may return while it still reads the commands.
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

// take returns waiting commands to a sender that is done with the previous ones.
func (b *batcher) take(of []*bound) []*bound {
	runtime.Gosched() // callers that just got replies are about to send their next commands
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
