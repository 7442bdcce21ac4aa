package scheduler

import (
	"container/heap"
	"slices"

	"github.com/lockregistry/lockregistry/internal/clock"
)

// Timed is an element of a [Heap]. It keeps two numbers for the heap: when it is due, and its index there, from 1; 0: it is in no
// heap.
type Timed interface {
	Timing() (due *clock.Instant, index *int32)
}

// Heap is a heap of elements, the one due first at the top. Its zero value is empty.
type Heap[T Timed] struct{ all items[T] }

// Len returns the number of elements.
func (h *Heap[T]) Len() int { return len(h.all) }

// Put sets when t is due, whether or not it is in the heap.
func (h *Heap[T]) Put(t T, due clock.Instant) {
	at, index := t.Timing()
	*at = due
	if *index == 0 {
		heap.Push(&h.all, t)
	} else {
		heap.Fix(&h.all, int(*index-1))
	}
}

// Remove removes t, if it is in the heap.
func (h *Heap[T]) Remove(t T) {
	if _, index := t.Timing(); *index != 0 {
		heap.Remove(&h.all, int(*index-1))
	}
}

// Next returns when the first element is due; [clock.Never] if there is none.
func (h *Heap[T]) Next() clock.Instant {
	if len(h.all) == 0 {
		return clock.Never
	}
	due, _ := h.all[0].Timing()
	return *due
}

// Pop removes and returns the first element. The heap must not be empty.
func (h *Heap[T]) Pop() T { return heap.Pop(&h.all).(T) }

// Reset sets when each element is due, in one pass. Due gets the previous time.
func (h *Heap[T]) Reset(due func(t T, was clock.Instant) clock.Instant) {
	for _, t := range h.all {
		at, _ := t.Timing()
		*at = due(t, *at)
	}
	heap.Init(&h.all)
}

// All returns the elements, in no order.
func (h *Heap[T]) All() []T { return slices.Clone(h.all) }

// Clear removes and returns all elements.
func (h *Heap[T]) Clear() []T {
	all := h.all
	h.all = nil
	for _, t := range all {
		_, index := t.Timing()
		*index = 0
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
	_, index := q[i].Timing()
	*index = int32(i + 1) //nolint:gosec // no process has that many
}

func (q *items[T]) Push(x any) {
	*q = append(*q, x.(T))
	q.moved(len(*q) - 1)
}

func (q *items[T]) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	_, index := t.Timing()
	*index = 0
	var none T
	(*q)[last] = none
	*q = (*q)[:last]
	return t
}
