package interop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/test/interop/monitor"
)

// A path that a Go process has released, but that stays taken for a while, is also taken for Java. A thread that waited before
// gets the lock when that time is over, although the lease that it had seen is longer.
func TestAtLeast(t *testing.T) {
	t.Parallel()
	const least = 10 * time.Second
	for _, p := range plainPairs() {
		r := roles{p.golang, p.java}
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			watch := monitor.Start(t, server.Addr())
			holder := open(t, r.holder, opening{prefix: prefix, lease: time.Minute})
			other := open(t, r.holder, opening{prefix: prefix, lease: time.Minute})
			// A Java waiter that listens for releases looks again after its own lease.
			java := open(t, r.waiter, opening{prefix: prefix, lease: 3 * time.Second})
			for _, s := range []*side{holder, other, java} { // the first calls of a process are slow
				s.lock(t, "path")
				s.unlock(t, "path")
			}

			got := holder.lock(t, "path", "atleast", peer.InMillis(least))
			waiting := java.startWaiting(t, watch, "path")
			released := holder.unlock(t, "path")
			require.Less(t, released.End.Sub(got.End), least, "too late for the test to say anything")
			for _, s := range []*side{holder, other, java.on("another thread")} {
				require.False(t, s.tryLock(t, "path"))
			}
			require.False(t, holder.on("another thread").tryLock(t, "path"))
			acquired := ended(t, waiting)
			took := acquired.End.Sub(got.Begin)
			t.Log(took)
			require.Greater(t, took, least)
			limit := got.End.Add(least + soon)
			if r.waiter.sleepsOutItsLease {
				limit = limit.Add(java.lease)
			}
			require.True(t, acquired.End.Before(limit), "%v after the time was over", acquired.End.Sub(got.End.Add(least)))
			require.False(t, holder.tryLock(t, "path"))
			java.unlock(t, "path")
			require.True(t, other.tryLock(t, "path"))
			other.unlock(t, "path")
			requireKey(t, holder.key("path"), false)
		})
	}
}
