package wake

// mail is what a node knows about own channels. An own channel belongs to one user; scripts publish messages for the user's
// calls on it.
//
// It sends nothing and reads no clock, see the package comment. The hub's mutex guards it.
//
// The proof is that a script's message arrives. It is needed once per connection and user. All channels of a user have similar
// names, and so the same permissions; those of another user may have other permissions.
type mail struct {
	channels map[string]*own
	proofs   map[*user]Subscription // on this connection: Proven, or Deaf once that has failed; no entry: NotYet
	wanted   []*own                 // to subscribe to, or to prove
	later    []*own                 // the server could not answer yet
	idle     []*own                 // had no waiters at some moment
}

// own is an own channel on one connection.
//
//	wanted ──the server has answered, and its user is proven──▶ proven ──nobody waits any more, for 1 to 2 s──▶ left
//	 │  ▲ └──refused──▶ its user is deaf                          └──the server ends it──▶ gone, and wakes
//	 └──┘ once a second, while the server cannot say
type own struct {
	name string
	key  string // a key in the channel's slot
	user *user

	subscribers map[*Waiter]struct{}
	wanted      bool // its subscribers are to be answered
	subscribed  bool // the server has confirmed it
	idle        bool // it is in mail.idle
	fresh       bool // it had a waiter since the last tidy
}

func newMail() mail { return mail{channels: map[string]*own{}, proofs: map[*user]Subscription{}} }

// has reports whether a channel was neither left nor ended by the server.
func (m *mail) has(o *own) bool { return m.channels[o.name] == o }

// arrives reports whether the messages on a channel arrive.
func (m *mail) arrives(o *own) bool { return o.subscribed && m.proofs[o.user] == Proven }

// subscribe adds a waiter to its own channel. Asked: the waiter must wait for an answer. Wanted: there is something to send.
func (m *mail) subscribe(w *Waiter) (is Subscription, asked, wanted bool) {
	o := m.channels[w.Own]
	switch {
	case m.proofs[w.user] == Deaf:
		return Deaf, false, false
	case o == nil:
		o = &own{name: w.Own, key: w.Key, user: w.user, subscribers: map[*Waiter]struct{}{}}
		m.channels[w.Own] = o
	case o.user != w.user: // a closed listener
		return NotYet, false, false
	}
	if !w.joined {
		w.joined = true
		o.subscribers[w] = struct{}{}
	}
	if m.arrives(o) {
		return Proven, false, false
	}
	if w.waits = true; w.answered == nil {
		w.answered = newSignal()
	}
	w.answered.clear() // an answer that came too late
	if o.wanted {
		return NotYet, true, false
	}
	o.wanted = true
	m.wanted = append(m.wanted, o)
	return NotYet, true, true
}

// answer returns what a waiter that has waited for an answer learns.
func (m *mail) answer(w *Waiter) Subscription {
	switch o := m.channels[w.Own]; {
	case m.proofs[w.user] == Deaf:
		return Deaf
	case w.joined && o != nil && m.arrives(o):
		return Proven
	}
	return NotYet
}

// remove removes a waiter from its own channel, and reports whether there may be a channel to leave soon.
func (m *mail) remove(w *Waiter) (untidy bool) {
	if !w.joined {
		return false
	}
	w.unsubscribed()
	o := m.channels[w.Own]
	if delete(o.subscribers, w); len(o.subscribers) > 0 {
		return false
	}
	if o.fresh = true; o.idle {
		return false
	}
	o.idle = true
	m.idle = append(m.idle, o)
	return len(m.idle) == 1
}

// next removes from the list a batch of channels to subscribe to, or to prove. It returns the batch, and those of its channels
// that are to be subscribed to.
func (m *mail) next() (wanted, unsubscribed []*own) {
	k := min(batch, len(m.wanted))
	wanted, m.wanted = m.wanted[:k:k], m.wanted[k:]
	for _, o := range wanted {
		if m.has(o) && !o.subscribed && m.proofs[o.user] != Deaf {
			unsubscribed = append(unsubscribed, o)
		}
	}
	return wanted, unsubscribed
}

// unproven returns a subscribed channel of each user without a proof yet.
func (m *mail) unproven(wanted []*own) (pending []*own) {
	seen := map[*user]bool{}
	for _, o := range wanted {
		if m.has(o) && o.subscribed && m.proofs[o.user] == NotYet && !seen[o.user] { // mutant: one proof for all
			seen[o.user] = true
			pending = append(pending, o)
		}
	}
	return pending
}

// subscribed notes that the server has confirmed a subscription.
func (m *mail) subscribed(name string) {
	if o := m.channels[name]; o != nil {
		o.subscribed = true
	}
}

// ended notes that the server has ended a subscription, and wakes the subscribers. It reports false if this process had left
// the channel before.
func (m *mail) ended(name string) bool {
	o := m.channels[name]
	if o == nil || !o.subscribed {
		return false
	}
	delete(m.channels, name)
	for w := range o.subscribers {
		w.unsubscribed()
		w.wakeup.wake()
	}
	return true
}

// proven notes that a proof has arrived on a channel.
func (m *mail) proven(o *own) {
	if m.proofs[o.user] == NotYet && !o.user.isClosed() {
		m.proofs[o.user] = Proven
	}
}

// deafen notes that a user's messages will not arrive on this connection.
func (m *mail) deafen(u *user) {
	if !u.isClosed() {
		m.proofs[u] = Deaf
	}
}

// removeUser forgets a user whose listener is closed: a registry that is closed must not stay in memory for it.
func (m *mail) removeUser(u *user) { delete(m.proofs, u) }

// answerAll is called when everything has been sent for these channels. It answers the waiters of a channel if it is known
// whether messages arrive. The other channels are tried again later, and calls that wait for them learn NotYet. It returns the
// users of the channels that are proven.
func (m *mail) answerAll(wanted []*own) (proven []*user) {
	for _, o := range wanted {
		if !m.has(o) || o.user.isClosed() {
			continue
		}
		if m.arrives(o) {
			proven = append(proven, o.user)
		} else if m.proofs[o.user] != Deaf {
			m.later = append(m.later, o)
			for w := range o.subscribers {
				if w.waits {
					w.answerSubscribe()
				}
			}
			continue
		}
		o.wanted = false
		for w := range o.subscribers {
			w.answerSubscribe()
		}
	}
	return proven
}

// tidy returns the channels to leave: if unsubscribing is safe now, those that had no waiters for a while. The channels for
// which the server could not answer are tried again.
func (m *mail) tidy(safe bool) (names []string) {
	idle := m.idle
	m.idle = nil
	for _, o := range idle {
		switch {
		case len(o.subscribers) > 0:
			o.idle = false
		case o.fresh || !safe:
			o.fresh = false
			m.idle = append(m.idle, o)
		case m.has(o):
			delete(m.channels, o.name)
			names = append(names, o.name)
		}
	}
	m.wanted, m.later = append(m.wanted, m.later...), nil
	return names
}
