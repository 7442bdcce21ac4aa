package page_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/inspect"
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
			lock.Waiters = append(lock.Waiters, inspect.Waiter{Since: time.Now().Add(-waited)})
		}
		since := time.Now().Add(-2 * time.Second)
		lock.Waiters = append(lock.Waiters, // these are in none
			inspect.Waiter{Since: since, Gone: true}, inspect.Waiter{Since: since, Standby: true}, inspect.Waiter{})
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

// Of calls that wait in a process it is known since when the first of them does.
func TestWaitsWithinProcesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := newFake()
		held, queued, old := someLock("held", 0), someLock("queued", 0), someLock("old", 0)
		ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
		held.Holders[0].Behind, held.Holders[0].BehindSince = 28, ago(2*time.Minute)
		queued.Waiters = []inspect.Waiter{
			{Since: ago(time.Second), Behind: 2, BehindSince: ago(40 * time.Second)},
			{Since: ago(time.Hour), Standby: true, Behind: 1, BehindSince: ago(time.Hour)},
		}
		queued.WaiterCount, old.Holders[0].Behind = 2, 3 // the latter of a process that does not tell
		dead := someLock("dead", 0)
		dead.Holders[0].Silent, dead.Holders[0].Behind, dead.Holders[0].BehindSince = time.Minute, 4, ago(time.Hour)
		source.set(held, queued, old, dead)
		b := look(t, newPage(t, source))
		synctest.Wait()
		text := b.read()
		require.Contains(t, text, `"waiters":40,"oldest":120000,"waits":[0,1,0,1,1],`)
		require.Regexp(t, `"path":"held".*"waiters":28,"oldest":"1`, text)
	})
}
