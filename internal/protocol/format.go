// Package protocol is everything that is stored in Redis: the formats of locks, their scripts, keys, slots, tickets and replies.
package protocol

import (
	"strconv"

	"github.com/lockregistry/lockregistry/internal/lease"
)

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

// Description is what distinguishes a format. A new format takes one, and a file in Lua; see scripts.go.
type Description struct {
	Name   string
	Source sections // of its file
	Side   string   // of the sections of one side of a read-write lock, read or write; empty: it has none
	Many   bool     // several calls of a registry may have the lock, or wait for it, at a time

	Set     bool                            // SET NX takes a free lock
	Unlinks bool                            // a key is removed by the command that Config tells; else by the scripts' own
	Channel func(prefix string) string      // what the names of the channels of releases begin with
	Within  func(key string) string         // the rest of them
	Common  func(prefix string) string      // a channel on which releases of all keys may be published; nil: there is none
	Counter func(prefix, key string) string // the key of the fencing counter
	Foreign []string                        // see [Foreign]

	scripts scripts
	brief   bool
}

// scripts are those of a format.
type scripts struct{ obtain, queued, all, release, renew, owner *Script }

// describe puts the scripts of a format together.
func describe(d Description) *Description {
	script := func(operation string) *Script { return known(d.name()+"_"+operation, d.operation(operation)) }
	d.scripts = scripts{
		obtain: script("obtain"), queued: script("obtain_queued"),
		release: script("release"), renew: script("renew"),
	}
	if d.Side == "" && !d.Many {
		d.scripts.all, d.scripts.owner = script("obtain_all"), script("owner")
	}
	_, d.brief = d.Source["obtain queued"]
	d.brief = d.brief && !d.Many
	return &d
}

func (d *Description) name() string {
	if d.Side == "" {
		return d.Name
	}
	return d.Name + "_" + d.Side
}

// Format is a format of locks as a registry has it. Nobody else knows which one a lock has.
//
// A hold is named by its value, "<registry>:<number>", which no other hold ever has.
type Format struct {
	*Config
	format   *Description
	channels string // what the names of channels begin with when releases are published, else empty
	permits  string // of a semaphore: how many a hold has, and the number of all, in the words of the scripts
}

// newFormat is a format as a registry has it.
func newFormat(d *Description, c Config) *Format {
	f := &Format{Config: &c, format: d}
	if c.Publishes {
		f.channels = d.Channel(c.Prefix)
	}
	return f
}

// Obtain is the call that makes a hold the owner of its key, unless another one has it; see [Call.Decode].
// Quick says that the key is most likely free; the call may do less then, and leave out what is only needed when it is
// not: what it refuses is tried again otherwise.
func (f *Format) Obtain(b Request, quick bool) Call {
	c := Call{Key: b.Key, Args: Args{b.Value, b.Lease.MS}}
	if f.Cluster && b.Mode == ModeSeen && QueueKey(f.Prefix, b.Key) == "" {
		b.Mode = ModeNone // no queue, so nobody who could see it
	}
	if quick && f.format.Set && !f.Fencing { // most locks are free: SET takes less of the server than a script
		return c
	}
	counter, beside := f.counting(&c), b.Under+f.permits
	switch b.Mode {
	case ModeNone, ModeTry, ModeSeen, ModeReserve:
		c.Script = f.format.scripts.obtain
		if b.Mode != ModeNone {
			c.Args = Args{b.Value, b.Lease.MS, f.Prefix, string(b.Mode), f.Sharded()}
		}
		c.then(counter, beside)
	default:
		c.Script = f.format.scripts.queued
		c.Args = Args{b.Value, b.Lease.MS, f.Prefix, b.asks(), f.Sharded()}
		c.then(counter, b.Place, b.Replaces, b.Zeros, beside)
	}
	if f.Cluster && (b.Mode == ModeEnqueue || b.Mode == ModeReserve || b.Mode == ModeSeen) {
		c.queue = QueueKey(f.Prefix, b.Key)
	}
	return c
}

// ObtainAll is one call for several keys of a slot: it gives none if somebody else has one of them. It is for plain
// locks: for others it panics.
func (f *Format) ObtainAll(all []Request) Call {
	script := f.plain("several locks together", f.format.scripts.all)
	c := Call{Script: script, Key: all[0].Key, Args: Args{strconv.Itoa(len(all)), all[0].Lease.MS}}
	var counters []string
	for _, b := range all {
		c.more = append(c.more, b.Value)
		if b.Key != c.Key {
			c.others = append(c.others, b.Key)
		}
		if f.Fencing {
			counters = append(counters, f.Counter(b.Key))
		}
	}
	c.more = append(c.more, counters...)
	if f.Cluster {
		c.others = append(c.others, counters...)
	}
	return c
}

// Release is the call that passes the key, if it is the hold's, to the first waiter in its queue, or removes it, or keeps it
// for nobody. It replies no more than 0 when it was not the hold's, see [Confirmed]; else 1, [Contended] when others
// wait in the queue or one of them has the key now, or [NoQueue].
func (f *Format) Release(r Release) Call {
	if f.format.Many {
		r.Leaving.All = false // others of its registry wait, too
		r.Queued = true       // who waits is told by a release alone, also of a registry that has been refused the queue
	}
	c := Call{Script: f.format.scripts.release, Key: r.Key, Args: Args{r.Value, f.channels, "", string(r.Known), f.Sharded()}}
	if r.Queued {
		c.Args[2] = f.Prefix
	}
	removal, old := "", ""
	if f.format.Unlinks {
		if removal = f.Remove(); removal == "UNLINK" {
			removal = ""
		}
	}
	if f.OldChannel && f.channels != "" && f.format.Common != nil {
		old = f.format.Common(f.Prefix)
	}
	c.then(r.manner(), r.Leaving.Ticket, r.keeping(), removal, old)
	if r.Yields && f.Cluster {
		c.queue = QueueKey(f.Prefix, r.Key)
	}
	return c
}

// Renew is the call that sets the lease anew if the key is the hold's. It replies 1 when it was, else no more than 0, see
// [Confirmed].
func (f *Format) Renew(key, value string, l *lease.Term) Call {
	return Call{Script: f.format.scripts.renew, Key: key, Args: Args{value, l.MS}}
}

// Fence is a renewal that also draws tokens for the hold, of which it replies the first one.
func (f *Format) Fence(key, value string, l *lease.Term) Call {
	counter := f.Counter(key)
	c := Call{Script: f.format.scripts.renew, Key: key, Args: Args{value, l.MS, counter}}
	c.counts(counter, f.Cluster)
	return c
}

// Holds is the call that tells whether the key is the hold's: a renewal that leaves the lease as it is.
func (f *Format) Holds(key, value string) Call {
	return Call{Script: f.format.scripts.renew, Key: key, Args: Args{value}}
}

// Holder is the call that returns the holder of a plain lock, as it is in the key; nil when it is free. For other locks it
// panics.
func (f *Format) Holder(key string) Call {
	return Call{Script: f.plain("a holder", f.format.scripts.owner), Key: key}
}

// plain is a script that other locks do not have: a call without one would be a SET.
func (f *Format) plain(what string, s *Script) *Script {
	if s == nil {
		panic("lockregistry: " + what + " is asked of " + f.format.name() + ", which is not a format of plain locks")
	}
	return s
}

// Counter is the key of the fencing counter of a key.
func (f *Format) Counter(key string) string { return f.format.Counter(f.Prefix, key) }

// counting is the counter from which a grant draws tokens, else empty.
func (f *Format) counting(c *Call) string {
	if !f.Fencing {
		return ""
	}
	counter := f.Counter(c.Key)
	c.counts(counter, f.Cluster)
	return counter
}

// Channel is where releases of a key are published; on CommonChannel those of all keys may be, with the key as the
// message.
func (f *Format) Channel(key string) string { return f.format.Channel(f.Prefix) + f.format.Within(key) }

// CommonChannel is empty when there is none.
func (f *Format) CommonChannel() string {
	if f.format.Common == nil {
		return ""
	}
	return f.format.Common(f.Prefix)
}

// Many tells whether several calls of a registry may have the lock, or wait for it, at a time.
func (f *Format) Many() bool { return f.format.Many }

// RemovesOlder tells whether the removal of a value also removes what an older hold of the same registry has left. In a
// read-write lock others may have the lock beside it, and in a semaphore others of the same registry.
func (f *Format) RemovesOlder() bool { return f.format.Side == "" && !f.format.Many }

// Brief tells whether there are short ways for a lock for which others wait all the time: [Queueing.Fast] and [Direct].
func (f *Format) Brief() bool { return f.format.brief }

// fencingCounter is the name of a key's fencing counter: in its slot, and of the form that is reserved for what stands beside
// keys.
func fencingCounter(prefix, key string) string {
	if HashTag(key) != key {
		return key + ":fencing"
	}
	return prefix + ":{" + key + "}:fencing"
}
