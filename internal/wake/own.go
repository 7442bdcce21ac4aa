package wake

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// Hearing says whether messages on a waiter's own channel arrive.
type Hearing int

// The results of Hear.
const (
	NotYet Hearing = iota // no connection, or no answer yet; the waiter wakes when it should try again
	Heard                 // messages arrive
	Deaf                  // they do not, as long as the connection lasts: the server or the permissions forbid it
)

// Hear makes messages on the waiter's own channel arrive until Close; the waiter need not be armed. When that is interrupted,
// the waiter wakes: messages may have been missed, and it must call Hear again. If there is something to do, Hear waits for the
// server, no longer than limit.
func (w *Waiter) Hear(ctx context.Context, limit time.Duration) Hearing {
	if w == nil {
		return Deaf
	}
	h := w.listener.hub
	hearing, ask := h.hear(w)
	if !ask {
		return hearing
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-w.answered:
	case <-timer.C:
	case <-ctx.Done():
	case <-w.listener.closed:
	}
	return h.heard(w)
}

// Suspect notes that an expected message on the waiter's own channel, or a wake-up, did not arrive. After the second time, with
// no message on an own channel in between, the connection is replaced, unless it is new, and the waiters that rely on it wake.
// A single message may only be late: on a busy machine the caller looked before the message was read.
func (w *Waiter) Suspect() {
	if w == nil {
		return
	}
	mu := &w.listener.hub.mu
	mu.Lock()
	defer mu.Unlock()
	n := w.node
	if n == nil || n.current == nil || time.Since(n.since) < n.hub.plus(trusted, 2) {
		return
	}
	if n.suspected == n.current {
		n.current.drop(errSuspect)
	}
	n.suspected = n.current
}

// trusted, plus two round trips, is how long a new connection is not suspected: the message may have been lost before it was
// made.
const trusted = time.Second

var errSuspect = errors.New("messages did not arrive, twice in a row")

// take passes a message to the listener.
func (l *Listener) take(m rueidis.PubSubMessage) {
	if l.options.Message == nil {
		return
	}
	select {
	case <-l.closed:
	default:
		l.options.Message(m.Channel, m.Message)
	}
}

func (h *hub) hear(w *Waiter) (hearing Hearing, ask bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case w.Own == "":
		return Deaf, false
	case !h.at(w):
		return NotYet, false
	}
	return w.node.listen(w)
}

// heard ends the wait for an answer.
func (h *hub) heard(w *Waiter) Hearing {
	h.mu.Lock()
	defer h.mu.Unlock()
	w.waits = false
	switch {
	case w.node == nil:
		return NotYet
	case w.node.deafTo(w.listener):
		return Deaf
	case w.joined != nil && w.joined.heard:
		return Heard
	}
	return NotYet
}

// deafTo reports whether a listener's messages will not arrive on this connection. The caller holds the mutex.
func (n *node) deafTo(l *Listener) bool {
	p := n.listeners[l]
	return p != nil && (p.refused || p.hearing == Deaf)
}

// listen adds a waiter to its own channel. Ask: the waiter must wait for an answer. The caller holds the mutex.
func (n *node) listen(w *Waiter) (hearing Hearing, ask bool) {
	l := w.listener
	if n.deafTo(l) {
		return Deaf, false
	}
	if n.listeners[l] == nil || !n.up() {
		return NotYet, false
	}
	o := n.owns.of(w)
	if o.listener != l { // a closed listener
		return NotYet, false
	}
	if w.joined != o {
		w.joined = o
		o.hearers[w] = struct{}{}
	}
	if o.heard {
		return Heard, false
	}
	if n.owns.want(o) {
		n.poke()
	}
	w.hearer.ask()
	return NotYet, true
}

// quit removes a waiter from its own channel. The caller holds the mutex.
func (n *node) quit(w *Waiter) {
	o := w.joined
	if o == nil {
		return
	}
	w.unhear()
	if n.owns.leave(o, w) {
		n.poke()
	}
}

// ask begins to wait for an answer to Hear. The caller holds the mutex.
func (h *hearer) ask() {
	h.waits = true
	if h.answered == nil {
		h.answered = make(chan struct{}, 1)
	}
	select {
	case <-h.answered: // an answer that came too late
	default:
	}
}

// unhear notes that messages on the waiter's own channel no longer arrive. The caller holds the mutex.
func (w *Waiter) unhear() {
	if w.joined = nil; w.waits {
		w.told()
	}
}

// told notes that there is an answer to Hear. The caller holds the mutex.
func (w *Waiter) told() {
	if !w.waits {
		w.signal()
		return
	}
	select {
	case w.answered <- struct{}{}:
	default:
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
			w.signal()
		}
		n.hub.poke()
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
		if n.owns.has(o) && !o.subscribed && !n.deafTo(o.listener) {
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
		c.deafen(o.listener, err)
	case result.NonRedisError() != nil:
		return err
	default: // the slot may have moved
		c.node.hub.poke()
	}
	return nil
}

// settle answers the waiters of own channels, if there is an answer.
func (c *connection) settle(wanted []*own) {
	n := c.node
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range wanted {
		p := n.listeners[o.listener]
		switch {
		case p == nil || !n.owns.has(o): // closed, or gone
			continue
		case p.hearing == NotYet || p.hearing == Heard && !o.subscribed:
			n.owns.later = append(n.owns.later, o)
			for w := range o.hearers {
				if w.waits {
					w.told()
				}
			}
			continue
		case p.hearing == Heard:
			o.heard, p.heard = true, c
		}
		o.wanted = false
		for w := range o.hearers {
			w.told()
		}
	}
}
