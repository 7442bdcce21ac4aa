package protocol

import (
	"errors"
	"strings"

	"github.com/lockregistry/lockregistry/internal/lease"
)

// redisson keeps a lock as Redisson does: a hash with a field per holder, and for read-write locks one that tells the
// mode. The three kinds differ in their scripts and channels only.
//
// A holder's field is "<client uuid>:<thread id>" in Redisson; here it is the hold's value, with the number in the place of
// the thread. Its count is always 1: how often an owner has locked is counted in this process.
type redisson struct {
	Config
	scripts  *redissonScripts
	channels string // what the names of channels begin with
}

// These are the same for all layouts.
var (
	holds  = Load("holds")
	holder = Load("holder")
)

// These are for plain locks, but for the last one.
var (
	redissonObtainAll = Load("redisson_obtain_all")
	redissonTicket    = Load("redisson_obtain_ticket")
	redissonHeir      = Load("redisson_release_heir")
	writerWaits       = Load("redisson_writer_waits")
)

type redissonScripts struct{ obtain, release, renew *Script }

var (
	redissonLock  = redissonScripts{Load("redisson_obtain"), Load("redisson_release"), Load("redisson_renew")}
	redissonRead  = redissonScripts{Load("redisson_read_obtain"), Load("redisson_read_release"), Load("redisson_read_renew")}
	redissonWrite = redissonScripts{Load("redisson_write_obtain"), Load("redisson_write_release"), Load("redisson_write_renew")}
)

// NewRedisson is the format of Redisson's RLock and RFencedLock.
func NewRedisson(c Config) Format {
	return &redisson{Config: c, scripts: &redissonLock, channels: "redisson_lock__channel"}
}

// NewRead is that of the readers of its RReadWriteLock.
func NewRead(c Config) Format {
	c.Fencing = false
	return &redisson{Config: c, scripts: &redissonRead, channels: "redisson_rwlock"}
}

// NewWrite is that of the writers.
func NewWrite(c Config) Format {
	return &redisson{Config: c, scripts: &redissonWrite, channels: "redisson_rwlock"}
}

func (r *redisson) Obtain(b Request, _ bool) Call {
	if b.Fast && r.plain() {
		return briefly(redissonTicket, b, r.Prefix, r.Sharded(), r.counting(b.Key))
	}
	c := Call{Script: r.scripts.obtain, Key: b.Key, Args: Args{b.Value, b.Lease.MS, Tagged(b.Key), b.Under}}
	switch b.Mode {
	case ModeNone:
	case ModeTry, ModeReserve:
		c.Args[4] = string(b.Mode)
		c.more = []string{r.Prefix}
	default:
		c.Args[4] = string(b.Mode)
		c.more = []string{r.Prefix, r.Sharded(), b.Place, b.Replaces, "", b.Zeros}
	}
	if r.Cluster && (b.Mode == ModeEnqueue || b.Mode == ModeReserve) {
		c.queue = QueueKey(r.Prefix, b.Key)
	}
	if r.Fencing {
		counter := r.Counter(b.Key)
		c.more = []string{r.Prefix, r.Sharded(), b.Place, b.Replaces, counter, b.Zeros}
		c.counts(counter, r.Cluster)
	}
	return c
}

// ObtainAll is for plain locks.
func (r *redisson) ObtainAll(bids []Request) Call {
	if !r.Fencing {
		return allOf(redissonObtainAll, bids, nil, false)
	}
	return allOf(redissonObtainAll, bids, r.Counter, r.Cluster)
}

func (r *redisson) Release(m Release) Call {
	if m.Due != "" && !m.rare() && r.plain() {
		c := Call{Script: redissonHeir, Key: m.Key, Args: Args{m.Value, r.Publish(), r.Channel(m.Key), r.Prefix, r.Sharded()}}
		c.more = []string{m.Due, m.warning()}
		return c
	}
	ticket := m.Leaving.Ticket
	switch {
	case m.Yields:
		ticket = "+"
	case m.Leads:
		ticket = "!"
	case m.Leaving.All:
		ticket = "*"
	}
	c := Call{Script: r.scripts.release, Key: m.Key, Args: Args{m.Value, r.Publish(), r.Channel(m.Key), Tagged(m.Key)}}
	if m.Queued {
		c.Args[4] = r.Prefix
	}
	if m.Keep > 0 || m.Queued && (r.Cluster || ticket != "" || m.Age > shortAge) {
		c.more = []string{r.Sharded(), ticket, m.keeping(), m.aged()}
	}
	if m.Yields && r.Cluster {
		c.queue = QueueKey(r.Prefix, m.Key)
	}
	return c
}

func (r *redisson) Renew(key, value string, l *lease.Term) Call {
	return Call{Script: r.scripts.renew, Key: key, Args: Args{value, l.MS, Tagged(key)}}
}

func (r *redisson) Fence(key, value string, l *lease.Term) Call {
	counter := r.Counter(key)
	c := Call{Script: r.scripts.renew, Key: key, Args: Args{value, l.MS, Tagged(key), counter}}
	c.counts(counter, r.Cluster)
	return c
}

// Counter is that of Redisson's RFencedLock for a plain lock. Its read-write locks have none.
func (r *redisson) Counter(key string) string {
	if r.plain() {
		return "redisson_lock_token:" + Tagged(key)
	}
	return fencingCounter(r.Prefix, key)
}

// plain tells whether the locks are no read-write locks.
func (r *redisson) plain() bool { return r.scripts == &redissonLock }

// counting is counter where grants draw tokens, else empty.
func (r *redisson) counting(key string) string {
	if !r.Fencing {
		return ""
	}
	return r.Counter(key)
}

func (r *redisson) Holds(key, value string) Call {
	if r.scripts == &redissonWrite {
		value += ":write"
	}
	return Call{Script: holds, Key: key, Args: Args{value, "hash"}}
}

func (r *redisson) Holder(key string) Call {
	return Call{Script: holder, Key: key, Args: Args{"hash"}}
}

func (r *redisson) Channel(key string) string { return r.channels + ":" + Tagged(key) }

func (r *redisson) CommonChannel() string { return "" }

// WriterWaits is the call that tells whether a writer waits elsewhere, if the key is read. It replies 1 if so.
func (c *Config) WriterWaits(key string) Call {
	w := Call{
		Script: writerWaits, Key: key,
		Args: Args{NewRead(*c).Channel(key), Tagged(key), c.Prefix, c.Sharded()},
	}
	if c.Cluster {
		w.queue = QueueKey(c.Prefix, key)
	}
	return w
}

func (r *redisson) RemovesOlder() bool { return r.plain() }

// Tagged is a name as it stands in the names that Redisson derives from it: in braces, so that they are in the same slot of
// a cluster, unless it has some of its own.
func Tagged(name string) string {
	if strings.Contains(name, "{") {
		return name
	}
	return "{" + name + "}"
}

// ErrScattered means that the keys of a read-write lock must be in one slot of a cluster, since its scripts work on all of
// them, and the braces in its name put them into several.
var ErrScattered = errors.New("a cluster keeps the keys of this read-write lock in different slots, because of the braces in " +
	"its name: leave them out, or put a part of the name into one pair of them, such as {order}42")

// Scattered tells whether a cluster may keep the keys of a read-write lock in several slots.
func Scattered(name string) bool { return HashTag(name) != HashTag(Tagged(name)+":rwlock_timeout") }

// HashTag is the part of a key that decides its slot: what is within the first braces, or all of it when there is nothing.
func HashTag(key string) string {
	_, rest, opened := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !opened || !closed || tag == "" {
		return key
	}
	return tag
}
