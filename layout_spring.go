package lockregistry

// springLayout keeps a lock as Spring Integration's RedisLockRegistry does: a string whose value names the holder, and
// whose expiry is the lease. Spring compares the value only with its registry's own id, so it may carry more than that.
//
// Its channels are those of PUB_SUB_LOCK: one per key, "<prefix>-channel:<key>", and, before Spring Integration 6.4.8,
// 6.5.3 and 7.0.0, a single one, "<prefix>-channel". The message is the key on both.
type springLayout struct {
	transport  *transport
	journal    *journal
	common     string // the single channel
	publish    string // what channels begin with when releases are published, else empty
	publishOld string // the single channel when releases are published there too, else empty
}

var (
	springObtain  = load("spring_obtain")
	springRelease = load("spring_release")
	springRenew   = load("spring_renew")
)

func newSpringLayout(t *transport, prefix string, s *settings, j *journal) layout {
	l := &springLayout{transport: t, journal: j, common: prefix + "-channel"}
	if s.wakeup.publishes() {
		l.publish = l.common + ":"
		if s.oldChannel {
			l.publishOld = l.common
		}
	}
	return l
}

// Most locks are free. SET NX takes such a lock with less work for the server than a script, and changes nothing when the
// key is there.
func (s *springLayout) obtain(b bid, quick bool) call {
	if quick {
		return call{nil, b.key, arguments{b.value, b.lease.ms}}
	}
	return call{springObtain, b.key, arguments{b.value, b.lease.ms}}
}

func (s *springLayout) release(key, value string) call {
	removal := s.transport.removal(s.journal)
	if removal == "UNLINK" {
		removal = ""
	}
	return call{springRelease, key, arguments{value, s.publish, s.publishOld, removal}}
}

func (s *springLayout) renew(key, value string, l lease) call {
	return call{springRenew, key, arguments{value, l.ms}}
}

func (s *springLayout) channel(key string) string { return s.common + ":" + key }

func (s *springLayout) commonChannel() string { return s.common }
