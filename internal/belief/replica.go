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

// address is what is known of the masters behind a client's only address. The nodes of a cluster, and Sentinels, name the
// master themselves.
type address struct {
	master bool          // a connection has led to a master: if one leads to a replica later, the master was demoted
	owed   bool          // the client's own connections may lead to a replica: they must be looked at
	until  clock.Instant // for that reason the server is suspect until then
}

// LedToMaster is the event that a connection has led to a master.
func (s *State) LedToMaster() { s.change(func(next *standing) { next.master = true }) }

// Said is the event that a server says what it is, on a fresh connection or not. A replica counts only if the address has led
// to a master before: otherwise the user may have meant the replica.
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

// Redirected is the event that a replica behind the client's address has refused a command: the server answers, but is no longer
// a master. It is suspect until the client's connections have been looked at, see Looks, but not for longer than Old.
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

// Looks are looks at the client's own connections, some of which may lead to a replica. A look goes over one of them, and so
// does the QUIT that closes one. The client chooses both at random, so QUIT may close a good one.
type Looks struct {
	until clock.Instant  // see address
	seen  map[int64]bool // the numbers of the connections that were met since the last replica
	met   int            // how many looks in a row have met a master
	quits int            // how many connections were to be closed
}

const (
	// sureLooks is how many looks in a row must meet a master, for each connection seen. With four connections, one that leads to
	// a replica is overlooked once in a hundred thousand times.
	sureLooks = 16

	// mostLooks ends the looks if each meets another connection. Behind a proxy that dials anew for each command there is no old
	// connection to find. If the client has more than 64 connections, an old one may be overlooked. The next refusal begins anew.
	mostLooks = 64 * sureLooks

	// mostQuits ends the closing in any case, and a quarter of it ends the closing where a server does not say what it is. The
	// next refusal begins anew.
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

// Met is the event that a look has met a server, over the connection with this number. Quits is 0 if no connection is to be
// closed now. Otherwise one is, and quits counts it and those before. Over: there were too many.
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

// Inspected is the event that the looks are over: as far as is known, the client's own connections lead to the master. If the
// server has become suspect for longer meanwhile, for instance by another demotion, it stays suspect.
func (s *State) Inspected(l *Looks) {
	s.change(func(next *standing) {
		if next.suspectUntil == l.until {
			next.suspectUntil = 0
		}
	})
}
