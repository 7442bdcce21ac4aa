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

// deafTo reports whether a user's messages will not arrive on this connection. The caller holds the mutex.
func (n *node) deafTo(l *user) bool {
	p := n.parts[l]
	return p != nil && (p.refused || p.hearing == Deaf)
}

// hear adds a waiter to its own channel. Ask: the waiter must wait for an answer. The caller holds the mutex.
func (n *node) hear(w *Waiter) (hearing Hearing, ask bool) {
	l := w.user
	if n.deafTo(l) {
		return Deaf, false
	}
	if n.parts[l] == nil || !n.up() {
		return NotYet, false
	}
	o := n.owns.of(w)
	if o.user != l { // a closed user
		return NotYet, false
	}
	if !w.joined {
		w.joined = true
		o.hearers[w] = struct{}{}
	}
	if o.heard {
		return Heard, false
	}
	if n.owns.want(o) {
		n.wakeup.wake()
	}
	w.askToHear()
	return NotYet, true
}

// heard returns what a waiter that has waited for an answer learns. The caller holds the mutex.
func (n *node) heard(w *Waiter) Hearing {
	switch o := n.owns.all[w.Own]; {
	case n.deafTo(w.user):
		return Deaf
	case w.joined && o != nil && o.heard:
		return Heard
	}
	return NotYet
}

// quit removes a waiter from its own channel. The caller holds the mutex.
func (n *node) quit(w *Waiter) {
	if !w.joined {
		return
	}
	w.unhear()
	if n.owns.leave(n.owns.all[w.Own], w) {
		n.wakeup.wake()
	}
}

// silent takes the own channels to unsubscribe from, if that is safe now, and retries others; see [ownChannels.tidy].
func (n *node) silent(leaves bool) (names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.owns.tidy(leaves)
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
	o := n.owns.all[s.Channel]
	if o == nil || n.current != c {
		return
	}
	switch s.Kind {
	case "subscribe", "ssubscribe":
		o.subscribed = true
	case "sunsubscribe":
		if !o.subscribed { // about an earlier subscription, which was ended
			return
		}
		delete(n.owns.all, s.Channel)
		for w := range o.hearers {
			w.unhear()
			w.wakeup.wake()
		}
		n.hub.moved()
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
func (n *node) unsubscribed(wanted []*own) (asked []*own) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range wanted {
		if n.owns.has(o) && !o.subscribed && !n.deafTo(o.user) {
			asked = append(asked, o)
		}
	}
	return asked
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
	for _, o := range wanted {
		p := n.parts[o.user]
		switch {
		case p == nil || !n.owns.has(o): // closed, or gone
			continue
		case p.hearing == NotYet || p.hearing == Heard && !o.subscribed:
			n.owns.later = append(n.owns.later, o)
			for w := range o.hearers {
				if w.waits {
					w.answerHear()
				}
			}
			continue
		case p.hearing == Heard:
			o.heard, p.heard = true, c
		}
		o.wanted = false
		for w := range o.hearers {
			w.answerHear()
		}
	}
}
