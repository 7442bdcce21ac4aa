package queue

import (
	"container/list"
	"sync"
)

// line has the calls of this process that wait for permits of a semaphore, in the order of their tickets, unless tickets were
// lost. Each call has a ticket; the line lets them look one after another, whatever is in front of them in the queue.
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

// before returns how many calls came before seat, from the first that still waits on. Some of them may have left.
func (l *line) before(seat *list.Element) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	first, _ := l.seats.Front().Value.(uint64)
	this, _ := seat.Value.(uint64)
	return int(this - first) //nolint:gosec // not more than the calls so far
}
