package operator_test

import (
	"cmp"
	"context"
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
	"github.com/lockregistry/lockregistry/leader"
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// withoutNodes leaves out the servers, to compare the rest.
func withoutNodes(s observe.Stats) observe.Stats {
	s.Nodes = nil
	return s
}

func TestStats_OfHoldsAndWaiters(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r, other := w.Registry(lockregistry.WithHandoff(time.Hour)), w.Registry()
		assert.Equal(w, observe.Stats{}, withoutNodes(r.Stats()))

		r.Obtain("unused")
		rw := r.ReadWrite("rw")
		w.Lock(rw.Reader())
		second := w.Goroutine()
		require.NoError(w, second.Lock(rw.Reader()))
		assert.Equal(w, observe.Stats{Locks: 2, Holds: 1}, withoutNodes(r.Stats()), "readers share a hold")
		third := w.Goroutine()
		writes := third.Starts(rw.Writer())
		w.Settle()
		assert.Equal(w, observe.Stats{Locks: 2, Holds: 1, Waiters: 1}, withoutNodes(r.Stats()))
		w.Unlock(rw.Reader())
		require.NoError(w, second.Unlock(rw.Reader()))
		require.NoError(w, <-writes)
		require.NoError(w, third.Unlock(rw.Writer()))

		elsewhere := other.Obtain("42")
		w.Lock(elsewhere)
		l := r.Obtain("42")
		first := second.Starts(l)
		w.Settle()
		next := third.Starts(l)
		w.Settle()
		s := r.Stats()
		assert.Equal(w, []int{3, 0, 2}, []int{s.Locks, s.Holds, s.Waiters})
		assert.Equal(w, observe.Stats{Locks: 1, Holds: 1}, withoutNodes(other.Stats()))
		w.Unlock(elsewhere)
		require.NoError(w, <-first)
		s = r.Stats()
		assert.Equal(w, []int{1, 1}, []int{s.Holds, s.Waiters})
		before := s.Handoffs
		require.NoError(w, second.Unlock(l))
		require.NoError(w, <-next)
		s = r.Stats()
		assert.Equal(w, []int{1, 0}, []int{s.Holds, s.Waiters})
		assert.Equal(w, before+1, s.Handoffs)
		w.Pass(2 * time.Minute)
		assert.Zero(w, r.Stats().Holds, "its lease is over")
		require.ErrorIs(w, third.Unlock(l), lockregistry.ErrLockLost)
		w.Await("all is removed", func() bool { return r.Stats().Removals == 0 })

		require.NoError(w, r.Close())
		assert.Equal(w, 3, r.Stats().Locks)
	})
}

func TestStats_OldestWait(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r, other := w.Registry(lockregistry.WithHandoff(time.Hour), lockregistry.WithRenewal()), w.Registry(lockregistry.WithRenewal())
		elsewhere, l := other.Obtain("42"), r.Obtain("42")
		w.Lock(elsewhere)
		first, second := w.Goroutine(), w.Goroutine()
		process := first.Starts(l)
		w.Pass(10 * time.Second)
		local := second.Starts(l)
		w.Pass(20 * time.Second)
		assert.Equal(w, 30*time.Second, r.Stats().OldestWait, "the call that waits for another process")
		assert.Zero(w, other.Stats().OldestWait)

		w.Unlock(elsewhere)
		require.NoError(w, <-process)
		w.Pass(time.Second)
		assert.InDelta(w, 21, r.Stats().OldestWait.Seconds(), 0.2, "the one that waits for a goroutine")
		require.NoError(w, first.Unlock(l))
		require.NoError(w, <-local)
		assert.Zero(w, r.Stats().OldestWait)
		require.NoError(w, second.Unlock(l))
	})
}

// A leader leads for as long as it runs, and its candidates wait as long: neither should alarm an operator.
func TestStats_ALeaderIsNotTooOld(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r, other := w.Registry(), w.Registry()
		ctx, cancel := context.WithCancel(w.Context())
		ended := make(chan error, 3)
		campaign := func(r *lockregistry.Registry) {
			c, err := leader.New(r, "leader", func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			})
			require.NoError(w, err)
			go func() { ended <- c.Run(ctx) }()
			w.Settle()
		}
		campaign(other)
		campaign(r) // waits for the other process
		campaign(r) // waits for the previous one
		w.Pass(20 * time.Second)
		leads, waits := other.Stats(), r.Stats()
		assert.Equal(w, 1, leads.Holds)
		assert.Zero(w, leads.Oldest)
		assert.Equal(w, 2, waits.Waiters)
		assert.Zero(w, waits.OldestWait)

		w.Lock(other.Obtain("42"))
		waiter := w.Goroutine()
		locked := waiter.Starts(r.Obtain("42"))
		w.Pass(10 * time.Second)
		assert.Equal(w, 10*time.Second, other.Stats().Oldest)
		assert.Equal(w, 10*time.Second, r.Stats().OldestWait)
		w.Unlock(other.Obtain("42"))
		require.NoError(w, <-locked)
		require.NoError(w, waiter.Unlock(r.Obtain("42")))
		cancel()
		for range 3 {
			require.ErrorIs(w, <-ended, context.Canceled)
		}
	})
}

// In fake time only the message about the grant wakes the call; a real server may report the change of the key first.
func TestStats_OfTickets(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		w.WithQueues()
		r, other := w.Registry(), w.Registry()
		for _, held := range []*lockregistry.Lock{other.Obtain("42"), other.ReadWrite("rw").Writer()} {
			l := r.Obtain("42")
			if held.Path() == "rw" {
				l = r.ReadWrite("rw").Reader()
			}
			before := r.Stats().Wakeups.Messages
			owner := lockregistry.ContextWithOwner(w.Context())
			w.Lock(held)
			waits := kit.LockElsewhere(l, owner)
			w.Settle()
			assert.Equal(w, []int{1, 1}, []int{r.Stats().Tickets, r.Stats().Waiters})
			w.Unlock(held)
			require.NoError(w, <-waits)
			s := r.Stats()
			assert.Equal(w, []int{0, 0, 1}, []int{s.Tickets, s.Waiters, s.Holds})
			assert.Equal(w, before+1, s.Wakeups.Messages)
			w.Released(l.Unlock(owner))
		}
	})
}

// Each way to wake up has its own counter.
func TestStats_OfWakeups(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		for _, c := range []struct {
			how    kit.Wakeup
			word   string
			counts func(observe.Wakeups) uint64
		}{
			{kit.WakeupTracking, "tracking", func(u observe.Wakeups) uint64 { return u.Changes }},
			{kit.WakeupPubSub, "pubsub", func(u observe.Wakeups) uint64 { return u.Changes }},
			{kit.WakeupPoll, "poll", func(u observe.Wakeups) uint64 { return u.Polls }},
		} {
			opts := []lockregistry.Option{kit.WithWakeup(c.how)}
			if c.how != kit.WakeupPoll { // otherwise a poll may come first
				opts = append(opts, lockregistry.WithPollInterval(kit.NoPoll))
			}
			r := w.Registry(opts...)
			l, owner := r.Obtain("42"), lockregistry.ContextWithOwner(w.Context())
			w.Do("SET", "orders:42", "java", "PX", "600000")
			waits := kit.LockElsewhere(l, owner)
			armed := map[kit.Wakeup]string{
				kit.WakeupTracking: "tracking_total_keys:1\r", kit.WakeupPubSub: "pubsub_channels:3\r",
			}
			w.Await("it listens", func() bool {
				s := r.Stats()
				if c.how == kit.WakeupPoll {
					return s.Wakeups.Polls > 0 && s.Waiters == 1
				}
				return s.Nodes[0].Wakeup == c.word && strings.Contains(w.Do("INFO", "stats"), armed[c.how])
			})
			if c.how != kit.WakeupPoll {
				n := r.Stats().Nodes[0]
				assert.Equal(w, 1, n.Waiters)
				assert.WithinDuration(w, time.Now(), n.Since, time.Minute)
			}
			w.Await("it is counted", func() bool { // a change is not counted if the call is about to wake already
				w.Do("SET", "orders:42", "java", "PX", "600000")
				w.Do("PUBLISH", "orders-channel:orders:42", "orders:42")
				return c.counts(r.Stats().Wakeups) > 0
			})
			w.Do("DEL", "orders:42")
			w.Do("PUBLISH", "orders-channel:orders:42", "orders:42")
			require.NoError(w, <-waits)
			w.Released(l.Unlock(owner))
			require.NoError(w, r.Close())
			w.Await("nobody listens", func() bool { return strings.Contains(w.Do("INFO", "stats"), "pubsub_channels:0\r") })
		}
	})
}

// Stats of a server, and of the connection to it.
func TestStats_OfAServer(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		r, other := w.Registry(), w.Registry()
		n := r.Stats().Nodes
		require.Len(w, n, 1)
		assert.Equal(w, observe.NodeStats{Address: "redis:6379", Wakeup: "poll"}, n[0])

		began := time.Now()
		held, l := other.Obtain("42"), r.Obtain("42")
		w.Lock(held)
		waits := kit.LockElsewhere(l, lockregistry.ContextWithOwner(w.Context()))
		w.Await("there is a ticket", func() bool { return r.Stats().Tickets == 1 })
		s := r.Stats().Nodes[0]
		assert.Equal(w, "tracking", s.Wakeup)
		assert.WithinRange(w, s.Since, began, time.Now())
		assert.WithinRange(w, s.LastAnswer, began, time.Now())
		assert.Zero(w, s.Lost)
		w.Do("CLIENT", "KILL", "TYPE", "pubsub")
		w.Await("another connection", func() bool {
			n := r.Stats().Nodes[0]
			return n.Lost == 1 && n.Since.After(s.Since)
		})
		w.Unlock(held)
		require.NoError(w, <-waits)
	})
}

func TestStats_OfFailures(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithRenewal(), lockregistry.WithLease(30*time.Second))
		renewed, removed := r.Obtain("renewed"), r.Obtain("removed")
		w.Lock(renewed)
		w.Lock(removed)
		answered := r.Stats().Nodes[0].LastAnswer
		began := time.Now()
		w.Mini.SetError("ERR it fails")
		require.Error(w, removed.Unlock(w.Context()))
		w.Pass(15 * time.Second)
		s := r.Stats()
		assert.WithinRange(w, s.Nodes[0].RemovalsFailing, began, began.Add(time.Second))
		assert.WithinRange(w, s.Nodes[0].RenewalsFailing, began.Add(9*time.Second), began.Add(11*time.Second))
		assert.Equal(w, 1, s.Removals)
		assert.True(w, s.Nodes[0].LastAnswer.After(answered), "an error is an answer")
		w.Mini.SetError("")
		w.Pass(5 * time.Second)
		s = r.Stats()
		assert.Zero(w, s.Nodes[0].RemovalsFailing)
		assert.Zero(w, s.Nodes[0].RenewalsFailing)
		assert.Zero(w, s.Removals)
		w.Unlock(renewed)
	})
}

// In a cluster each master is listed, with the calls that wait for it, and with its own replies.
func TestStats_OfACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.StartCluster(t, 3)
	r, other := kit.OnCluster(t, servers), kit.OnCluster(t, servers)
	at := map[string]*redistest.Server{}
	for _, s := range servers {
		at[s.Addr()] = s
	}
	listed := func(s observe.Stats) (all []string) {
		for _, n := range s.Nodes {
			all = append(all, n.Address)
		}
		return all
	}
	require.Equal(t, kit.InOrder(at), listed(r.Stats()))

	held := other.Obtain("42")
	require.NoError(t, held.Lock(t.Context()))
	slot, err := strconv.Atoi(servers[0].Command(t, "CLUSTER", "KEYSLOT", kit.Key(held)))
	require.NoError(t, err)
	owner := servers[slot*len(servers)/16384].Addr()
	waits := kit.LockElsewhere(r.Obtain("42"), lockregistry.ContextWithOwner(t.Context()))
	tickets := 0
	if kit.HasShardedChannels(t, servers[0]) { // otherwise there is no queue
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
			continue
		}
		n.LastAnswer = time.Time{} // a wait of some seconds may be recorded there, and is asked for there
		assert.Equal(t, observe.NodeStats{Address: n.Address, Wakeup: "poll"}, n)
	}
	require.NoError(t, kit.UnlessLate(held.Unlock(t.Context())))
	require.NoError(t, <-waits)
}

// Stats may be called at any time, and its numbers are consistent.
func TestStats_Meanwhile(t *testing.T) {
	kit.RealWorlds(t, func(w *kit.World) {
		const paths, goroutines, rounds = 4, 16, 50
		r, other := w.Registry(), w.Registry()
		var running sync.WaitGroup
		done := make(chan struct{})
		for i := range goroutines {
			running.Go(func() {
				for n := range rounds {
					path := strconv.Itoa((i + n) % paths)
					l := []*lockregistry.Lock{r.Obtain(path), other.Obtain(path), r.ReadWrite("rw" + path).Reader()}[n%3]
					owner := lockregistry.ContextWithOwner(w.Context())
					err := w.Answer(func() error { return l.Lock(owner) })
					if err = cmp.Or(err, l.Unlock(owner)); err != nil && !kit.TookLong(err) && !kit.LeaseOver(err) {
						w.Error(err)
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
			assert.LessOrEqual(w, s.Tickets, s.Waiters)
			assert.LessOrEqual(w, s.Holds, 2*s.Locks)
			assert.LessOrEqual(w, s.Waiters, goroutines*2*paths) // a goroutine that moves on to another path meanwhile counts there, too
			select {
			case <-done:
				more = false
			default:
			}
		}
		w.Await("nothing is held or waits", func() bool {
			s := r.Stats()
			return s.Holds == 0 && s.Waiters == 0 && s.Tickets == 0
		})
	})
}

// nameless is a client that does not name its servers, as a wrapping client may be.
type nameless struct{ rueidis.Client }

func (nameless) Nodes() map[string]rueidis.Client { return nil }

func TestStats_ClientWithoutNodes(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.RegistryOn(nameless{w.Client()})
		l := r.Obtain("42")
		w.Lock(l)
		has := w.Goroutine().Starts(l)
		w.Settle()
		nodes := r.Stats().Nodes
		require.Len(w, nodes, 1)
		require.Empty(w, nodes[0].Address)
		require.NotZero(w, nodes[0].LastAnswer)
		w.Unlock(l)
		require.NoError(w, <-has)
	})
}

func TestStats_OfTheOldestHold(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		r := w.Registry(lockregistry.WithHandoff(time.Hour))
		first, err := r.Acquire(w.Context(), "first")
		require.NoError(w, err)
		w.Pass(time.Second)
		l := r.Obtain("second")
		w.Lock(l)
		w.Pass(time.Second)
		require.Equal(w, 2*time.Second, r.Stats().Oldest.Round(100*time.Millisecond))
		w.Released(first.Release(w.Context()))
		require.Equal(w, time.Second, r.Stats().Oldest.Round(100*time.Millisecond))
		g := w.Goroutine()
		next := g.Starts(l)
		w.Settle()
		w.Unlock(l)
		require.NoError(w, <-next)
		require.Zero(w, r.Stats().Oldest.Round(100*time.Millisecond), "the next owner has it since now")
		require.NoError(w, g.Unlock(l))
		require.Zero(w, r.Stats().Oldest)
	})
}
