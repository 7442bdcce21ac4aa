package interop

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry/internal/peer"
	"github.com/lockregistry/lockregistry/test/interop/monitor"
)

func TestOneHolderAtATime(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(contractPairs(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			holder, other := open(t, r.holder, opening{prefix: prefix}), open(t, r.waiter, opening{prefix: prefix})

			require.True(t, holder.tryLock(t, "path"))
			require.False(t, other.tryLock(t, "path"))
			require.False(t, other.tryLock(t, "path", "wait", "250"))
			require.True(t, other.tryLock(t, "another path"))
			other.unlock(t, "another path")

			holder.unlock(t, "path")
			requireKey(t, holder.key("path"), false)
			require.True(t, other.tryLock(t, "path"))
			require.False(t, holder.tryLock(t, "path"))
			other.unlock(t, "path")
			requireKey(t, holder.key("path"), false)
		})
	}
}

func TestWaiterFollowsHolder(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(contractPairs(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			// So short that even a waiter which misses the release is in time: this test is about order. Another test is about how soon
			// waiters wake.
			holder := open(t, r.holder, opening{prefix: prefix})
			waiter := open(t, r.waiter, opening{prefix: prefix, lease: 3 * time.Second})

			holding := holder.send("hold", with("path", "for", "300"))
			awaitKey(t, holder.key("path"))
			waiting := waiter.startLock("path")
			held, got := ended(t, holding), ended(t, waiting)
			unlocking, err := held.Time("unlocking")
			require.NoError(t, err)
			require.False(t, got.End.Before(unlocking), "locked at %v, unlocked only at %v", got.End, unlocking)
			waiter.unlock(t, "path")
		})
	}
}

func TestLateUnlockIsTold(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(contractPairs(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			holder := open(t, r.holder, opening{prefix: prefix, lease: time.Second})
			// A Java waiter that listens for releases looks again after its own lease.
			waiter := open(t, r.waiter, opening{prefix: prefix, lease: 6 * time.Second})

			locked := holder.lockToExpire(t, "path")
			got := waiter.lock(t, "path")
			require.GreaterOrEqual(t, got.End.Sub(locked.Begin), holder.lease, "locked before the lease was over")

			_, err := holder.do(t, "unlock", with("path"))
			requireFailure(t, holder.lateUnlock, err)
			requireKey(t, holder.key("path"), true)
			require.False(t, holder.tryLock(t, "path"), "the late unlock freed somebody else's lock")
			waiter.unlock(t, "path")

			// The same when nobody has taken the lock in the meantime.
			holder.lockToExpire(t, "path")
			gone := func() bool { return server.Command(t, "EXISTS", holder.key("path")) == "0" }
			require.Eventually(t, gone, callLimit, 10*time.Millisecond)
			_, err = holder.do(t, "unlock", with("path"))
			requireLate(t, holder, err)
			require.True(t, holder.tryLock(t, "path"), "the late unlock left something behind")
			_, _ = holder.do(t, "unlock", with("path")) // on a busy machine the lease may be over again
		})
	}
}

// requireLate checks the outcome of an unlock after the lease, if nobody else has the lock.
func requireLate(t *testing.T, s *side, err error) {
	t.Helper()
	if s.unnoticed && s.kind != "" {
		require.NoError(t, err)
		return
	}
	requireFailure(t, s.lateUnlock, err)
}

func TestLeaseOfOneLock(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(contractPairs(), holderTakesLeases) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			holder, other := open(t, r.holder, opening{prefix: prefix}), open(t, r.waiter, opening{prefix: prefix})
			requireLease := func(lease time.Duration) {
				t.Helper()
				left := pttl(t, holder.key("path"))
				require.LessOrEqual(t, left, lease)
				require.Greater(t, left, lease-5*time.Second)
				require.False(t, other.tryLock(t, "path"))
			}

			holder.lock(t, "path", "lease", "20000")
			requireLease(20 * time.Second)
			if holder.renews {
				ended(t, holder.send("renew", with("path", "lease", "40000")))
				requireLease(40 * time.Second)
			}
			holder.unlock(t, "path")

			require.True(t, holder.tryLock(t, "path", "wait", "100", "lease", "30000"))
			requireLease(30 * time.Second)
			require.False(t, other.tryLock(t, "path", "wait", "100"))
			holder.unlock(t, "path")
			requireKey(t, holder.key("path"), false)

			if holder.renews {
				_, err := holder.do(t, "renew", with("path", "lease", "1000"))
				requireFailure(t, holder.notHeld, err)
				requireKey(t, holder.key("path"), false)
			}
		})
	}
}

func TestRenewalKeepsTheOtherOut(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(contractPairs(), holderRenewsByItself) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			const lease = 4 * time.Second // a busy machine may keep a process waiting for some seconds between two renewals
			prefix := uniquePrefix()
			holder := open(t, r.holder, opening{prefix: prefix, lease: lease, renewal: true})
			other := open(t, r.waiter, opening{prefix: prefix})

			holder.lock(t, "path")
			require.False(t, other.tryLock(t, "path", "wait", peer.InMillis(lease+lease/4)))
			holder.unlock(t, "path")
			requireKey(t, holder.key("path"), false)
			require.True(t, other.tryLock(t, "path"))
			// If a renewal outlived its hold, the other owner's key would show it.
			left := pttl(t, other.key("path"))
			require.Greater(t, left, lease)
			other.unlock(t, "path")
		})
	}
}

func TestReentry(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(contractPairs(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			holder, other := open(t, r.holder, opening{prefix: prefix}), open(t, r.waiter, opening{prefix: prefix})

			const holds = 3
			for range holds {
				holder.lock(t, "path")
			}
			require.True(t, holder.tryLock(t, "path"))
			for range holds {
				require.False(t, other.tryLock(t, "path"))
				holder.unlock(t, "path")
			}
			require.False(t, other.tryLock(t, "path"))
			holder.unlock(t, "path")
			requireKey(t, holder.key("path"), false)
			require.True(t, other.tryLock(t, "path"))
			other.unlock(t, "path")
		})
	}
}

func TestOnlyTheOwnerUnlocks(t *testing.T) {
	t.Parallel()
	for _, r := range bothWays(contractPairs(), always) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			holder, other := open(t, r.holder, opening{prefix: prefix}), open(t, r.waiter, opening{prefix: prefix})

			holder.lock(t, "path")
			_, err := holder.on("another").do(t, "unlock", with("path"))
			requireFailure(t, holder.notOwner, err)
			_, err = other.do(t, "unlock", with("path"))
			requireFailure(t, other.notOwner, err)
			require.False(t, other.tryLock(t, "path"))
			require.False(t, holder.on("another").tryLock(t, "path"))
			holder.unlock(t, "path")
		})
	}
}

func TestKilledHolder(t *testing.T) {
	const (
		lease = 6 * time.Second        // until then a waiter without wake-ups looks, and later after ten seconds
		pause = 100 * time.Millisecond // between two tries of a side that polls
		grace = 3 * time.Second        // for a busy machine
	)
	t.Parallel()
	for _, r := range bothWays(contractPairs(), holderIsNew) {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			prefix := uniquePrefix()
			doomed := start(t, "doomed "+r.holder.name, r.holder)
			holder := openOn(t, doomed, r.holder, opening{prefix: prefix, lease: lease, renewal: r.holder.renewal})
			waiter := open(t, r.waiter, opening{prefix: prefix, lease: lease})
			watch := monitor.Start(t, server.Addr())

			holder.lock(t, "path")
			waiting := waiter.startWaiting(t, watch, "path")
			killed := time.Now()
			require.NoError(t, doomed.Kill())
			got := ended(t, waiting)

			limit := lease + pause
			if waiter.sleepsOutItsLease {
				limit += waiter.lease
			}
			require.Less(t, got.End.Sub(killed), limit+grace)
			waiter.unlock(t, "path")
		})
	}
}
