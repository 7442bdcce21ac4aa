package interop

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/test/interop/monitor"
)

// otherKinds are the kinds of Redisson's locks that keep a hash like RLock's, and for which this library has no name. The fair
// locks also have a queue, and obtain the lock with scripts of their own, which are not in protocol.Foreign: their waiting
// threads do not poll.
func otherKinds(redisson library) []string {
	kinds := []string{"spin"}
	if redisson.module == peer.Redisson { // since 4.4
		kinds = append(kinds, "nonreentrant")
	}
	return kinds
}

// Whichever kind of lock Java keeps in this hash, it excludes this library's lock, and the other way round.
func TestRedissonsOtherKindsExclude(t *testing.T) {
	t.Parallel()
	for _, kind := range append(otherKinds(redissonRow), "fair") {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p, prefix := beside(redissonRow, "auto"), uniquePrefix()
			golang := open(t, p.golang, opening{prefix: prefix, unhurried: true})
			java := open(t, p.java, opening{prefix: prefix}).of(kind)
			watch := monitor.Start(t, server.Addr())

			java.lock(t, "path")
			require.False(t, golang.tryLock(t, "path"))
			waiting := golang.startWaiting(t, watch, "path")
			requireSoonAfter(t, java.unlock(t, "path"), waiting)
			require.False(t, java.tryLock(t, "path"))
			if kind == "fair" { // a release by Go wakes none of its threads
				golang.unlock(t, "path")
				require.True(t, java.tryLock(t, "path"))
			} else {
				waiting = java.startWaiting(t, watch, "path")
				requireSoonAfter(t, golang.unlock(t, "path"), waiting)
			}
			require.False(t, golang.tryLock(t, "path"))
			java.unlock(t, "path")
			requireKey(t, java.key("path"), false)
		})
	}
}
