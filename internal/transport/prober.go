package transport

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// prober sends commands of its own to the master of a shard, one after the other, for two purposes.
//
// A command that nobody waits for any more must be answered, or a server that is frozen would not be noticed where all calls are
// short. Rueidis does not tell of it. So another command is sent, as if that were the one that was given up: see alarm.due.
//
// And when a shard becomes suspect, the way may have become longer, which must be known to make a fresh connection. So three
// round trips are measured over the client's own connections; their replies are of no other use, since they may come from a
// master that was deposed. More are sent until each of those connections has surely been made: where the server is far away, a
// command that waited for its own would make the shard suspect again.
type prober struct {
	shard   *Shard
	owed    atomic.Int64 // an instant: when a command was sent that was given up since the last probe; 0: there is none
	lessons atomic.Int32 // round trips that are yet to be measured
	busy    atomic.Bool  // a goroutine sends them
}

// probeLimit is how long one waits for its reply: longer than any way that is supported lets it take.
const probeLimit = lateReply + 6*farthest

// relearnEvery is the least time from the newest measurement to another one for calls that are not sent.
const relearnEvery = 100 * time.Millisecond

func (p *prober) gaveUp(sent clock.Instant) {
	p.owed.CompareAndSwap(0, int64(sent))
	p.begin()
}

// learn has the way to the server measured.
func (p *prober) learn() {
	p.lessons.Store(max(3, manyReplies-p.shard.replies.Load()))
	p.begin()
}

// Relearn has the way to the server measured anew, where what is known of it keeps calls from being sent: else nothing would
// show that it is short again, or always was, and three answers were late because the process had just started.
func (s *Shard) Relearn() {
	if clock.Instant(s.estimate.came.Load()).Until(s.client.Clock.Now()) >= relearnEvery {
		s.probes.learn()
	}
}

func (p *prober) begin() {
	if !p.shard.nobodys() && p.busy.CompareAndSwap(false, true) {
		go p.run()
	}
}

// run is the goroutine that probes, until there is no need to. Who has found it busy has said before what is to be done:
// so it is seen here, or finds that it is not busy.
func (p *prober) run() {
	for {
		owed, lessons := clock.Instant(p.owed.Swap(0)), p.lessons.Load()
		if owed == 0 && lessons <= 0 {
			p.busy.Store(false)
			if p.owed.Load() == 0 && p.lessons.Load() <= 0 || !p.busy.CompareAndSwap(false, true) {
				return
			}
			continue
		}
		if lessons > 0 {
			p.lessons.Add(-1)
		}
		if !p.once(owed) {
			p.lessons.Store(0) // the next command that is given up, or late, begins anew
		}
	}
}

// once asks the server something and tells whether it has answered.
func (p *prober) once(owed clock.Instant) bool {
	if owed == 0 {
		owed = p.shard.client.Clock.Now()
	}
	return fault.Answered(p.shard.ping(&Wait{Ctx: context.Background(), Limit: probeLimit, probes: owed}, true))
}

// ping asks the shard's server whether it is there, and takes in whether it is. Plain is over the client's own connections,
// also when the shard is suspect. The text behind the PING has rueidis take it for a command on a key, and choose at random among
// the client's connections: without it all would go over the first one.
func (s *Shard) ping(p *Wait, plain bool) error {
	reply, _ := s.question(p, plain, func(ctx context.Context, way rueidis.CoreClient) rueidis.RedisResult {
		return way.Do(ctx, way.B().Arbitrary("PING").Keys("there").Build())
	})
	return reply.Error()
}

// question asks it something else, and tells whether the reply is late.
func (s *Shard) question(p *Wait, plain bool, question Question) (reply rueidis.RedisResult, late bool) {
	send := func(ctx context.Context, way rueidis.CoreClient) []rueidis.RedisResult {
		return []rueidis.RedisResult{question(ctx, way)}
	}
	e := s.async(p, s.places, &asyncCall{shared: plain, send: send})
	reply = e.result(0)
	return reply, s.judge(p, reply.Error(), e.at(s.client.Clock.Now()))
}
