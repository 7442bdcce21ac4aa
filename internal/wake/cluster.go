package wake

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockregistry/lockregistry/internal/topology"
)

const (
	// looking is how often, while calls wait, the cluster is asked which server has which keys. When a server says that it no
	// longer has a key, or a connection is lost, the cluster is asked at once, but at most once every hurry.
	looking = 2 * time.Second
	hurry   = 50 * time.Millisecond

	acquainting = 2 * time.Second // plus two round trips: how long a question may take from which rueidis learns of a server
)

var errLeft = errors.New("the server is no master of the cluster any more")

func (h *hub) poke() {
	select {
	case h.nudge <- struct{}{}:
	default:
	}
}

// follow keeps the waiters at the servers of their keys, as these change.
func (h *hub) follow() {
	for {
		if h.waits() {
			all := h.masters()
			if h.acquaint(h.route(all)) {
				h.route(all)
			}
		}
		again := time.NewTimer(hurry)
		select {
		case <-again.C:
		case <-h.ctx.Done():
			again.Stop()
			return
		}
		again.Reset(looking)
		select {
		case <-again.C:
		case <-h.nudge:
		case <-h.ctx.Done():
		}
		again.Stop()
	}
}

func (h *hub) waits() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.places.waiters) > 0
}

// acquaint makes rueidis learn about servers that it does not know yet: it asks for keys of theirs, and another server
// redirects.
func (h *hub) acquaint(keys map[string]string) bool {
	for _, key := range keys {
		ctx, cancel := context.WithTimeout(h.ctx, h.plus(acquainting, 2))
		h.client.Do(ctx, h.client.B().Pttl().Key(key).Build())
		cancel()
	}
	return len(keys) > 0
}

// route moves each waiter to the server of its key, and drops servers without waiters' keys. It returns a key of each server
// that rueidis does not know.
func (h *hub) route(all topology.Map) (unknown map[string]string) {
	clients := h.client.Nodes() // not under the mutex: a wrapper's may block
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || all == nil {
		return nil
	}
	h.places.slots, h.places.clients = all, clients
	unknown = map[string]string{}
	for w := range h.places.waiters {
		owner := all.Owner(w.slot)
		if unknown[owner] != "" || owner == "" {
			continue
		}
		n := h.nodeOf(w.slot)
		if n == nil {
			unknown[owner] = w.Key
		} else if n != w.node {
			if w.node != nil {
				w.node.remove(w)
			}
			w.disarm()
			n.add(w)   // if refused there, it polls
			w.signal() // it must be armed there
		}
	}
	for address, n := range h.nodes {
		// A master that lost all its slots has no waiters now. One with waiters is missing only while the nodes disagree.
		leads := slices.ContainsFunc(all, func(r topology.Range) bool { return r.Address == address })
		if !leads && len(n.waiting) == 0 {
			n.close(errLeft)
			delete(h.nodes, address)
		}
	}
	return unknown
}

// nodeOf returns the node of a slot; nil while this package or rueidis does not know it. The caller holds the mutex.
func (h *hub) nodeOf(slot uint16) *node {
	address := h.places.slots.Owner(slot)
	n := h.nodes[address]
	if client := h.places.clients[address]; n == nil && client != nil {
		n = newNode(h, client, address)
		h.nodes[address] = n
	}
	return n
}
