package lockregistry

import (
	"errors"
	"strings"
)

// redissonLayout keeps a lock as Redisson does: a hash with a field per holder, and for read-write locks one that tells the
// mode. The three kinds differ in their scripts and channels only.
//
// A holder's field is "<client uuid>:<thread id>" in Redisson; here it is the hold's value, with the number in the place of
// the thread. Its count is always 1: how often an owner has locked is counted in this process.
type redissonLayout struct {
	config
	scripts  *redissonScripts
	channels string // what the names of channels begin with
}

// These are the same for all layouts.
var (
	holds  = load("holds")
	holder = load("holder")
)

// These are for plain locks, but for the last one.
var (
	redissonObtainAll = load("redisson_obtain_all")
	redissonTicket    = load("redisson_obtain_ticket")
	redissonHeir      = load("redisson_release_heir")
	writerWaits       = load("redisson_writer_waits")
)

type redissonScripts struct{ obtain, release, renew *script }

var (
	redissonLock  = redissonScripts{load("redisson_obtain"), load("redisson_release"), load("redisson_renew")}
	redissonRead  = redissonScripts{load("redisson_read_obtain"), load("redisson_read_release"), load("redisson_read_renew")}
	redissonWrite = redissonScripts{load("redisson_write_obtain"), load("redisson_write_release"), load("redisson_write_renew")}
)

func newRedissonLayout(c config) layout {
	return &redissonLayout{config: c, scripts: &redissonLock, channels: "redisson_lock__channel"}
}

func newReadLayout(c config) layout {
	c.fencing = false
	return &redissonLayout{config: c, scripts: &redissonRead, channels: "redisson_rwlock"}
}

func newWriteLayout(c config) layout {
	return &redissonLayout{config: c, scripts: &redissonWrite, channels: "redisson_rwlock"}
}

func (r *redissonLayout) obtain(b bid, _ bool) call {
	if b.brief && r.plain() {
		return briefly(redissonTicket, b, r.prefix, r.sharded(), r.counting(b.key))
	}
	c := call{script: r.scripts.obtain, key: b.key, args: arguments{b.value, b.lease.ms, tagged(b.key), b.under}}
	switch b.asks {
	case forNothing:
	case forTry, forGuest:
		c.args[4] = string(b.asks)
		c.more = []string{r.prefix}
	default:
		c.args[4] = string(b.asks)
		c.more = []string{r.prefix, r.sharded(), b.place, b.older, "", b.zeros}
	}
	if r.cluster && (b.asks == forTicket || b.asks == forGuest) {
		c.queue = queueOf(r.prefix, b.key)
	}
	if r.fencing {
		counter := r.counter(b.key)
		c.more = []string{r.prefix, r.sharded(), b.place, b.older, counter, b.zeros}
		c.counts(counter, r.cluster)
	}
	return c
}

// obtainAll is for plain locks.
func (r *redissonLayout) obtainAll(bids []bid) call {
	if !r.fencing {
		return allOf(redissonObtainAll, bids, nil, false)
	}
	return allOf(redissonObtainAll, bids, r.counter, r.cluster)
}

func (r *redissonLayout) release(m removal) call {
	if m.brief == forHeir && r.plain() {
		c := call{script: redissonHeir, key: m.key, args: arguments{m.value, r.publish(), r.channel(m.key), r.prefix, r.sharded()}}
		c.more = []string{m.due, m.warning()}
		return c
	}
	c := call{script: r.scripts.release, key: m.key, args: arguments{m.value, r.publish(), r.channel(m.key), tagged(m.key)}}
	if m.queue {
		c.args[4] = r.prefix
	}
	if m.keep > 0 || m.queue && (r.cluster || m.ticket != "" || m.age > shortAge) {
		c.more = []string{r.sharded(), m.ticket, m.keeping(), m.aged()}
	}
	if m.ticket == yields && r.cluster {
		c.queue = queueOf(r.prefix, m.key)
	}
	return c
}

func (r *redissonLayout) renew(key, value string, l *lease) call {
	return call{script: r.scripts.renew, key: key, args: arguments{value, l.ms, tagged(key)}}
}

func (r *redissonLayout) fence(key, value string, l *lease) call {
	counter := r.counter(key)
	c := call{script: r.scripts.renew, key: key, args: arguments{value, l.ms, tagged(key), counter}}
	c.counts(counter, r.cluster)
	return c
}

// counter is that of Redisson's RFencedLock for a plain lock. Its read-write locks have none.
func (r *redissonLayout) counter(key string) string {
	if r.plain() {
		return "redisson_lock_token:" + tagged(key)
	}
	return fencingCounter(r.prefix, key)
}

// plain tells whether the locks are no read-write locks.
func (r *redissonLayout) plain() bool { return r.scripts == &redissonLock }

// counting is counter where grants draw tokens, else empty.
func (r *redissonLayout) counting(key string) string {
	if !r.fencing {
		return ""
	}
	return r.counter(key)
}

func (r *redissonLayout) holds(key, value string) call {
	if r.scripts == &redissonWrite {
		value += ":write"
	}
	return call{script: holds, key: key, args: arguments{value, "hash"}}
}

func (r *redissonLayout) holder(key string) call {
	return call{script: holder, key: key, args: arguments{"hash"}}
}

func (r *redissonLayout) channel(key string) string { return r.channels + ":" + tagged(key) }

func (r *redissonLayout) commonChannel() string { return "" }

// writerWaits is the call that tells whether a writer waits elsewhere, if the key is read. It replies 1 if so.
func (c *config) writerWaits(key string) call {
	w := call{
		script: writerWaits, key: key,
		args: arguments{newReadLayout(*c).channel(key), tagged(key), c.prefix, c.sharded()},
	}
	if c.cluster {
		w.queue = queueOf(c.prefix, key)
	}
	return w
}

func (r *redissonLayout) removesOlder() bool { return r.plain() }

// tagged is a name as it stands in the names that Redisson derives from it: in braces, so that they are in the same slot of
// a cluster, unless it has some of its own.
func tagged(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

// errScattered: the keys of a read-write lock must be in one slot of a cluster, since its scripts work on all of them, and
// the braces in its name put them into several.
var errScattered = errors.New("a cluster keeps the keys of this read-write lock in different slots, because of the braces in " +
	"its name: leave them out, or put a part of the name into one pair of them, such as {order}42")

// scattered tells whether a cluster may keep the keys of a read-write lock in several slots.
func scattered(name string) bool { return hashed(name) != hashed(tagged(name)+":rwlock_timeout") }

// hashed is the part of a key that decides its slot: what is within the first braces, or all of it when there is nothing.
func hashed(key string) string {
	_, rest, opened := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !opened || !closed || tag == "" {
		return key
	}
	return tag
}
