package lockregistry

import (
	"sync"

	"github.com/lockregistry/lockregistry/internal/clock"
	"github.com/lockregistry/lockregistry/internal/scheduler"
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
	if b.switches.Watched() {
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
