package wake

import (
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// trusted, plus two round trips, is how long a new connection is not suspected: the message may have been lost before it was
// made.
const trusted = time.Second

var errSuspect = errors.New("messages did not arrive, twice in a row")

// hear adds a waiter to its own channel. Asked: the waiter must wait for an answer. The caller holds the mutex.
func (n *node) hear(w *Waiter) (hearing Hearing, asked bool) {
	switch p := n.parts[w.user]; {
	case p != nil && p.refused:
		return Deaf, false
	case p == nil || !n.up():
		return NotYet, false
	}
	hearing, asked, wanted := n.mail.hear(w)
	if wanted {
		n.wakeup.wake()
	}
	return hearing, asked
}

// heard returns what a waiter that has waited for an answer learns. The caller holds the mutex.
func (n *node) heard(w *Waiter) Hearing {
	if p := n.parts[w.user]; p != nil && p.refused {
		return Deaf
	}
	return n.mail.answer(w)
}

// silent takes the own channels to unsubscribe from, if that is safe now, and retries others; see [mail.tidy].
func (n *node) silent(leaves bool) (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mail.tidy(leaves)
}

func (c *connection) leaveOwn(names []string) error {
	if c.node.hub.cluster {
		return c.leave(nil, names)
	}
	return c.leave(names, nil)
}

// subscription handles the server's messages about subscriptions, in order. On a cluster the server ends a subscription when
// the slot moves, or when it becomes a replica.
func (c *connection) subscription(s rueidis.PubSubSubscription) {
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.current != c {
		return
	}
	switch s.Kind {
	case "subscribe", "ssubscribe":
		n.mail.subscribed(s.Channel)
	case "sunsubscribe":
		if n.mail.ended(s.Channel) {
			n.hub.moved()
		}
	}
}

// hear subscribes to own channels, and proves that their messages arrive.
func (c *connection) hear(wanted []*own) error {
	if err := c.subscribeOwn(c.node.unsubscribed(wanted)); err != nil {
		return err
	}
	if err := c.prove(c.node.unproven(wanted)); err != nil {
		return err
	}
	c.settle(wanted)
	return nil
}

// unsubscribed returns the own channels that need a subscription.
func (n *node) unsubscribed(wanted []*own) []*own {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mail.unsubscribed(wanted)
}

func (c *connection) subscribeOwn(asked []*own) error {
	commands := make(rueidis.Commands, len(asked))
	for i, o := range asked {
		if c.node.hub.cluster {
			commands[i] = c.client.B().Ssubscribe().Channel(o.name).Build()
		} else {
			commands[i] = c.client.B().Subscribe().Channel(o.name).Build()
		}
	}
	for i, result := range c.client.DoMulti(c.ctx, commands...) {
		if err := c.answer(asked[i], result); err != nil {
			return err
		}
	}
	return nil
}

// answer handles the reply to a command for an own channel. It returns network errors.
func (c *connection) answer(o *own, result rueidis.RedisResult) error {
	err := result.Error()
	switch {
	case err == nil:
	case fault.Refusal(err):
		c.deafen(o.user, err)
	case result.NonRedisError() != nil:
		return err
	default: // the slot may have moved
		c.node.hub.moved()
	}
	return nil
}

// settle answers the waiters of own channels, if there is an answer.
func (c *connection) settle(wanted []*own) {
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, u := range n.mail.settle(wanted) {
		if p := n.parts[u]; p != nil {
			p.heard = c
		}
	}
}
