package lockregistry

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

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
	clock  clock
	ctx    context.Context

	mu      sync.Mutex
	said    map[string]topology.Map // by the address of the node that said so; never changed
	at      instant                 // when they were asked
	asking  chan struct{}           // closed when they have been asked; nil: nobody asks
	pending map[string]instant      // those that have not answered yet, and when they were asked
	failed  map[string]bool         // those whose connections broke when they were asked last
}

const (
	guideFor   = time.Second            // for so long what the nodes have said is believed, when they had a master that answers
	guideKept  = 10 * time.Second       // and while nothing is amiss
	guideAgain = 100 * time.Millisecond // and otherwise
	guideWait  = 300 * time.Millisecond // how long to wait for the nodes
	guideRest  = 10 * time.Millisecond  // and for the rest of them, when most have answered
	silentFor  = time.Second            // a node that has not answered for so long is silent
)

func newGuide(t *transport) *guide {
	return &guide{
		client: t.client, clock: t.clock, ctx: t.ctx,
		at: notHeard, pending: map[string]instant{}, failed: map[string]bool{},
	}
}

// way is how to reach the master of some slots; the client itself, which follows the nodes, when nobody knows or there are
// several. It reports false when that master is silent.
func (g *guide) way(first, last uint16) (way rueidis.CoreClient, ok bool) {
	owner, silent := g.master(first, last)
	if silent {
		return nil, false
	}
	if node := g.client.Nodes()[owner]; owner != "" && node != nil {
		return node, true
	}
	return g.client, true
}

// master is the node that has all of some slots, if anybody knows it; and whether that node is silent.
func (g *guide) master(first, last uint16) (owner string, silent bool) {
	said, at := g.hear(guideFor)
	owner, silent = g.owner(said, first, last)
	if silent && at.until(g.clock.now()) >= guideAgain {
		said, _ = g.hear(guideAgain)
		owner, silent = g.owner(said, first, last)
	}
	return owner, silent
}

// usual is the same for a lane that is not wary: what the nodes have said some time ago will do. They are asked again meanwhile.
func (g *guide) usual(slot uint16) (owner string, silent bool) {
	if said, age := g.last(); age < guideKept {
		if owner, silent = g.owner(said, slot, slot); owner != "" && !silent {
			return owner, false
		}
	}
	return g.master(slot, slot)
}

// last returns what the nodes have said last, and how long ago. They are asked again meanwhile.
func (g *guide) last() (said map[string]topology.Map, age time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	age = g.at.until(g.clock.now())
	if age >= guideFor && g.asking == nil {
		g.asking = make(chan struct{})
		go g.ask(g.asking)
	}
	return g.said, age
}

// owner is the node that has all of some slots by the word of most that answered, if any; and whether that node is silent.
func (g *guide) owner(said map[string]topology.Map, first, last uint16) (owner string, silent bool) {
	votes := map[string]int{}
	for _, m := range said {
		if named := m.OwnerOfAll(first, last); named != "" {
			votes[named]++
		}
	}
	for named, n := range votes {
		if n*2 > len(said) {
			owner = named
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	asked, pending := g.pending[owner]
	return owner, g.failed[owner] || pending && asked.until(g.clock.now()) >= silentFor
}

// hear returns what the nodes have said, not longer ago than that.
func (g *guide) hear(within time.Duration) (said map[string]topology.Map, at instant) {
	g.mu.Lock()
	if now := g.clock.now(); g.at.until(now) < within {
		defer g.mu.Unlock()
		return g.said, g.at
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
	return g.said, g.at
}

// forget has the nodes asked again: the one that was named does not answer, or says that it is another one.
func (g *guide) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.at = min(g.at, g.clock.now().add(-guideFor+guideAgain)) // but no more often than that
}

// ask asks all nodes, but for those that have not answered yet.
func (g *guide) ask(asking chan struct{}) {
	type answer struct {
		address string
		said    topology.Map
	}
	nodes, now := g.client.Nodes(), g.clock.now()
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
			g.failed[address] = !answered(err)
			g.mu.Unlock()
			answers <- answer{address, topology.Parse(reply, address)}
		}()
	}
	g.mu.Unlock()
	said := map[string]topology.Map{}
	over := time.NewTimer(guideWait)
	defer over.Stop()
	for waiting := true; waiting && asked > 0; asked-- {
		select {
		case a := <-answers:
			if len(a.said) > 0 {
				said[a.address] = a.said
			}
			if len(said)*2 > len(nodes) && len(said)*2-2 <= len(nodes) {
				over.Reset(guideRest)
			}
		case <-over.C:
			waiting = false
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.said, g.at, g.asking = said, now, nil
	close(asking)
}
