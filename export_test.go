package lockregistry

// Contended tells whether somebody of this process waits for a lock.
func Contended(l *Lock) bool { return l.half().contended() }
