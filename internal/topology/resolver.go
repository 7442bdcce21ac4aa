package topology

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// Resolver knows which node of a cluster is the master of a key, while it is in doubt. Rueidis finds out about a successor
// within one to two seconds of its promotion, and only after it has given up a silent connection, unless it looks
// regularly. The resolver asks all nodes at once, and what most of those say that answer counts: one that was frozen does
// not know better.
//
// A master that does not even answer that is sent nothing: its calls try again soon, and one of the next tries goes to its
// successor. So no command is under way to a silent node, for which its caller would wait, when there is one.
type Resolver struct {
	client rueidis.Client
	clock  clock.Clock
	ctx    context.Context
	found  func(Map)            // is told what most nodes say
	away   func() time.Duration // tells how much longer an answer may take than one from nearby

	mu      sync.Mutex
	said    Map                      // what most nodes that answered have said when some did last; never changed
	heard   clock.Instant            // when they were asked
	several bool                     // more than one of them has answered, or there is but one
	at      clock.Instant            // when nodes were asked last, whether any answered or not
	asking  chan struct{}            // closed when they have been asked; nil: nobody asks
	pending map[string]clock.Instant // those that have not answered yet, and when they were asked
	failed  map[string]bool          // those whose connections broke when they were asked last
}

// Owner is which node is the master of a slot, as far as is known.
type Owner struct {
	Address string // empty: nobody knows
	Silent  bool   // it does not answer
	Trusted bool   // most of the nodes have said so just now, and not that node alone
}

// How long what the nodes have said counts, and how long to wait for them.
const (
	FreshFor   = time.Second            // for so long what the nodes have said is believed, when they had a master that answers
	KeptFor    = 10 * time.Second       // and while nothing is amiss
	AskPause   = 100 * time.Millisecond // and otherwise
	answerWait = 300 * time.Millisecond // how long to wait for the nodes, and two round trips
	restWait   = 10 * time.Millisecond  // and for the rest of them, when most have answered
	silentFor  = time.Second            // a node that has not answered for so long, and two round trips, is silent

	notAsked = clock.Instant(-time.Hour) // when nodes were asked, if they were not
)

// NewResolver makes one for the client of a cluster. It tells found what most nodes say, and asks away how much longer an
// answer may take than one from nearby.
func NewResolver(
	ctx context.Context, client rueidis.Client, now clock.Clock, found func(Map), away func() time.Duration,
) *Resolver {
	return &Resolver{
		client: client, clock: now, ctx: ctx, found: found, away: away,
		at: notAsked, heard: notAsked, pending: map[string]clock.Instant{}, failed: map[string]bool{},
	}
}

// Way is how to reach the master of a slot. When nobody knows it, that is the client itself, which follows the nodes, and may
// lead to a master that is deposed: it is not trusted. It reports false when the master is silent.
func (r *Resolver) Way(slot uint16) (way rueidis.CoreClient, owner Owner, ok bool) {
	owner = r.Master(slot)
	if owner.Silent {
		return nil, owner, false
	}
	if node := r.client.Nodes()[owner.Address]; owner.Address != "" && node != nil {
		return node, owner, true
	}
	owner.Trusted = false
	return r.client, owner, true
}

// Master is the node that has a slot.
func (r *Resolver) Master(slot uint16) Owner {
	at := r.Hear(FreshFor)
	owner := r.owner(slot)
	if owner.Silent && at.Until(r.clock.Now()) >= AskPause {
		r.Hear(AskPause)
		owner = r.owner(slot)
	}
	return owner
}

// Usual is the same when nothing is amiss: what the nodes have said some time ago will do. They are asked again meanwhile.
func (r *Resolver) Usual(slot uint16) Owner {
	r.Refresh(FreshFor)
	r.mu.Lock()
	kept := r.heard.Until(r.clock.Now()) < KeptFor
	r.mu.Unlock()
	if kept {
		if owner := r.owner(slot); owner.Address != "" && !owner.Silent {
			return owner
		}
	}
	return r.Master(slot)
}

// Refresh has the nodes asked in the background, if they were not within some time.
func (r *Resolver) Refresh(within time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asking == nil && r.at.Until(r.clock.Now()) >= within {
		r.asking = make(chan struct{})
		go r.ask(r.asking)
	}
}

// owner is the node that has a slot by what was said last.
func (r *Resolver) owner(slot uint16) Owner {
	r.mu.Lock()
	defer r.mu.Unlock()
	owner := r.said.Owner(slot)
	asked, pending := r.pending[owner]
	return Owner{
		Address: owner,
		Silent:  r.failed[owner] || pending && asked.Until(r.clock.Now()) >= silentFor+r.away(),
		Trusted: owner != "" && r.several && r.heard == r.at,
	}
}

// Hear asks the nodes, if they were not within some time, and tells when they were.
func (r *Resolver) Hear(within time.Duration) clock.Instant {
	r.mu.Lock()
	if r.at.Until(r.clock.Now()) < within {
		defer r.mu.Unlock()
		return r.at
	}
	asking := r.asking
	if asking == nil {
		asking = make(chan struct{})
		r.asking = asking
		go r.ask(asking)
	}
	r.mu.Unlock()
	<-asking
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}

// Forget has the nodes asked again: the one that was named does not answer, or says that it is another one.
func (r *Resolver) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = min(r.at, r.clock.Now().Add(-FreshFor+AskPause)) // but no more often than that
}

// ask asks all nodes, but for those that have not answered yet.
func (r *Resolver) ask(asking chan struct{}) {
	nodes, now := r.client.Nodes(), r.clock.Now()
	answers, asked := make(chan Map, len(nodes)), 0
	r.mu.Lock()
	for address, node := range nodes {
		if _, pending := r.pending[address]; pending {
			continue
		}
		r.pending[address] = now
		asked++
		go func() {
			said, err := Ask(r.ctx, node, address)
			r.mu.Lock()
			delete(r.pending, address)
			r.failed[address] = !fault.Answered(err)
			r.mu.Unlock()
			answers <- said
		}()
	}
	r.mu.Unlock()
	var said []Map
	over := time.NewTimer(answerWait + r.away())
	defer over.Stop()
	for waiting := true; waiting && asked > 0; asked-- {
		select {
		case a := <-answers:
			if len(a) > 0 {
				said = append(said, a)
			}
			if len(said)*2 > len(nodes) && len(said)*2-2 <= len(nodes) {
				over.Reset(restWait)
			}
		case <-over.C:
			waiting = false
		}
	}
	all := agree(said)
	if len(all) > 0 {
		r.found(all)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(all) > 0 { // else what was said before is worth more than nothing, but is not trusted
		r.said, r.heard, r.several = all, now, len(said) > 1 || len(nodes) == 1
	}
	r.at, r.asking = now, nil
	close(asking)
}
