package wake

import "time"

// State is what a listener has of the listening to one server.
type State struct {
	Node    string    // its address, in a cluster
	Up      bool      // there is a connection
	Since   time.Time // since when
	Tracks  bool      // the server itself tells of changes
	Lost    uint64    // how many connections to it have been lost
	Waiters int       // of the listener
}

// States tells of each server that a call has waited for, and how many of the listener's waiters woke because of a message, and
// because the server itself told of a change.
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
