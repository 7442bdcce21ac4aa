package lockregistry_test

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
)

// migration is a slot, that of the first lock, on its way from one node to another.
type migration struct {
	t        *testing.T
	nodes    []*redistest.Server
	from, to *redistest.Server
	slot     string
}

func migrating(t *testing.T, nodes []*redistest.Server) *migration {
	t.Helper()
	i := slices.IndexFunc(nodes, func(n *redistest.Server) bool { _, err := n.Do("EXISTS", theKey); return err == nil })
	return &migration{t, nodes, nodes[i], nodes[(i+1)%len(nodes)], nodes[i].Command(t, "CLUSTER", "KEYSLOT", theKey)}
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

// A slot of which half is moved, and which stays so, does not keep its paths still: calls go on one by one, without the queue.
func TestQueue_HalfASlotIsMoved(t *testing.T) {
	t.Parallel()
	for name, layout := range layouts {
		for _, moved := range []string{theQueue, theKey} {
			t.Run(name+" "+moved, func(t *testing.T) {
				nodes := redistest.StartCluster(t, 3)
				if !sharded(t, nodes[0]) {
					return // there is no queue
				}
				m := migrating(t, nodes)
				registry := func() *lockregistry.Registry { return onCluster(t, nodes, lockregistry.WithLayout(layout)) }
				holder := registry().Obtain("42")
				require.NoError(t, holder.Lock(t.Context()))
				results := make(chan error, 3)
				for i := range cap(results) {
					r := registry()
					go func() {
						err := r.Do(t.Context(), "42", func(context.Context) error { return nil }, lockregistry.Wait(10*time.Second))
						results <- err
					}()
					require.Eventually(t, func() bool { return r.Stats().Tickets == 1 }, 10*time.Second, time.Millisecond, "%d", i)
				}
				m.begin()
				m.move(moved)
				start := time.Now()
				require.NoError(t, holder.Unlock(t.Context()))
				for range cap(results) {
					require.NoError(t, <-results)
					t.Log(time.Since(start))
				}
				m.end()

				require.NoError(t, holder.Lock(t.Context(), lockregistry.Wait(10*time.Second)))
				next, got := registry(), make(chan error, 1)
				go func() {
					got <- next.Obtain("42").Lock(lockregistry.NewOwner(t.Context()), lockregistry.Wait(10*time.Second))
				}()
				require.Eventually(t, func() bool { return next.Stats().Tickets == 1 }, 10*time.Second, time.Millisecond)
				require.NoError(t, holder.Unlock(t.Context()))
				require.NoError(t, <-got)
				require.Equal(t, "0", m.to.Command(t, "ZCOUNT", theQueue, "0", "+inf"), "nothing is left of those that waited meanwhile")
			})
		}
	}
}
