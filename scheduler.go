package lockregistry

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// scheduler does everything of a registry that is due at some time, with one goroutine that sleeps and a few that talk to
// Redis: it renews leases, announces the loss of holds, and removes keys that were left behind. Neither the number of
// holds nor a server that does not answer adds goroutines or delays an announcement.
//
// Its goroutines start when the first thing is to be done. A registry that only locks and unlocks has none.
//
// A hold's mutex may be held while the scheduler's is taken, never the other way round.
type scheduler struct {
	reg  *Registry
	wake chan struct{} // has room for one
	quit chan struct{}
	ctx  context.Context // for commands
	stop context.CancelFunc
	done sync.WaitGroup

	mu      sync.Mutex
	holds   holdHeap // by due
	strays  []*stray // few: only failures make them
	errands []errand // due, and waiting for a worker
	workers int      //
	running bool     // the goroutine that sleeps was started
	closed  bool     //
	armed   instant  // when that goroutine wakes by itself
	failing bool     // the last pipeline failed, which is logged once
}

// errand is something to ask of Redis that nobody waits for.
type errand interface {
	call(ctx context.Context) call
	done(sent instant, was bool, err error)
}

const (
	batch      = 256         // errands in one pipeline
	maxWorkers = 4           // pipelines under way
	pipeline   = time.Second // how long one may take
	closeGrace = time.Second
)

func newScheduler(r *Registry) *scheduler {
	ctx, stop := context.WithCancel(context.Background())
	return &scheduler{reg: r, wake: make(chan struct{}, 1), quit: make(chan struct{}), ctx: ctx, stop: stop, armed: never}
}

// set makes a hold due at a time; drop makes it due no more. After close nothing is due, and set reports false.
func (s *scheduler) set(h *hold, due instant) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	h.due = due
	if h.index < 0 {
		heap.Push(&s.holds, h)
	} else {
		heap.Fix(&s.holds, h.index)
	}
	s.soon(due)
	return true
}

func (s *scheduler) drop(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.index >= 0 {
		heap.Remove(&s.holds, h.index)
	}
}

// soon sees to it that the goroutine that sleeps is there and wakes by due. When the first thing due goes away it still
// wakes for it, once, and finds nothing to do: cheaper than waking it for every change.
func (s *scheduler) soon(due instant) {
	if due >= s.armed {
		return
	}
	s.armed = due
	if !s.running {
		s.running = true
		s.done.Go(s.sleep)
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// sleep is the goroutine that waits for what is due next.
func (s *scheduler) sleep() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-s.wake:
		case <-s.quit:
			return
		}
		timer.Reset(s.reg.clock.now().until(s.turn()))
	}
}

// turn does what is due and returns when it is to be called next.
func (s *scheduler) turn() instant {
	now := s.reg.clock.now()
	s.mu.Lock()
	var due []*hold
	for len(s.holds) > 0 && s.holds[0].due <= now {
		due = append(due, heap.Pop(&s.holds).(*hold))
	}
	errands, again := s.dueStrays(now)
	s.armed = now // no need to wake this goroutine, which looks again below
	s.mu.Unlock()

	for _, h := range due {
		if l, renew := h.tick(); renew {
			errands = append(errands, renewal{h, l})
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.hand(errands)
	s.armed = again
	if len(s.holds) > 0 {
		s.armed = min(s.armed, s.holds[0].due)
	}
	return s.armed
}

// hand gives errands to the workers. There is always one more of them than pipelines under way, up to maxWorkers, so that
// one that is not answered does not keep the others waiting. The caller holds the mutex.
func (s *scheduler) hand(errands []errand) {
	s.errands = append(s.errands, errands...)
	for n := len(s.errands); n > 0 && s.workers < maxWorkers; n -= batch {
		s.workers++
		s.done.Go(s.work)
	}
}

// work is a goroutine that talks to Redis until nothing is left to be asked.
func (s *scheduler) work() {
	for {
		s.mu.Lock()
		n := min(len(s.errands), batch)
		if n == 0 {
			s.workers--
			s.errands = nil
			s.mu.Unlock()
			return
		}
		errands := s.errands[:n:n]
		s.errands = s.errands[n:]
		s.mu.Unlock()

		limited, cancel := context.WithTimeout(s.ctx, pipeline)
		ctx := cancellable(limited)
		calls := make([]call, n)
		for i, e := range errands {
			calls[i] = e.call(ctx)
		}
		sent := s.reg.clock.now()
		var failure error
		for i, result := range doAll(ctx, s.reg.client, calls) {
			n, err := confirmed(result)
			errands[i].done(sent, n > 0, err)
			if err != nil {
				failure = err
			}
		}
		cancel()
		s.report(n, failure)
	}
}

// report logs when errands begin to fail, and when they succeed again.
func (s *scheduler) report(n int, failure error) {
	s.mu.Lock()
	changed := s.failing != (failure != nil) && !s.closed
	s.failing = failure != nil
	s.mu.Unlock()
	switch {
	case !changed:
	case failure != nil:
		s.reg.log.Warn("Redis refuses renewals or removals; they are tried again", "error", failure, "commands", n)
	default:
		s.reg.log.Info("Redis takes renewals and removals again")
	}
}

// close stops the goroutines. What was left behind in Redis gets a last chance to be removed, for as long as closeGrace.
func (s *scheduler) close() {
	s.mu.Lock()
	s.closed = true
	close(s.quit)
	var errands []errand
	for _, stray := range s.strays {
		if stray.due != never {
			stray.due = never
			errands = append(errands, stray)
		}
	}
	s.hand(errands)
	holds := s.holds
	s.holds = nil
	for _, h := range holds {
		h.index = -1
	}
	s.mu.Unlock()
	for _, h := range holds {
		h.forsake()
	}
	time.AfterFunc(closeGrace, s.stop)
}

// renewal is the errand that renews a hold.
type renewal struct {
	hold  *hold
	lease lease
}

func (r renewal) call(context.Context) call {
	return r.hold.lock.kind.layout.renew(r.hold.lock.key, r.hold.value, r.lease)
}

func (r renewal) done(sent instant, was bool, err error) {
	_ = r.hold.answered(sent, r.lease, was, err) // a failure is tried again, a loss is announced by the hold itself
}

// holdHeap is a heap of holds by when they are due, for container/heap.
type holdHeap []*hold

func (q holdHeap) Len() int           { return len(q) }
func (q holdHeap) Less(i, j int) bool { return q[i].due < q[j].due }

func (q holdHeap) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *holdHeap) Push(x any) {
	h := x.(*hold)
	h.index = len(*q)
	*q = append(*q, h)
}

func (q *holdHeap) Pop() any {
	last := len(*q) - 1
	h := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	h.index = -1
	return h
}
