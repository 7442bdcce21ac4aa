package drain

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/owner"
)

func TestDrain_Begins(t *testing.T) {
	var d Drain
	start := d.Init(func() Set { return nil })
	require.False(t, d.Begun())
	select {
	case <-start:
		t.Fatal("it has not begun")
	default:
	}
	d.Begin()
	d.Begin()
	require.True(t, d.Begun())
	<-start
}

// An owner that held a lock before it asks for the holders finds itself among them.
func TestDrain_HoldersAreThoseOfNow(t *testing.T) {
	var now atomic.Pointer[Set]
	now.Store(&Set{})
	var d Drain
	d.Init(func() Set { return *now.Load() })
	var mu sync.Mutex
	var all sync.WaitGroup
	for o := owner.ID(1); o <= 200; o++ {
		all.Go(func() {
			mu.Lock()
			next := Set{o: true}
			for other := range *now.Load() {
				next[other] = true
			}
			now.Store(&next)
			mu.Unlock()
			if !d.Holders()[o] {
				t.Errorf("%d holds a lock", o)
			}
		})
	}
	all.Wait()
}

// Calls that come while the holders are being asked for share one answer.
func TestDrain_ManyCallsShareAnAnswer(t *testing.T) {
	var asked atomic.Int32
	asks, answer := make(chan struct{}), make(chan struct{})
	var d Drain
	d.Init(func() Set {
		asked.Add(1)
		asks <- struct{}{}
		<-answer
		return nil
	})
	var all sync.WaitGroup
	all.Go(func() { d.Holders() })
	<-asks
	for range 50 {
		all.Go(func() { d.Holders() })
	}
	for d.arrivals.Load() < 51 {
		runtime.Gosched()
	}
	answer <- struct{}{}
	<-asks
	answer <- struct{}{}
	all.Wait()
	require.EqualValues(t, 2, asked.Load())
}
