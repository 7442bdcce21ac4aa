package transport

import (
	"math/bits"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// watchdog ends bounds. A timer for each command would cost more than the rest of this file: so one timer serves all that are
// untimed. It fires at intervals, as long as commands are under way, and is not stopped when they are answered: to stop it and
// set it again for each would wake threads of an idle process. Only a command that has taken a while, or need not be answered
// at once, gets a timer of its own, and only then its caller's context is watched, which takes memory, and the mutex of a
// context that many callers may share.
type watchdog struct {
	client *Client
	timer  *time.Timer

	_       cacheLine
	running atomic.Bool // the timer, or it has just fired
	_       cacheLine
}

const (
	roundEvery = 90 * time.Millisecond // with timedAfter no more than the shortest grace
	timedAfter = 10 * time.Millisecond // more than most replies take
)

func (w *watchdog) begin(t *Client) {
	w.client = t
	w.timer = time.AfterFunc(time.Hour, w.round)
	w.timer.Stop()
}

// run sees to it that there is a round.
func (w *watchdog) run() {
	if !w.running.Load() && w.running.CompareAndSwap(false, true) {
		w.timer.Reset(roundEvery)
	}
}

// round looks for commands that have taken a while. A caller that finds the watchdog running has made its bound untimed before,
// so either this round meets the bound, or running was false already.
func (w *watchdog) round() {
	w.running.Store(false)
	now := w.client.Clock.Now()
	more := false
	if w.client.resolver != nil {
		w.client.resolver.Refresh(topology.KeptFor)
	}
	for _, s := range w.client.shards() {
		if b := s.batches.now.Load(); b != nil && b.hasten(now) {
			more = true
		}
		for g := range s.bounds.made {
			more = g.round(now) || more
		}
	}
	if more {
		w.run()
	}
}

// boundPool has the bounds of a shard's commands that their callers send themselves.
type boundPool struct {
	shard  *Shard
	groups [mostPlaces / placesOfAGroup]atomic.Pointer[boundGroup]
	more   atomic.Int32 // how many groups there are besides those for commands that their callers send themselves
}

// boundGroup has places for bounds. A shard has several, of which a command takes any, so that cores seldom meet at one.
type boundGroup struct {
	joins  bool          // its commands go with others: as many as there may be are sent by their callers
	taken  atomic.Uint64 // a bit for each place
	_      cacheLine
	bounds [placesOfAGroup]atomic.Pointer[bound] // nil: one has yet to be made
	_      cacheLine
}

const (
	mostDirect     = 640       // that their callers send: a connection's queue has room for 1 024 by default
	mostPlaces     = 16 * 1024 // of those that go with others, too
	placesOfAGroup = 64
	directGroups   = mostDirect / placesOfAGroup
)

// take returns an idle bound with a place, or nil where there is none left. While there is room for a command that its caller
// sends itself, the bound is for such a one.
func (p *boundPool) take() *bound {
	b := p.takeOf(p.groups[:directGroups], false)
	for b == nil {
		more := p.more.Load()
		rest := p.groups[directGroups:]
		if b = p.takeOf(rest[:more], true); b == nil {
			if int(more) == len(rest) {
				return nil
			}
			p.more.CompareAndSwap(more, more+1)
		}
	}
	return b
}

func (p *boundPool) takeOf(groups []atomic.Pointer[boundGroup], joins bool) *bound {
	if len(groups) == 0 {
		return nil
	}
	first := rand.IntN(len(groups)) //nolint:gosec // no secret
	for i := range groups {
		n := (first + i) % len(groups)
		g := groups[n].Load()
		if g == nil {
			groups[n].CompareAndSwap(nil, &boundGroup{joins: joins})
			g = groups[n].Load()
		}
		if b := g.take(p.shard); b != nil {
			return b
		}
	}
	return nil
}

// made are the groups that there are.
func (p *boundPool) made(yield func(*boundGroup) bool) {
	p.some(directGroups+int(p.more.Load()), yield)
}

// direct are those for commands that their callers send themselves.
func (p *boundPool) direct(yield func(*boundGroup) bool) { p.some(directGroups, yield) }

func (p *boundPool) some(n int, yield func(*boundGroup) bool) {
	for i := range n {
		if g := p.groups[i].Load(); g != nil && !yield(g) {
			return
		}
	}
}

// alone tells whether a command is the only one under way that its caller has sent itself.
func (p *boundPool) alone(b *bound) bool {
	if b.group.taken.Load() != 1<<b.place {
		return false
	}
	for g := range p.direct {
		if g != b.group && g.taken.Load() != 0 {
			return false
		}
	}
	return true
}

// many tells whether at least so many commands are under way, by one of them.
func (p *boundPool) many(b *bound, least int) bool {
	n := bits.OnesCount64(b.group.taken.Load())
	if n < least/directGroups {
		return false
	}
	for g := range p.direct {
		if g != b.group {
			n += bits.OnesCount64(g.taken.Load())
		}
	}
	return n >= least
}

func (g *boundGroup) take(of *Shard) *bound {
	for {
		taken := g.taken.Load()
		n := bits.TrailingZeros64(^taken)
		if n == placesOfAGroup {
			return nil
		}
		if !g.taken.CompareAndSwap(taken, taken|1<<n) {
			continue
		}
		b := g.bounds[n].Load()
		if b == nil {
			b = &bound{done: make(chan struct{}), client: of.client, alarm: alarm{shard: of}, group: g, place: n}
			g.bounds[n].Store(b)
		}
		return b
	}
}

// free gives a place back.
func (g *boundGroup) free(place int) { g.taken.And(^(uint64(1) << place)) }

// round has a timer for each command that has taken a while, and tells whether there are any that have not.
func (g *boundGroup) round(now clock.Instant) (more bool) {
	for taken := g.taken.Load(); taken != 0; taken &= taken - 1 {
		b := g.bounds[bits.TrailingZeros64(taken)].Load()
		switch {
		case b == nil || b.phase.Load() != untimed:
		case clock.Instant(b.began.Load()).Until(now) < timedAfter:
			more = true
		case b.phase.CompareAndSwap(untimed, timed):
			b.mu.Lock()
			stopped := b.stopped
			if !stopped {
				b.setTimer(now)
			}
			if b.watches == nil {
				b.watches = b.watchContext
			}
			b.mu.Unlock()
			if !stopped {
				go b.watches() // a context may be of any type, and block: the bounds of other commands do not wait for it
			}
		}
	}
	return more
}
