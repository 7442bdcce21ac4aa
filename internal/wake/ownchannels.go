package wake

// own is a user's own channel, on which scripts publish messages for its calls, on one connection.
//
//	wanted ──the server has answered, and it is proven──▶ heard ──nobody waits any more, for 1 to 2 s──▶ left
//	 │  ▲ └──refused──▶ the user is deaf                └──the server ends it──▶ gone, and wakes
//	 └──┘ once a second, while the server cannot say
//
// The proof is that a script's message arrives. It is needed once per connection and user, since all channels of a user
// have similar names and the same permissions.
type own struct {
	name string
	key  string // a key in the channel's slot
	user *user

	// The hub's mutex guards the rest.
	hearers    map[*Waiter]struct{}
	wanted     bool // a subscription is asked for
	subscribed bool // the server has confirmed it
	echoed     bool // the message of the proof has arrived
	heard      bool
	idle       bool // it is in ownChannels.idle
	fresh      bool // it had a waiter since the last tidy
}

// ownChannels are the own channels that a connection is or will soon be subscribed to. The hub's mutex guards them.
type ownChannels struct {
	all    map[string]*own
	wanted []*own // to subscribe to
	later  []*own // the server could not answer yet
	idle   []*own // had no waiters at some moment
}

func newOwnChannels() ownChannels { return ownChannels{all: map[string]*own{}} }

// has reports whether a channel was neither left nor ended by the server.
func (c *ownChannels) has(o *own) bool { return c.all[o.name] == o }

// of returns the channel of a waiter.
func (c *ownChannels) of(w *Waiter) *own {
	o := c.all[w.Own]
	if o == nil {
		o = &own{name: w.Own, key: w.Key, user: w.user, hearers: map[*Waiter]struct{}{}}
		c.all[w.Own] = o
	}
	return o
}

// want asks for a channel, and reports whether the connection has something to do.
func (c *ownChannels) want(o *own) bool {
	if o.wanted {
		return false
	}
	o.wanted = true
	c.wanted = append(c.wanted, o)
	return true
}

// next takes channels to subscribe to.
func (c *ownChannels) next() (wanted []*own) {
	k := min(batch, len(c.wanted))
	wanted, c.wanted = c.wanted[:k:k], c.wanted[k:]
	return wanted
}

// leave removes a waiter from a channel, and reports whether the connection should tidy.
func (c *ownChannels) leave(o *own, w *Waiter) bool {
	if delete(o.hearers, w); len(o.hearers) > 0 || !c.has(o) {
		return false
	}
	if o.fresh = true; o.idle {
		return false
	}
	o.idle = true
	c.idle = append(c.idle, o)
	return len(c.idle) == 1
}

// untidy reports whether tidy has something to do.
func (c *ownChannels) untidy() bool { return len(c.idle)+len(c.later) > 0 }

// tidy takes the channels that had no waiters for a while, if unsubscribing is safe now, and retries those for which the server
// could not answer.
func (c *ownChannels) tidy(leaves bool) (names []string) {
	idle := c.idle
	c.idle = nil
	for _, o := range idle {
		switch {
		case len(o.hearers) > 0:
			o.idle = false
		case o.fresh || !leaves:
			o.fresh = false
			c.idle = append(c.idle, o)
		case c.has(o):
			delete(c.all, o.name)
			names = append(names, o.name)
		}
	}
	c.wanted, c.later = append(c.wanted, c.later...), nil
	return names
}
