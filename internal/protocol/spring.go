package protocol

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
	springObtain    = Load("spring_obtain")
	springObtainAll = Load("spring_obtain_all")
	springTicket    = Load("spring_obtain_ticket")
	springRelease   = Load("spring_release")
	springAlone     = Load("spring_release_alone")
	springHeir      = Load("spring_release_heir")
	springRenew     = Load("spring_renew")
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
	if b.Fast {
		counter := ""
		if s.Fencing {
			counter = s.Counter(b.Key)
		}
		return briefly(springTicket, b, s.Prefix, s.Sharded(), counter)
	}
	c := Call{Script: springObtain, Key: b.Key, Args: Args{b.Value, b.Lease.MS}}
	if b.Mode != ModeNone {
		c.Args = Args{b.Value, b.Lease.MS, string(b.Mode), s.Prefix, s.Sharded()}
		c.more = []string{b.Place, b.Replaces, "", b.Zeros}
		if b.Mode == ModeEnqueue && s.Cluster {
			c.queue = QueueKey(s.Prefix, b.Key)
		}
	}
	if s.Fencing {
		counter := s.Counter(b.Key)
		c.more = []string{b.Place, b.Replaces, counter, b.Zeros}
		c.counts(counter, s.Cluster)
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
		c.Args = Args{r.Value, s.channels, s.Prefix, s.Sharded(), r.Ticket}
	}
	removal := s.Remove()
	switch {
	case removal != "UNLINK" || s.publishOld != "" || r.Keep > 0 || r.Steps == AllSteps && r.Age > shortAge:
		c.more = []string{removal, s.publishOld, r.keeping(), r.aged()}
	case r.Steps == Uncontended:
		c.Script, c.Args[4] = springAlone, r.aged()
	case r.Steps == Direct:
		c.Script, c.Args[4] = springHeir, r.Due
		if r.Warns {
			c.more = []string{r.warning()}
		}
	}
	if r.Ticket == Yield && s.Cluster {
		c.queue = QueueKey(s.Prefix, r.Key)
	}
	return c
}

func (s *spring) Renew(key, value string, l *Lease) Call {
	return Call{Script: springRenew, Key: key, Args: Args{value, l.MS}}
}

func (s *spring) Fence(key, value string, l *Lease) Call {
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
