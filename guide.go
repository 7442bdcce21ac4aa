package lockregistry

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// guide knows which node of a cluster is the master of a key, for lanes that are wary. Rueidis finds out about a successor
// within one to two seconds of its promotion, and only after it has given up a silent connection, unless it looks
// regularly. The guide asks all nodes at once, and what most of those say that answer counts: one that was frozen does not know
// better.
//
// A master that does not even answer that is sent nothing: its calls try again soon, and one of the next tries goes to its
// successor. So no command is under way to a silent node, for which its caller would wait, when there is one.
type guide struct {
	client rueidis.Client
	clock  clock.Clock
	ctx    context.Context
	found  func(topology.Map) // is told what most nodes say
	trip   func() trip        // tells how far the nodes are away

	mu      sync.Mutex
	said    topology.Map             // what most nodes that answered have said when some did last; never changed
	heard   clock.Instant            // when they were asked
	several bool                     // more than one of them has answered, or there is but one
	at      clock.Instant            // when nodes were asked last, whether any answered or not
	asking  chan struct{}            // closed when they have been asked; nil: nobody asks
	pending map[string]clock.Instant // those that have not answered yet, and when they were asked
	failed  map[string]bool          // those whose connections broke when they were asked last
}

// mastery is which node is the master of a slot, as far as is known.
type mastery struct {
	address string // empty: nobody knows
	silent  bool   // it does not answer
	trusted bool   // most of the nodes have said so just now, and not that node alone
}

const (
	guideFor   = time.Second            // for so long what the nodes have said is believed, when they had a master that answers
	guideKept  = 10 * time.Second       // and while nothing is amiss
	guideAgain = 100 * time.Millisecond // and otherwise
	guideWait  = 300 * time.Millisecond // how long to wait for the nodes, and two round trips
	guideRest  = 10 * time.Millisecond  // and for the rest of them, when most have answered
	silentFor  = time.Second            // a node that has not answered for so long, and two round trips, is silent
)

func newGuide(t *transport) *guide {
	return &guide{
		client: t.client, clock: t.clock, ctx: t.ctx, found: t.reroute, trip: func() trip { return t.farthest().trip() },
		at: notHeard, heard: notHeard, pending: map[string]clock.Instant{}, failed: map[string]bool{},
	}
}

// way is how to reach the master of a slot. When nobody knows it, that is the client itself, which follows the nodes, and may
// lead to a master that is deposed: it is not trusted. It reports false when the master is silent.
func (g *guide) way(slot uint16) (way rueidis.CoreClient, owner mastery, ok bool) {
	owner = g.master(slot)
	if owner.silent {
		return nil, owner, false
	}
	if node := g.client.Nodes()[owner.address]; owner.address != "" && node != nil {
		return node, owner, true
	}
	owner.trusted = false
	return g.client, owner, true
}

// master is the node that has a slot.
func (g *guide) master(slot uint16) mastery {
	at := g.hear(guideFor)
	owner := g.owner(slot)
	if owner.silent && at.Until(g.clock.Now()) >= guideAgain {
		g.hear(guideAgain)
		owner = g.owner(slot)
	}
	return owner
}

// usual is the same for a lane that is not wary: what the nodes have said some time ago will do. They are asked again meanwhile.
func (g *guide) usual(slot uint16) mastery {
	g.refresh(guideFor)
	g.mu.Lock()
	kept := g.heard.Until(g.clock.Now()) < guideKept
	g.mu.Unlock()
	if kept {
		if owner := g.owner(slot); owner.address != "" && !owner.silent {
			return owner
		}
	}
	return g.master(slot)
}

// refresh has the nodes asked in the background, if they were not within some time.
func (g *guide) refresh(within time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asking == nil && g.at.Until(g.clock.Now()) >= within {
		g.asking = make(chan struct{})
		go g.ask(g.asking)
	}
}

// owner is the node that has a slot by what was said last.
func (g *guide) owner(slot uint16) mastery {
	g.mu.Lock()
	defer g.mu.Unlock()
	owner := g.said.Owner(slot)
	asked, pending := g.pending[owner]
	return mastery{
		address: owner,
		silent:  g.failed[owner] || pending && asked.Until(g.clock.Now()) >= g.trip().plus(silentFor),
		trusted: owner != "" && g.several && g.heard == g.at,
	}
}

// hear asks the nodes, if they were not within some time, and tells when they were.
func (g *guide) hear(within time.Duration) clock.Instant {
	g.mu.Lock()
	if g.at.Until(g.clock.Now()) < within {
		defer g.mu.Unlock()
		return g.at
	}
	asking := g.asking
	if asking == nil {
		asking = make(chan struct{})
		g.asking = asking
		go g.ask(asking)
	}
	g.mu.Unlock()
	<-asking
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.at
}

// forget has the nodes asked again: the one that was named does not answer, or says that it is another one.
func (g *guide) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = min(g.at, g.clock.Now().Add(-guideFor+guideAgain)) // but no more often than that
}

// ask asks all nodes, but for those that have not answered yet.
func (g *guide) ask(asking chan struct{}) {
	type answer struct{ said topology.Map }
	nodes, now := g.client.Nodes(), g.clock.Now()
	answers, asked := make(chan answer, len(nodes)), 0
	g.mu.Lock()
	for address, node := range nodes {
		if _, pending := g.pending[address]; pending {
			continue
		}
		g.pending[address] = now
		asked++
		go func() {
			reply, err := node.Do(g.ctx, node.B().ClusterSlots().Build()).ToArray()
			g.mu.Lock()
			delete(g.pending, address)
			g.failed[address] = !fault.Answered(err)
			g.mu.Unlock()
			answers <- answer{topology.Parse(reply, address)}
		}()
	}
	g.mu.Unlock()
	var said []topology.Map
	over := time.NewTimer(g.trip().plus(guideWait))
	defer over.Stop()
	for waiting := true; waiting && asked > 0; asked-- {
		select {
		case a := <-answers:
			if len(a.said) > 0 {
				said = append(said, a.said)
			}
			if len(said)*2 > len(nodes) && len(said)*2-2 <= len(nodes) {
				over.Reset(guideRest)
			}
		case <-over.C:
			waiting = false
		}
	}
	all := topology.Agree(said)
	if len(all) > 0 {
		g.found(all)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(all) > 0 { // else what was said before is worth more than nothing, but is not trusted
		g.said, g.heard, g.several = all, now, len(said) > 1 || len(nodes) == 1
	}
	g.at, g.asking = now, nil
	close(asking)
}
