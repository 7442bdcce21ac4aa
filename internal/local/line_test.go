package local

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/deadlock"
	"github.com/lockregistry/lockregistry/internal/owner"
)

// ids returns the owners of a queue's waiters, first to last. It checks that the queue is a proper doubly linked list.
func (q *Line) ids(t *testing.T) (forward []owner.ID) {
	t.Helper()
	var backward []owner.ID
	for w := q.first; w != nil; w = w.next {
		require.True(t, w.Queued())
		forward = append(forward, w.Owner())
	}
	for w := q.last(); w != nil; w = before(q, w) {
		backward = append([]owner.ID{w.owner}, backward...)
	}
	require.Equal(t, forward, backward)
	require.Equal(t, len(forward), q.Len())
	return forward
}

// last returns the waiter at the end; nil if there is none.
func (q *Line) last() *Waiter {
	if q.first == nil {
		return nil
	}
	return q.first.prev
}

// before returns the waiter in front of another one; nil for the first.
func before(q *Line, w *Waiter) *Waiter {
	if w == q.first {
		return nil
	}
	return w.prev
}

// pushed is a queue of some waiters.
func pushed(owners ...owner.ID) (*Line, []*Waiter) {
	q, all := &Line{}, []*Waiter(nil)
	for _, o := range owners {
		all = append(all, q.Push(o, time.Second, nil))
	}
	return q, all
}

// A waiter may be put in front of another one, wherever that stands.
func TestLine_PushInFrontOfAnother(t *testing.T) {
	all := []owner.ID{anna, bert, cleo}
	for i := range all {
		q, waiters := pushed(all...)
		w := q.push(key{owner: dora, writes: true}, time.Second, waiters[i], nil)
		require.Equal(t, slices.Insert(slices.Clone(all), i, dora), q.ids(t))
		require.EqualValues(t, 1, q.writers)
		require.Equal(t, Refused, q.Leave(w))
		require.Equal(t, all, q.ids(t))
		require.Zero(t, q.writers)
	}
	q := &Line{}
	q.push(key{owner: dora}, time.Second, nil, nil)
	require.Equal(t, []owner.ID{dora}, q.ids(t))
	require.Zero(t, q.writers)
}

func TestLine_ServesInOrder(t *testing.T) {
	q, _ := pushed(anna, bert, team, anna)
	require.Equal(t, []owner.ID{anna, bert, team, anna}, q.ids(t))
	for _, want := range []owner.ID{anna, bert, team, anna} {
		w := q.First()
		require.Equal(t, want, w.Owner())
		q.Admit(w, Entered)
		require.False(t, w.Queued())
		how, came := w.Await(t.Context(), nil)
		require.True(t, came)
		require.Equal(t, Entered, how)
	}
	require.Nil(t, q.First())
	require.Empty(t, q.ids(t))
}

// Wherever it stands, a waiter that gives up leaves the others in their order.
func TestLine_Leave(t *testing.T) {
	all := []owner.ID{anna, bert, cleo}
	for i, o := range all {
		q, waiters := pushed(all...)
		_, came := waiters[i].Await(cancelled(), nil)
		require.False(t, came)
		require.Equal(t, Refused, q.Leave(waiters[i]))
		require.Equal(t, slices.DeleteFunc(slices.Clone(all), func(other owner.ID) bool { return other == o }), q.ids(t))
	}
}

// A waiter that was let in before it could leave learns how.
func TestLine_LeaveAfterTheTurn(t *testing.T) {
	q, waiters := pushed(anna, bert)
	q.Admit(waiters[0], HandedOff)
	require.Equal(t, HandedOff, q.Leave(waiters[0]))
	require.Equal(t, []owner.ID{bert}, q.ids(t))
}

func TestLine_Cancel(t *testing.T) {
	q, waiters := pushed(anna, bert)
	q.Cancel(waiters[0])
	how, came := waiters[0].Await(t.Context(), nil)
	require.True(t, came)
	require.Equal(t, Refused, how)
	require.Equal(t, []owner.ID{bert}, q.ids(t))

	q.Admit(waiters[1], Entered)
	q.Cancel(waiters[1]) // its turn has come
	require.Equal(t, Entered, turn(waiters[1]))
}

func TestLine_WaitersOfTheSameOwner(t *testing.T) {
	q, waiters := pushed(team, anna, crew, team, anna, team)
	var found []*Waiter
	for w := range q.SameOwner(team, false) {
		found = append(found, w)
		q.Admit(w, Reentered)
	}
	require.Equal(t, []*Waiter{waiters[0], waiters[3], waiters[5]}, found)
	for range q.SameOwner(anna, false) {
		t.Error("a goroutine is in no other way than through its waiter")
	}
	require.Equal(t, []owner.ID{anna, crew, anna}, q.ids(t))
}

// When the waiters are gone, so is their index by owner.
func TestLine_Index(t *testing.T) {
	q, waiters := pushed(team, crew, team, bert, team)
	require.Len(t, q.oldest, 2)
	for _, i := range []int{2, 0, 4, 3, 1} {
		require.Equal(t, Refused, q.Leave(waiters[i]))
		var found []*Waiter
		for k := range q.oldest {
			for w, first := q.oldest[k], true; first || w != q.oldest[k]; w, first = w.newer, false {
				require.Same(t, w, w.newer.older)
				require.Same(t, w, w.older.newer)
				found = append(found, w)
			}
		}
		want := 0
		for w := q.first; w != nil; w = w.next {
			if w.owner.Shared() {
				want++
				require.Contains(t, found, w)
			}
		}
		require.Len(t, found, want)
	}
	require.Nil(t, q.oldest)
}

// A method looks only at the first waiter and at the waiters that it is about.
func TestLine_DoesConstantWork(t *testing.T) {
	q, waiters := pushed(anna, team, bert, cleo, dora, team, crew)
	untie := knot(waiters[3])
	looksAtNobody(t, func() {
		assert.Equal(t, Refused, q.Leave(waiters[6]))
		q.Push(crew, time.Second, nil)
		q.Cancel(waiters[4])
		for w := range q.SameOwner(team, false) {
			q.Admit(w, Reentered)
		}
		q.Admit(q.First(), Entered)
		assert.Equal(t, 3, q.Len())
	})
	untie()
	require.Equal(t, bert, q.First().Owner())
}

func TestWaiter_Suits(t *testing.T) {
	q, _ := pushed(anna)
	for running, want := range map[time.Duration]bool{
		time.Second - 1: false, time.Second: true, 1500 * time.Millisecond: true, 1500*time.Millisecond + 1: false,
	} {
		require.Equal(t, want, q.First().Suits(running), running)
	}
}

// nothing is a lock that the graph does not ask here.
type nothing struct{ deadlock.Lock }

func (nothing) Obstacles(*deadlock.Call) (none deadlock.Obstacles) { return none }

// A waiter that is done is reused, unless another goroutine has found it in the graph of waiting calls, and may still look at it.
func TestPool_WaitersThatAreDone(t *testing.T) {
	for _, known := range []bool{false, true} {
		again := 0
		for range 100 { // the race detector has a pool drop some
			var q Line
			var pool Pool
			w := q.Push(bert, time.Second, &pool)
			w.Call.Lock, w.Call.Goroutine = nothing{}, bert
			var g deadlock.Graph
			require.NoError(t, g.Enter(&w.Call))
			if known {
				require.Equal(t, []*deadlock.Call{&w.Call}, slices.Collect(g.All()))
			}
			g.Leave(&w.Call)
			require.Equal(t, Refused, q.Leave(w))
			pool.Put(w)
			require.Equal(t, known, w.Call.Lock != nil)
			next := pool.get()
			if next == w {
				again++
			}
			require.Empty(t, next.turn)
			require.Zero(t, next.key)
			require.Zero(t, next.lease)
		}
		require.Equal(t, known, again == 0)
	}
}
