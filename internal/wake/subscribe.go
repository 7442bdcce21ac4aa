package wake

import (
	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// subscribe subscribes to channels. After a refusal the server may still allow some of them.
func (c *connection) subscribe(names []string) error {
	if len(names) == 0 {
		return nil
	}
	err := c.client.Do(c.ctx, c.client.B().Subscribe().Channel(names...).Build()).Error()
	switch {
	case err == nil:
		c.hears(names)
		return nil
	case !fault.Refusal(err):
		return err
	case len(names) > 1:
		for i := range names {
			if err := c.subscribe(names[i : i+1]); err != nil {
				return err
			}
		}
		return nil
	}
	for _, l := range c.node.unheard(names[0]) {
		c.node.missing(l, "subscribing", err)
		if c.node.deaf(l, c) {
			if err := c.node.refuse(l); err != nil {
				return err
			}
		}
	}
	return nil
}

// subscribeSharded subscribes to channels in their slots, where Redisson publishes. If that is refused, those messages are
// missed, and polling must do. Before version 7 there are no such channels, and Redisson publishes on ordinary ones.
func (c *connection) subscribeSharded(names []string) error {
	if len(names) == 0 || c.unsharded {
		return nil
	}
	commands := make(rueidis.Commands, len(names))
	for i, name := range names { // each in its own slot
		commands[i] = c.client.B().Ssubscribe().Channel(name).Build()
	}
	for _, result := range c.client.DoMulti(c.ctx, commands...) {
		err := result.Error()
		_, answered := rueidis.IsRedisErr(err)
		switch {
		case err == nil:
		case fault.Refusal(err):
			c.unsharded = true
			if unknown(err) {
				continue
			}
			for _, l := range c.node.served() {
				if l.Subscribe && !l.Track {
					c.node.missing(l, "subscribing in slots", err)
				}
			}
		case !answered:
			return err
		default: // most likely MOVED
			c.node.hub.moved()
		}
	}
	return nil
}

// hears notes the users whose channels are subscribed.
func (c *connection) hears(names []string) {
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range names {
		for _, u := range n.peers.channels.answered(name, false) {
			if p := n.parts[u]; p != nil {
				p.heard = c
			}
		}
	}
}

// deaf reports whether no channel of a key was subscribed for a user on a connection.
func (n *node) deaf(l *user, c *connection) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.parts[l]
	return p != nil && p.heard != c
}

// unheard removes a refused channel, and returns the users whose waiters have no other way.
func (n *node) unheard(name string) (users []*user) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.peers.channels.answered(name, true)
}
