package protocol

import (
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNumbers_AreTimesAndAlwaysGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n Numbers
		micros := func() uint64 { return uint64(time.Now().UnixMicro()) }
		require.Equal(t, micros(), n.Draw(time.Now()))
		require.Equal(t, micros()+1, n.Draw(time.Now()), "the clock has not moved")
		require.Equal(t, micros()+2, n.Draw(time.Now()))
		<-time.After(time.Second)
		require.Equal(t, micros(), n.Draw(time.Now()), "the time again")

		ahead := micros() + uint64(time.Hour/time.Microsecond)
		n.newest.Store(ahead) // as if the clock were set back by an hour now
		require.Equal(t, ahead+1, n.Draw(time.Now()))
		<-time.After(time.Hour + time.Second)
		require.Equal(t, micros(), n.Draw(time.Now()), "the clock has caught up")

		require.Equal(t, micros()+1, n.Draw(time.UnixMicro(math.MinInt64)))
		require.Equal(t, uint64(lastTime), n.Draw(time.UnixMicro(math.MaxInt64)))
		require.Equal(t, uint64(lastTime+1), n.Draw(time.UnixMicro(math.MaxInt64)))
		require.Less(t, uint64(lastTime+1), uint64(1<<53))
	})
}

func TestNumbers_AreDrawnOnce(t *testing.T) {
	var n Numbers
	n.newest.Store(uint64(time.Now().Add(time.Hour).UnixMicro())) // all have to add one to the last
	before := n.newest.Load()
	const goroutines, each = 8, 1000
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			last := uint64(0)
			for range each {
				next := n.Draw(time.Now())
				if next <= last {
					t.Error("not larger")
				}
				last = next
			}
		})
	}
	all.Wait()
	require.Equal(t, before+goroutines*each, n.newest.Load(), "no number twice")
}

// A number that cannot be a time has none.
func TestTime(t *testing.T) {
	require.Equal(t, time.Date(2026, 11, 25, 0, 0, 0, 1000, time.UTC), Time(1_795_564_800_000_001).UTC())
	for _, micros := range []int64{math.MinInt64, -1, 0, 4711, firstTime - 1, lastTime + 1, math.MaxInt64} {
		require.True(t, Time(micros).IsZero(), micros)
	}
}
