package scheduler

import "sync"

// How much is sent at once.
const (
	Batch      = 256 // jobs
	MostAtOnce = 4   // batches
)

// Senders are workers that send jobs, each a batch at a time. While there are jobs, there is one worker more than batches under
// way, up to [MostAtOnce], so that a batch without an answer does not delay the others. A worker ends when no jobs are left.
type Senders[J any] struct {
	take func(most int) []J
	send func(jobs []J)
	done sync.WaitGroup

	mu      sync.Mutex
	workers int
	closed  bool
}

// NewSenders makes Senders without workers. Take returns the next jobs, or none. Send returns when the jobs are answered or
// given up.
func NewSenders[J any](take func(most int) []J, send func(jobs []J)) *Senders[J] {
	return &Senders[J]{take: take, send: send}
}

// Hire starts workers for this many jobs, within the limit. The jobs must be available to take before: a worker that finds none
// ends under the mutex, so either it finds them, or it leaves room for another worker. Hire must not be called with a mutex
// held that take needs.
func (s *Senders[J]) Hire(jobs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ; jobs > 0 && s.workers < MostAtOnce && !s.closed; jobs -= Batch {
		s.workers++
		s.done.Go(s.work)
	}
}

// work is the loop of a worker.
func (s *Senders[J]) work() {
	for jobs := s.next(); len(jobs) > 0; jobs = s.next() {
		s.send(jobs)
	}
}

// next returns the next jobs for a worker. If there are none, the worker no longer counts.
func (s *Senders[J]) next() []J {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.take(Batch)
	if len(jobs) == 0 {
		s.workers--
	}
	return jobs
}

// Close prevents further workers from starting. The running ones end when no jobs are left.
func (s *Senders[J]) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// Wait returns, after Close, when all workers have ended.
func (s *Senders[J]) Wait() { s.done.Wait() }
