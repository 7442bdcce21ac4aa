package clock

import (
	"sync"
	"sync/atomic"
	"time"
)

// sleep is for how long the machine was suspended since a clock's start. The monotonic clock stands still then, on Linux and
// macOS, while leases run out in Redis. The wall clock goes on: it shows that there is something to ask the system.
type sleep struct {
	ahead atomic.Int64 // by how much the wall clock was ahead of the monotonic clock when last seen
	total atomic.Int64

	asleep func(ahead time.Duration) time.Duration // see suspended
	mu     sync.Mutex
	before time.Duration // what asleep returned at the start
}

func newSleep() *sleep { return &sleep{asleep: suspended, before: suspended(0)} }

// leap is the smallest change of a wall clock that counts. The two clocks are read one after another, and some tick slowly.
const leap = 100 * time.Millisecond

// until returns for how long the machine had been suspended when the wall clock was ahead by this much.
func (s *sleep) until(ahead time.Duration) time.Duration {
	if change := ahead - time.Duration(s.ahead.Load()); change >= leap || change <= -leap {
		s.ask(ahead)
	}
	return time.Duration(s.total.Load())
}

func (s *sleep) ask(ahead time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total.Store(max(s.total.Load(), int64(s.asleep(ahead)-s.before))) // first: it is read last
	s.ahead.Store(int64(ahead))
}

// pretend is for tests: the machine was suspended for d.
func (s *sleep) pretend(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before -= d
	s.total.Add(int64(d))
}
