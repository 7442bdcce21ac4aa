package scheduler

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// jobs is what there is to do.
type jobs struct {
	mu   sync.Mutex
	left []int
}

func (j *jobs) add(from, to int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := from; i < to; i++ {
		j.left = append(j.left, i)
	}
}

func (j *jobs) take(most int) []int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := min(most, len(j.left))
	some := j.left[:n]
	j.left = j.left[n:]
	return some
}

func TestSenders_SendInBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j jobs
		var mu sync.Mutex
		var sizes []int
		got := map[int]bool{}
		s := NewSenders(j.take, func(jobs []int) {
			<-time.After(time.Second)
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(jobs))
			for _, i := range jobs {
				got[i] = true
			}
		})
		j.add(0, 2*Batch+1)
		s.Hire(2*Batch + 1)
		<-time.After(1500 * time.Millisecond)
		mu.Lock()
		require.ElementsMatch(t, []int{Batch, Batch, 1}, sizes, "as many at once as it takes")
		require.Len(t, got, 2*Batch+1)
		mu.Unlock()
		s.Close()
		s.Wait()
	})
}

// A worker that hangs delays nobody else, and there are never too many of them. Those that go on do what is left.
func TestSenders_OneThatHangsDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j jobs
		hangs := make(chan struct{})
		var mu sync.Mutex
		var sent []int
		under := 0
		s := NewSenders(j.take, func(jobs []int) {
			mu.Lock()
			under++
			mu.Unlock()
			if jobs[0] < 0 {
				<-hangs
			}
			mu.Lock()
			defer mu.Unlock()
			under--
			sent = append(sent, jobs...)
		})
		count := func() (int, int) {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return under, len(sent)
		}
		for i := range MostAtOnce - 1 {
			j.add(-1-i, -i)
			s.Hire(1)
			synctest.Wait()
		}
		for i := range 10 {
			j.add(i, i+1)
			s.Hire(1)
			hanging, done := count()
			require.Equal(t, MostAtOnce-1, hanging)
			require.Equal(t, i+1, done)
		}
		j.add(-9, -8)
		s.Hire(1)
		synctest.Wait()
		j.add(0, 1)
		s.Hire(1)
		hanging, done := count()
		require.Equal(t, MostAtOnce, hanging, "no more than that hang")
		require.Equal(t, 10, done)
		close(hangs)
		hanging, done = count()
		require.Zero(t, hanging)
		require.Equal(t, 15, done, "those that hung do what was left")
		s.Close()
		s.Wait()
	})
}

// A worker that finds nothing is no longer counted when the next one is hired, so no job is left to it.
func TestSenders_AWorkerThatFindsNothingLeavesRoom(t *testing.T) {
	var s *Senders[int]
	s = NewSenders(func(int) []int {
		if s.mu.TryLock() {
			s.mu.Unlock()
			t.Error("Hire must wait until this worker is not counted")
		}
		return nil
	}, func([]int) {})
	s.Hire(1)
	s.Close()
	s.Wait()
	require.Zero(t, s.workers)
}

// However workers end and jobs come, none is left.
func TestSenders_LeaveNothing(*testing.T) {
	var j jobs
	var sent sync.WaitGroup
	s := NewSenders(j.take, func(jobs []int) { sent.Add(-len(jobs)) })
	for range 500 {
		var all sync.WaitGroup
		for range 2 * MostAtOnce {
			sent.Add(1)
			all.Go(func() {
				j.add(0, 1)
				s.Hire(1)
			})
		}
		all.Wait()
		sent.Wait()
	}
	s.Close()
	s.Wait()
}

func TestSenders_Close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j jobs
		goOn, sent := make(chan struct{}), 0
		s := NewSenders(j.take, func(jobs []int) { <-goOn; sent += len(jobs) })
		j.add(0, 1)
		s.Hire(1)
		synctest.Wait()
		s.Close()
		j.add(1, 2)
		s.Hire(1)
		close(goOn)
		s.Wait()
		require.Equal(t, 2, sent, "the one at work does what is left")
		j.add(2, 3)
		s.Hire(1)
		s.Wait()
		require.Equal(t, 2, sent)
	})
}
