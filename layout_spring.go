package lockregistry

// springLayout keeps a lock as Spring Integration's RedisLockRegistry does: a string whose value names the holder, and
// whose expiry is the lease. Spring compares the value only with its registry's own id, so it may carry more than that.
//
// Its channels are those of PUB_SUB_LOCK: one per key, "<prefix>-channel:<key>", and, before Spring Integration 6.4.8,
// 6.5.3 and 7.0.0, a single one, "<prefix>-channel". The message is the key on both.
type springLayout struct {
	config
	common     string // the single channel
	channels   string // what channels begin with when releases are published, else empty
	publishOld string // the single channel when releases are published there too, else empty
}

var (
	springObtain    = load("spring_obtain")
	springObtainAll = load("spring_obtain_all")
	springTicket    = load("spring_obtain_ticket")
	springRelease   = load("spring_release")
	springAlone     = load("spring_release_alone")
	springHeir      = load("spring_release_heir")
	springRenew     = load("spring_renew")
)

func newSpringLayout(c config) layout {
	l := &springLayout{config: c, common: c.prefix + "-channel"}
	if c.publishes {
		l.channels = l.common + ":"
		if c.oldChannel {
			l.publishOld = l.common
		}
	}
	return l
}

// Most locks are free. SET NX takes such a lock with less work for the server than a script, and changes nothing when the
// key is there.
func (s *springLayout) obtain(b bid, quick bool) call {
	if quick && !s.fencing {
		return call{key: b.key, args: arguments{b.value, b.lease.ms}}
	}
	if b.brief {
		counter := ""
		if s.fencing {
			counter = s.counter(b.key)
		}
		return briefly(springTicket, b, s.prefix, s.sharded(), counter)
	}
	c := call{script: springObtain, key: b.key, args: arguments{b.value, b.lease.ms}}
	if b.asks != forNothing {
		c.args = arguments{b.value, b.lease.ms, string(b.asks), s.prefix, s.sharded()}
		c.more = []string{b.place, b.older, "", b.zeros}
		if b.asks == forTicket && s.cluster {
			c.queue = queueOf(s.prefix, b.key)
		}
	}
	if s.fencing {
		counter := s.counter(b.key)
		c.more = []string{b.place, b.older, counter, b.zeros}
		c.counts(counter, s.cluster)
	}
	return c
}

func (s *springLayout) obtainAll(bids []bid) call {
	if !s.fencing {
		return allOf(springObtainAll, bids, nil, false)
	}
	return allOf(springObtainAll, bids, s.counter, s.cluster)
}

func (s *springLayout) release(r removal) call {
	c := call{script: springRelease, key: r.key, args: arguments{r.value, s.channels}}
	if r.queue {
		c.args = arguments{r.value, s.channels, s.prefix, s.sharded(), r.ticket}
	}
	removal := s.remove()
	switch {
	case removal != "UNLINK" || s.publishOld != "" || r.keep > 0 || r.brief == inFull && r.age > shortAge:
		c.more = []string{removal, s.publishOld, r.keeping(), r.aged()}
	case r.brief == alone:
		c.script, c.args[4] = springAlone, r.aged()
	case r.brief == forHeir:
		c.script, c.args[4] = springHeir, r.due
		if r.warns {
			c.more = []string{r.warning()}
		}
	}
	if r.ticket == yields && s.cluster {
		c.queue = queueOf(s.prefix, r.key)
	}
	return c
}

func (s *springLayout) renew(key, value string, l *lease) call {
	return call{script: springRenew, key: key, args: arguments{value, l.ms}}
}

func (s *springLayout) fence(key, value string, l *lease) call {
	counter := s.counter(key)
	c := call{script: springRenew, key: key, args: arguments{value, l.ms, counter}}
	c.counts(counter, s.cluster)
	return c
}

func (s *springLayout) counter(key string) string { return fencingCounter(s.prefix, key) }

func (s *springLayout) holds(key, value string) call {
	return call{script: holds, key: key, args: arguments{value}}
}

func (s *springLayout) holder(key string) call { return call{script: holder, key: key} }

func (s *springLayout) channel(key string) string { return s.common + ":" + key }

func (s *springLayout) commonChannel() string { return s.common }

func (s *springLayout) removesOlder() bool { return true }
