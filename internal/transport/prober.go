package transport

import (
	"context"
	"sync"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// prober sends its own commands to the master of a node, one after the other, for two purposes.
//
// It notices a frozen server even if all calls give up early: rueidis does not report the outcome of a command that was given
// up, so a probe is sent in its place: see [belief.Alarm].
//
// It also measures the round trip again when a node becomes suspect: if that has become longer, a fresh connection takes longer
// to make. It measures three round trips over the client's own connections. Their replies are used for nothing else, since they
// may come from a deposed master. It goes on until each of these connections has surely been made: if the server is far away, a
// command that waits for its connection would make the node suspect again.
type prober struct {
	// ask asks in place of a command that was sent at since; 0: in place of none. It reports whether the question was answered. It
	// is nil where there is no server.
	ask func(since clock.Instant) bool

	mu      sync.Mutex
	owed    clock.Instant // when a command given up since the last probe was sent; 0: none
	lessons int32         // round trips left to measure
	busy    bool          // a goroutine sends probes
}

// probeLimit is how long a probe waits for its reply: longer than any supported round trip takes.
const probeLimit = belief.Silence + 6*belief.Farthest

// gaveUp asks in the place of a command that was given up. Sent is when the command was sent.
func (p *prober) gaveUp(sent clock.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owed == 0 {
		p.owed = sent
	}
	p.begin()
}

// learn measures the round trip to the server.
func (p *prober) learn(lessons int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lessons = lessons
	p.begin()
}

// begin has a goroutine probe until there is nothing to do. The caller holds the mutex.
func (p *prober) begin() {
	if p.ask == nil || p.busy {
		return
	}
	p.busy = true
	go func() {
		for answered := true; ; {
			owed, more := p.next(answered)
			if !more {
				return
			}
			answered = p.ask(owed)
		}
	}()
}

// next returns what to ask next, if anything. If the last question was not answered, measuring ends; the next command that is
// given up or late begins it anew.
func (p *prober) next(answered bool) (owed clock.Instant, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !answered {
		p.lessons = 0
	}
	owed, p.owed = p.owed, 0
	p.busy = owed != 0 || p.lessons > 0
	p.lessons = max(0, p.lessons-1)
	return owed, p.busy
}

// Relearn measures the round trip again, at most once in a Tick. A round trip that seems too long may keep calls from being
// sent. Then nothing else would show that it is short again; or that it always was, if the first three replies were late only
// because the process had just started.
func (s *Node) Relearn() {
	if s.belief.Sampled().Until(s.clock.Now()) >= belief.Tick {
		s.probes.learn(s.belief.Lessons())
	}
}

// probe asks the server something in place of a command that was sent at since; 0: in place of none.
func (s *Node) probe(since clock.Instant) (answered bool) {
	if since == 0 {
		since = s.clock.Now()
	}
	p := Wait{Ctx: context.Background(), Limit: probeLimit, probes: since}
	return fault.Answered(s.inquire(&p, true, single(ping)).result(0).Error())
}

// ping is a question that every server answers. Rueidis takes its argument for a key, and so chooses one of its connections at
// random; without the argument every PING would go over the first one.
func ping(b rueidis.Builder) rueidis.Completed {
	return b.Arbitrary("PING").Keys("there").Build().ToPipe()
}

// inquire asks the node's server, and notes the reply. Plain: over the client's own connections, even if the node is suspect.
func (s *Node) inquire(p *Wait, plain bool, questions sending) outcome {
	came := s.await(p, task{plain: plain, send: questions})
	came.late = s.believes(p, came.result(0).Error(), came.Exchange) != belief.Believed
	return came
}
