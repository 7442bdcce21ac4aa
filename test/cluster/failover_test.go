package cluster_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// ofSentinel is a client that finds its master through Sentinel, and moves to another one when told.
type ofSentinel struct {
	rueidis.Client

	mu     sync.Mutex
	master string
}

func (*ofSentinel) Mode() rueidis.ClientMode { return rueidis.ClientModeSentinel }

func (s *ofSentinel) Nodes() map[string]rueidis.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return map[string]rueidis.Client{s.master: s.Client}
}

func (s *ofSentinel) change(master string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.master = master
}

// A planned failover breaks no connection, and the process may be idle. Its holds are looked at all the same, even those for
// which the old master's reply came after the change.
func TestFailover_AnotherMasterHasHoldsLookedAt(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{
		"with a context": nil,
		"renewed":        {lockregistry.WithRenewal()},
		"polling":        {kit.WithWakeup(kit.WakeupPoll)},
	} {
		t.Run(name, func(t *testing.T) {
			kit.FakeWorld(t, func(w *kit.World) {
				client := &ofSentinel{Client: w.Client(), master: "before"}
				r := w.RegistryOn(client, opts...)
				locks := []*lockregistry.Lock{r.Obtain("42"), r.Obtain("43"), r.Obtain("44")}
				gone, kept, late := locks[0], locks[1], locks[2]
				w.Lock(gone)
				w.Lock(kept)
				w.Lock(late)
				told, goesOn, next := gone.Context(w.Context()), kept.Context(w.Context()), late.Context(w.Context())
				w.Pass(time.Second)
				require.NoError(w, told.Err())

				w.Do("DEL", kit.Key(gone))
				start := time.Now()
				client.change("after")
				<-told.Done()
				require.ErrorIs(w, context.Cause(told), lockregistry.ErrLockLost)
				require.Less(w, time.Since(start), 100*time.Millisecond)
				w.Do("DEL", kit.Key(late))
				<-next.Done()
				require.ErrorIs(w, context.Cause(next), lockregistry.ErrLockLost)
				require.Less(w, time.Since(start), time.Second)
				require.NoError(w, goesOn.Err())
				w.Unlock(kept)
			})
		})
	}
}

// The new master may lack a recent release. The release is sent again, even while the registry checks whether an older call was
// granted the lock.
func TestFailover_AnotherMasterHasReleasesSentAgain(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f := w.Flaky()
		client := &ofSentinel{Client: f.Client(), master: "before"}
		r := w.RegistryOn(client, kit.Polling)
		kept, l := r.Obtain("kept"), r.Obtain("42")
		w.Lock(kept)
		watched := kept.Context(w.Context()) // so that the client is watched
		f.Fates("obtain", kit.Cut)
		require.Error(w, l.Lock(w.Context()))
		w.Lock(l)
		value := w.Do("GET", kit.TheKey)
		w.Unlock(l)
		w.Do("SET", kit.TheKey, value)
		client.change("after")
		w.Pass(time.Second)
		require.True(w, w.Free(kit.TheKey))
		require.NoError(w, watched.Err())
		w.Unlock(kept)
	})
}

// staysReplica keeps a replica from being elected by itself. CLUSTER FAILOVER TAKEOVER promotes it all the same.
func staysReplica(t *testing.T, s *redistest.Server) {
	t.Helper()
	s.Command(t, "CONFIG", "SET", "cluster-replica-no-failover", "yes")
}

// When a master is silent or gone, and has a successor, commands go to the successor at once, although the client notices only
// much later.
func TestFailover_CommandsGoToTheSuccessor(t *testing.T) {
	t.Parallel()
	const limit = 500 * time.Millisecond
	for name, end := range map[string]func(*redistest.Server){
		"frozen": (*redistest.Server).Freeze, "killed": (*redistest.Server).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			d := redistest.StartReplicatedCluster(t, 3, 1)
			client, err := kit.NewClient(rueidis.ClientOption{InitAddress: d.Addresses(), DisableCache: true})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			r, err := lockregistry.New(client, "orders", lockregistry.WithCommandTimeout(limit))
			require.NoError(t, err)
			t.Cleanup(func() { _ = r.Close() })
			l := r.Obtain("42")
			for range 50 { // so that the path's node is healthy
				require.NoError(t, l.Lock(t.Context(), lockregistry.Wait(10*time.Second)))
				require.NoError(t, kit.UnlessLate(l.Unlock(t.Context())))
			}
			master := d.Master(kit.TheKey, nil)
			heir := d.Replicas(master)[0]
			staysReplica(t, heir)
			d.Settle(master, limit)
			end(master)
			require.ErrorIs(t, l.Lock(t.Context()), lockregistry.ErrUnavailable)

			// Until then tries end at once: nothing is sent to a silent node.
			require.Eventually(t, func() bool {
				start := time.Now()
				require.ErrorIs(t, l.Lock(t.Context()), lockregistry.ErrUnavailable)
				return time.Since(start) < limit/2
			}, 10*time.Second, time.Millisecond)
			patient := make(chan error, 1)
			go func() { patient <- l.Lock(t.Context(), lockregistry.Wait(time.Minute)) }()
			heir.Command(t, "CLUSTER", "FAILOVER", "TAKEOVER")
			promoted := time.Now()
			require.NoError(t, <-patient)
			require.Less(t, time.Since(promoted), kit.AtOnce)
			require.Equal(t, "1", heir.Command(t, "EXISTS", kit.TheKey))
		})
	}
}

// While a node is suspect, renewals follow a slot that moves away from it, even though the neighbouring slots stay, and even if
// the slot stays half moved.
func TestFailover_RenewalsFollowASlot(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second
	for _, half := range []bool{false, true} {
		t.Run(fmt.Sprint("half ", half), func(t *testing.T) {
			t.Parallel()
			d := redistest.StartReplicatedCluster(t, 2, 1)
			client, err := kit.NewClient(rueidis.ClientOption{InitAddress: d.Addresses(), DisableCache: true})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			r, err := lockregistry.New(client, "orders", lockregistry.WithRenewal(), lockregistry.WithLease(lease))
			require.NoError(t, err)
			t.Cleanup(func() { _ = r.Close() })
			l := r.Obtain("42")
			for range 50 { // so that the path's node is healthy
				require.NoError(t, l.Lock(t.Context(), lockregistry.Wait(10*time.Second)))
				require.NoError(t, kit.UnlessLate(l.Unlock(t.Context())))
			}
			require.NoError(t, l.Lock(t.Context(), lockregistry.Wait(10*time.Second)))
			alive := l.Context(t.Context())
			m := migrating(t, d.Servers[:2], kit.TheKey)
			m.from.Freeze() // until a reply is late
			require.Error(t, l.Renew(shortly(t), lease))
			m.from.Thaw()
			if half {
				m.begin()
				m.move(kit.TheKey)
			} else {
				d.Move(m.to, d.Slot(kit.TheKey))
			}
			begun := time.Now()
			require.Never(t, func() bool { return alive.Err() != nil }, lease+lease/4, 10*time.Millisecond)
			require.Greater(t, time.Since(begun), lease, "and it was renewed meanwhile")
			require.NoError(t, kit.UnlessLate(l.Unlock(t.Context())))
		})
	}
}

func shortly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// When the connection for wake-ups is lost, holds whose keys a failover has lost are reported lost at once, not only by their
// next renewal or at the end of their leases. The other holds go on.
func TestFailover_ALostConnectionHasHoldsLookedAt(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lockregistry.Option{
		"with a context": nil,
		"renewed":        {lockregistry.WithRenewal()},
		"redisson":       {lockregistry.WithRedissonLayout()},
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				r := w.Registry(opts...)
				gone, kept, silent := r.Obtain("42"), r.Obtain("43"), r.Obtain("44")
				w.Lock(gone)
				w.Lock(kept)
				w.Lock(silent) // without a context
				told, goesOn := gone.Context(w.Context()), kept.Context(w.Context())
				elsewhere := w.Registry(opts...).Obtain("46")
				w.Lock(elsewhere)
				waiter := kit.LockElsewhere(r.Obtain("46"), w.Context())
				w.Await("it waits, with a connection that counts", func() bool { return r.Stats().Tickets == 1 })
				w.Do("DEL", kit.TheKey, "orders:44")
				start := time.Now()
				w.Do("CLIENT", "KILL", "TYPE", "pubsub")
				<-told.Done()
				w.Await("the loss of the other one", func() bool { return !silent.IsHeld() })
				require.ErrorIs(w, context.Cause(told), lockregistry.ErrLockLost)
				require.Less(w, time.Since(start), kit.AtOnce)
				require.NoError(w, goesOn.Err())
				w.Unlock(kept)
				w.Unlock(elsewhere)
				require.NoError(w, <-waiter)
			})
		})
	}
}

// A failover may lose a removal that was confirmed just before the connection broke. The removal is sent again, so that the
// path is not blocked for a lease.
func TestFailover_ARemovalIsSentOnceMore(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r := w.Registry()
		elsewhere, l := w.Registry().Obtain("46"), r.Obtain("42")
		w.Lock(elsewhere)
		waiter := kit.LockElsewhere(r.Obtain("46"), w.Context())
		w.Await("it waits, with a connection that counts", func() bool { return r.Stats().Tickets == 1 })
		w.Lock(l)
		value, newer := w.Do("GET", kit.TheKey), r.Obtain("43")
		w.Unlock(l)
		w.Lock(newer)
		w.Do("SET", kit.TheKey, value, "PX", "600000") // as on the server that has taken over
		w.Do("CLIENT", "KILL", "TYPE", "pubsub")
		w.AwaitGone(kit.TheKey)
		require.True(w, newer.IsHeld())
		w.Unlock(newer)
		w.Unlock(elsewhere)
		require.NoError(w, <-waiter)
	})
}

// A server that has taken over may have an older hold of a read-write lock than the latest.
func TestFailover_RemovalsOfAReadWriteLockAreSentOnceMore(t *testing.T) {
	t.Parallel()
	for name, side := range map[string]func(*lockregistry.ReadWriteLock) *lockregistry.Lock{
		"reader": (*lockregistry.ReadWriteLock).Reader, "writer": (*lockregistry.ReadWriteLock).Writer,
	} {
		t.Run(name, func(t *testing.T) {
			kit.RealWorlds(t, func(w *kit.World) {
				r := w.Registry()
				elsewhere, l := w.Registry().Obtain("46"), side(r.ReadWrite("42"))
				w.Lock(elsewhere)
				waiter := kit.LockElsewhere(r.Obtain("46"), w.Context())
				w.Await("it waits, with a connection that counts", func() bool { return r.Stats().Tickets == 1 })
				w.Lock(l)
				keys := append(strings.Fields(strings.Trim(w.Do("KEYS", "*rwlock_timeout*"), "[]")), kit.TheKey)
				for i, key := range keys {
					w.Do("COPY", key, fmt.Sprint("copy", i))
				}
				w.Unlock(l)
				w.Lock(l)
				w.Unlock(l)
				for i, key := range keys { // as on the server that has taken over
					w.Do("RENAME", fmt.Sprint("copy", i), key)
					w.Do("PEXPIRE", key, "600000")
				}
				w.Do("CLIENT", "KILL", "TYPE", "pubsub")
				w.AwaitGone(kit.TheKey)
				w.Unlock(elsewhere)
				require.NoError(w, <-waiter)
			})
		})
	}
}

// In a cluster a lost connection concerns only the holds of its node.
func TestFailover_ALostConnectionOfANodeHasItsHoldsLookedAt(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	if !kit.HasShardedChannels(t, nodes[0]) {
		return // it has no connection for each node
	}
	r, other := kit.OnCluster(t, nodes), kit.OnCluster(t, nodes)
	held, taken, waiters := make([]*lockregistry.Lock, 2), make([]*lockregistry.Lock, 2), make([]<-chan error, 2)
	for n, i := 0, 0; n < len(held); i++ {
		path := strconv.Itoa(i)
		if _, err := nodes[n].Do("EXISTS", "orders:"+path); err != nil {
			continue // the path belongs to another node
		}
		if held[n] == nil {
			held[n] = r.Obtain(path)
			require.NoError(t, held[n].Lock(t.Context()))
			continue
		}
		taken[n] = other.Obtain(path)
		require.NoError(t, taken[n].Lock(t.Context()))
		waiters[n] = kit.LockElsewhere(r.Obtain(path), t.Context())
		// A call queues once it knows that the registry listens: a connection that closes before that does not count as lost.
		queues := func() bool { return nodes[n].Command(t, "EXISTS", "orders:{orders:"+path+"}:waiters") == "1" }
		require.Eventually(t, queues, 10*time.Second, time.Millisecond)
		nodes[n].Command(t, "DEL", kit.Key(held[n]))
		n++
	}
	for n, l := range held {
		nodes[n].Command(t, "CLIENT", "KILL", "TYPE", "pubsub")
		require.Eventually(t, func() bool { return !l.IsHeld() }, 10*time.Second, time.Millisecond)
		if n == 0 {
			require.Never(t, func() bool { return !held[1].IsHeld() }, 300*time.Millisecond, 10*time.Millisecond)
		}
	}
	for n, l := range taken {
		require.NoError(t, kit.UnlessLate(l.Unlock(t.Context())))
		require.NoError(t, <-waiters[n])
	}
}

// A replica may have joined the cluster since the client last looked. When it has replaced a frozen master, the client still
// leads to the old master, which executes what was sent meanwhile before it learns of its successor. Nothing of that counts.
func TestFailover_ToAServerThatTheClientDoesNotKnow(t *testing.T) {
	t.Parallel()
	const limit = 600 * time.Millisecond
	d := redistest.StartReplicatedCluster(t, 3, 0)
	client, err := kit.NewClient(rueidis.ClientOption{InitAddress: d.Addresses(), DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r, err := lockregistry.New(client, "orders", lockregistry.WithCommandTimeout(limit))
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	master := d.Master(kit.TheKey, nil)
	w, heir := kit.RealWorld(t, master), d.Follow(master)
	var locks []*lockregistry.Lock
	ctx := lockregistry.ContextWithOwner(t.Context())
	for i := range 40 {
		l := r.Obtain("{" + kit.TheKey + "}" + strconv.Itoa(i))
		require.NoError(t, l.Lock(ctx, lockregistry.Lease(time.Minute), lockregistry.Wait(10*time.Second)))
		require.NoError(t, w.Answer(func() error { return l.Renew(ctx, time.Minute) })) // so that the master knows the script
		locks = append(locks, l)
	}
	require.NotContains(t, client.Nodes(), heir.Addr())
	staysReplica(t, heir)
	d.Settle(master, limit)
	master.Freeze()
	require.ErrorIs(t, r.Obtain("42").Lock(t.Context()), lockregistry.ErrUnavailable)
	heir.Command(t, "CLUSTER", "FAILOVER", "TAKEOVER")
	require.Eventually(t, func() bool { return d.Master(kit.TheKey, master) == heir }, 10*time.Second, time.Millisecond)
	for range 3 { // until the nodes have named the successor; on a slow machine the client may learn of it by then
		_ = r.Obtain("42").Lock(t.Context())
	}
	var all sync.WaitGroup
	var answered atomic.Int32
	errs := make([]error, len(locks))
	for i, l := range locks {
		all.Go(func() {
			if i%2 == 0 {
				errs[i] = l.Renew(ctx, time.Hour)
			} else {
				errs[i] = l.Unlock(ctx)
			}
			answered.Add(1)
		})
	}
	redistest.Await(limit/4, func() bool { return answered.Load() > 0 })
	master.Thaw()
	all.Wait()
	for i, l := range locks {
		life := heir.Command(t, "PTTL", kit.Key(l))
		switch {
		case errs[i] != nil: // the error says that the outcome is unknown
		case i%2 == 0:
			require.Greater(t, len(life), len("60000"), "renewed until %s ms from now", life)
		default:
			require.Equal(t, "-2", life, "unlocked")
		}
	}
}

// The connection to a frozen master ends only once the nodes have named its successor. Its holds are looked at then.
func TestFailover_TheSuccessorOfAFrozenMasterHasItsHoldsLookedAt(t *testing.T) {
	t.Parallel()
	d := redistest.StartReplicatedCluster(t, 3, 1)
	if !kit.HasShardedChannels(t, d.Servers[0]) {
		return // it has no connection for each node
	}
	client, err := kit.NewClient(rueidis.ClientOption{InitAddress: d.Addresses(), DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r, err := lockregistry.New(client, "orders", lockregistry.WithCommandTimeout(time.Second))
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	held, taken := r.Obtain("42"), kit.OnCluster(t, d.Servers, lockregistry.WithLease(time.Minute)).Obtain("{orders:42}taken")
	require.NoError(t, held.Lock(t.Context(), lockregistry.Wait(10*time.Second)))
	alive := held.Context(t.Context())
	require.NoError(t, taken.Lock(t.Context()))
	waits := kit.LockElsewhere(r.Obtain("{orders:42}taken"), t.Context(), lockregistry.Wait(time.Minute))
	require.Eventually(t, func() bool { return r.Stats().Tickets == 1 }, 10*time.Second, time.Millisecond)
	master := d.Master(kit.TheKey, nil)
	heir := d.Replicas(master)[0]
	staysReplica(t, heir)
	d.Settle(master, time.Second)
	master.Freeze()
	_, err = r.Obtain("{orders:42}other").TryLock(t.Context())
	require.ErrorIs(t, err, lockregistry.ErrUnavailable)
	heir.Command(t, "CLUSTER", "FAILOVER", "TAKEOVER")
	require.Equal(t, "1", heir.Command(t, "DEL", kit.TheKey), "as if it had not got the lock")
	select {
	case <-alive.Done():
		require.ErrorIs(t, context.Cause(alive), lockregistry.ErrLockLost)
	case <-time.After(20 * time.Second): // the lease is a minute, and is not renewed
		require.Fail(t, "the owner was not told")
	}
	require.NoError(t, kit.UnlessLate(taken.Unlock(t.Context())))
	require.NoError(t, <-waits)
}

// A process that sends nothing to a master while it is frozen and replaced has no reason to suspect it, and the client leads to
// it for a long time. If a call waits at another node, the nodes are asked meanwhile, and commands go to the successor at once.
func TestFailover_WhileNothingIsSentToTheMaster(t *testing.T) {
	t.Parallel()
	d := redistest.StartReplicatedCluster(t, 3, 1)
	if !kit.HasShardedChannels(t, d.Servers[0]) {
		return // the nodes are not asked for calls that wait
	}
	client, err := kit.NewClient(rueidis.ClientOption{InitAddress: d.Addresses(), DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	r, err := lockregistry.New(client, "orders")
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	master, path := d.Master(kit.TheKey, nil), "43"
	for i := 44; d.Master("orders:"+path, nil) == master; i++ {
		path = strconv.Itoa(i)
	}
	held, taken := r.Obtain("42"), kit.OnCluster(t, d.Servers).Obtain(path)
	for _, l := range []*lockregistry.Lock{held, taken} {
		require.NoError(t, l.Lock(t.Context(), lockregistry.Lease(10*time.Minute), lockregistry.Wait(10*time.Second)))
	}
	waits := kit.LockElsewhere(r.Obtain(path), t.Context(), lockregistry.Wait(time.Minute))
	require.Eventually(t, func() bool { return r.Stats().Tickets == 1 }, 10*time.Second, time.Millisecond)
	heir := d.Replicas(master)[0]
	d.Settle(master, time.Second)
	asked := func() (times int) {
		for line := range strings.Lines(heir.Command(t, "INFO", "commandstats")) {
			if _, after, is := strings.Cut(line, "cmdstat_cluster|slots:calls="); is {
				count, _, _ := strings.Cut(after, ",")
				times, err = strconv.Atoi(count)
				require.NoError(t, err)
			}
		}
		return times
	}
	master.Freeze()
	d.AwaitPromotion(kit.TheKey, master) // by then its reply is long overdue
	until := asked() + 2                 // the first replies may be from before
	require.Eventually(t, func() bool { return asked() >= until }, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, kit.UnlessLate(held.Unlock(t.Context())))
	gone := func() bool { return heir.Command(t, "EXISTS", kit.TheKey) == "0" }
	require.Eventually(t, gone, 10*time.Second, time.Millisecond)
	require.NoError(t, kit.UnlessLate(taken.Unlock(t.Context())))
	require.NoError(t, <-waits)
}
