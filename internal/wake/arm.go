package wake

import (
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
	n.mu.Lock()
	e := n.peers.enlist(asked, n.serves)
	n.mu.Unlock()
	if err := c.look(e.tracked); err != nil {
		return err
	}
	if err := c.subscribe(e.channels); err != nil {
		return err
	}
	if err := c.subscribeSharded(e.inSlots); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peers.subscribed(e.others)
	return nil
}

// look reads the waiters' keys, so that the server tracks them. A waiter that sees that its key is taken need not look again:
// the server will report its removal.
func (c *connection) look(waiters []*Waiter) error {
	if len(waiters) == 0 {
		return nil
	}
	commands := make(rueidis.Commands, len(waiters))
	for i, w := range waiters {
		commands[i] = c.client.B().Pttl().Key(w.Key).Build()
	}
	sent := time.Now()
	replies := c.client.DoMulti(c.ctx, commands...)
	replied := time.Now()
	looks := make([]look, len(waiters))
	for i, reply := range replies {
		if err := reply.NonRedisError(); err != nil {
			return err
		}
		var err error
		if looks[i].pttl, err = reply.AsInt64(); err == nil {
			continue
		}
		looks[i].failed = true
		if refusal, ok := rueidis.IsRedisErr(err); ok {
			if _, moved := refusal.IsMoved(); moved {
				c.node.hub.moved()
			}
		}
	}
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peers.looked(waiters, looks, sent, replied)
	return nil
}
