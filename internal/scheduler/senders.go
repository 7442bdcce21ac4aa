package scheduler

import "sync"

// How much is sent at a time.
const (
	Batch      = 256 // jobs
	MostAtOnce = 4   // batches
)

// Senders are workers that send jobs, each a batch at a time. There is one more of them than batches under way whenever there is
// something to do, up to [MostAtOnce], so that a server that does not answer one does not keep the others waiting. A worker
// ends when nothing is left.
type Senders[J any] struct {
	take func(most int) []J
	send func(jobs []J)
	done sync.WaitGroup

	mu      sync.Mutex
	workers int
	closed  bool
}

// NewSenders has no worker yet. Take gives the next jobs, none when there is nothing to do. Send returns when they are answered,
// or given up.
func NewSenders[J any](take func(most int) []J, send func(jobs []J)) *Senders[J] {
	return &Senders[J]{take: take, send: send}
}

// Hire starts as many workers as so many jobs take, if there may be so many more. The jobs can be taken before: a worker that
// finds none ends under the mutex, so either it finds them, or it leaves room for another one. Hire must not be called with a
// mutex held that take needs.
func (s *Senders[J]) Hire(jobs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; jobs > 0 && s.workers < MostAtOnce && !s.closed; jobs -= Batch {
		s.workers++
		s.done.Go(s.work)
	}
}

// work is a worker.
func (s *Senders[J]) work() {
	for jobs := s.next(); len(jobs) > 0; jobs = s.next() {
		s.send(jobs)
	}
}

// next are the next jobs of a worker. When there are none it is no longer counted.
func (s *Senders[J]) next() []J {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.take(Batch)
	if len(jobs) == 0 {
		s.workers--
	}
	return jobs
}

// Close has no further workers start. Those that are at work end when nothing is left.
func (s *Senders[J]) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// Wait returns, after Close, when all workers have ended.
func (s *Senders[J]) Wait() { s.done.Wait() }
