package wake

import (
	"slices"
	"time"
)

// channels are the channels that a connection is or will soon be subscribed to: of keys, and the users' common ones. A
// channel without waiters stays subscribed for a while, so that the next waiter for the same key needs no new subscription.
//
// The hub's mutex guards them.
type channels struct {
	all  map[string]*channel
	idle []string // channels to unsubscribe from
}

// channel is a subscribed channel.
type channel struct {
	waiters []*Waiter
	sharded bool // also subscribed in its slot
	common  bool // it is also a user's common channel
}

// tidying is about how long a channel without waiters stays subscribed: for that time its subscriber is counted.
const tidying = time.Second

func newChannels() channels { return channels{all: map[string]*channel{}} }

func (c *channel) unused() bool { return len(c.waiters) == 0 && !c.common }

// at returns the channel of a name, and whether it is new, so that the caller must subscribe to it.
func (c *channels) at(name string) (ch *channel, fresh bool) {
	ch = c.all[name]
	if fresh = ch == nil; fresh {
		ch = &channel{}
		c.all[name] = ch
	}
	return ch, fresh
}

// leave removes a waiter from its channel, and reports whether the connection should unsubscribe from idle channels.
func (c *channels) leave(w *Waiter) (tidy bool) {
	ch := c.all[w.Channel]
	if ch == nil || !slices.Contains(ch.waiters, w) {
		return false
	}
	ch.waiters = slices.DeleteFunc(ch.waiters, func(o *Waiter) bool { return o == w })
	return c.vacant(w.Channel, ch)
}

// noCommon notes that a channel is no user's common channel any more. It reports the same as leave.
func (c *channels) noCommon(name string) (tidy bool) {
	ch := c.all[name]
	if ch == nil || !ch.common {
		return false
	}
	ch.common = false
	return c.vacant(name, ch)
}

// vacant makes a channel idle if it is no longer needed.
func (c *channels) vacant(name string, ch *channel) (tidy bool) {
	if !ch.unused() {
		return false
	}
	c.idle = append(c.idle, name)
	return len(c.idle) == 1 || c.overfull()
}

// overfull reports whether there are many idle channels.
func (c *channels) overfull() bool { return len(c.idle) >= batch }

// unused takes the idle channels, if it is time to unsubscribe or there are many.
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

// refused removes a refused channel, and returns the users whose waiters have no other way.
func (c *channels) refused(name string) (users []*user) {
	ch := c.all[name]
	if ch == nil {
		return nil
	}
	delete(c.all, name)
	for _, w := range ch.waiters {
		if w.tracks { // tracking still wakes it
			continue
		}
		w.armed = false
		if !slices.Contains(users, w.user) {
			users = append(users, w.user)
		}
	}
	return users
}
