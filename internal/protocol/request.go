package protocol

import (
	"time"

	"github.com/lockregistry/lockregistry/internal/lease"
)

// Request is what a hold asks for.
type Request struct {
	Key   string
	Value string
	Lease *lease.Term
	Under string // for a reader: the value of the writer's hold that its owner has
	Side  string // r for a reader, w for a writer, p and a number for permits
	Queueing
}

// Queueing is what a request asks of the queue.
type Queueing struct {
	Mode     Mode
	Place    string // the former place of a ticket that is asked for again; otherwise empty
	Replaces string // a ticket to replace; otherwise empty
	Zeros    string // in front of the lease in the ticket: the length of a grant's short lease
	Short    bool   // the queue most likely exists, and the ticket comes last
	Clears   bool   // a look removes the tickets in front whose processes are gone, also while the lock is held
}

// words returns the mode, and the former place of a ticket or what a look does besides, as scripts take them.
func (q Queueing) words() (asks, place string) {
	asks, place = string(q.Mode), q.Place
	if q.Short {
		asks = ""
	}
	if q.Clears {
		place = "clear"
	}
	return asks, place
}

// Mode is what a request asks of the queue, as scripts take it.
type Mode string

// The modes.
const (
	ModeNone    Mode = ""        // no queue, or no wait
	ModeTry     Mode = "try"     // nothing, but does not overtake waiting calls
	ModeSeen    Mode = "seen"    // nothing, but leaves a trace for waiting calls; for repeated tries
	ModePoll    Mode = "reserve" // waits without a ticket
	ModeEnqueue Mode = "enqueue" // a ticket
	ModeCheck   Mode = "check"   // the state of its ticket
)

// Release is the content of a release.
type Release struct {
	Key, Value string
	Queued     bool // there is a queue

	Leaving []string // the tickets of a call that leaves the queue
	Yields  bool     // others wait in this process, and must let others go first
	Leads   bool     // of a leader: it does not matter who leads, so no long window is due

	Keep  time.Duration // how long the path stays taken, see AtLeast; 0: not at all
	Quiet bool          // no process is known to try without a ticket
}

// Replies to a release: the key was the hold's, and others wait, or there is no queue; NoQueue stands for a text that says why.
const (
	Contended = 2
	NoQueue   = 3
)

// Ticket returns the ticket of a request, as it is in the queue.
func (b Request) Ticket() string { return b.Value + "|" + b.Zeros + b.Lease.MS + b.Side }
