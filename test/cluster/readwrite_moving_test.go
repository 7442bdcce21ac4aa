package cluster_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/inspect"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// While a slot moves, a reader's lease may be on another node than the lock, where it seems to be over. It is not: when one
// reader leaves, is renewed, or is removed by force, the others go on reading, and no writer gets the lock.
func TestReadWriteLock_HalfASlotIsMoved(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	for name, test := range map[string]func(t *testing.T, one kit.Pair, value string){
		"unlock": func(t *testing.T, one kit.Pair, _ string) {
			t.Helper()
			require.NoError(t, kit.UnlessLate(one.Reader.Unlock(t.Context())))
		},
		"renewal": func(t *testing.T, one kit.Pair, _ string) { t.Helper(); renewed(t, one) },
		"force": func(t *testing.T, one kit.Pair, value string) {
			t.Helper()
			require.NoError(t, inspect.Of(one.Reg).ForceUnlockHolder(t.Context(), one.Reader.Path(), value))
		},
	} {
		for moved, moves := range map[string]func(key, own string) []string{
			"lock":               func(key, _ string) []string { return []string{key} },
			"lock and own lease": func(key, own string) []string { return []string{key, own} },
		} {
			t.Run(name+" "+moved, func(t *testing.T) {
				path := strings.ReplaceAll(name+moved, " ", "")
				m := migrating(t, nodes, "orders:"+path)
				pair := func() kit.Pair {
					r := kit.OnCluster(t, nodes)
					return kit.Pair{Reg: r, Reader: r.ReadWrite(path).Reader(), Writer: r.ReadWrite(path).Writer()}
				}
				one, other, third := pair(), pair(), pair()
				require.NoError(t, other.Reader.Lock(t.Context(), lockregistry.Lease(time.Minute)))
				others := m.keys()
				require.NoError(t, one.Reader.Lock(t.Context(), lockregistry.Lease(time.Minute)))
				own := slices.DeleteFunc(m.keys(), func(k string) bool { return slices.Contains(others, k) })
				require.Len(t, own, 1)
				m.begin()
				m.move(moves("orders:"+path, own[0])...)

				_, value, _ := strings.Cut(own[0], "}:")
				test(t, one, strings.TrimSuffix(value, ":rwlock_timeout:1"))
				ok, err := third.Writer.TryLock(lockregistry.ContextWithOwner(t.Context()))
				require.NoError(t, err)
				require.False(t, ok, "another process still reads")
				renewed(t, other)
				if moved != "lock" {
					m.end()
					require.NoError(t, other.Reader.Renew(t.Context(), time.Minute))
				}
				require.NoError(t, kit.UnlessLate(other.Reader.Unlock(t.Context())))
				if name != "renewal" {
					ok, err = third.Writer.TryLock(t.Context())
					require.NoError(t, err)
					require.True(t, ok, "all have left")
				}
			})
		}
	}
}

// While the slot is half moved, an inspection shows all readers, including those whose leases are on the other node.
func TestInspect_HalfASlotIsMoved(t *testing.T) {
	t.Parallel()
	nodes := redistest.StartCluster(t, 3)
	for moved, moves := range map[string]func(key string, leases []string) []string{
		"nothing":            func(string, []string) []string { return nil },
		"lock":               func(key string, _ []string) []string { return []string{key} },
		"a lease":            func(_ string, leases []string) []string { return leases[:1] },
		"lock and one lease": func(key string, leases []string) []string { return []string{key, leases[0]} },
	} {
		t.Run(moved, func(t *testing.T) {
			path := strings.ReplaceAll(moved, " ", "")
			m := migrating(t, nodes, "orders:"+path)
			var r *lockregistry.Registry
			for range 2 {
				r = kit.OnCluster(t, nodes)
				require.NoError(t, r.ReadWrite(path).Reader().Lock(t.Context(), lockregistry.Lease(time.Minute)))
			}
			leases := slices.DeleteFunc(m.keys(), func(k string) bool { return !strings.Contains(k, ":rwlock_timeout:") })
			require.Len(t, leases, 2)
			m.begin()
			if keys := moves("orders:"+path, leases); len(keys) > 0 {
				m.move(keys...)
			}
			info, err := inspect.Of(r).Inspect(t.Context(), path)
			require.NoError(t, err)
			require.Len(t, info.Holders, 2)
			require.Equal(t, 2, info.HolderCount)
			m.end()
		})
	}
}

// renewed renews a reader whose lease may be on the other node: then the server cannot say whether it is over.
func renewed(t *testing.T, p kit.Pair) {
	t.Helper()
	if err := p.Reader.Renew(t.Context(), time.Minute); err != nil {
		require.ErrorIs(t, err, lockregistry.ErrUnavailable)
		require.NotErrorIs(t, err, lockregistry.ErrLockLost)
	}
}

// keys returns the keys of the slot that have not moved yet.
func (m *migration) keys() []string {
	m.t.Helper()
	return strings.Fields(m.from.Command(m.t, "CLUSTER", "GETKEYSINSLOT", m.slot, "100"))
}
