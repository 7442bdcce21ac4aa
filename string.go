package lockregistry

// The String methods are for logs and debuggers. They do not block, and do not announce a loss.

// String returns the registry's prefix and client id.
func (r *Registry) String() string {
	return "Registry(" + r.prefix + ", client id " + r.clientID + ")"
}

// String returns the lock's key, and whether this process holds it, as [Lock.IsHeld] reports.
func (l *Lock) String() string {
	kind := "Lock"
	switch {
	case l.pair == nil:
	case l == &l.pair.writer:
		kind = "Writer"
	default:
		kind = "Reader"
	}
	if l.holds() {
		return kind + "(" + l.redis.Key + ", held)"
	}
	return kind + "(" + l.redis.Key + ", not held)"
}

// String returns the lock's key, and which of the two locks this process holds.
func (rw *ReadWriteLock) String() string {
	held := "not held"
	switch reads, writes := rw.reader.holds(), rw.writer.holds(); {
	case reads && writes:
		held = "both held"
	case reads:
		held = "reader held"
	case writes:
		held = "writer held"
	}
	return "ReadWriteLock(" + rw.writer.redis.Key + ", " + held + ")"
}

// String returns the key, and whether the hold is still valid.
func (h *Hold) String() string {
	if h == nil {
		return "Hold(nil)"
	}
	if h.hold.Fresh() && !h.isReleased() {
		return "Hold(" + h.lock.redis.Key + ", held)"
	}
	return "Hold(" + h.lock.redis.Key + ", over)"
}

// holds is IsHeld without announcing a loss.
func (l *Lock) holds() bool {
	h := l.reg.cache.current(l).hold.Load()
	return h != nil && h.Fresh()
}
