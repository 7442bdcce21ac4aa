// Package protocol is everything that is stored in Redis: the formats of locks, their scripts, keys, slots, tickets and replies.
//
// What comes in: what a hold is and wants, such as a [Request], a [Release] or a [Queued], and the replies. What goes out: a
// [Call], which package transport sends, and the reply as values of this package. A [Format] is a kind of lock. The scripts are
// in lua/.
package protocol

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/lockregistry/lockregistry/internal/lease"
)

// Config is what a registry's formats depend on.
type Config struct {
	Prefix     string
	Cluster    bool
	Publishes  bool          // releases are published
	OldChannel bool          // in Spring's format also on its single channel
	Fencing    bool          // a grant draws tokens
	Remove     func() string // the command that removes a key: UNLINK or DEL
	Beside     *Beside       // what is known about keys besides those of locks; nil: nothing
}

// Sharded returns the argument that tells scripts whether channels are in slots.
func (c *Config) Sharded() string {
	if c.Cluster {
		return "S"
	}
	return ""
}

// publish returns how releases are published in Redisson's format: PUBLISH, SPUBLISH to also reach Redisson in a cluster, or
// empty.
func (c *Config) publish() string {
	switch {
	case !c.Publishes:
		return ""
	case c.Cluster:
		return "SPUBLISH"
	default:
		return "PUBLISH"
	}
}

// Description is what distinguishes a format. A new format needs one, and a Lua file; see scripts.go for what its sections may
// use, and testdata/toy.lua for a minimal file.
type Description struct {
	Name   string
	Source sections // the sections of its file
	Side   string   // read or write for a side of a read-write lock, as in the names of sections; otherwise empty
	Many   bool     // of a semaphore, see [Format.Many]

	Set     bool                            // SET NX takes a free lock
	Marks   bool                            // the owner's value shows whether others wait, see the mark in lua/spring.lua
	Unlinks bool                            // keys are removed by Config's command; otherwise by the scripts' own
	Channel func(prefix string) string      // the beginning of the names of the channels of releases
	Within  func(key string) string         // the rest of these names
	Common  func(prefix string) string      // a channel on which releases of all keys may be published; nil: none
	Counter func(prefix, key string) string // the key of the fencing counter
	Foreign []string                        // see [Foreign]
	Needs   *Needs                          // what its locks need of the user, see [Format.Proof]

	scripts  scripts
	shortWay bool
}

// scripts are the scripts of a format.
type scripts struct{ obtain, queued, all, release, releaseAll, renew, number *Script }

// describe assembles the scripts of a format.
func describe(d Description) *Description {
	script := func(operation string) *Script { return known(d.name()+"_"+operation, d.operation(operation)) }
	d.scripts = scripts{
		obtain: script("obtain"), queued: script("obtain_queued"),
		release: script("release"), renew: script("renew"),
	}
	if d.Side == "" && !d.Many {
		d.scripts.all, d.scripts.releaseAll = script("obtain_all"), script("release_all")
	}
	if d.Many {
		d.scripts.number = script("set_permits")
	}
	_, d.shortWay = d.Source["obtain queued"]
	d.shortWay = d.shortWay && !d.Many
	return &d
}

func (d *Description) name() string {
	if d.Side == "" {
		return d.Name
	}
	return d.Name + "_" + d.Side
}

// Format is a format of locks with the settings of a registry. Other packages do not depend on the format of a lock.
//
// A hold is named by its value, "<registry>:<number>", which is unique forever.
type Format struct {
	*Config
	format   *Description
	channels string // the beginning of the names of channels if releases are published; otherwise empty
	permits  string // for a semaphore: the permits of a hold, and of all, as scripts take them
}

// newFormat makes a format with the settings of a registry.
func newFormat(d *Description, c Config) *Format {
	f := &Format{Config: &c, format: d}
	if c.Publishes {
		f.channels = d.Channel(c.Prefix)
	}
	return f
}

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

// Obtain returns the call that makes a hold the owner of its key, unless another hold is; see [Call.Decode]. Quick: the key is
// most likely free, so the call may do less; if it is refused, the caller tries again without quick.
func (f *Format) Obtain(b Request, quick bool) Call {
	c := Call{Key: b.Key, Args: Args{b.Value, b.Lease.MS}}
	if quick && f.format.Set && !f.Fencing { // most locks are free: SET takes less of the server than a script
		return c
	}
	queue, prefix := "", f.Prefix
	if b.Mode != ModeNone {
		queue = f.Queue(b.Key)
	}
	switch {
	case queue != "":
	case b.Mode == ModeEnqueue || b.Mode == ModeCheck:
		prefix = "" // the script says that there is no queue
	default:
		b.Mode = ModeNone // no call waits in one
	}
	counter := ""
	if f.Fencing {
		counter = f.drawsFrom(&c)
	}
	switch b.Mode {
	case ModeNone, ModeTry, ModeSeen, ModePoll:
		c.Script, c.shape = f.format.scripts.obtain, obtaining
		if b.Mode != ModeNone {
			c.Args, c.queue = Args{b.Value, b.Lease.MS, prefix, string(b.Mode), f.Sharded()}, queue
		}
		c.waits = b.Mode == ModeSeen || b.Mode == ModePoll
		c.then(counter, b.Under+f.permits)
	default:
		c.Script, c.plainly = f.format.scripts.queued, f.format.scripts.obtain
		if b.Mode == ModeEnqueue { // mutant: look is narrowed
			c.shape = asking
		}
		asks, place := string(b.Mode), b.Place
		if b.Short {
			asks = ""
		}
		if b.Clears {
			place = "clear"
		}
		c.Args, c.queue = Args{b.Value, b.Lease.MS, prefix, asks, f.Sharded()}, queue
		c.waits = true
		c.then(counter, place, b.Replaces, b.Zeros, b.Under+f.permits)
	}
	return f.named(c)
}

// named returns the call of a hold, whose value is the first argument, with the key of a reader's own lease. The call is narrowed
// if its keys are known to be refused.
func (f *Format) named(c Call) Call {
	if f.format.Side == "read" {
		c.own = readersLease(c.Key, c.Args[0])
	}
	if c.known = f.Beside; c.shape != fixed && f.Unqueued() != "" {
		c.bare = f.Beside.Refused() == "" || f.Beside.leases.now(f.Beside.clock) != ""
		c.leaveOut()
	}
	return c
}

// Queue returns the key of a lock's queue; empty if there is none, since a cluster would keep it in another slot.
func (c *Config) Queue(key string) string {
	if c.Cluster {
		return queueKey(c.Prefix, key)
	}
	return keyBeside(c.Prefix, key, waitersEnd)
}

// ObtainAll returns one call for several keys of a slot: it obtains none if one of them is taken. It is for plain locks, and
// panics for others.
func (f *Format) ObtainAll(all []Request) Call {
	script := f.format.scripts.all
	if script == nil { // a call without a script would be a SET
		panic("lockregistry: ObtainAll: " + f.format.name() + " is not a format of plain locks")
	}
	c := Call{Script: script, Key: all[0].Key, Args: Args{strconv.Itoa(len(all)), all[0].Lease.MS}}
	var counters []string // after all locks
	c.more, c.others = make([]string, 0, len(all)), make([]string, 0, len(all))
	for _, b := range all {
		c.more = append(c.more, b.Value)
		if b.Key != c.Key {
			c.others = append(c.others, b.Key)
		}
		if f.Fencing {
			counters = append(counters, f.Counter(b.Key))
		}
	}
	c.others = append(c.others, counters...)
	if c.fields = !f.format.Set; !f.Cluster && len(all) > 1 { // a node of a cluster refuses keys that it does not have
		c.of = make([]reading, 0, len(all))
		for _, b := range all {
			c.of = append(c.of, reading{b.Key, b.Value})
		}
	}
	return c
}

// Release returns the call that, if the key is the hold's, passes it to the first waiter in its queue, removes it, or keeps the
// path taken. The reply is at most 0 if the key was not the hold's, see [Confirmed]; otherwise it is 1, or [Contended] if others
// wait in the queue or one of them has the key now, or [NoQueue].
func (f *Format) Release(r Release) Call {
	if f.format.Many {
		r.Queued = true // only releases wake waiting calls: so does one of a registry that was refused the queue
	}
	c := Call{Script: f.format.scripts.release, Key: r.Key, Args: Args{r.Value, f.channels, "", "", f.Sharded()}}
	c.shape = releasing
	if r.Queued {
		if c.queue = f.Queue(r.Key); c.queue != "" {
			c.Args[2] = f.Prefix
		}
	}
	if r.Quiet {
		c.Args[3] = "quiet"
	}
	removal, old := f.removes()
	args := [...]string{"", "", "", removal, old}
	switch {
	case r.Yields:
		args[0] = "yield"
	case r.Leads:
		args[0] = "lead"
	}
	if len(r.Leaving) > 0 {
		args[1] = r.Leaving[0]
	}
	if r.Keep > 0 { // whole milliseconds, rounded up
		args[2] = strconv.FormatInt((r.Keep-1).Milliseconds()+1, 10)
	}
	if len(r.Leaving) <= 1 {
		c.then(args[:]...)
	} else {
		c.then(slices.Concat(args[:], r.Leaving[1:])...)
	}
	return f.named(c)
}

// removes returns how releases remove a key, and one more channel on which they are published, as scripts take them.
func (f *Format) removes() (removal, old string) {
	if f.format.Unlinks {
		if removal = f.Remove(); removal == "UNLINK" {
			removal = ""
		}
	}
	if f.OldChannel && f.channels != "" && f.format.Common != nil {
		old = f.format.Common(f.Prefix)
	}
	return removal, old
}

// ReleaseAll returns one call for several keys of a slot: it releases the locks that are their holds' and that nobody waits for,
// see [Released]. It is for plain locks, and panics for others.
func (f *Format) ReleaseAll(all []Release) Call {
	if f.format.scripts.releaseAll == nil {
		panic("lockregistry: ReleaseAll: " + f.format.name() + " is not a format of plain locks")
	}
	removal, old := f.removes()
	c := Call{
		Script: f.format.scripts.releaseAll, Key: all[0].Key,
		Args: Args{strconv.Itoa(len(all)), f.channels, removal, old, f.Sharded()},
	}
	var queues []string // after all locks
	queued := false
	c.more, c.others = make([]string, 0, len(all)), make([]string, 0, len(all))
	for _, r := range all {
		c.more = append(c.more, r.Value)
		if r.Key != c.Key {
			c.others = append(c.others, r.Key)
		}
		if f.format.Marks {
			continue
		}
		queue := f.Queue(r.Key)
		if !r.Queued || queue == "" {
			queue = r.Key // in place of a queue: it exists, so the script leaves this lock if it looks at queues
		} else {
			queued = true
		}
		queues = append(queues, queue)
	}
	if queued {
		c.others = append(c.others, queues...)
	}
	return c
}

// Released decodes the reply to a call of ReleaseAll for n locks: which were the hold's and are free now. The others are as they
// were: each must be released by itself.
func Released(result rueidis.RedisResult, n int) ([]int64, error) {
	released, err := result.AsIntSlice()
	if err == nil && len(released) != n {
		return nil, fmt.Errorf("the reply is about %d locks, not %d", len(released), n)
	}
	return released, err
}

// Renew returns the call that renews the lease if the key is the hold's. The reply is 1 if it was, otherwise at most 0, see
// [Confirmed].
func (f *Format) Renew(key, value string, l *lease.Term) Call {
	return f.named(f.renews(key, Args{value, l.MS}))
}

// Fence returns a renewal that also draws tokens for the hold. The reply is the first token.
func (f *Format) Fence(key, value string, l *lease.Term) Call {
	c := f.renews(key, Args{value, l.MS})
	c.Args[2] = f.drawsFrom(&c)
	return f.named(c)
}

// Holds returns the call that asks whether the key is the hold's: a renewal that does not change the lease.
func (f *Format) Holds(key, value string) Call {
	return f.named(f.renews(key, Args{value}))
}

func (f *Format) renews(key string, args Args) Call {
	c := Call{Script: f.format.scripts.renew, Key: key, Args: args}
	c.shape = renewing
	return c
}

// Counter returns the key of the fencing counter of a key.
func (f *Format) Counter(key string) string { return f.format.Counter(f.Prefix, key) }

// drawsFrom makes a call draw tokens, and returns the argument that says where the counter is.
func (f *Format) drawsFrom(c *Call) string {
	counter := f.Counter(c.Key)
	if f.Cluster {
		c.others = append([]string{counter}, c.others...)
	} else {
		c.counter = counter
	}
	return secondKey
}

// Channel returns the channel on which releases of a key are published. Releases of all keys may also be published on
// CommonChannel, with the key as the message.
func (f *Format) Channel(key string) string { return f.format.Channel(f.Prefix) + f.format.Within(key) }

// CommonChannel returns the channel for all keys; empty if there is none.
func (f *Format) CommonChannel() string {
	if f.format.Common == nil {
		return ""
	}
	return f.format.Common(f.Prefix)
}

// Scattered returns the error of a lock that no script can use on a cluster, or nil: a script needs all its keys in one slot, but
// the braces in the lock's name put them into several.
func (f *Format) Scattered(key string) error {
	var what string
	switch {
	case f.Fencing && HashTag(f.Counter(key)) != HashTag(key):
		what = "the fencing counter of this lock in another slot than its key"
	case f.format.Side != "" && HashTag(key) != HashTag(tagged(key)+":"): // each is named by tagged
		what = "the keys of this read-write lock in different slots"
	default:
		return nil
	}
	return fmt.Errorf("a cluster keeps %s, because of the braces in its name: leave them out, or put a part of the name into one "+
		"pair of them, such as {order}42", what)
}

// Many reports whether several calls of a registry may have the lock, or wait for it, at a time: it is a semaphore's. Only this
// library knows such a format, so nobody has the lock, or waits for it, without a ticket.
func (f *Format) Many() bool { return f.format.Many }

// RemovesOlder reports whether the removal of a value also removes what an older hold of the same registry has left. It does
// not for read-write locks, which others may share, and semaphores, which other holds of the registry may share.
func (f *Format) RemovesOlder() bool { return f.format.Side == "" && !f.format.Many }

// HasShortWay reports whether the format has a short way to a ticket, see [Queueing.Short].
func (f *Format) HasShortWay() bool { return f.format.shortWay }
