package wake

import (
	"slices"
	"time"
)

// channels are those that a connection is subscribed to, or is about to be: of keys, and those that listeners have in common. A
// channel stays so for a while when nobody waits there any more: who waits for the same key again needs no new subscription.
//
// The hub's mutex guards them.
type channels struct {
	all  map[string]*channel
	idle []string // those that may be left
}

// channel is one of them.
type channel struct {
	waiters []*Waiter
	sharded bool // it is subscribed to in its slot, too
	common  bool // it is that of a listener, too
}

// tidying is how long a channel stays subscribed to that nobody waits for, about: so long its subscriber is counted.
const tidying = time.Second

func newChannels() channels { return channels{all: map[string]*channel{}} }

func (c *channel) unused() bool { return len(c.waiters) == 0 && !c.common }

// at returns the channel of a name, and whether it is a new one, which is to be subscribed to.
func (c *channels) at(name string) (ch *channel, fresh bool) {
	ch = c.all[name]
	if fresh = ch == nil; fresh {
		ch = &channel{}
		c.all[name] = ch
	}
	return ch, fresh
}

// leave takes a waiter out of its channel, and tells whether the connection is to see to those that may be left.
func (c *channels) leave(w *Waiter) (tidy bool) {
	ch := c.all[w.Channel]
	if ch == nil || !slices.Contains(ch.waiters, w) {
		return false
	}
	ch.waiters = without(ch.waiters, w)
	return c.vacant(w.Channel, ch)
}

// noCommon is for when no listener has a channel for a common one any more. It tells the same as leave.
func (c *channels) noCommon(name string) (tidy bool) {
	ch := c.all[name]
	if ch == nil || !ch.common {
		return false
	}
	ch.common = false
	return c.vacant(name, ch)
}

// vacant notes a channel that may be left, if nobody needs it any more.
func (c *channels) vacant(name string, ch *channel) (tidy bool) {
	if !ch.unused() {
		return false
	}
	c.idle = append(c.idle, name)
	return len(c.idle) == 1 || c.overfull()
}

// overfull tells whether there are many channels to leave.
func (c *channels) overfull() bool { return len(c.idle) >= batch }

// unused takes the channels that are to be left: when it is time to, or when there are many.
func (c *channels) unused(late bool) (names, sharded []string) {
	if !late && !c.overfull() {
		return nil, nil
	}
	for _, name := range c.idle {
		if ch := c.all[name]; ch != nil && ch.unused() {
			delete(c.all, name)
			if names = append(names, name); ch.sharded {
				sharded = append(sharded, name)
			}
		}
	}
	c.idle = nil
	return names, sharded
}

// refused takes out a channel that is refused, and returns the listeners whose waiters have nothing but it.
func (c *channels) refused(name string) (listeners []*Listener) {
	ch := c.all[name]
	if ch == nil {
		return nil
	}
	delete(c.all, name)
	for _, w := range ch.waiters {
		if w.tracks { // it is woken all the same
			continue
		}
		w.armed = false
		if !slices.Contains(listeners, w.listener) {
			listeners = append(listeners, w.listener)
		}
	}
	return listeners
}
