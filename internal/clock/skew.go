package clock

import (
	"sync"
	"sync/atomic"
	"time"
)

// Skew compares this machine's wall clock with the server's, once, and reports if they differ by a third of the shortest lease
// in use or more. No call waits for that. Ask and Report are set before the first use.
type Skew struct {
	Ask    func(key string) (server time.Time, again bool, err error) // again: after this error the next use asks anew
	Report func(key string, ahead time.Duration)                      // ahead: the server's clock; negative: it is behind

	asked    atomic.Bool  // the server is asked, or was
	ahead    atomic.Int64 // 0: not known
	shortest atomic.Int64 // the shortest lease in use that was found; 0: none
	reported atomic.Bool

	mu     sync.Mutex // guards closed, and the beginning of work
	closed bool
	work   sync.WaitGroup
}

// Uses notes the lease of a hold, and asks the server for its clock if nobody has.
func (s *Skew) Uses(key string, lease time.Duration) {
	if s.reported.Load() {
		return
	}
	for least := s.shortest.Load(); least == 0 || int64(lease) < least; least = s.shortest.Load() {
		if s.shortest.CompareAndSwap(least, int64(lease)) {
			s.report(key)
			break
		}
	}
	if s.asked.Load() || s.asked.Swap(true) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.work.Go(func() { s.compare(key) })
	}
}

func (s *Skew) compare(key string) {
	before := time.Now()
	server, again, err := s.Ask(key)
	after := time.Now()
	if err != nil {
		s.asked.Store(!again)
		return
	}
	ahead := server.Sub(after)
	if behind := before.Sub(server); behind > ahead {
		ahead = -behind
	}
	s.ahead.Store(int64(ahead)) // before report reads shortest, which Uses sets before it reads ahead: one of both sees both
	s.report(key)
}

func (s *Skew) report(key string) {
	ahead, limit := time.Duration(s.ahead.Load()), time.Duration(s.shortest.Load())/3
	if max(ahead, -ahead) >= limit && ahead != 0 && !s.reported.Swap(true) {
		s.Report(key, ahead)
	}
}

// Close prevents further questions. Then Wait returns soon.
func (s *Skew) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// Wait waits for the end of a question.
func (s *Skew) Wait() { s.work.Wait() }
