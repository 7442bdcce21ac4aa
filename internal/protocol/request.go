package protocol

import (
	"strconv"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/lease"
)

// Remaining is what the server says that a lease has left: whole milliseconds, of which the last one is 0; negative when it
// has no end.
func Remaining(pttl int64) time.Duration {
	if pttl == 0 {
		pttl = 1
	}
	return clock.Milliseconds(pttl)
}

// Request is what a hold asks for.
type Request struct {
	Key   string
	Value string
	Lease *lease.Term
	Under string // to read: the value of the hold with which the same owner writes already
	Side  string // r for a reader, w for a writer
	Queueing
}

// Queueing is what a request wants in the queue.
type Queueing struct {
	Mode     Mode
	Place    string // where the ticket was, for one that is asked for anew; or empty
	Replaces string // a ticket that it replaces; or empty
	Zeros    string // in front of the lease in the ticket, they say how long the short lease of a grant is
	Fast     bool   // the queue is most likely there, and the place is to be the last one
}

// asks is what the request asks of the queue, in the words of the scripts.
func (q Queueing) asks() string {
	if q.Fast {
		return ""
	}
	return string(q.Mode)
}

// Mode is what a request asks of the queue, in the words of the scripts.
type Mode string

// The modes.
const (
	ModeNone    Mode = ""        // there is none, or it is not to wait
	ModeTry     Mode = "try"     // nothing, but not to overtake those that wait in it; for readers
	ModeSeen    Mode = "seen"    // nothing, but to be seen by those that wait in it; for one that tries again and again
	ModeReserve Mode = "reserve" // to wait without a ticket
	ModeEnqueue Mode = "enqueue" // for a ticket
	ModeCheck   Mode = "check"   // what became of its ticket
)

// Release is what the end of a hold asks for.
type Release struct {
	Key, Value string
	Queued     bool // there is a queue

	Leaving Leaving // what to remove from it
	Yields  bool    // others wait in this process, and are not to have the lock at once
	Leads   bool    // it matters that somebody has the lock, not who: no long window is due

	Keep  time.Duration // how long the path is to stay taken, see AtLeast; 0: it is not
	Known Known         // of those who wait
}

// Known is what a process knows of those who wait, in the words of the scripts.
type Known string

// What it knows.
const (
	NothingKnown Known = ""
	Quiet        Known = "quiet"  // nobody is known of who tries without a ticket
	Direct       Known = "direct" // the queue, and that no window was due a moment ago: see [Format.Brief]
)

// Leaving is the tickets of a call that leaves the queue: none, one, or all.
type Leaving struct {
	Ticket string
	All    bool // those of the registry up to the hold's
}

// manner is what is special about it, in the words of the scripts.
func (r Release) manner() string {
	switch {
	case r.Yields:
		return "yield"
	case r.Leads:
		return "lead"
	case r.Leaving.All:
		return "leave"
	default:
		return ""
	}
}

// keeping is how long that is, in the words of the scripts: whole milliseconds, or empty.
func (r Release) keeping() string {
	if r.Keep <= 0 {
		return ""
	}
	return strconv.FormatInt((r.Keep-1).Milliseconds()+1, 10)
}

// What a release replies when the key was the hold's, and others wait, or there is no queue, which stands for a text that says
// why; and when it was a later hold's of the same registry.
const (
	Contended = 2
	NoQueue   = 3
	Later     = -2
)

// Ticket is that of a request, as it is in the queue.
func (b Request) Ticket() string { return b.Value + "|" + b.Zeros + b.Lease.MS + b.Side }
