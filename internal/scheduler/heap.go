package scheduler

import (
	"container/heap"
	"slices"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Timed is what can be in a [Heap]. It keeps two numbers for the heap: when it is due, and its place, from 1; 0: it is in none.
type Timed interface {
	Timing() (due *clock.Instant, place *int32)
}

// Heap has what is due first at its top. Its zero value is empty.
type Heap[T Timed] struct{ all items[T] }

// Len is how many there are.
func (h *Heap[T]) Len() int { return len(h.all) }

// Put makes t due, whether it is in the heap or not.
func (h *Heap[T]) Put(t T, due clock.Instant) {
	at, place := t.Timing()
	*at = due
	if *place == 0 {
		heap.Push(&h.all, t)
	} else {
		heap.Fix(&h.all, int(*place-1))
	}
}

// Remove takes t out, if it is there.
func (h *Heap[T]) Remove(t T) {
	if _, place := t.Timing(); *place != 0 {
		heap.Remove(&h.all, int(*place-1))
	}
}

// Next is when the first one is due; [clock.Never] when there is none.
func (h *Heap[T]) Next() clock.Instant {
	if len(h.all) == 0 {
		return clock.Never
	}
	due, _ := h.all[0].Timing()
	return *due
}

// Pop takes the first one out. The heap is not empty.
func (h *Heap[T]) Pop() T { return heap.Pop(&h.all).(T) }

// Reset makes everything due when a function says, in one pass. The function gets when it was.
func (h *Heap[T]) Reset(due func(t T, was clock.Instant) clock.Instant) {
	for _, t := range h.all {
		at, _ := t.Timing()
		*at = due(t, *at)
	}
	heap.Init(&h.all)
}

// All are those in the heap, in no order.
func (h *Heap[T]) All() []T { return slices.Clone(h.all) }

// Clear takes all out, and returns them.
func (h *Heap[T]) Clear() []T {
	all := h.all
	h.all = nil
	for _, t := range all {
		_, place := t.Timing()
		*place = 0
	}
	return all
}

// items is the heap for container/heap.
type items[T Timed] []T

func (q items[T]) Len() int { return len(q) }

func (q items[T]) Less(i, j int) bool {
	one, _ := q[i].Timing()
	other, _ := q[j].Timing()
	return *one < *other
}

func (q items[T]) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q.moved(i)
	q.moved(j)
}

func (q items[T]) moved(i int) {
	_, place := q[i].Timing()
	*place = int32(i + 1) //nolint:gosec // no process has so many
}

func (q *items[T]) Push(x any) {
	*q = append(*q, x.(T))
	q.moved(len(*q) - 1)
}

func (q *items[T]) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	_, place := t.Timing()
	*place = 0
	var none T
	(*q)[last] = none
	*q = (*q)[:last]
	return t
}
