package lockregistry

import (
	"strconv"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// layout is the format of a lock in Redis. Nothing else in this package knows which one it runs on.
//
// A hold is named by its value, "<registry>:<number>", which no other hold ever has.
type layout interface { //nolint:interfacebloat // what can be done with a lock
	// obtain is the call that makes the bidding hold the owner of its key, unless another one has it; see call.decode.
	// Quick says that the key is most likely free; the call may do less then, and leave out what is only needed when it is
	// not: what it refuses is tried again otherwise.
	obtain(b bid, quick bool) call

	// obtainAll is one call for several keys of a slot: it gives none if somebody else has one of them. See readTokens.
	obtainAll(bids []bid) call

	// release is the call that passes the key, if it is the hold's, to the first waiter in its queue, or removes it, or keeps it
	// for nobody. It replies no more than 0 when it was not the hold's, see confirmed; else 1, contested when others wait in
	// the queue or one of them has the key now, or queueless. One that is to be brief takes fewer steps where that is enough.
	release(r removal) call

	// renew is the call that sets the lease anew if the key is the hold's. It replies 1 when it was, else no more than 0, see
	// confirmed.
	renew(key, value string, l *lease) call

	// fence is a renewal that also draws tokens for the hold, of which it replies the first one.
	fence(key, value string, l *lease) call

	// counter is the key of the fencing counter of a key.
	counter(key string) string

	// holds is the call that tells whether the key is the hold's. It replies 1 if so, else no more than 0, see confirmed.
	holds(key, value string) call

	// holder is the call that returns the holder of a plain lock, as it is in the key; nil when it is free.
	holder(key string) call

	// channel is where releases of a key are published; on commonChannel those of all keys may be, with the key as the
	// message.
	channel(key string) string
	commonChannel() string

	// removesOlder tells whether the removal of a value also removes what an older hold of the same registry has left.
	removesOlder() bool
}

// config is what the formats of a registry are made from.
type config struct {
	prefix     string
	cluster    bool
	publishes  bool          // releases are published
	oldChannel bool          // in Spring's format on its single channel, too
	fencing    bool          // a grant draws tokens
	remove     func() string // the command that removes a key: UNLINK or DEL
}

// sharded tells scripts whether channels are in slots.
func (c *config) sharded() string {
	if c.cluster {
		return "S"
	}
	return ""
}

// publish is how releases are published in Redisson's format: PUBLISH, SPUBLISH to reach Redisson in a cluster too, or empty.
func (c *config) publish() string {
	switch {
	case !c.publishes:
		return ""
	case c.cluster:
		return "SPUBLISH"
	default:
		return "PUBLISH"
	}
}

// remaining is what the server says that a lease has left: whole milliseconds, of which the last one is 0; negative when it
// has no end.
func remaining(pttl int64) time.Duration {
	if pttl == 0 {
		pttl = 1
	}
	return clock.Milliseconds(pttl)
}

// lease is the time that a key lives in Redis, and the same in the form that commands carry.
type lease struct {
	length time.Duration // whole milliseconds
	ms     string
}

// leaseOf cuts a lease to the whole milliseconds that Redis counts.
func leaseOf(d time.Duration) *lease {
	ms := d.Milliseconds()
	return &lease{length: time.Duration(ms) * time.Millisecond, ms: strconv.FormatInt(ms, 10)}
}

// bid is what a hold asks for.
type bid struct {
	key   string
	value string
	lease *lease
	under string // to read: the value of the hold with which the same owner writes already
	side  string // see kind
	wish
}

// wish is what a bid wants in the queue.
type wish struct {
	asks  asking
	place string // where the ticket was, for one that is asked for anew; or empty
	older string // a ticket that it replaces; or empty
	zeros string // in front of the lease in the ticket, see trip.zeros
	brief bool   // the queue is most likely there, and the place is to be the last one
}

// asking is what a bid asks of the queue, in the words of the scripts.
type asking string

const (
	forNothing asking = ""      // there is none, or it is not to wait
	forTry     asking = "try"   // nothing, but not to overtake those that wait in it; for readers
	forGuest   asking = "guest" // to wait without a ticket; for writers
	forTicket  asking = "queue" //
	toLook     asking = "look"  // what became of its ticket
	whenDue    asking = "due"   // the same, when those in front of it had their time
)

// removal is what the end of a hold asks for.
type removal struct {
	key, value string
	queue      bool   // there is one
	ticket     string // what to remove from it: a ticket, allTickets or none; or yields, or atOnce

	keep time.Duration // how long the path is to stay taken, see [AtLeast]; 0: it is not
	age  time.Duration // of the hold; 0 when that is not known

	brief briefness
	due   string // with forHeir: when the next window is, by the server's clock
	warns bool   // with forHeir: the one behind it has waited for long, too
}

// briefness is what a release may rely on to do with few steps.
type briefness uint8

const (
	inFull  briefness = iota // on nothing
	alone                    // others are unlikely to wait
	forHeir                  // others wait, and no window is open or due
)

// warning is what warns is in the words of the scripts.
func (r removal) warning() string {
	if r.warns {
		return "n"
	}
	return ""
}

// keeping is how long that is, in the words of the scripts: whole milliseconds, or empty.
func (r removal) keeping() string {
	if r.keep <= 0 {
		return ""
	}
	return strconv.FormatInt((r.keep-1).Milliseconds()+1, 10)
}

// shortAge is how old a hold may be without its release saying so. See PAUSE in lua/pass.lua.
const shortAge = 10 * time.Millisecond

// aged is that in the words of the scripts: whole milliseconds, or empty.
func (r removal) aged() string {
	if r.age <= shortAge {
		return ""
	}
	return strconv.FormatInt(r.age.Milliseconds(), 10)
}

const (
	allTickets = "*" // of the registry, up to this hold's
	yields     = "+" // none: others wait in this process, and are not to have the lock at once
	atOnce     = "!" // none: the first of the queue is to have the lock without a long window before
)

// What a release replies when the key was the hold's. Queueless stands for a text that says why.
const (
	contested = 2
	queueless = 3
)

// ticket is that of a bid, as it is in the queue.
func (b bid) ticket() string { return b.value + "|" + b.zeros + b.lease.ms + b.side }

// briefly is the call for a ticket, or for a lock that is free, that takes few steps. An empty counter: no token is wanted.
func briefly(script *script, b bid, prefix, sharded, counter string) call {
	c := call{script: script, key: b.key, args: arguments{b.value, b.lease.ms, prefix, sharded, counter}}
	if sharded != "" {
		c.queue = queueOf(prefix, b.key)
	}
	if counter != "" {
		c.counts(counter, sharded != "")
	}
	return c
}

// allOf puts a call together that obtains several locks; see lua/spring_obtain_all.lua.
func allOf(s *script, bids []bid, counter func(key string) string, cluster bool) call {
	c := call{script: s, key: bids[0].key, args: arguments{strconv.Itoa(len(bids)), bids[0].lease.ms}}
	var counters []string
	for _, b := range bids {
		c.more = append(c.more, b.value)
		if b.key != c.key {
			c.others = append(c.others, b.key)
		}
		if counter != nil {
			counters = append(counters, counter(b.key))
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
	if hashed(key) != key {
		return key + ":fencing"
	}
	return prefix + ":{" + key + "}:fencing"
}
