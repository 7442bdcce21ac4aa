package topology

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/belief"
	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
)

// Resolver finds the master of a slot of a cluster when that is in doubt. Rueidis notices a successor one to two seconds after
// its promotion, and only after it has given up a silent connection, unless it looks regularly. The resolver asks all nodes at
// once, and the majority of the answers counts: a node that was frozen has old data.
//
// Nothing is sent to a master that does not even answer that: its calls try again soon, and one of the next tries goes to its
// successor. So no caller waits for a silent node when there is a successor.
type Resolver struct {
	client rueidis.Client
	clock  clock.Clock
	ctx    context.Context
	found  func(Map)            // called with the majority's answer
	away   func() time.Duration // how much longer an answer may take than from nearby

	mu      sync.Mutex
	said    Map                      // the majority of the last answers; replaced, never changed
	heard   clock.Instant            // when they were asked
	several bool                     // more than one node has answered, or there is only one
	named   bool                     // the client has known a master by the name that the nodes give it
	at      clock.Instant            // when nodes were last asked, whether or not any answered; earlier after Forget
	doubted clock.Instant            // when Forget was last called; 0: it was not
	asking  chan struct{}            // closed when the nodes have been asked; nil: not asking
	pending map[string]clock.Instant // nodes that have not answered yet, and when they were asked
	failed  map[string]bool          // nodes whose connections broke when they were last asked
}

// Owner is the master of a slot, as far as it is known.
type Owner struct {
	Address string // empty: not known
	Silent  bool   // it does not answer
	Trusted bool   // the majority has just named it, and not only that node itself
	Astray  bool   // the client leads to another server than the nodes name, or they do not agree on one; see Way
}

// How long answers count, and how long to wait for them.
const (
	FreshFor   = belief.Connect   // answers count for this long, if they name a master that answers
	KeptFor    = belief.Old / 3   // or this long while there is no problem
	AskPause   = belief.Tick      // or this long otherwise
	answerWait = 3 * belief.Tick  // how long to wait for the nodes, plus two round trips
	restWait   = belief.Tick / 10 // how long to wait for the rest when most have answered
	silentFor  = belief.Connect   // plus two round trips: then a node without an answer is silent
)

// NewResolver makes a resolver for the client of a cluster. It calls found with the majority's answer. Away returns how much
// longer an answer may take than from nearby.
func NewResolver(
	ctx context.Context, client rueidis.Client, now clock.Clock, found func(Map), away func() time.Duration,
) *Resolver {
	return &Resolver{
		client: client, clock: now, ctx: ctx, found: found, away: away,
		at: clock.LongAgo, heard: clock.LongAgo, pending: map[string]clock.Instant{}, failed: map[string]bool{},
	}
}

// Way returns a client for the master of a slot. If the master is not known, it is the cluster's client, which may lead to a
// deposed master, and so is not trusted. It reports false if the master is silent.
//
// It surely leads astray in two cases, and what comes of it is not believed:
//
//   - The nodes name a master that the client does not know. A replica may have joined the cluster, or a server may have got
//     another address, since the client last looked: it looks again when a server redirects it, a connection breaks, or it is
//     urged to. Until then it leads to the former master, perhaps a frozen one. But if it has never known a master by the name
//     that the nodes give it, their names are not its own, and it leads where they mean.
//   - The nodes do not agree, as during a failover.
func (r *Resolver) Way(slot uint16) (way rueidis.CoreClient, owner Owner, ok bool) {
	owner = r.Master(slot)
	if owner.Silent {
		return nil, owner, false
	}
	nodes := r.client.Nodes()
	if node := nodes[owner.Address]; owner.Address != "" && node != nil {
		return node, owner, true
	}
	owner.Trusted = false
	r.mu.Lock()
	defer r.mu.Unlock()
	owner.Astray = r.named // mutant: way astray
	return r.client, owner, true
}

// Master returns the node that has a slot.
func (r *Resolver) Master(slot uint16) Owner {
	at := r.Hear(FreshFor)
	owner := r.owner(slot)
	if owner.Silent && at.Until(r.clock.Now()) >= AskPause {
		r.Hear(AskPause)
		owner = r.owner(slot)
	}
	return owner
}

// Kept is Master while there is no problem: older answers count, and the nodes are asked again in the background.
func (r *Resolver) Kept(slot uint16) Owner {
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

// Refresh asks the nodes in the background, unless they were asked within some time.
func (r *Resolver) Refresh(within time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asking == nil && r.at.Until(r.clock.Now()) >= within {
		r.asking = make(chan struct{})
		go r.ask(r.asking)
	}
}

// owner returns the node that has a slot by the last answers.
func (r *Resolver) owner(slot uint16) Owner {
	r.mu.Lock()
	defer r.mu.Unlock()
	owner := r.said.Owner(slot)
	return Owner{Address: owner, Silent: r.silent(owner), Trusted: owner != "" && r.several && r.heard == r.at}
}

// silent reports whether the node at an address does not answer. The caller holds the mutex.
func (r *Resolver) silent(address string) bool {
	asked, pending := r.pending[address]
	return r.failed[address] || pending && asked.Until(r.clock.Now()) >= silentFor+r.away()
}

// Silent reports whether the node at an address does not answer.
func (r *Resolver) Silent(address string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.silent(address)
}

// Hear asks the nodes, unless they were asked within some time, and returns when they were asked.
func (r *Resolver) Hear(within time.Duration) clock.Instant {
	return r.hear(context.Background(), within)
}

// hear is Hear. It does not wait any longer when ctx ends.
func (r *Resolver) hear(ctx context.Context, within time.Duration) clock.Instant {
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
	select {
	case <-asking:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}

// Masters asks the nodes, and returns who has which slots by the majority of their answers; by earlier ones, or nil, if none
// answers. What has changed before the call is in the answers: they were asked for later. It returns what is known when ctx
// ends: a node may hang, and whoever closes a registry does not wait for it.
func (r *Resolver) Masters(ctx context.Context) Map {
	if since := r.clock.Now(); r.hear(ctx, 0) < since { // it has joined a question that was under way
		r.hear(ctx, 0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said
}

// Forget lets the nodes be asked again soon, because the named one does not answer or redirects.
func (r *Resolver) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doubted = r.clock.Now()
	r.forget()
}

// forget lets the nodes be asked again soon after Forget was called, but not more often than that. The caller holds the mutex.
func (r *Resolver) forget() { r.at = min(r.at, r.doubted.Add(-FreshFor+AskPause)) }

// ask asks each node that does not owe an answer.
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
	known := func(one Range) bool { return nodes[one.Address] != nil }
	if len(all) > 0 { // otherwise the old answers stay, but are not trusted
		r.said, r.heard, r.several = all, now, len(said) > 1 || len(nodes) == 1
		r.named = r.named || slices.ContainsFunc(all, known)
	}
	urges := r.named && slices.ContainsFunc(all, func(one Range) bool { return !known(one) })
	// What the nodes have said may be from before they were doubted.
	if r.at, r.asking = now, nil; r.doubted >= now { // mutant: answers from before trusted
		r.forget()
	}
	close(asking)
	r.mu.Unlock()
	if urges { // mutant: new names never learned
		r.urge()
	}
}

// urging is a script with whose reply a node of a cluster says that it is being changed.
const urging = "return redis.error_reply('TRYAGAIN so that the client looks at the cluster again')"

// urge has the client look at the cluster again, which it does within a second or so of such a reply. The nodes name a master
// that it does not know. If that has joined, others redirect to it. If it has only got another address, such as the name of its
// host, no server redirects, and no connection breaks: the client would not learn of it.
func (r *Resolver) urge() {
	ctx, end := context.WithTimeout(r.ctx, answerWait+r.away())
	defer end()
	r.client.Do(ctx, r.client.B().Eval().Script(urging).Numkeys(0).Build())
}
