package wake

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// slots is a range of a cluster's slots and the address of the master that has them.
type slots struct {
	first, last int64
	address     string
}

const (
	// looking is how often, while calls wait, the cluster is asked which server has which keys. When a server says that it
	// has a key no more, or a connection is lost, it is asked at once, but no more often than every hurry.
	looking = 2 * time.Second
	hurry   = 50 * time.Millisecond

	askLimit = 2 * time.Second
)

// slot is a key's, which rueidis computes.
func (h *hub) slot(key string) uint16 {
	command := h.client.B().Pttl().Key(key).Build()
	return command.Slot()
}

var errLeft = errors.New("the server is no master of the cluster any more")

func (h *hub) poke() {
	select {
	case h.nudge <- struct{}{}:
	default:
	}
}

// follow keeps the waiters at the servers that have their keys, as these change.
func (h *hub) follow() {
	for {
		if h.waits() {
			all, known := h.topology()
			if h.acquaint(h.route(all, known)) {
				h.route(all, known)
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
	return len(h.waiters) > 0
}

// topology asks the servers, one after the other, until one names a master for each key that is waited for: a server that
// was taken out of the cluster does not. When none does, part of the cluster is down, and the one that names most counts. It
// reports false when that is refused.
func (h *hub) topology() (best []slots, known bool) {
	fewest := math.MaxInt
	for address, client := range h.client.Nodes() {
		ctx, cancel := context.WithTimeout(h.ctx, askLimit)
		reply, err := client.Do(ctx, client.B().ClusterSlots().Build()).ToArray()
		cancel()
		if refusal(err) {
			return nil, false
		}
		all := masters(reply, address)
		if without := h.without(all); err == nil && without < fewest {
			best, fewest = all, without
		}
		if fewest == 0 {
			break
		}
	}
	return best, true
}

// masters reads the reply of CLUSTER SLOTS: the first and last slot of a range, and the servers that have it, the master
// first, each as host, port and more. A server that does not know its own host leaves it out.
func masters(reply []rueidis.RedisMessage, asked string) (all []slots) {
	for _, message := range reply {
		values, err := message.ToArray()
		if err != nil || len(values) < 3 {
			continue
		}
		first, err1 := values[0].AsInt64()
		last, err2 := values[1].AsInt64()
		master, err3 := values[2].ToArray()
		if err1 != nil || err2 != nil || err3 != nil || len(master) < 2 {
			continue
		}
		port, err := master[1].AsInt64()
		if err != nil {
			continue
		}
		host, err := master[0].ToString()
		if err != nil || host == "" {
			host, _, _ = net.SplitHostPort(asked)
		}
		all = append(all, slots{first, last, net.JoinHostPort(host, strconv.FormatInt(port, 10))})
	}
	slices.SortFunc(all, func(a, b slots) int { return cmp.Compare(a.first, b.first) })
	return all
}

// ownerOf returns the address of the master that has a slot, or nothing.
func ownerOf(slot uint16, all []slots) (address string) {
	i, _ := slices.BinarySearchFunc(all, int64(slot), func(s slots, slot int64) int { return cmp.Compare(s.last, slot) })
	if i == len(all) || int64(slot) < all[i].first {
		return ""
	}
	return all[i].address
}

// without is how many waiters' keys have no master.
func (h *hub) without(all []slots) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.waiters {
		if ownerOf(w.slot, all) == "" {
			n++
		}
	}
	return n
}

// acquaint has rueidis learn of servers that it does not know yet, by asking it for keys of theirs, of which another server
// tells it that they moved.
func (h *hub) acquaint(keys map[string]string) bool {
	for _, key := range keys {
		ctx, cancel := context.WithTimeout(h.ctx, askLimit)
		h.client.Do(ctx, h.client.B().Pttl().Key(key).Build())
		cancel()
	}
	return len(keys) > 0
}

// route sends each waiter to the server that has its key, and gives up servers that have none any more. It returns a key of
// each server that rueidis does not know.
func (h *hub) route(all []slots, known bool) (unknown map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || known && all == nil {
		return nil
	}
	h.slots, h.anywhere = all, !known
	unknown = map[string]string{}
	for w := range h.waiters {
		owner := ownerOf(w.slot, all)
		if unknown[owner] != "" || known && owner == "" {
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
			n.add(w)   // if it is refused there, it polls
			w.signal() // else it has to be armed there
		}
	}
	for address, n := range h.nodes {
		if !slices.ContainsFunc(all, func(s slots) bool { return s.address == address }) && address != "" {
			n.close(errLeft)
			delete(h.nodes, address)
		}
	}
	return unknown
}

// nodeOf returns the node of a slot; nil while it is not known, by this package or by rueidis. The caller holds the mutex.
func (h *hub) nodeOf(slot uint16) *node {
	address, client := "", h.client
	if !h.anywhere {
		if address = ownerOf(slot, h.slots); address == "" {
			return nil
		}
		if h.nodes[address] == nil {
			client = h.client.Nodes()[address]
		}
	}
	n := h.nodes[address]
	if n == nil && client != nil {
		n = newNode(h, client, address, h.anywhere)
		h.nodes[address] = n
	}
	return n
}
