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
// And it measures the round trip again when a node becomes suspect, since a longer one must be known to make a fresh
// connection. It measures three round trips over the client's own connections; their replies are not used otherwise, since they
// may come from a deposed master. It sends more until each of those connections has surely been made: if the server is far
// away, a command that waits for its connection would make the node suspect again.
type prober struct {
	ask func(since clock.Instant) bool // in the place of a command sent then; 0: of none. Was it answered? nil: there is no server

	mu      sync.Mutex
	owed    clock.Instant // when a command was sent that was given up since the last probe; 0: none
	lessons int32         // round trips left to measure
	busy    bool          // a goroutine sends probes
}

// probeLimit is how long a probe waits for its reply: longer than any supported round trip takes.
const probeLimit = belief.Silence + 6*belief.Farthest

// gaveUp asks in the place of a command that was sent at some time.
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

// next returns what to ask next, if anything. If nothing was answered no more is measured: the next command that is given up or
// late begins anew.
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

// Relearn measures the round trip again when its length keeps calls from being sent: otherwise nothing would show that it is
// short again, or always was, with three replies that were late because the process had just started. It does so once in a Tick.
func (s *Node) Relearn() {
	if s.belief.Sampled().Until(s.clock.Now()) >= belief.Tick {
		s.probes.learn(s.belief.Lessons())
	}
}

// probe asks the server something in the place of a command that was sent at some time; 0: of none.
func (s *Node) probe(since clock.Instant) (answered bool) {
	if since == 0 {
		since = s.clock.Now()
	}
	p := Wait{Ctx: context.Background(), Limit: probeLimit, probes: since}
	return fault.Answered(s.inquire(&p, true, single(ping)).result(0).Error())
}

// ping is a question to which each server has an answer. The text behind it makes rueidis take it for a command with a key, and
// choose one of its connections at random: without it every PING would use the first one.
func ping(b rueidis.Builder) rueidis.Completed { return b.Arbitrary("PING").Keys("there").Build() }

// inquire asks the node's server, and notes what comes. Plain: over the client's own connections, even if the node is suspect.
func (s *Node) inquire(p *Wait, plain bool, questions sending) outcome {
	came := s.await(p, task{plain: plain, send: questions})
	came.late = s.believes(p, came.result(0).Error(), came.exchange) != belief.Believed
	return came
}
