package cluster_test

import (
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// On a cluster the counter is in the slot of its key.
func TestFencing_TokensOnACluster(t *testing.T) {
	t.Parallel()
	cluster := kit.ShareCluster(t)
	nodes := []string{"a", "b", "c"} // a path on each; the formats meet the nodes in turn
	for i, f := range kit.FencedLocks() {
		for _, path := range []string{nodes[i%len(nodes)], "{tag}d", "e}f"} {
			t.Run(f.Name+" "+path, func(t *testing.T) {
				var locks []*lockregistry.Lock
				for range 2 {
					opts := slices.Concat(f.Opts, []lockregistry.Option{lockregistry.WithFencing()})
					locks = append(locks, f.Of(cluster.RegistryOn(t, cluster.Client(t), opts...), path))
				}
				if strings.Contains(path, "}") && !strings.Contains(path, "{") {
					require.ErrorContains(t, locks[0].Lock(t.Context()), "braces")
					return
				}
				var all sync.WaitGroup
				var protected kit.Resource
				for _, l := range locks {
					for range 2 {
						all.Go(func() {
							for range 25 {
								h, err := l.Acquire(t.Context())
								if err != nil {
									t.Error(err)
									return
								}
								protected.Write(h.Token())
								if err := kit.UnlessBusy(h.Release(t.Context())); err != nil {
									t.Error(err)
								}
							}
						})
					}
				}
				all.Wait()
				require.Zero(t, protected.Refused.Load())
			})
		}
	}
}

// While a slot moves, no second counter begins at its new node: the first counter could no longer be moved there, and its
// tokens would be forgotten.
func TestFencing_ACounterMovesWithItsSlot(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	for _, f := range kit.FencedLocks()[:2] {
		t.Run(f.Name, func(t *testing.T) {
			lock := func() *lockregistry.Lock {
				client, err := kit.NewClient(rueidis.ClientOption{InitAddress: []string{nodes[0].Addr()}, DisableCache: true})
				require.NoError(t, err)
				t.Cleanup(client.Close)
				r, err := lockregistry.New(client, "orders", slices.Concat(f.Opts, []lockregistry.Option{lockregistry.WithFencing()})...)
				require.NoError(t, err)
				t.Cleanup(func() { _ = r.Close() })
				return f.Of(r, "42")
			}
			first, err := lock().Acquire(t.Context())
			require.NoError(t, err)
			require.NoError(t, kit.UnlessLate(first.Release(t.Context())))
			i := slices.IndexFunc(nodes, func(n *redistest.Server) bool { _, err := n.Do("EXISTS", kit.TheKey); return err == nil })
			from, to := nodes[i], nodes[(i+1)%3]
			slot := from.Command(t, "CLUSTER", "KEYSLOT", kit.TheKey)
			to.Command(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", from.Command(t, "CLUSTER", "MYID"))
			from.Command(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", to.Command(t, "CLUSTER", "MYID"))
			l := lock()
			_, err = l.Acquire(t.Context(), lockregistry.Wait(300*time.Millisecond))
			require.ErrorIs(t, err, lockregistry.ErrUnavailable)
			require.Equal(t, "0", to.Command(t, "CLUSTER", "COUNTKEYSINSLOT", slot))
			got, failed := make(chan *lockregistry.Hold, 1), make(chan error, 1)
			go func() {
				h, err := l.Acquire(t.Context(), lockregistry.Wait(time.Minute))
				got <- h
				failed <- err
			}()
			host, port, err := net.SplitHostPort(to.Addr())
			require.NoError(t, err)
			for key := range strings.FieldsSeq(from.Command(t, "CLUSTER", "GETKEYSINSLOT", slot, "10")) {
				from.Command(t, "MIGRATE", host, port, key, "0", "5000")
			}
			for _, n := range []*redistest.Server{to, from, nodes[(i+2)%3]} {
				n.Command(t, "CLUSTER", "SETSLOT", slot, "NODE", to.Command(t, "CLUSTER", "MYID"))
			}
			h := <-got
			require.NoError(t, <-failed)
			require.Greater(t, h.Token(), first.Token())
			require.NoError(t, kit.UnlessLate(h.Release(t.Context())))
		})
	}
}
