package queue

import (
	"container/list"
	"sync"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// line has the calls of this process that wait for permits of a semaphore. Each call has a ticket, and the calls are in the
// order of their tickets, unless tickets were lost. They look one after another, whatever is in front of them in the queue.
type line struct {
	mu    sync.Mutex
	seats list.List // has the number of each call
	last  uint64
}

func (l *line) join() *list.Element {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	return l.seats.PushBack(l.last)
}

func (l *line) leave(seat *list.Element) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seats.Remove(seat)
}

// before returns how many calls are in front of seat, counted from the first that still waits. Some of them may have left.
func (l *line) before(seat *list.Element) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, _ := l.seats.Front().Value.(uint64)
	this, _ := seat.Value.(uint64)
	return int(this - first) //nolint:gosec // not more than the calls so far
}

// RecallEach is [Path.Recall] for the semaphores and read-write locks of a registry, except those that are left out. A removal
// there removes one hold, so each is sent again.
func (all *Shared) RecallEach(now clock.Instant, leavesOut func(*Path) bool) {
	for _, f := range all.freed.recent(now) {
		if !leavesOut(f.path) {
			f.path.RemoveUnclaimed(f.number) // mutant: permit not recalled
		}
	}
}

// freed are the newest holds of semaphores and read-write locks whose removal was confirmed, oldest first.
type freed struct {
	mu  sync.Mutex
	all []freedHold
}

type freedHold struct {
	path   *Path
	number string
	at     clock.Instant
}

const mostFreed = 1000 // a failover may lose the last releases

func (f *freed) add(newest freedHold) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.all) >= mostFreed || len(f.all) > 0 && f.all[0].at.Until(newest.at) >= recallFor {
		f.all[0] = freedHold{} // so that its path can be collected
		f.all = f.all[1:]
	}
	f.all = append(f.all, newest)
}

func (f *freed) recent(now clock.Instant) (all []freedHold) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.all {
		if one.at.Until(now) < recallFor {
			all = append(all, one)
		}
	}
	return all
}
