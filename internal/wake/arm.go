package wake

import (
	"slices"
	"time"

	"github.com/redis/rueidis"
)

// arm arms waiters that have asked for it.
func (c *connection) arm(asked []*Waiter) error {
	n := c.node
	var users []*user
	for _, w := range asked {
		if len(users) == 0 || users[len(users)-1] != w.user {
			users = append(users, w.user)
		}
	}
	if err := c.prepare(users); err != nil {
		return err
	}
	tracked, others, channels, sharded := n.enlist(asked)
	if err := c.look(tracked); err != nil {
		return err
	}
	if err := c.subscribe(channels); err != nil {
		return err
	}
	if err := c.subscribeSharded(sharded); err != nil {
		return err
	}
	n.enlisted(others)
	return nil
}

// enlist marks waiters as armed now, since the server may report a change before its reply. It returns the waiters to track,
// the others, and the channels to subscribe to.
func (n *node) enlist(asked []*Waiter) (tracked, others []*Waiter, channels, sharded []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range asked {
		p := n.parts[w.user]
		if !n.has(w) { // closed, or moved to another node
			continue
		}
		if p == nil || p.refused {
			w.answer(KeyState{})
			continue
		}
		w.armed, w.tracks = true, n.tracks && w.user.Track
		if w.tracks {
			tracked = append(tracked, w)
		} else {
			others = append(others, w)
		}
		name := w.channel()
		if name == "" {
			continue
		}
		c, fresh := n.channels.at(name)
		if fresh {
			channels = append(channels, name)
		}
		if w.sharded && !c.sharded {
			c.sharded = true
			sharded = append(sharded, name)
		}
		if !slices.Contains(c.waiters, w) {
			c.waiters = append(c.waiters, w)
		}
	}
	return tracked, others, channels, sharded
}

// look reads the waiters' keys, so that the server tracks them. A waiter that sees that its key is taken need not look again:
// the server will report its removal.
func (c *connection) look(waiters []*Waiter) error {
	if len(waiters) == 0 {
		return nil
	}
	looks := make(rueidis.Commands, len(waiters))
	for i, w := range waiters {
		looks[i] = c.client.B().Pttl().Key(w.Key).Build()
	}
	sent := time.Now()
	replies := c.client.DoMulti(c.ctx, looks...)
	replied := time.Now()
	for _, reply := range replies {
		if err := reply.NonRedisError(); err != nil {
			return err
		}
	}
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, w := range waiters {
		if !n.has(w) {
			continue
		}
		pttl, err := replies[i].AsInt64()
		if err != nil {
			if reply, ok := rueidis.IsRedisErr(err); ok {
				if _, moved := reply.IsMoved(); moved {
					n.hub.moved()
				}
			}
			w.armed = false
			w.answer(KeyState{})
			continue
		}
		w.saw(pttl, sent, replied)
	}
	return nil
}

// enlisted answers waiters that are subscribed: they must look themselves.
func (n *node) enlisted(waiters []*Waiter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range waiters {
		if !n.has(w) {
			continue
		}
		if w.asking == asksItself {
			w.wakeup.wake()
		}
		w.answer(KeyState{Armed: w.armed}) // not armed if its channel was refused
	}
}
