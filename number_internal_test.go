package lockregistry

import (
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNumbersAreTimesAndAlwaysGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r Registry
		micros := func() uint64 { return uint64(time.Now().UnixMicro()) }
		require.Equal(t, micros(), r.number())
		require.Equal(t, micros()+1, r.number(), "the clock has not moved")
		require.Equal(t, micros()+2, r.number())
		<-time.After(time.Second)
		require.Equal(t, micros(), r.number(), "the time again")

		ahead := micros() + uint64(time.Hour/time.Microsecond)
		r.holds.Store(ahead) // as if the clock were set back by an hour now
		require.Equal(t, ahead+1, r.number())
		<-time.After(time.Hour + time.Second)
		require.Equal(t, micros(), r.number(), "the clock has caught up")

		require.Equal(t, micros()+1, r.numberAt(math.MinInt64))
		require.Equal(t, uint64(lastTime), r.numberAt(math.MaxInt64))
		require.Equal(t, uint64(lastTime+1), r.numberAt(math.MaxInt64))
		require.Less(t, uint64(lastTime+1), uint64(1<<53))
	})
}

func TestNumbersAreDrawnOnce(t *testing.T) {
	var r Registry
	r.holds.Store(uint64(time.Now().Add(time.Hour).UnixMicro())) // all have to add one to the last
	before := r.holds.Load()
	const goroutines, each = 8, 1000
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			last := uint64(0)
			for range each {
				n := r.number()
				if n <= last {
					t.Error("not larger")
				}
				last = n
			}
		})
	}
	all.Wait()
	require.Equal(t, before+goroutines*each, r.holds.Load(), "no number twice")
}
