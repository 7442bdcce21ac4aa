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

// Resolver finds the master of a slot of a cluster when it is not certain which node that is. Rueidis notices a successor one
// to two seconds after its promotion, and unless it looks regularly, only after it has given up a silent connection. The
// resolver asks all nodes at once, and the majority of the answers counts: a node that was frozen has old data.
//
// If a master does not even answer this question, nothing else is sent to it. Its calls try again soon, and one of the next
// tries goes to its successor. So no caller waits for a silent node when there is a successor.
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
	named   bool                     // the client has known at least one master by the name that the nodes give it
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
	KeptFor    = belief.Old / 3   // how long they count while there is no problem
	AskPause   = belief.Tick      // how long they count if they name a master that is silent
	answerWait = 3 * belief.Tick  // how long to wait for the nodes, plus two round trips
	restWait   = belief.Tick / 10 // how long to wait for the rest when most have answered
	silentFor  = belief.Connect   // plus two round trips: then a node without an answer is silent
)

// NewResolver makes a resolver for the client of a cluster. The resolver calls found with the majority's answer. Away returns
// how much longer an answer may take than one from nearby.
func NewResolver(
	ctx context.Context, client rueidis.Client, now clock.Clock, found func(Map), away func() time.Duration,
) *Resolver {
	return &Resolver{
		client: client, clock: now, ctx: ctx, found: found, away: away,
		at: clock.LongAgo, heard: clock.LongAgo, pending: map[string]clock.Instant{}, failed: map[string]bool{},
	}
}

// Way returns a client for the master of a slot. It reports false if the master is silent. If the master is not known, way is
// the cluster's client. That may lead to a deposed master, and so is not trusted.
//
// In two cases the cluster's client is astray, and its replies are not believed:
//
//   - The nodes name a master that the client does not know. Since the client last looked, a replica may have joined the cluster,
//     or a server may have got another address. The client looks again when a server redirects it, a connection breaks, or it is
//     urged to. Until then it leads to the former master, which may be frozen.
//   - The nodes do not agree, as during a failover.
//
// The first case has an exception. If the client has never known any master by the name that the nodes give it, it has other
// names for all of them, and leads to the masters that they mean.
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

// Refresh asks the nodes in the background, unless they were asked less than the given time ago.
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

// Hear asks the nodes, unless they were asked less than the given time ago. It returns when they were asked.
func (r *Resolver) Hear(within time.Duration) clock.Instant {
	return r.hear(context.Background(), within)
}

// hear is Hear, but waits no longer than until ctx ends.
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

// Masters asks the nodes which master has which slots, and returns the answer of the majority. The nodes are asked after the
// call began, so the answer shows all changes before the call. If no node answers, it returns an earlier answer, or nil. When
// ctx ends, it returns what is known: a node may hang, and closing a registry does not wait for that.
func (r *Resolver) Masters(ctx context.Context) Map {
	if since := r.clock.Now(); r.hear(ctx, 0) < since { // it has joined a question that was under way before the call
		r.hear(ctx, 0)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said
}

// Forget notes that the master that the nodes named does not answer, or redirects. So they may be asked again soon.
func (r *Resolver) Forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.doubted = r.clock.Now()
	r.forget()
}

// forget lets the nodes be asked again an AskPause after Forget was called. The caller holds the mutex.
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
	if len(all) > 0 { // otherwise the earlier answers stay, but are no longer trusted
		r.said, r.heard, r.several = all, now, len(said) > 1 || len(nodes) == 1
		r.named = r.named || slices.ContainsFunc(all, known)
	}
	urges := r.named && slices.ContainsFunc(all, func(one Range) bool { return !known(one) })
	// If Forget was called after the question, the answers may be from before the change that it is about.
	if r.at, r.asking = now, nil; r.doubted >= now { // mutant: answers from before trusted
		r.forget()
	}
	close(asking)
	r.mu.Unlock()
	if urges { // mutant: new names never learned
		r.urge()
	}
}

// urging is a script whose reply makes a client look at the cluster again: TRYAGAIN says that the cluster is being changed.
const urging = "return redis.error_reply('TRYAGAIN so that the client looks at the cluster again')"

// urge makes the client look at the cluster again, within a second or so, since the nodes name a master that it does not know.
// If that master has just joined, other servers redirect to it anyway. But if it has only got another address, such as the name
// of its host, no server redirects and no connection breaks, so the client would not learn of it.
func (r *Resolver) urge() {
	ctx, end := context.WithTimeout(r.ctx, answerWait+r.away())
	defer end()
	r.client.Do(ctx, r.client.B().Eval().Script(urging).Numkeys(0).Build())
}
