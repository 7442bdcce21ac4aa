package wake

// own is a channel of one listener alone, on which scripts publish messages for its calls, on one connection.
//
//	wanted ──the server has answered, and it is proven──▶ heard ──nobody waits any more, for 1 to 2 s──▶ left
//	 │  ▲ └──refused──▶ the listener is deaf                └──the server ends it──▶ gone, and wakes
//	 └──┘ once a second, while the server cannot say
//
// The proof is that a script's message arrives. It is needed once for each connection and listener, whose channels have names
// and permissions of the same kind.
type own struct {
	name     string
	key      string // one in the channel's slot
	listener *Listener

	// The hub's mutex guards the rest.
	hearers    map[*Waiter]struct{}
	wanted     bool // it is about to be heard
	subscribed bool // the server has said so
	echoed     bool // the message of the proof has arrived
	heard      bool
	quiet      bool // it is among the node's quiet ones,
	fresh      bool // and somebody has waited there since the last look at these
}

// ownChannels are those that a connection is subscribed to, or is about to be. The hub's mutex guards them.
type ownChannels struct {
	all    map[string]*own
	wanted []*own // to be heard
	later  []*own // about which the server could not say yet
	quiet  []*own // on which nobody waited, at a moment
}

func newOwnChannels() ownChannels { return ownChannels{all: map[string]*own{}} }

// has tells whether a channel is not left, nor ended by the server.
func (c *ownChannels) has(o *own) bool { return c.all[o.name] == o }

// of returns the channel of a waiter.
func (c *ownChannels) of(w *Waiter) *own {
	o := c.all[w.Own]
	if o == nil {
		o = &own{name: w.Own, key: w.Key, listener: w.listener, hearers: map[*Waiter]struct{}{}}
		c.all[w.Own] = o
	}
	return o
}

// want has a channel heard, and tells whether the connection is to see to that.
func (c *ownChannels) want(o *own) bool {
	if o.wanted {
		return false
	}
	o.wanted = true
	c.wanted = append(c.wanted, o)
	return true
}

// next takes channels that are to be heard.
func (c *ownChannels) next() (wanted []*own) {
	k := min(batch, len(c.wanted))
	wanted, c.wanted = c.wanted[:k:k], c.wanted[k:]
	return wanted
}

// leave takes a waiter out of a channel, and tells whether the connection is to see to those on which nobody waits.
func (c *ownChannels) leave(o *own, w *Waiter) bool {
	if delete(o.hearers, w); len(o.hearers) > 0 || !c.has(o) {
		return false
	}
	if o.fresh = true; o.quiet {
		return false
	}
	o.quiet = true
	c.quiet = append(c.quiet, o)
	return len(c.quiet) == 1
}

// untidy tells whether there is something for tidy to do.
func (c *ownChannels) untidy() bool { return len(c.quiet)+len(c.later) > 0 }

// tidy takes the channels on which nobody has waited for a while, if channels can be left, and has those tried again about which
// the server could not say.
func (c *ownChannels) tidy(leaves bool) (names []string) {
	quiet := c.quiet
	c.quiet = nil
	for _, o := range quiet {
		switch {
		case len(o.hearers) > 0:
			o.quiet = false
		case o.fresh || !leaves:
			o.fresh = false
			c.quiet = append(c.quiet, o)
		case c.has(o):
			delete(c.all, o.name)
			names = append(names, o.name)
		}
	}
	c.wanted, c.later = append(c.wanted, c.later...), nil
	return names
}
