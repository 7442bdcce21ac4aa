package lockregistry

import (
	"container/heap"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/owner"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/topology"
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
	fake bool          // time is that of a test, see strand
	wake chan struct{} // has room for one
	quit chan struct{}
	done sync.WaitGroup
	gone goneWatch

	mu       sync.Mutex
	holds    dueHeap[*hold]
	renewals []errand // due, and waiting for a worker
	strays   map[place]*stray
	sweeps   dueHeap[*stray] // the strays but for those that are being removed at this moment
	recess   clock.Instant   // no further worker begins to sweep before
	workers  int             // goroutines that talk to Redis
	sweepers int             // further ones that only sweep, where renewals wait for replicas
	running  bool            // the goroutine that sleeps was started
	closed   bool            //
	last     clock.Instant   // when closed: nothing is sent any more from then on
	armed    clock.Instant   // when that goroutine wakes by itself
	stranded []stranded      // yet to be announced
	failing  bool            // pipelines fail, which is logged once
	refused  clock.Instant   // when one did last because the server refused what it was to write; 0: not since they succeed
	nextLook clock.Instant   // when to look for goroutines that are gone; never while one looks
	switches topology.Switches
	failures failures
}

// errand is something to ask of Redis that nobody waits for.
type errand interface {
	call() protocol.Call
	term() time.Duration               // the lease that the answer is about, see trip.late
	wanted() bool                      // whether it is of any use still
	done(a answer, n int64, err error) // n: see confirmed
}

const (
	batch      = 256             // errands in one pipeline
	maxWorkers = 4               // pipelines under way
	pipeline   = time.Second     // how long one may take, and two round trips
	closeGrace = time.Second     // and two round trips
	refusedFor = 5 * time.Second // longer than the longest pause between two removals of what is refused
)

func newScheduler(r *Registry) *scheduler {
	now := time.Now()
	fake := now == now.Round(0) //nolint:staticcheck // Equal does not compare the monotonic part
	shared := &theCensus
	if fake {
		shared = &census{}
	}
	return &scheduler{
		reg: r, fake: fake, wake: make(chan struct{}, 1), quit: make(chan struct{}), armed: clock.Never,
		gone:   goneWatch{census: shared, most: goneMost},
		strays: map[place]*stray{}, switches: topology.WatchSwitches(r.client),
	}
}

// set makes a hold due at a time; drop makes it due no more. After close nothing is due, and set reports false.
func (s *scheduler) set(h *hold, due clock.Instant) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	h.due = due
	if h.index < 0 {
		heap.Push(&s.holds, h)
	} else {
		heap.Fix(&s.holds, int(h.index))
	}
	if s.switches.Watched {
		due = min(due, s.reg.clock.Now().Add(topology.SwitchEvery))
	}
	s.soon(due)
	return true
}

func (s *scheduler) drop(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.index >= 0 {
		heap.Remove(&s.holds, int(h.index))
	}
}

// stranded is what a [Hold] was that nobody can reach any more.
type stranded struct {
	hold  *hold
	owner owner.ID
}

// strand is what the garbage collector calls for it. In a test with testing/synctest that is outside of the bubble, from where
// no goroutine within can be woken: the next turn sees to it. There, and only there, times have no monotonic part.
func strand(gone stranded) {
	s := gone.hold.lock.reg.scheduler
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.stranded = append(s.stranded, gone)
	if !s.fake {
		s.soon(s.reg.clock.Now())
	}
}

// doubt is for when the connection for wake-ups is lost, or leads to a server that is the master no more: it has all holds of
// that server looked at, and sends removals of just now once more. That of a cluster is named by its address; holds of which
// it is not known on which server they are may be there.
func (s *scheduler) doubt(server string) {
	now := s.reg.clock.Now()
	for l := range s.reg.cache.all() {
		if at := s.reg.transport.lane(l.key).address; server != "" && at != "" && at != server {
			continue
		}
		if h := l.hold.Load(); h != nil {
			h.doubtServer()
		}
		l.recall(now)
	}
}

// soon sees to it that the goroutine that sleeps is there and wakes by due. When the first thing due goes away it still
// wakes for it, once, and finds nothing to do: cheaper than waking it for every change.
func (s *scheduler) soon(due clock.Instant) {
	if due >= s.armed {
		return
	}
	s.armed = due
	if !s.running {
		s.running = true
		s.done.Go(s.sleep)
		return
	}
	s.nudge()
}

// nudge wakes the goroutine that sleeps.
func (s *scheduler) nudge() {
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
		timer.Reset(s.reg.clock.Now().Until(s.turn()))
	}
}

// turn does what is due and returns when it is to be called next.
func (s *scheduler) turn() clock.Instant {
	now := s.reg.clock.Now()
	if s.switches.Look(now, s.reg.transport.first.trip().silence(), s.nudge) {
		s.doubt("")
	}
	s.mu.Lock()
	var due []*hold
	for len(s.holds) > 0 && s.holds[0].due <= now {
		due = append(due, heap.Pop(&s.holds).(*hold))
	}
	gone := s.stranded
	s.stranded = nil
	s.armed = now // no need to wake this goroutine, which looks again below
	s.mu.Unlock()

	for _, g := range gone {
		g.hold.strand(g.owner)
	}
	var renewals []errand
	for _, h := range due {
		if e := h.tick(); e != nil {
			renewals = append(renewals, e)
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewals = append(s.renewals, renewals...)
	for n := len(s.renewals); n > 0 && s.hire(false); n -= batch { //nolint:revive // the condition does the work
	}
	if len(due) > 0 && now >= s.nextLook {
		s.nextLook = clock.Never
		s.done.Go(s.lookForGone)
	}
	s.armed = s.clean(now)
	if len(s.holds) > 0 {
		s.armed = min(s.armed, s.holds[0].due)
		if s.switches.Watched {
			s.armed = min(s.armed, now.Add(topology.SwitchEvery))
		}
	}
	return s.armed
}

// hire starts one more worker. There is always one more of them than pipelines under way, up to maxWorkers, so that one
// that is not answered does not keep the others waiting. Where renewals wait for replicas other workers sweep: a replica that
// is down must not keep what is given back. The caller holds the mutex.
func (s *scheduler) hire(sweeps bool) bool {
	staff := s.staff(sweeps)
	if *staff >= maxWorkers {
		return false
	}
	*staff++
	s.done.Go(func() { s.work(sweeps) })
	return true
}

// staff counts the workers of one kind. The caller holds the mutex.
func (s *scheduler) staff(sweeps bool) *int {
	if sweeps && s.patient() {
		return &s.sweepers
	}
	return &s.workers
}

// take gives a worker its next pipeline: renewals, which have a time by which they must be done, or else sweeps, if it does
// those. It gives none when there is nothing to do; the worker ends then.
func (s *scheduler) take(sweeps bool) []errand {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !sweeps || !s.patient() {
		if n := min(len(s.renewals), batch); n > 0 {
			errands := s.renewals[:n:n]
			s.renewals = s.renewals[n:]
			return errands
		}
		s.renewals = nil
	}
	if sweeps || s.closed {
		if errands := s.dueSweeps(); errands != nil {
			return errands
		}
		s.recess = 0
	}
	*s.staff(sweeps)--
	return nil
}

// patient tells whether renewals wait for replicas.
func (s *scheduler) patient() bool { return s.reg.replicas != nil }

// work is a goroutine that talks to Redis until nothing is left to be asked.
func (s *scheduler) work(sweeps bool) {
	for errands := s.take(sweeps); errands != nil; errands = s.take(sweeps) {
		errands = slices.DeleteFunc(errands, func(e errand) bool { return !e.wanted() })
		if len(errands) == 0 {
			continue
		}
		if s.overdue() {
			for _, e := range errands {
				e.done(answer{}, 0, ErrClosed)
			}
			continue
		}
		calls := make([]protocol.Call, len(errands))
		for i, e := range errands {
			calls[i] = e.call()
		}
		var mu sync.Mutex // answers may come from several nodes of a cluster at once
		var failure error
		succeeded, wrote := false, false
		s.reg.transport.doAll(pipeline, calls,
			func(i int) time.Duration { return errands[i].term() },
			func(i int) bool { return errands[i].wanted() },
			func(i int, a answer) {
				n, err := protocol.Confirmed(a.RedisResult)
				if err == nil {
					err = a.short
				}
				errands[i].done(a, n, err)
				failed := err != nil && errands[i].wanted()
				s.note(errands[i], calls[i].Key, err == nil, failed)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					_, asks := errands[i].(question)
					succeeded, wrote = true, wrote || n > 0 && !asks
				} else if failed {
					failure = err
				}
			})
		s.report(len(errands), failure, succeeded, wrote)
	}
}

// overdue tells whether the registry has been closed for so long that nothing is sent any more.
func (s *scheduler) overdue() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed && s.reg.clock.Now() >= s.last
}

// report logs when errands begin to fail, and when they succeed again. Only an answer is an all-clear: that nothing is
// left to fail, because a hold was lost, is none.
//
// A server that takes no writes for now (MISCONF, NOREPLICAS) answers questions, and removals that find nothing to remove.
// That is no all-clear, unless it has refused nothing for a while.
func (s *scheduler) report(n int, failure error, succeeded, wrote bool) {
	s.mu.Lock()
	now := s.reg.clock.Now()
	if failure != nil && fault.Answered(failure) {
		s.refused = now
	}
	if failure == nil && succeeded && s.refused != 0 {
		if succeeded = wrote || s.refused.Until(now) >= refusedFor; succeeded {
			s.refused = 0
		}
	}
	failing := failure != nil || s.failing && !succeeded
	changed := s.failing != failing && !s.closed
	s.failing = failing
	if changed && !failing {
		s.hasten()
	}
	s.mu.Unlock()
	if changed {
		s.reg.tellRenewing(n, failure)
	}
	switch {
	case !changed:
	case failure == nil:
		s.reg.dispatch.Log(slog.LevelInfo, "Redis takes renewals and removals again")
	case fault.Answered(failure):
		s.reg.dispatch.Log(slog.LevelWarn, "Redis refuses renewals or removals; they are tried again",
			slog.Any("error", failure), slog.Int("commands", n))
	default:
		s.reg.dispatch.Log(slog.LevelWarn, "Redis does not answer renewals or removals; they are tried again",
			slog.Any("error", failure), slog.Int("commands", n))
	}
}

// close stops the goroutines. What was left behind in Redis gets a last chance to be removed, for as long as closeGrace.
func (s *scheduler) close() {
	s.mu.Lock()
	s.closed, s.last = true, s.reg.clock.Now().Add(s.reg.transport.farthest().trip().plus(closeGrace))
	close(s.quit)
	for n := len(s.sweeps); n > 0 && s.hire(true); n -= batch { //nolint:revive // the condition does the work
	}
	holds := s.holds
	s.holds = nil
	for _, h := range holds {
		h.index = -1
	}
	s.mu.Unlock()
	for _, h := range holds {
		h.forsake()
	}
}

// As an errand, a renewal is one that the scheduler sends.

func (r renewal) call() protocol.Call {
	l := r.hold.lock
	c := l.kind.layout.Renew(l.key, r.hold.value, r.lease)
	l.reg.demand(&c, renews)
	return c
}

func (r renewal) term() time.Duration { return r.lease.Length }

// What is lost or over is not renewed. But the owner may unlock at the moment at which the renewal leaves, and that is
// harmless, because it names the hold's value: when the server executes it before the removal, the removal removes the key
// all the same; when it comes after that, it finds no key, or that of another hold. While a removal has not been confirmed
// it may prolong the key, but the stray that this leaves is asked for until it has been.
func (r renewal) wanted() bool { return r.hold.goesOn() }

func (r renewal) done(a answer, n int64, err error) {
	r.sent = a.sent
	_ = r.hold.answered(r, n, err, a.late) // a failure is tried again, a loss is announced by the hold itself
}

// dueHeap is a heap of what has a time at which it is due, for container/heap.
type dueHeap[T timed] []T

type timed interface {
	dueAt() clock.Instant
	moved(index int) // where it is in the heap now, -1 when it is not there
}

func (q dueHeap[T]) Len() int           { return len(q) }
func (q dueHeap[T]) Less(i, j int) bool { return q[i].dueAt() < q[j].dueAt() }

func (q dueHeap[T]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].moved(i)
	q[j].moved(j)
}

func (q *dueHeap[T]) Push(x any) {
	t := x.(T)
	t.moved(len(*q))
	*q = append(*q, t)
}

func (q *dueHeap[T]) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	var none T
	(*q)[last] = none
	*q = (*q)[:last]
	t.moved(-1)
	return t
}

func (h *hold) dueAt() clock.Instant { return h.due }
func (h *hold) moved(index int)      { h.index = int32(index) } //nolint:gosec // no process has so many
