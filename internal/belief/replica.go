package belief

import (
	"github.com/lockregistry/lockregistry/internal/clock"
)

// Role is what a server says that it is.
type Role uint8

// The roles.
const (
	Untold Role = iota
	Master
	Replica
)

// address is what is known of the masters behind a client's one address. The nodes of a cluster, and Sentinels, say themselves
// who is master.
type address struct {
	master bool          // a connection has led to a master: if one leads to a replica later, the master was demoted
	owed   bool          // the client's own connections may lead to a replica: they must be looked at
	until  clock.Instant // the server is suspect until then because of that
}

// LedToMaster is the event that a connection has led to a master.
func (s *State) LedToMaster() { s.change(func(next *standing) { next.master = true }) }

// Said is the event that a server says what it is, on a fresh connection or not. If the address has never led to a master, the
// replica may be meant.
func (s *State) Said(role Role, fresh bool, now clock.Instant) (do Acts) {
	switch known := s.view(); {
	case role == Replica && known.master:
		do = s.Redirected(now)
	case role == Master:
		if !known.master {
			s.LedToMaster()
		}
		if fresh && known.owed {
			do = Inspect
		}
	}
	return do
}

// Redirected is the event that the server was found to be no master any more, although it answers: a replica behind the client's
// address has refused a command. It is suspect until the client's connections were looked at, see Looks, or Old is over.
func (s *State) Redirected(now clock.Instant) Acts {
	do := s.Broke(now) | Reroute
	s.change(func(next *standing) {
		next.owed, next.until = true, now.Add(Old)
		next.beSuspect(next.until)
	})
	return do
}

// Owed reports whether the client's own connections may lead to a replica, and must be looked at.
func (s *State) Owed() bool { return s.view().owed }

// Owe undoes Inspecting: the address itself still leads to a replica.
func (s *State) Owe() { s.change(func(next *standing) { next.owed = true }) }

// Looks are looks at the client's own connections, of which some may lead to a replica. The client chooses at random which one a
// look goes over, and which one is closed: that may be a good one.
type Looks struct {
	until clock.Instant // see address
	seen  map[int64]bool
	met   int // how many in a row have met a master
	quits int
}

const (
	// sureLooks is how many looks in a row, for each connection seen, must have met a master. With four connections one is
	// overlooked once in a hundred thousand times.
	sureLooks = 16

	// mostLooks ends the looks where each meets another connection, as behind a proxy that dials anew for each command: then there
	// is no old one. Of a client with more than 64 connections one may be overlooked. The next refusal begins anew.
	mostLooks = 64 * sureLooks

	// mostQuits ends the closing in any case; a quarter of it where a server does not say what it is. The next refusal begins anew.
	mostQuits = 64
)

// Inspecting begins the looks.
func (s *State) Inspecting() *Looks {
	l := &Looks{seen: map[int64]bool{}}
	s.change(func(next *standing) { l.until, next.owed = next.until, false })
	return l
}

// Enough reports whether no further look is needed.
func (l *Looks) Enough() bool { return l.met >= min(sureLooks*max(1, len(l.seen)), mostLooks) }

// Met is the event that a look has met a server, over a connection with a number. Quits is 0 if none is to be closed now; else it
// counts those that were to be closed so far. Over: there were too many.
func (l *Looks) Met(role Role, connection int64) (quits int, over bool) {
	if role == Master {
		l.seen[connection] = true
		l.met++
		return 0, false
	}
	clear(l.seen)
	l.met = 0
	l.quits++
	return l.quits, l.quits > mostQuits || role == Untold && l.quits > mostQuits/4
}

// Inspected is the event that the client's own connections lead to the master, as far as is known. If the server has become
// suspect for longer meanwhile, also by another demotion, it stays so.
func (s *State) Inspected(l *Looks) {
	s.change(func(next *standing) {
		if next.suspectUntil == l.until {
			next.suspectUntil = 0
		}
	})
}
