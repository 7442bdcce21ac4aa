package page_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/observe"
)

func TestWaitsAreCountedByTheirLength(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		lock := someLock("a", 0)
		for _, waited := range []time.Duration{
			-time.Second, 0, 999 * time.Millisecond, // a clock may be ahead
			time.Second,
			5 * time.Second, 29 * time.Second,
			30 * time.Second, 31 * time.Second, 59 * time.Second,
			time.Minute, time.Hour, time.Hour, time.Hour,
		} {
			lock.Waiters = append(lock.Waiters, observe.WaiterInfo{Since: time.Now().Add(-waited)})
		}
		since := time.Now().Add(-2 * time.Second)
		lock.Waiters = append(lock.Waiters, // these are in none
			observe.WaiterInfo{Since: since, Gone: true}, observe.WaiterInfo{Since: since, Standby: true}, observe.WaiterInfo{})
		lock.WaiterCount = len(lock.Waiters)
		lock.Holders[0].Behind = 3
		source.set(lock)
		b := look(t, newPage(t, source))
		synctest.Wait()
		text := b.read()
		require.Contains(t, text, `"waiters":19,"oldest":3600000,"waits":[3,1,2,3,4],`)
		<-time.After(1500 * time.Millisecond)
		synctest.Wait()
		require.Contains(t, b.read(), `"waits":[1,3,1,3,5],`, "they wait longer")
	})
}
