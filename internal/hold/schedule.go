package hold

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scheduler"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// Schedule has the holds that are due at some time, to be renewed, or to be announced as lost. It has its own workers to send
// commands.
//
// A hold's mutex may be held while this one is taken, never the other way round.
type Schedule struct {
	soon    func(due clock.Instant)
	workers *scheduler.Senders[Task]

	mu      sync.Mutex
	heap    scheduler.Heap[scheduled]
	turning []scheduled // a turn looks at them, and has taken them out of the heap
	tasks   []Task      // waiting for a worker
	closed  bool
}

// scheduled is a hold, as its schedule sees it.
type scheduled interface {
	scheduler.Timed
	tick() Task   // looks at it when it is due, and returns what to send, or nil
	endContexts() // leaves it to its lease, since the schedule is closed
}

// Task is a background command about a hold.
type Task interface {
	Call() protocol.Call
	Length() time.Duration // of the lease that the reply is about, see [transport.RoundTrip.Late]
	Wanted() bool          // whether it is still useful
	Writes() bool          // whether it writes, if it succeeds

	// Done gets the outcome; see [transport.Reply.Confirmed].
	Done(reply transport.Reply, n int64, err error)
}

// NewSchedule makes an empty schedule. Soon must bring about a call of Turn, at due or before. Send sends tasks, calls Done of
// each, then returns.
func NewSchedule(soon func(due clock.Instant), send func([]Task)) *Schedule {
	s := &Schedule{soon: soon}
	s.workers = scheduler.NewSenders(s.take, send)
	return s
}

// timing is when the schedule looks at a hold. The schedule's mutex guards due and index.
type timing struct {
	due     clock.Instant
	index   int32       // in the heap
	watched atomic.Bool // the schedule will look at the live hold for waiters; needs no mutex, see Attend
}

// Timing implements the heap's interface.
func (h *Hold) Timing() (due *clock.Instant, index *int32) { return &h.timing.due, &h.timing.index }

// set makes a hold due at a time; drop cancels that. After close nothing is due, and set reports false.
func (s *Schedule) set(h scheduled, due clock.Instant) bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false
	}
	s.heap.Put(h, due)
	s.mu.Unlock()
	s.soon(due)
	return true
}

func (s *Schedule) drop(h scheduled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heap.Remove(h)
}

// None reports whether no hold is scheduled.
func (s *Schedule) None() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.heap.Len() == 0
}

// all returns the holds that are scheduled. Those that a turn is looking at are not in the heap, but count: otherwise a look for
// ended goroutines during a turn would miss them, and the next look is a while later.
func (s *Schedule) all() []scheduled {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.heap.All()
	for _, h := range s.turning {
		if _, index := h.Timing(); *index == 0 { // otherwise the turn has scheduled it again
			all = append(all, h)
		}
	}
	return all
}

// Turn looks at the holds that are due, and sends their tasks. It returns when the next one is due, and whether any was.
func (s *Schedule) Turn(now clock.Instant) (next clock.Instant, looked bool) {
	s.mu.Lock()
	var due []scheduled
	for s.heap.Next() <= now {
		due = append(due, s.heap.Pop())
	}
	s.turning = due
	s.mu.Unlock()
	var tasks []Task
	for _, h := range due {
		if t := h.tick(); t != nil {
			tasks = append(tasks, t)
		}
	}
	s.Send(tasks...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turning = nil
	return s.heap.Next(), len(due) > 0
}

// Send queues tasks for the workers.
func (s *Schedule) Send(tasks ...Task) {
	s.mu.Lock()
	s.tasks = append(s.tasks, tasks...)
	waiting := len(s.tasks)
	s.mu.Unlock()
	s.workers.Hire(waiting)
}

// take gives a worker its next tasks.
func (s *Schedule) take(most int) []Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(s.tasks), most)
	tasks := s.tasks[:n:n]
	if s.tasks = s.tasks[n:]; len(s.tasks) == 0 {
		s.tasks = nil
	}
	return tasks
}

// Close leaves the holds to their leases. Tasks that wait for a worker are still sent.
func (s *Schedule) Close() {
	s.workers.Close()
	s.mu.Lock()
	s.closed = true
	holds := s.heap.Clear()
	s.mu.Unlock()
	for _, h := range holds {
		h.endContexts()
	}
}

// Wait returns, after Close, when nothing more is sent.
func (s *Schedule) Wait() { s.workers.Wait() }

// Watched reports whether the schedule looks at the hold for waiters. It takes no mutex.
func (h *Hold) Watched() bool { return h.timing.watched.Load() }

// Attend is called for another owner that finds the lock held. It reports whether the hold is lost: the caller must then evict
// the hold's owners. If the hold is not lost, and the other owner waits, the schedule looks at the hold when its lease is over,
// and a loss evicts the owners then. The package documentation says why a waiter and a loss cannot miss each other.
func (h *Hold) Attend(waits bool) (over bool) {
	if h == nil || waits && h.timing.watched.Load() {
		return false
	}
	h.mu.Lock()
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return true
	}
	if waits && !h.awaited {
		h.awaited = true
		h.timing.watched.Store(h.plan())
	}
	h.mu.Unlock()
	return false
}

// plan schedules the next look at the hold, to renew it or announce its loss. It reports false when the registry is closed: then
// there will be none. The caller holds the mutex.
func (h *Hold) plan() bool {
	due, looks := h.lease.Due(len(h.ends) > 0 || h.awaited)
	if !looks {
		return true
	}
	h.planned = h.path.Schedule.set(h, due)
	return h.planned
}

// tick looks at a hold that is due. It returns the task to send, if there is one.
func (h *Hold) tick() (t Task) {
	h.mu.Lock()
	if h.lease.Lost() {
		h.clear()
		h.mu.Unlock()
		return nil
	}
	if !h.fresh() {
		h.unlockLose(fault.LeaseOver)
		return nil
	}
	switch now := h.path.Clock.Now(); h.lease.Tick(now, h.deserted()) {
	case lease.Renew:
		r := renewal{h.about(), h.lease.Begin(now, h.lease.Term)}
		r.Scheduled = true
		t = r
	case lease.Verify:
		t = verification{h.about(), h.lease.Term.Length}
	case lease.Nothing:
	}
	h.unlockPlanned(true)
	return t
}

// Verify is called when the server may no longer be the master. A hold that is renewed is renewed at once, any other is
// verified. So a failover that has lost the key is noticed at once.
func (h *Hold) Verify() {
	h.mu.Lock()
	h.unlockPlanned(h.lease.Verify(h.path.Clock.Now()))
}

// unlockPlanned unlocks the mutex. Changed: it schedules the hold before, and ends the contexts if the registry was closed
// meanwhile.
func (h *Hold) unlockPlanned(changed bool) {
	if !changed || h.plan() {
		h.mu.Unlock()
		return
	}
	h.unlockEnds(fault.Closed)
}
