package tally_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/tally"
	"github.com/lockregistry/lockregistry/observe"
)

func TestNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all tally.Tally
		require.Empty(t, all.Now())
		stats := func(s observe.Stats) func() observe.Stats { return func() observe.Stats { return s } }
		stop := all.Watch("orders", stats(observe.Stats{
			Holds: 1, Waiters: 2, Removals: 3, Oldest: time.Second, OldestWait: time.Minute, Handoffs: 4, Windows: 5,
			Nodes: []observe.NodeStats{{}, {RenewalsFailing: time.Now(), RemovalsFailing: time.Now()}},
		}))
		<-time.After(time.Hour)
		stopOther := all.Watch("orders", stats(observe.Stats{
			Holds: 10, Waiters: 20, Removals: 30, Oldest: time.Minute, OldestWait: time.Second, Handoffs: 40, Windows: 50,
			Nodes: []observe.NodeStats{{RenewalsFailing: time.Now(), RemovalsFailing: time.Now()}},
		}))
		defer all.Watch("bills", stats(observe.Stats{Holds: 7}))()
		require.Equal(t, map[string]*tally.Figures{
			"bills": {Registries: 1, Holds: 7},
			"orders": {
				Registries: 2, Holds: 11, Waiters: 22, Removals: 33, Oldest: time.Minute, OldestWait: time.Minute, Handoffs: 44, Windows: 55,
				RenewalsFailing: time.Hour, RemovalsFailing: time.Hour,
			},
		}, all.Now())
		stop()
		stop()
		require.Equal(t, &tally.Figures{
			Registries: 1, Holds: 10, Waiters: 20, Removals: 30, Oldest: time.Minute, OldestWait: time.Second, Handoffs: 44, Windows: 55,
		}, all.Now()["orders"])
		stopOther()
		require.Equal(t, &tally.Figures{Handoffs: 44, Windows: 55}, all.Now()["orders"])
		defer all.Watch("orders", stats(observe.Stats{Handoffs: 100}))()
		require.EqualValues(t, 144, all.Now()["orders"].Handoffs)
	})
}

// Counts do not fall while a registry is stopped, nor when its function tells less than before.
func TestNow_CountsDoNotFall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all tally.Tally
		told := uint64(5)
		stop := all.Watch("orders", func() observe.Stats {
			<-time.After(time.Second)
			return observe.Stats{Handoffs: told, Windows: told}
		})
		require.EqualValues(t, 5, all.Now()["orders"].Handoffs)
		told = 4
		require.EqualValues(t, 5, all.Now()["orders"].Handoffs)
		require.EqualValues(t, 5, all.Now()["orders"].Windows)
		go stop()
		synctest.Wait()
		for range 3 {
			require.EqualValues(t, 5, all.Now()["orders"].Handoffs)
			require.EqualValues(t, 5, all.Now()["orders"].Windows)
			<-time.After(300 * time.Millisecond)
		}
	})
}
