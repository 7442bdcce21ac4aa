package lockregistry

import (
	"sync"
	"time"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/fault"
	"github.com/lockregistry/lockregistry/internal/lease"
	"github.com/lockregistry/lockregistry/internal/protocol"
	"github.com/lockregistry/lockregistry/internal/scheduler"
	"github.com/lockregistry/lockregistry/internal/transport"
)

// dueHolds are the holds that have a time at which to look at them: to renew them, or to announce that they are lost.
//
// A hold's mutex may be held while this one is taken, never the other way round.
type dueHolds struct {
	background *background

	mu     sync.Mutex
	heap   scheduler.Heap[*hold]
	tasks  []task // due, and waiting for a worker
	closed bool
}

// Timing is for the heap. The mutex of the holds that are due guards both.
func (h *hold) Timing() (due *clock.Instant, place *int32) { return &h.due, &h.place }

// set makes a hold due at a time; drop makes it due no more. After close nothing is due, and set reports false.
func (d *dueHolds) set(h *hold, due clock.Instant) bool {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return false
	}
	d.heap.Put(h, due)
	d.mu.Unlock()
	b := d.background
	if b.switches.Watched {
		due = min(due, b.nextLook(b.reg.clock.Now()))
	}
	b.scheduler.Soon(due)
	return true
}

func (d *dueHolds) drop(h *hold) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heap.Remove(h)
}

func (d *dueHolds) none() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.heap.Len() == 0
}

func (d *dueHolds) all() []*hold {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.heap.All()
}

// Turn looks at the holds that are due, and has sent what that takes.
func (d *dueHolds) Turn(now clock.Instant) clock.Instant {
	d.mu.Lock()
	var due []*hold
	for d.heap.Next() <= now {
		due = append(due, d.heap.Pop())
	}
	d.mu.Unlock()
	var tasks []task
	for _, h := range due {
		if t := h.tick(); t != nil {
			tasks = append(tasks, t)
		}
	}
	d.mu.Lock()
	d.tasks = append(d.tasks, tasks...)
	waiting, next := len(d.tasks), d.heap.Next()
	d.mu.Unlock()
	d.background.renewals.Hire(waiting)
	if len(due) > 0 {
		d.background.gone.lookAt(now)
	}
	return next
}

// take gives a worker its next tasks.
func (d *dueHolds) take(most int) []task {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := min(len(d.tasks), most)
	tasks := d.tasks[:n:n]
	if d.tasks = d.tasks[n:]; len(d.tasks) == 0 {
		d.tasks = nil
	}
	return tasks
}

// close leaves the holds to their leases.
func (d *dueHolds) close() {
	d.mu.Lock()
	d.closed = true
	holds := d.heap.Clear()
	d.mu.Unlock()
	for _, h := range holds {
		h.forsake()
	}
}

// As a task, a renewal is one that a worker sends.

func (r renewal) call() protocol.Call {
	l := r.hold.lock
	c := l.kind.layout.Renew(l.key, r.hold.value, r.Term)
	l.reg.demand(&c, renews)
	return c
}

func (r renewal) term() time.Duration { return r.Term.Length }

// What is lost or over is not renewed. But the owner may unlock at the moment at which the renewal leaves, and that is
// harmless, because it names the hold's value: when the server executes it before the removal, the removal removes the key
// all the same; when it comes after that, it finds no key, or that of another hold. While a removal has not been confirmed
// it may prolong the key, but the removal is tried until it has been.
func (r renewal) wanted() bool { return r.hold.goesOn() }

func (r renewal) writes() bool { return true }

func (r renewal) done(a transport.Reply, n int64, err error) {
	r.Sent = a.Sent
	_ = r.hold.answered(r, n, err, a.Late) // a failure is tried again, a loss is announced by the hold itself
}

// verification is a task: whether a hold still has its key.
type verification struct{ hold *hold }

func (v verification) call() protocol.Call {
	return v.hold.lock.kind.layout.Holds(v.hold.lock.key, v.hold.value)
}

func (v verification) term() time.Duration {
	v.hold.mu.Lock()
	defer v.hold.mu.Unlock()
	return v.hold.lease.Term.Length // which its owner may be changing
}

func (v verification) wanted() bool { return v.hold.goesOn() }

func (v verification) writes() bool { return false }

func (v verification) done(a transport.Reply, n int64, err error) {
	h, refused := v.hold, err != nil && !fault.Transient(err) // an error of a client's hook may be of any type: not under the mutex
	h.mu.Lock()
	o := lease.Outcome{Ours: n > 0, Failed: err != nil, Late: a.Late}
	switch h.lease.Verified(h.lock.reg.clock.Now(), o, refused) {
	case lease.NotLive:
		h.mu.Unlock()
	case lease.NotOurs:
		h.unlockLose(without(n))
	default:
		h.unlockPlanned()
	}
}
