package queue

import (
	"container/list"
	"sync"
)

// line is the calls of this process that wait for permits of a semaphore, in the order of their tickets, but for some that were
// lost. Each has a ticket, so those of a process look one after another, whatever stands in front of them.
type line struct {
	mu    sync.Mutex
	seats list.List // of the number of each
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

// before is how many came before a call and after the first that still waits, so for the first it is none. Some of them may have
// left.
func (l *line) before(seat *list.Element) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, _ := l.seats.Front().Value.(uint64)
	this, _ := seat.Value.(uint64)
	return int(this - first) //nolint:gosec // no more than there ever were
}
