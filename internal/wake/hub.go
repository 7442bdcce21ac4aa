package wake

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// hub is what the listeners of one client share: who listens, the nodes, and, on a cluster, which node has which waiter.
type hub struct {
	shared
	client  rueidis.Client
	masters func(context.Context) topology.Map

	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex // of the hub, its nodes and its waiters
	users   map[*user]struct{}
	nodes   map[string]*node  // by address; the empty one without a cluster
	at      map[*Waiter]*node // of all waiters; nil while the key's server is not known
	servers servers
	ended   bool
}

// servers is what is known about the masters of a cluster. The hub's mutex guards it.
type servers struct {
	clients   map[string]rueidis.Client // by address, as known to rueidis when the slots were read
	slots     topology.Map              // which server has which keys; empty while not known
	following bool                      // the goroutine that reads the slots runs
}

const (
	// While calls wait, the cluster is asked every askEvery which server has which keys. When a server no longer has a key, or a
	// connection is lost, it is asked at once, but at most once every askPause.
	askEvery = 2 * time.Second
	askPause = 50 * time.Millisecond

	introducing = askEvery // plus two round trips: how long a question of introduce may take
)

var errLeft = errors.New("the server is no longer a master of the cluster")

// newHub makes a hub. It uses only those options that are the same for all listeners of a client.
func newHub(client rueidis.Client, o Options) *hub {
	h := &hub{
		shared: shared{
			cluster: client.Mode() == rueidis.ClientModeCluster, trip: o.RoundTrip, demoted: o.Demoted, moved: newSignal(),
		},
		client:  client,
		masters: o.Slots,
		users:   map[*user]struct{}{},
		nodes:   map[string]*node{},
		at:      map[*Waiter]*node{},
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	if !h.cluster {
		h.open("", client)
	}
	return h
}

// open makes the node of a server.
func (h *hub) open(address string, client rueidis.Client) *node {
	n := newNode(&h.mu, address, h.users)
	ctx, cancel := context.WithCancelCause(h.ctx)
	r := newRunner(ctx, &h.shared, n, func() rueidis.Client {
		if address != "" { // rueidis may replace the client of a server of a cluster
			if now := h.client.Nodes()[address]; now != nil {
				return now
			}
		}
		return client
	})
	n.moved, n.endRunner, n.start = h.moved, cancel, func() { h.tasks.Go(r.run) }
	h.nodes[address] = n
	return n
}

func (h *hub) addUser(u *user) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.users[u] = struct{}{}
	for _, n := range h.nodes {
		n.parts[u] = &part{}
	}
}

func (h *hub) removeUser(u *user) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.users, u)
	for _, n := range h.nodes {
		n.removeUser(u)
	}
}

// end begins to end everything that the hub does. It does not wait for that; tasks.Wait does.
func (h *hub) end() {
	defer h.cancel()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for _, n := range h.nodes {
		n.end(nil)
	}
}

// add adds a waiter. It reports false if the waiter would get no wake-ups.
func (h *hub) add(w *Waiter) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, open := h.users[w.user]; h.ended || !open {
		return false
	}
	n := h.nodes[""]
	if h.cluster {
		w.slot = protocol.Slot(w.Key)
		w.sharded = w.Channel != "" && protocol.Slot(w.Channel) == w.slot
		if w.Own != "" && protocol.Slot(w.Own) != w.slot { // no script can use both
			w.Own = ""
		}
		n = h.owner(w.slot)
	}
	if n != nil {
		if !n.serves(w.user) {
			return false
		}
		n.add(w)
	}
	h.at[w] = n
	return true
}

// find returns the node that has a waiter; nil if none has. On a cluster it then makes follow look for the key's server. The
// caller holds the mutex.
func (h *hub) find(w *Waiter) *node {
	n := h.at[w]
	if h.cluster && !h.servers.following && !h.ended {
		h.servers.following = true
		h.tasks.Go(h.follow)
	}
	if h.cluster && n == nil {
		h.moved.wake()
	}
	return n
}

// remove, watch, resume, subscribe, subscription and suspect are the requests of waiters.

func (h *hub) remove(w *Waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.at[w]
	delete(h.at, w)
	w.unpause()
	if n != nil {
		n.remove(w)
	}
}

func (h *hub) watch(w *Waiter) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.find(w)
	return n != nil && n.watch(w)
}

func (h *hub) resume(w *Waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.at[w]; n != nil {
		n.resume(w)
	}
}

func (h *hub) subscribe(w *Waiter) (is Subscription, asked bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w.Own == "" {
		return Deaf, false
	}
	if n := h.find(w); n != nil {
		return n.subscribe(w)
	}
	return NotYet, false
}

func (h *hub) subscription(w *Waiter) Subscription {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.waits = false
	if n := h.at[w]; n != nil {
		return n.subscription(w)
	}
	return NotYet
}

func (h *hub) suspect(w *Waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.at[w]; n != nil {
		n.suspect(time.Now(), h.plus(trusted, 2))
	}
}

// follow moves waiters to other nodes as the slots of their keys move. It ends when it finds that no call waits.
func (h *hub) follow() {
	for h.follows() {
		all := h.masters(h.ctx)
		if h.introduce(h.route(all)) {
			h.route(all)
		}
		if !clock.Rest(h.ctx, askPause) {
			return
		}
		select {
		case <-time.After(askEvery):
		case <-h.moved:
		case <-h.ctx.Done():
			return
		}
	}
}

// follows reports whether follow goes on. If not, the next call that waits begins it anew.
func (h *hub) follows() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.servers.following = len(h.at) > 0
	return h.servers.following
}

// introduce makes rueidis learn of servers that it does not know yet. It sends a command for one key of each; another server
// redirects the command, and rueidis follows.
func (h *hub) introduce(keys map[string]string) bool {
	for _, key := range keys {
		ctx, cancel := context.WithTimeout(h.ctx, h.plus(introducing, 2))
		h.client.Do(ctx, h.client.B().Pttl().Key(key).Build())
		cancel()
	}
	return len(keys) > 0
}

// route moves each waiter to the server of its key, and ends the nodes of servers that are no longer masters. It returns one key
// of each server that rueidis does not know.
func (h *hub) route(all topology.Map) (unknown map[string]string) {
	clients := h.client.Nodes() // not under the mutex: a wrapper's may block
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended || all == nil {
		return nil
	}
	h.servers.slots, h.servers.clients = all, clients
	unknown = map[string]string{}
	for w, at := range h.at {
		owner := all.Owner(w.slot)
		if unknown[owner] != "" || owner == "" {
			continue
		}
		n := h.owner(w.slot)
		if n == nil {
			unknown[owner] = w.Key
		} else if n != at {
			h.move(w, at, n)
		}
	}
	for address, n := range h.nodes {
		// A master that lost all its slots has no waiters now. One with waiters is missing only while the nodes disagree.
		leads := slices.ContainsFunc(all, func(r topology.Range) bool { return r.Address == address })
		if !leads && n.idle() {
			n.end(errLeft)
			delete(h.nodes, address)
		}
	}
	return unknown
}

// move moves a waiter to another node, where it must be watched anew. If its user is refused there, it polls, and Subscribe
// returns Deaf.
func (h *hub) move(w *Waiter, from, to *node) {
	if from != nil {
		from.remove(w)
	}
	w.lost()
	to.add(w)
	h.at[w] = to
	w.wakeup.wake()
}

// owner returns the node of a slot; nil while this package or rueidis does not know it. The caller holds the mutex.
func (h *hub) owner(slot uint16) *node {
	address := h.servers.slots.Owner(slot)
	n := h.nodes[address]
	if client := h.servers.clients[address]; n == nil && client != nil {
		n = h.open(address, client)
	}
	return n
}
