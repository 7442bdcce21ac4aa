package drain_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/drain"
	"github.com/lockregistry/lockregistry/internal/owner"
)

func TestDrain_Begins(t *testing.T) {
	var d drain.Drain
	d.Init(func() drain.Set { return nil })
	require.False(t, d.Begun())
	select {
	case <-d.Start():
		t.Fatal("it has not begun")
	default:
	}
	d.Begin()
	d.Begin()
	require.True(t, d.Begun())
	<-d.Start()
}

// Whoever asks finds itself, if it held a lock before it asked.
func TestDrain_HoldersAreThoseOfNow(t *testing.T) {
	var now atomic.Pointer[drain.Set]
	now.Store(&drain.Set{})
	var d drain.Drain
	d.Init(func() drain.Set { return *now.Load() })
	var mu sync.Mutex
	var all sync.WaitGroup
	for o := owner.ID(1); o <= 200; o++ {
		all.Go(func() {
			mu.Lock()
			next := drain.Set{o: true}
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

// Those that come while the holders are asked for have one answer together.
func TestDrain_ManyCallsShareAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, answer := 0, make(chan struct{})
		var d drain.Drain
		d.Init(func() drain.Set {
			asked++
			<-answer
			return nil
		})
		var all sync.WaitGroup
		all.Go(func() { d.Holders() })
		synctest.Wait()
		close(answer)
		all.Wait()
		require.Equal(t, 1, asked)
		answer = make(chan struct{})
		all.Go(func() { d.Holders() })
		synctest.Wait()
		for range 50 {
			all.Go(func() { d.Holders() })
		}
		synctest.Wait()
		close(answer)
		all.Wait()
		require.Equal(t, 3, asked)
	})
}
