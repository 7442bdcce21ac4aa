package protocol

import "github.com/lockregistry/lockregistry/internal/lease"

// spring keeps a lock as Spring Integration's RedisLockRegistry does: a string whose value names the holder, and
// whose expiry is the lease. Spring compares the value only with its registry's own id, so it may carry more than that.
//
// Its channels are those of PUB_SUB_LOCK: one per key, "<prefix>-channel:<key>", and, before Spring Integration 6.4.8,
// 6.5.3 and 7.0.0, a single one, "<prefix>-channel". The message is the key on both.
type spring struct {
	Config
	common     string // the single channel
	channels   string // what channels begin with when releases are published, else empty
	publishOld string // the single channel when releases are published there too, else empty
}

var (
	springObtain    = operation(scriptFiles, "spring", "obtain")
	springQueued    = operation(scriptFiles, "spring", "obtain_queued")
	springObtainAll = operation(scriptFiles, "spring", "obtain_all")
	springRelease   = operation(scriptFiles, "spring", "release")
	springRenew     = operation(scriptFiles, "spring", "renew")
)

// NewSpring is the format of Spring Integration's RedisLockRegistry.
func NewSpring(c Config) Format {
	l := &spring{Config: c, common: c.Prefix + "-channel"}
	if c.Publishes {
		l.channels = l.common + ":"
		if c.OldChannel {
			l.publishOld = l.common
		}
	}
	return l
}

// Most locks are free. SET NX takes such a lock with less work for the server than a script, and changes nothing when the
// key is there.
func (s *spring) Obtain(b Request, quick bool) Call {
	if quick && !s.Fencing {
		return Call{Key: b.Key, Args: Args{b.Value, b.Lease.MS}}
	}
	c := Call{Script: springObtain, Key: b.Key, Args: Args{b.Value, b.Lease.MS}}
	if b.Mode != ModeNone {
		c.Script, c.Args = springQueued, Args{b.Value, b.Lease.MS, s.Prefix, b.asks(), s.Sharded()}
		if b.Mode == ModeEnqueue && s.Cluster {
			c.queue = QueueKey(s.Prefix, b.Key)
		}
	}
	counter := ""
	if s.Fencing {
		counter = s.Counter(b.Key)
		c.counts(counter, s.Cluster)
	}
	if counter != "" || b.Mode != ModeNone && !b.Fast {
		c.more = []string{counter, b.Place, b.Replaces, b.Zeros}
	}
	return c
}

func (s *spring) ObtainAll(bids []Request) Call {
	if !s.Fencing {
		return allOf(springObtainAll, bids, nil, false)
	}
	return allOf(springObtainAll, bids, s.Counter, s.Cluster)
}

func (s *spring) Release(r Release) Call {
	c := Call{Script: springRelease, Key: r.Key, Args: Args{r.Value, s.channels}}
	if r.Queued {
		c.Args = Args{r.Value, s.channels, s.Prefix, r.Due, s.Sharded()}
	}
	age, removal := r.aged(), s.Remove()
	if r.Due != "" {
		age = ""
	}
	switch {
	case r.rare() || removal != "UNLINK" || s.publishOld != "":
		c.more = []string{age, r.warning(), r.manner(), r.Leaving.Ticket, r.keeping(), removal, s.publishOld}
	case age != "" || r.Warns:
		c.more = []string{age, r.warning()}
	}
	if r.Yields && s.Cluster {
		c.queue = QueueKey(s.Prefix, r.Key)
	}
	return c
}

func (s *spring) Renew(key, value string, l *lease.Term) Call {
	return Call{Script: springRenew, Key: key, Args: Args{value, l.MS}}
}

func (s *spring) Fence(key, value string, l *lease.Term) Call {
	counter := s.Counter(key)
	c := Call{Script: springRenew, Key: key, Args: Args{value, l.MS, counter}}
	c.counts(counter, s.Cluster)
	return c
}

func (s *spring) Counter(key string) string { return fencingCounter(s.Prefix, key) }

func (s *spring) Holds(key, value string) Call {
	return Call{Script: holds, Key: key, Args: Args{value}}
}

func (s *spring) Holder(key string) Call { return Call{Script: holder, Key: key} }

func (s *spring) Channel(key string) string { return s.common + ":" + key }

func (s *spring) CommonChannel() string { return s.common }

func (s *spring) RemovesOlder() bool { return true }
