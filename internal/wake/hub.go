package wake

import (
	"context"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/shares"
	"github.com/lockregistry/lockregistry/internal/topology"
)

// hub is what the listeners of one client share.
type hub struct {
	client  rueidis.Client
	cluster bool

	ctx   context.Context
	stop  context.CancelFunc
	nudge chan struct{}  // has room for one: see follow
	done  sync.WaitGroup // all goroutines
	trip  func() time.Duration

	demoted func() (ever bool, next <-chan struct{})
	masters func() topology.Map

	mu        sync.Mutex                    // of the hub, its nodes and its waiters
	listeners map[*Listener]map[string]bool // with the missing ways that were reported to each
	nodes     map[string]*node              // by address; the empty one without a cluster
	places    places                        // of a cluster
	closed    bool
}

// places says to which server of a cluster each waiter must listen. The hub's mutex guards it.
type places struct {
	waiters   map[*Waiter]struct{}      // all
	clients   map[string]rueidis.Client // of the servers, as known to rueidis when the slots were read
	slots     topology.Map              // which server has which keys; empty while not known
	following bool                      // the goroutine that reads the slots runs
}

var hubs shares.Of[*hub]

// plus adds some round trips to a limit that was chosen for a server nearby.
func (h *hub) plus(d time.Duration, trips int) time.Duration {
	if h.trip == nil {
		return d
	}
	return d + time.Duration(trips)*h.trip()
}

// newHub makes a hub. Of the options it uses what is the same for all listeners of a client.
func newHub(client rueidis.Client, o Options) *hub {
	ctx, stop := context.WithCancel(context.Background())
	h := &hub{
		client:    client,
		trip:      o.RoundTrip,
		demoted:   o.Demoted,
		masters:   o.Slots,
		cluster:   client.Mode() == rueidis.ClientModeCluster,
		ctx:       ctx,
		stop:      stop,
		nudge:     make(chan struct{}, 1),
		listeners: map[*Listener]map[string]bool{},
		nodes:     map[string]*node{},
		places:    places{waiters: map[*Waiter]struct{}{}},
	}
	if !h.cluster {
		h.nodes[""] = newNode(h, client, "")
	}
	return h
}

// join adds a listener.
func (h *hub) join(l *Listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listeners[l] = map[string]bool{}
	for _, n := range h.nodes {
		n.listeners[l] = &part{}
	}
}

// leave removes a listener.
func (h *hub) leave(l *Listener) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.listeners, l)
	for _, n := range h.nodes {
		n.dismiss(l)
	}
}

// close begins to end all that the hub does; done waits for it.
func (h *hub) close() {
	defer h.stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, n := range h.nodes {
		n.close(nil)
	}
}

// add adds a waiter. It reports false if the waiter would get no wake-ups.
func (h *hub) add(w *Waiter) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.listeners[w.listener] == nil {
		return false
	}
	if !h.cluster {
		return h.nodes[""].add(w)
	}
	w.slot = protocol.Slot(w.Key)
	w.sharded = w.Channel != "" && protocol.Slot(w.Channel) == w.slot
	if w.Own != "" && protocol.Slot(w.Own) != w.slot { // no script can use both
		w.Own = ""
	}
	if n := h.nodeOf(w.slot); n != nil && !n.add(w) {
		return false
	}
	h.places.waiters[w] = struct{}{}
	return true
}

func (h *hub) remove(w *Waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.places.waiters, w)
	w.unpause()
	if w.node != nil {
		w.node.remove(w)
	}
}

func (h *hub) ask(w *Waiter) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.at(w) && w.node.ask(w)
}

// at reports whether a waiter's node is known. If not, it is being looked up. The caller holds the mutex.
func (h *hub) at(w *Waiter) bool {
	if h.cluster && !h.places.following && !h.closed {
		h.places.following = true
		h.done.Go(h.follow)
	}
	if h.cluster && w.node == nil {
		h.poke()
	}
	return w.node != nil
}

// untold notes that a missing way is reported to a listener. It reports false if that was reported to a listener with the same
// sink before.
func (h *hub) untold(l *Listener, way string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for o, told := range h.listeners {
		if told[way] && o.options.Sink == l.options.Sink {
			return false
		}
	}
	told := h.listeners[l]
	if told == nil { // closed meanwhile
		return false
	}
	told[way] = true
	return true
}
