package wake

import (
	"context"
	"errors"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/fault"
)

// Hearing is whether messages on a waiter's own channel arrive.
type Hearing int

// What Hear may find.
const (
	NotYet Hearing = iota // there is no connection, or no answer so far; the waiter wakes when it is worth another try
	Heard                 // they do
	Deaf                  // they do not, and will not while the connection lasts: the server or the permissions forbid it
)

// Hear sees to it that messages on the waiter's own channel arrive; it need not be armed. A waiter that heard wakes when that
// ends: then messages may have been missed, and it must Hear again. It goes on until Close. Only Hear that has something to do
// waits for the server, no longer than limit.
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

// Suspect is told that a message on the waiter's own channel, or a wake-up, did not arrive though it should have. When that is so
// twice in a row, with no message on an own channel in between, the connection is made again, unless it is new, and those
// who rely on it wake. Once it may be no more than late: on a busy machine the caller looked before the message was read.
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

// trusted is how long a connection is not suspected, and two round trips. The message may have been missed before it was made.
const trusted = time.Second

var errSuspect = errors.New("messages did not arrive, twice in a row")

// take hands a message to the listener.
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

// heard ends the waiting for an answer.
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

// deafTo tells whether nothing will be heard for a listener on this connection. The caller holds the mutex.
func (n *node) deafTo(l *Listener) bool {
	p := n.listeners[l]
	return p != nil && (p.refused || p.hearing == Deaf)
}

// listen has a waiter listen to its own channel, and tells whether there will be an answer. The caller holds the mutex.
func (n *node) listen(w *Waiter) (hearing Hearing, ask bool) {
	l := w.listener
	if n.deafTo(l) {
		return Deaf, false
	}
	if n.listeners[l] == nil || !n.up() {
		return NotYet, false
	}
	o := n.owns.of(w)
	if o.listener != l { // that is closed
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

// quit has a waiter listen to its own channel no more. The caller holds the mutex.
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

// unhear is for when the waiter's own channel is not heard any more. The caller holds the mutex.
func (w *Waiter) unhear() {
	if w.joined = nil; w.waits {
		w.told()
	}
}

// told is for when there is an answer to Hear. The caller holds the mutex.
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

// silent takes the own channels that are to be left, if channels can be, and has others tried again; see [ownChannels.tidy].
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

// subscription takes in what the server says about one, in the order in which it does. On a cluster the server ends it when the
// slot goes elsewhere, or when the server becomes a replica.
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
		if !o.subscribed { // it is about the one before, which was left
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

// hear subscribes to own channels and proves that they are heard.
func (c *connection) hear(wanted []*own) error {
	if c.node.any {
		for _, o := range wanted {
			c.deafen(o.listener, errAnyOwn)
		}
	}
	if err := c.subscribeOwn(c.node.unsubscribed(wanted)); err != nil {
		return err
	}
	if err := c.prove(c.node.unproven(wanted)); err != nil {
		return err
	}
	c.settle(wanted)
	return nil
}

// unsubscribed returns those among own channels that are to be subscribed to.
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

// answer takes in the reply to a command for an own channel. It returns an error of the network.
func (c *connection) answer(o *own, result rueidis.RedisResult) error {
	err := result.Error()
	switch {
	case err == nil:
	case fault.Refusal(err):
		c.deafen(o.listener, err)
	case result.NonRedisError() != nil:
		return err
	default: // the slot may be elsewhere
		c.node.hub.poke()
	}
	return nil
}

// settle answers the waiters of own channels, as far as there is an answer.
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
