package lockregistry_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/observe"
)

// withoutNodes leaves the servers out, for a comparison of the rest.
func withoutNodes(s observe.Stats) observe.Stats {
	s.Nodes = nil
	return s
}

func TestStats_OfHoldsAndWaiters(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r, other := w.registry(lockregistry.WithHandoff(time.Hour)), w.registry()
		assert.Equal(t, observe.Stats{}, withoutNodes(r.Stats()))

		r.Obtain("unused")
		rw := r.ReadWrite("rw")
		w.lock(rw.Reader())
		second := w.goroutine()
		require.NoError(t, second.lock(rw.Reader()))
		assert.Equal(t, observe.Stats{Locks: 2, Holds: 1}, withoutNodes(r.Stats()), "readers share a hold")
		third := w.goroutine()
		writes := third.starts(rw.Writer())
		w.settle()
		assert.Equal(t, observe.Stats{Locks: 2, Holds: 1, Waiters: 1}, withoutNodes(r.Stats()))
		w.unlock(rw.Reader())
		require.NoError(t, second.unlock(rw.Reader()))
		require.NoError(t, <-writes)
		require.NoError(t, third.unlock(rw.Writer()))

		elsewhere := other.Obtain("42")
		w.lock(elsewhere)
		l := r.Obtain("42")
		first := second.starts(l)
		w.settle()
		next := third.starts(l)
		w.settle()
		s := r.Stats()
		assert.Equal(t, []int{3, 0, 2}, []int{s.Locks, s.Holds, s.Waiters})
		assert.Equal(t, observe.Stats{Locks: 1, Holds: 1}, withoutNodes(other.Stats()))
		w.unlock(elsewhere)
		require.NoError(t, <-first)
		s = r.Stats()
		assert.Equal(t, []int{1, 1}, []int{s.Holds, s.Waiters})
		before := s.HandOvers
		require.NoError(t, second.unlock(l))
		require.NoError(t, <-next)
		s = r.Stats()
		assert.Equal(t, []int{1, 0}, []int{s.Holds, s.Waiters})
		assert.Equal(t, before+1, s.HandOvers)
		w.pass(2 * time.Minute)
		assert.Zero(t, r.Stats().Holds, "its lease is over")
		require.ErrorIs(t, third.unlock(l), lockregistry.ErrLockLost)
		w.await("all is removed", func() bool { return r.Stats().Removals == 0 })

		require.NoError(t, r.Close())
		assert.Equal(t, 3, r.Stats().Locks)
	})
}

func TestStats_OfTickets(t *testing.T) {
	realWorlds(t, func(w *world) {
		r, other := w.registry(), w.registry()
		for _, held := range []*lockregistry.Lock{other.Obtain("42"), other.ReadWrite("rw").Writer()} {
			l := r.Obtain("42")
			if held.Path() == "rw" {
				l = r.ReadWrite("rw").Reader()
			}
			before := r.Stats().Wakeups.Messages
			owner := lockregistry.NewOwner(t.Context())
			w.lock(held)
			waits := lockElsewhere(l, owner)
			w.await("there is a ticket", func() bool { return r.Stats().Tickets == 1 })
			assert.Equal(t, 1, r.Stats().Waiters)
			w.unlock(held)
			require.NoError(t, <-waits)
			s := r.Stats()
			assert.Equal(t, []int{0, 0, 1}, []int{s.Tickets, s.Waiters, s.Holds})
			assert.Equal(t, before+1, s.Wakeups.Messages)
			require.NoError(t, l.Unlock(owner))
		}
	})
}

// Of each way to wake up the right one is counted.
func TestStats_OfWakeups(t *testing.T) {
	realWorlds(t, func(w *world) {
		for _, c := range []struct {
			how    lockregistry.Wakeup
			word   string
			counts func(observe.Wakeups) uint64
		}{
			{lockregistry.WakeupTracking, "tracking", func(u observe.Wakeups) uint64 { return u.Changes }},
			{lockregistry.WakeupPubSub, "pubsub", func(u observe.Wakeups) uint64 { return u.Changes }},
			{lockregistry.WakeupPoll, "poll", func(u observe.Wakeups) uint64 { return u.Polls }},
		} {
			opts := []lockregistry.Option{lockregistry.WithWakeup(c.how)}
			if c.how != lockregistry.WakeupPoll { // else it may come first
				opts = append(opts, lockregistry.WithPollInterval(noPoll))
			}
			r := w.registry(opts...)
			l, owner := r.Obtain("42"), lockregistry.NewOwner(t.Context())
			w.do("SET", "orders:42", "java", "PX", "600000")
			waits := lockElsewhere(l, owner)
			armed := map[lockregistry.Wakeup]string{
				lockregistry.WakeupTracking: "tracking_total_keys:1\r", lockregistry.WakeupPubSub: "pubsub_channels:3\r",
			}
			w.await("it listens", func() bool {
				s := r.Stats()
				if c.how == lockregistry.WakeupPoll {
					return s.Wakeups.Polls > 0 && s.Waiters == 1
				}
				return s.Nodes[0].Wakeup == c.word && strings.Contains(w.do("INFO", "stats"), armed[c.how])
			})
			if c.how != lockregistry.WakeupPoll {
				n := r.Stats().Nodes[0]
				assert.Equal(t, 1, n.Waiters)
				assert.WithinDuration(t, time.Now(), n.Since, time.Minute)
			}
			w.await("it is counted", func() bool { // one that finds the call about to wake already is not
				w.do("SET", "orders:42", "java", "PX", "600000")
				w.do("PUBLISH", "orders-channel:orders:42", "orders:42")
				return c.counts(r.Stats().Wakeups) > 0
			})
			w.do("DEL", "orders:42")
			w.do("PUBLISH", "orders-channel:orders:42", "orders:42")
			require.NoError(t, <-waits)
			require.NoError(t, l.Unlock(owner))
			require.NoError(t, r.Close())
			w.await("nobody listens", func() bool { return strings.Contains(w.do("INFO", "stats"), "pubsub_channels:0\r") })
		}
	})
}

// What is known of the server, and of the connection to it.
func TestStats_OfAServer(t *testing.T) {
	realWorlds(t, func(w *world) {
		r, other := w.registry(), w.registry()
		n := r.Stats().Nodes
		require.Len(t, n, 1)
		assert.Equal(t, observe.NodeStats{Address: "redis:6379", Wakeup: "poll"}, n[0])

		began := time.Now()
		held, l := other.Obtain("42"), r.Obtain("42")
		w.lock(held)
		waits := lockElsewhere(l, lockregistry.NewOwner(t.Context()))
		w.await("there is a ticket", func() bool { return r.Stats().Tickets == 1 })
		s := r.Stats().Nodes[0]
		assert.Equal(t, "tracking", s.Wakeup)
		assert.WithinRange(t, s.Since, began, time.Now())
		assert.WithinRange(t, s.LastAnswer, began, time.Now())
		assert.Zero(t, s.Lost)
		w.do("CLIENT", "KILL", "TYPE", "pubsub")
		w.await("another connection", func() bool {
			n := r.Stats().Nodes[0]
			return n.Lost == 1 && n.Since.After(s.Since)
		})
		w.unlock(held)
		require.NoError(t, <-waits)
	})
}

func TestStats_OfFailures(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry(lockregistry.WithRenewal(), lockregistry.WithLease(30*time.Second))
		renewed, removed := r.Obtain("renewed"), r.Obtain("removed")
		w.lock(renewed)
		w.lock(removed)
		answered := r.Stats().Nodes[0].LastAnswer
		began := time.Now()
		w.mini.SetError("ERR it fails")
		require.Error(t, removed.Unlock(w.Context()))
		w.pass(15 * time.Second)
		s := r.Stats()
		assert.WithinRange(t, s.Nodes[0].RemovalsFailing, began, began.Add(time.Second))
		assert.WithinRange(t, s.Nodes[0].RenewalsFailing, began.Add(9*time.Second), began.Add(11*time.Second))
		assert.Equal(t, 1, s.Removals)
		assert.True(t, s.Nodes[0].LastAnswer.After(answered), "an error is an answer")
		w.mini.SetError("")
		w.pass(5 * time.Second)
		s = r.Stats()
		assert.Zero(t, s.Nodes[0].RemovalsFailing)
		assert.Zero(t, s.Nodes[0].RenewalsFailing)
		assert.Zero(t, s.Removals)
		w.unlock(renewed)
	})
}

// In a cluster each master is there, with the calls that wait for a word of it, and with its own answers.
func TestStats_OfACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.StartCluster(t, 3)
	r, other := onCluster(t, servers), onCluster(t, servers)
	addresses := make([]string, len(servers))
	for i, s := range servers {
		addresses[i] = s.Addr()
	}
	slices.Sort(addresses)
	listed := func(s observe.Stats) (all []string) {
		for _, n := range s.Nodes {
			all = append(all, n.Address)
		}
		return all
	}
	require.Equal(t, addresses, listed(r.Stats()))

	held := other.Obtain("42")
	require.NoError(t, held.Lock(t.Context()))
	slot, err := strconv.Atoi(servers[0].Command(t, "CLUSTER", "KEYSLOT", held.Key()))
	require.NoError(t, err)
	owner := servers[slot*len(servers)/16384].Addr()
	waits := lockElsewhere(r.Obtain("42"), lockregistry.NewOwner(t.Context()))
	tickets := 0
	if sharded(t, servers[0]) { // else there is no queue
		tickets = 1
	}
	require.Eventually(t, func() bool {
		s := r.Stats()
		return s.Waiters == 1 && s.Tickets == tickets && slices.ContainsFunc(s.Nodes, func(n observe.NodeStats) bool {
			return n.Address == owner && n.Waiters == 1 && n.Wakeup != "poll"
		})
	}, 20*time.Second, time.Millisecond)
	for _, n := range r.Stats().Nodes {
		if n.Address == owner {
			assert.WithinDuration(t, time.Now(), n.LastAnswer, 10*time.Second)
		} else {
			assert.Equal(t, observe.NodeStats{Address: n.Address, Wakeup: "poll"}, n)
		}
	}
	require.NoError(t, held.Unlock(t.Context()))
	require.NoError(t, <-waits)
}

// Stats may be asked for at any time, and its numbers fit together.
func TestStats_Meanwhile(t *testing.T) {
	realWorlds(t, func(w *world) {
		const paths, goroutines, rounds = 4, 16, 50
		r, other := w.registry(), w.registry()
		var running sync.WaitGroup
		done := make(chan struct{})
		for i := range goroutines {
			running.Go(func() {
				for n := range rounds {
					path := strconv.Itoa((i + n) % paths)
					l := []*lockregistry.Lock{r.Obtain(path), other.Obtain(path), r.ReadWrite("rw" + path).Reader()}[n%3]
					owner := lockregistry.NewOwner(w.Context())
					if err := errors.Join(l.Lock(owner), l.Unlock(owner)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		go func() {
			running.Wait()
			close(done)
		}()
		for more := true; more; {
			s := r.Stats()
			assert.LessOrEqual(t, s.Tickets, s.Waiters)
			assert.LessOrEqual(t, s.Holds, 2*s.Locks)
			assert.LessOrEqual(t, s.Waiters, goroutines*2*paths) // who goes on to another path meanwhile counts there, too
			select {
			case <-done:
				more = false
			default:
			}
		}
		s := r.Stats()
		assert.Equal(t, []int{0, 0, 0}, []int{s.Holds, s.Waiters, s.Tickets})
	})
}

// BenchmarkStats asks a registry that keeps ten thousand locks, all of them held, or none.
func BenchmarkStats(b *testing.B) {
	for _, held := range []bool{false, true} {
		b.Run(fmt.Sprintf("held=%v", held), func(b *testing.B) {
			r, err := lockregistry.New(unusedClient(b), "orders")
			require.NoError(b, err)
			defer func() { _ = r.Close() }()
			for i := range 10_000 {
				if l := r.Obtain(strconv.Itoa(i)); held {
					require.NoError(b, l.Lock(b.Context()))
				}
			}
			b.ResetTimer()
			for b.Loop() {
				r.Stats()
			}
		})
	}
}

// nameless is a client that does not name its servers, as one that wraps another may be.
type nameless struct{ rueidis.Client }

func (nameless) Nodes() map[string]rueidis.Client { return nil }

func TestStats_ClientWithoutNodes(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registryOn(nameless{w.client()})
		l := r.Obtain("42")
		w.lock(l)
		has := w.goroutine().starts(l)
		w.settle()
		nodes := r.Stats().Nodes
		require.Len(t, nodes, 1)
		require.Empty(t, nodes[0].Address)
		require.NotZero(t, nodes[0].LastAnswer)
		w.unlock(l)
		require.NoError(t, <-has)
	})
}

// A client with replicas has its master in the figures, whichever address sorts first.
func TestStats_ReplicaAddress(t *testing.T) {
	servers := []*redistest.Server{redistest.Start(t), redistest.Start(t)}
	for i, master := range servers {
		replica := servers[1-i]
		host, port, err := net.SplitHostPort(master.Addr())
		require.NoError(t, err)
		master.Command(t, "REPLICAOF", "NO", "ONE")
		replica.Command(t, "REPLICAOF", host, port)
		w := realWorld(t, master)
		client, err := newClient(rueidis.ClientOption{
			InitAddress: []string{master.Addr()}, DisableCache: true,
			Standalone:     rueidis.StandaloneOption{ReplicaAddress: []string{replica.Addr()}},
			SendToReplicas: func(rueidis.Completed) bool { return false },
		})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		r := w.registryOn(client)
		w.lock(r.Obtain("42"))
		nodes := r.Stats().Nodes
		require.Len(t, nodes, 1)
		require.Equal(t, master.Addr(), nodes[0].Address)
		w.unlock(r.Obtain("42"))
	}
}

func TestStats_OfTheOldestHold(t *testing.T) {
	fakeWorld(t, func(w *world) {
		r := w.registry(lockregistry.WithHandoff(time.Hour))
		first, err := r.Acquire(w.Context(), "first")
		require.NoError(w, err)
		w.pass(time.Second)
		l := r.Obtain("second")
		w.lock(l)
		w.pass(time.Second)
		require.Equal(w, 2*time.Second, r.Stats().Oldest.Round(100*time.Millisecond))
		require.NoError(w, first.Release(w.Context()))
		require.Equal(w, time.Second, r.Stats().Oldest.Round(100*time.Millisecond))
		g := w.goroutine()
		next := g.starts(l)
		w.settle()
		w.unlock(l)
		require.NoError(w, <-next)
		require.Zero(w, r.Stats().Oldest.Round(100*time.Millisecond), "the next owner has it since now")
		require.NoError(w, g.unlock(l))
		require.Zero(w, r.Stats().Oldest)
	})
}
