package wake

import "time"

// State is the state of a listener's listening to one server.
type State struct {
	Node    string    // its address, in a cluster
	Up      bool      // there is a connection
	Since   time.Time // when it was made
	Tracks  bool      // the server itself reports changes
	Lost    uint64    // connections to it that were lost
	Waiters int       // of the listener
}

// States returns the state of each server that a call has waited for, and how many of the listener's waiters woke because of
// messages, and because the server itself reported a change.
func (l *Listener) States() (states []State, messages, invalidations uint64) {
	h := l.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range h.nodes {
		p := n.listeners[l]
		if p == nil || !n.running {
			continue
		}
		s := State{Node: n.address, Lost: n.lost, Waiters: p.waiters}
		if n.state == on {
			s.Up, s.Since, s.Tracks = true, n.since, n.tracks && l.options.Track
		}
		states = append(states, s)
	}
	return states, l.messages, l.invalidations
}
