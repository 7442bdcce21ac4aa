package cluster_test

import (
	"context"
	"net"
	"slices"
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
	"github.com/lockregistry/lockregistry/observe"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// On a cluster the queue and the channels are in the slot of the key: grants come on the connection to its master, and
// nothing is sent over the cluster's bus. Each process has its share.
func TestQueue_OnACluster(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	const processes, turns = 4, 25
	for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
		for _, path := range []string{"a", "b", "c", "{tag}d", "e}f"} {
			t.Run(string(layout)+path, func(t *testing.T) {
				var all sync.WaitGroup
				inside, entered := 0, make([]int, processes)
				for i := range processes {
					client, err := kit.NewClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}})
					require.NoError(t, err)
					t.Cleanup(client.Close)
					r, err := lockregistry.New(client, "orders", kit.WithLayout(layout))
					require.NoError(t, err)
					t.Cleanup(func() { _ = r.Close() })
					l := r.Obtain(path)
					all.Go(func() {
						for range turns {
							if err := l.Lock(t.Context(), lockregistry.Wait(20*time.Second)); err != nil {
								t.Error(err)
								return
							}
							inside++
							if inside != 1 {
								t.Error("two are inside")
							}
							entered[i]++
							inside--
							if err := kit.UnlessBusy(l.Unlock(t.Context())); err != nil {
								t.Error(err)
							}
						}
					})
				}
				all.Wait()
				require.Equal(t, slices.Repeat([]int{turns}, processes), entered)
			})
		}
	}
	granted := 0
	for _, node := range nodes {
		_, stats, _ := strings.Cut(node.Command(t, "INFO", "commandstats"), "cmdstat_spublish:calls=")
		calls, _, _ := strings.Cut(stats, ",")
		n, _ := strconv.Atoi(calls)
		granted += n
	}
	if kit.HasShardedChannels(t, nodes[0]) {
		require.Greater(t, granted, 8*processes*turns/2, "most holds are granted by a release, unless braces forbid it")
	} else {
		require.Zero(t, granted, "there is no queue")
	}
}

// When braces would put the queue of a path into another slot there is no queue, and a log line says so. Calls are woken by
// tracking.
func TestQueue_BracesThatForbidAQueue(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	for _, layout := range []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson} {
		t.Run(string(layout), func(t *testing.T) {
			var log kit.Journal
			holder := cluster.Registry(t, kit.WithLayout(layout)).Obtain("e}1")
			waits := cluster.Registry(
				t, kit.WithLayout(layout), log.Option(), lockregistry.WithPollInterval(kit.NoPoll)).Obtain("e}1")
			owner := lockregistry.ContextWithOwner(t.Context())
			require.NoError(t, holder.Lock(t.Context()))
			got := make(chan error, 1)
			go func() { got <- waits.Lock(owner, lockregistry.Wait(10*time.Second)) }()
			require.Eventually(t, func() bool { return len(log.Lines("because of the braces")) == 1 }, 10*time.Second, time.Millisecond)
			require.NoError(t, kit.UnlessLate(holder.Unlock(t.Context())))
			require.NoError(t, <-got)
			require.NoError(t, kit.UnlessLate(waits.Unlock(owner)))
		})
	}
}

// layoutsBySlot has a path, with a slot of its own, for each layout: on one cluster the slot of each moves once.
var layoutsBySlot = map[string]observe.Layout{"42": observe.LayoutSpring, "43": observe.LayoutRedisson}

// While a slot moves, no second queue begins at its new node: the keys of the first one could no longer be moved there, and the
// calls in one queue would not know of those in the other.
func TestQueue_AQueueMovesWithItsSlot(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	if !kit.HasShardedChannels(t, nodes[0]) {
		return // there is no queue
	}
	for path, layout := range layoutsBySlot {
		t.Run(string(layout), func(t *testing.T) {
			key := "orders:" + path
			lock := func() *lockregistry.Lock {
				return kit.OnCluster(t, nodes, kit.WithLayout(layout)).Obtain(path)
			}
			waits := func(l *lockregistry.Lock) <-chan error {
				done := make(chan error, 1)
				go func() {
					err := l.Lock(lockregistry.ContextWithOwner(t.Context()), lockregistry.Wait(time.Minute))
					done <- err
				}()
				return done
			}
			i := slices.IndexFunc(nodes, func(n *redistest.Server) bool { _, err := n.Do("EXISTS", key); return err == nil })
			from, to := nodes[i], nodes[(i+1)%3]
			slot := from.Command(t, "CLUSTER", "KEYSLOT", key)
			keys := func(n *redistest.Server) string { return n.Command(t, "CLUSTER", "COUNTKEYSINSLOT", slot) }

			// A call waits, and the lock becomes free: the queue stays, and the lock's key is created at the slot's new node.
			first, second := lock(), lock()
			require.NoError(t, lock().Lock(t.Context()))
			one := waits(first)
			require.Eventually(t, func() bool { return keys(from) == "2" }, 10*time.Second, time.Millisecond)
			to.Command(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.Command(t, "CLUSTER", "MYID"))
			from.Command(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.Command(t, "CLUSTER", "MYID"))
			holder := lock()
			from.Command(t, "DEL", key)
			require.NoError(t, holder.Lock(t.Context(), lockregistry.Wait(10*time.Second)))
			require.Equal(t, "1", keys(to))
			two := waits(second)
			require.Never(t, func() bool { return keys(to) != "1" }, 2*time.Second, 10*time.Millisecond)

			host, port, err := net.SplitHostPort(to.Addr())
			require.NoError(t, err)
			left := strings.Split(from.Command(t, "CLUSTER", "GETKEYSINSLOT", slot, "10"), "\n")
			from.Command(t, append([]string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}, left...)...)
			for _, n := range []*redistest.Server{to, from, nodes[(i+2)%3]} {
				n.Command(t, "CLUSTER", "SETSLOT", slot, "NODE", to.Command(t, "CLUSTER", "MYID"))
			}
			require.NoError(t, kit.UnlessLate(holder.Unlock(t.Context())))
			for range 2 {
				select {
				case err := <-one:
					require.NoError(t, err)
					to.Command(t, "DEL", key)
				case err := <-two:
					require.NoError(t, err)
					to.Command(t, "DEL", key)
				case <-time.After(20 * time.Second):
					t.Fatal("nobody gets the lock")
				}
			}
		})
	}
}

// A release is not refused because its slot moves, even though it would begin a queue for other calls of its process.
func TestQueue_ReleaseWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	for path, layout := range layoutsBySlot {
		t.Run(string(layout), func(t *testing.T) {
			key := "orders:" + path
			client, err := kit.NewClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}, DisableCache: true})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			r, err := lockregistry.New(client, "orders", kit.WithLayout(layout), lockregistry.WithHandoff(0))
			require.NoError(t, err)
			t.Cleanup(func() { _ = r.Close() })
			l := r.Obtain(path)
			require.NoError(t, l.Lock(t.Context()))
			i := slices.IndexFunc(nodes, func(n *redistest.Server) bool { _, err := n.Do("EXISTS", key); return err == nil })
			from, to := nodes[i], nodes[(i+1)%3]
			slot := from.Command(t, "CLUSTER", "KEYSLOT", key)
			to.Command(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.Command(t, "CLUSTER", "MYID"))
			from.Command(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.Command(t, "CLUSTER", "MYID"))
			next := make(chan error, 1)
			ctx, giveUp := context.WithCancel(lockregistry.ContextWithOwner(t.Context()))
			go func() { next <- l.Lock(ctx) }()
			require.Never(t, func() bool { return len(next) > 0 }, 50*time.Millisecond, time.Millisecond)
			require.NoError(t, kit.UnlessLate(l.Unlock(t.Context())))
			require.Equal(t, "0", from.Command(t, "CLUSTER", "COUNTKEYSINSLOT", slot))
			giveUp()
			if err := <-next; err != nil { // until the slot has moved it may have to wait
				require.ErrorIs(t, err, context.Canceled)
			}
		})
	}
}

// The same with readers and writers: goroutines of several processes do both. Nobody waits long, although nobody polls.
func TestQueue_ReadersAndWritersOfManyProcessesOnACluster(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	const processes, goroutines, turns = 4, 3, 30
	for n, path := range []string{"a", "b", "c", "{tag}d"} {
		layout := []observe.Layout{observe.LayoutSpring, observe.LayoutRedisson}[n%2]
		t.Run(string(layout)+path, func(t *testing.T) {
			var all sync.WaitGroup
			var readers, writers, together atomic.Int32
			var longest atomic.Int64
			for i := range processes {
				r := cluster.RegistryOn(t, cluster.Client(t), kit.WithLayout(layout),
					lockregistry.WithPollInterval(kit.NoPoll), lockregistry.WithHandoff(time.Duration(i)*5*time.Millisecond))
				pair := r.ReadWrite(path)
				for g := range goroutines {
					all.Go(func() {
						for turn := range turns {
							l, writes := pair.Reader(), (turn+g)%3 == 0
							if writes {
								l = pair.Writer()
							}
							start := time.Now()
							if err := l.Lock(t.Context(), lockregistry.Wait(20*time.Second)); err != nil {
								t.Error(err)
								return
							}
							for wait := int64(time.Since(start)); ; {
								if known := longest.Load(); wait <= known || longest.CompareAndSwap(known, wait) {
									break
								}
							}
							if writes {
								if writers.Add(1) > 1 || readers.Load() > 0 {
									t.Error("a writer is not alone")
								}
								writers.Add(-1)
							} else {
								if readers.Add(1) > 1 {
									together.Add(1)
								}
								if writers.Load() > 0 {
									t.Error("a reader beside a writer")
								}
								<-time.After(time.Millisecond)
								readers.Add(-1)
							}
							if err := kit.UnlessBusy(l.Unlock(t.Context())); err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
			all.Wait()
			t.Log("longest wait", time.Duration(longest.Load()))
			require.Positive(t, together.Load(), "readers beside readers")
			if kit.HasShardedChannels(t, cluster.Nodes[0]) {
				require.Less(t, time.Duration(longest.Load()), kit.AtOnce, "no message is missed")
			}
		})
	}
}

// A hash tag may begin in the prefix and end in the path. The channels are in the slot of the key all the same.
func TestQueue_BracesInThePrefixOfACluster(t *testing.T) {
	t.Parallel()
	nodes := kit.ShareCluster(t).Nodes
	if !kit.HasShardedChannels(t, nodes[0]) {
		return // there is no queue
	}
	for name, layout := range kit.Layouts {
		for prefix, path := range map[string]string{"p{q": "a}b", "{": "}", "{p}{q": "a}b", "p": "{a}b", "p{": "a}b{c}"} {
			t.Run(name+" "+prefix+" "+path, func(t *testing.T) {
				cluster := kit.SharedCluster{Nodes: nodes, Prefix: prefix} // which no other test uses
				registry := func() *lockregistry.Registry {
					return cluster.Registry(t, kit.WithLayout(layout), lockregistry.WithHandoff(0))
				}
				holder, waits := registry().Obtain(path), registry()
				// At first, and every 100 ms, the lock is left for a moment to calls without a ticket.
				for n := 0; n < 10 || waits.Stats().Wakeups.Messages == 0 && n < 200; n++ {
					require.NoError(t, holder.Lock(t.Context()))
					got := make(chan error, 1)
					go func() {
						err := waits.Do(t.Context(), path, func(context.Context) error { return nil }, lockregistry.Wait(20*time.Second))
						got <- err
					}()
					require.Eventually(t, func() bool { return waits.Stats().Tickets == 1 }, 10*time.Second, time.Millisecond)
					require.NoError(t, kit.UnlessLate(holder.Unlock(t.Context())))
					require.NoError(t, <-got)
				}
				require.Positive(t, waits.Stats().Wakeups.Messages)
			})
		}
	}
}

// migration is a slot on its way from one node to another.
type migration struct {
	t        *testing.T
	nodes    []*redistest.Server
	from, to *redistest.Server
	slot     string
}

func migrating(t *testing.T, nodes []*redistest.Server, key string) *migration {
	t.Helper()
	i := slices.IndexFunc(nodes, func(n *redistest.Server) bool { _, err := n.Do("EXISTS", key); return err == nil })
	return &migration{t, nodes, nodes[i], nodes[(i+1)%len(nodes)], nodes[i].Command(t, "CLUSTER", "KEYSLOT", key)}
}

func (m *migration) begin() {
	m.t.Helper()
	m.to.Command(m.t, "CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.from.Command(m.t, "CLUSTER", "MYID"))
	m.from.Command(m.t, "CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.to.Command(m.t, "CLUSTER", "MYID"))
}

func (m *migration) move(keys ...string) {
	m.t.Helper()
	host, port, err := net.SplitHostPort(m.to.Addr())
	require.NoError(m.t, err)
	m.from.Command(m.t, append([]string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}, keys...)...)
}

func (m *migration) end() {
	m.t.Helper()
	if left := strings.Fields(m.from.Command(m.t, "CLUSTER", "GETKEYSINSLOT", m.slot, "10")); len(left) > 0 {
		m.move(left...)
	}
	for _, n := range append([]*redistest.Server{m.to}, m.nodes...) {
		n.Command(m.t, "CLUSTER", "SETSLOT", m.slot, "NODE", m.to.Command(m.t, "CLUSTER", "MYID"))
	}
}

func queueOf(key string) string { return "orders:{" + key + "}:waiters" }

// When half of a slot is moved, and stays so, calls for its paths go on one by one, without the queue.
func TestQueue_HalfASlotIsMoved(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	if !kit.HasShardedChannels(t, nodes[0]) {
		return // there is no queue
	}
	for layoutPath, layout := range layoutsBySlot {
		for part, moved := range map[string]func(key string) string{
			"queue": queueOf, "lock": func(key string) string { return key },
		} {
			t.Run(string(layout)+" "+part, func(t *testing.T) {
				path := layoutPath + part
				key := "orders:" + path
				m := migrating(t, nodes, key)
				registry := func() *lockregistry.Registry { return kit.OnCluster(t, nodes, kit.WithLayout(layout)) }
				holder := registry().Obtain(path)
				require.NoError(t, holder.Lock(t.Context()))
				results := make(chan error, 3)
				for i := range cap(results) {
					r := registry()
					go func() {
						// A call that has just looked, with two tickets in front of its own, looks again after ten seconds.
						err := r.Do(t.Context(), path, func(context.Context) error { return nil }, lockregistry.Wait(30*time.Second))
						results <- err
					}()
					require.Eventually(t, func() bool { return r.Stats().Tickets == 1 }, 10*time.Second, time.Millisecond, "%d", i)
				}
				m.begin()
				m.move(moved(key))
				start := time.Now()
				require.NoError(t, kit.UnlessLate(holder.Unlock(t.Context())))
				for range cap(results) {
					require.NoError(t, <-results)
					t.Log(time.Since(start))
				}
				m.end()

				require.NoError(t, holder.Lock(t.Context(), lockregistry.Wait(10*time.Second)))
				next, got := registry(), make(chan error, 1)
				go func() {
					got <- next.Obtain(path).Lock(lockregistry.ContextWithOwner(t.Context()), lockregistry.Wait(10*time.Second))
				}()
				require.Eventually(t, func() bool { return next.Stats().Tickets == 1 }, 10*time.Second, time.Millisecond)
				require.NoError(t, kit.UnlessLate(holder.Unlock(t.Context())))
				require.NoError(t, <-got)
				require.Equal(t, "0", m.to.Command(t, "ZCOUNT", queueOf(key), "0", "+inf"), "nothing is left of those that waited meanwhile")
			})
		}
	}
}
