// Package protocol is everything that is stored in Redis: the formats of locks, their scripts, keys, slots, tickets and replies.
package protocol

import (
	"strconv"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/lease"
)

// Format is the format of a lock in Redis. Nobody else knows which one a lock has.
//
// A hold is named by its value, "<registry>:<number>", which no other hold ever has.
type Format interface { //nolint:interfacebloat // what can be done with a lock
	// Obtain is the call that makes a hold the owner of its key, unless another one has it; see [Call.Decode].
	// Quick says that the key is most likely free; the call may do less then, and leave out what is only needed when it is
	// not: what it refuses is tried again otherwise.
	Obtain(r Request, quick bool) Call

	// ObtainAll is one call for several keys of a slot: it gives none if somebody else has one of them.
	ObtainAll(all []Request) Call

	// Release is the call that passes the key, if it is the hold's, to the first waiter in its queue, or removes it, or keeps it
	// for nobody. It replies no more than 0 when it was not the hold's, see [Confirmed]; else 1, [Contended] when others
	// wait in the queue or one of them has the key now, or [NoQueue].
	Release(r Release) Call

	// Renew is the call that sets the lease anew if the key is the hold's. It replies 1 when it was, else no more than 0, see
	// [Confirmed].
	Renew(key, value string, l *lease.Term) Call

	// Fence is a renewal that also draws tokens for the hold, of which it replies the first one.
	Fence(key, value string, l *lease.Term) Call

	// Counter is the key of the fencing counter of a key.
	Counter(key string) string

	// Holds is the call that tells whether the key is the hold's. It replies 1 if so, else no more than 0, see [Confirmed].
	Holds(key, value string) Call

	// Holder is the call that returns the holder of a plain lock, as it is in the key; nil when it is free.
	Holder(key string) Call

	// Channel is where releases of a key are published; on CommonChannel those of all keys may be, with the key as the
	// message.
	Channel(key string) string
	CommonChannel() string

	// RemovesOlder tells whether the removal of a value also removes what an older hold of the same registry has left.
	RemovesOlder() bool
}

// Config is what the formats of a registry are made from.
type Config struct {
	Prefix     string
	Cluster    bool
	Publishes  bool          // releases are published
	OldChannel bool          // in Spring's format on its single channel, too
	Fencing    bool          // a grant draws tokens
	Remove     func() string // the command that removes a key: UNLINK or DEL
}

// Sharded tells scripts whether channels are in slots.
func (c *Config) Sharded() string {
	if c.Cluster {
		return "S"
	}
	return ""
}

// Publish is how releases are published in Redisson's format: PUBLISH, SPUBLISH to reach Redisson in a cluster too, or empty.
func (c *Config) Publish() string {
	switch {
	case !c.Publishes:
		return ""
	case c.Cluster:
		return "SPUBLISH"
	default:
		return "PUBLISH"
	}
}

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
	ModeNone     Mode = ""        // there is none, or it is not to wait
	ModeTry      Mode = "try"     // nothing, but not to overtake those that wait in it; for readers
	ModeReserve  Mode = "reserve" // to wait without a ticket; for writers
	ModeEnqueue  Mode = "enqueue" // for a ticket
	ModeCheck    Mode = "check"   // what became of its ticket
	ModeCheckDue Mode = "due"     // the same, when those in front of it had their time
)

// Release is what the end of a hold asks for.
type Release struct {
	Key, Value string
	Queued     bool // there is a queue

	Leaving Leaving // what to remove from it
	Yields  bool    // others wait in this process, and are not to have the lock at once
	Leads   bool    // it matters that somebody has the lock, not who: no long window is due

	Keep time.Duration // how long the path is to stay taken, see AtLeast; 0: it is not
	Age  time.Duration // of the hold; 0 when that is not known

	Due   string // when the next window is, by the server's clock; empty: that is not known, or others are unlikely to wait
	Warns bool   // with Due: the ticket behind the first has waited for long, too
}

// Leaving is the tickets of a call that leaves the queue: none, one, or all.
type Leaving struct {
	Ticket string
	All    bool // those of the registry up to the hold's
}

// rare is whether the release is more than the end of a hold.
func (r Release) rare() bool { return r.Leaving != (Leaving{}) || r.Yields || r.Leads || r.Keep > 0 }

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

// warning is what Warns is in the words of the scripts.
func (r Release) warning() string {
	if r.Warns {
		return "warn"
	}
	return ""
}

// keeping is how long that is, in the words of the scripts: whole milliseconds, or empty.
func (r Release) keeping() string {
	if r.Keep <= 0 {
		return ""
	}
	return strconv.FormatInt((r.Keep-1).Milliseconds()+1, 10)
}

// shortAge is how old a hold may be without its release saying so. See PAUSE in lua/windows.lua.
const shortAge = 10 * time.Millisecond

// aged is that in the words of the scripts: whole milliseconds, or empty.
func (r Release) aged() string {
	if r.Age <= shortAge {
		return ""
	}
	return strconv.FormatInt(r.Age.Milliseconds(), 10)
}

// What a release replies when the key was the hold's. NoQueue stands for a text that says why.
const (
	Contended = 2
	NoQueue   = 3
)

// Ticket is that of a request, as it is in the queue.
func (b Request) Ticket() string { return b.Value + "|" + b.Zeros + b.Lease.MS + b.Side }

// briefly is the call for a ticket, or for a lock that is free, that takes few steps. An empty counter: no token is wanted.
func briefly(script *Script, b Request, prefix, sharded, counter string) Call {
	c := Call{Script: script, Key: b.Key, Args: Args{b.Value, b.Lease.MS, prefix, sharded, counter}}
	if sharded != "" {
		c.queue = QueueKey(prefix, b.Key)
	}
	if counter != "" {
		c.counts(counter, sharded != "")
	}
	return c
}

// allOf puts a call together that obtains several locks; see lua/obtain_all.lua.
func allOf(s *Script, bids []Request, counter func(key string) string, cluster bool) Call {
	c := Call{Script: s, Key: bids[0].Key, Args: Args{strconv.Itoa(len(bids)), bids[0].Lease.MS}}
	var counters []string
	for _, b := range bids {
		c.more = append(c.more, b.Value)
		if b.Key != c.Key {
			c.others = append(c.others, b.Key)
		}
		if counter != nil {
			counters = append(counters, counter(b.Key))
		}
	}
	c.more = append(c.more, counters...)
	if cluster {
		c.others = append(c.others, counters...)
	}
	return c
}

// fencingCounter is the name of a key's fencing counter: in its slot, and of the form that is reserved for what stands beside
// keys.
func fencingCounter(prefix, key string) string {
	if HashTag(key) != key {
		return key + ":fencing"
	}
	return prefix + ":{" + key + "}:fencing"
}
