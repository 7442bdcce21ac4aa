package several_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/internal/redistest"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// behindProxies runs a test with a relay that keeps paths on two servers: one that sends scripts where their first key belongs,
// and one that refuses those of several servers.
func behindProxies(t *testing.T, test func(t *testing.T, relay *kit.Relay, opts ...lockregistry.Option)) {
	t.Helper()
	t.Parallel()
	for refuses, text := range map[string]string{"splits": "", "refuses": "CROSSSLOT Keys in request don't hash to the same slot"} {
		for name, opts := range map[string][]lockregistry.Option{
			"spring": nil, "redisson": {lockregistry.WithLayout(lockregistry.LayoutRedisson)}, "fenced": {lockregistry.WithFencing()},
		} {
			t.Run(refuses+"/"+name, func(t *testing.T) {
				t.Parallel()
				test(t, kit.NewRelay(t, true, text), append(opts, lockregistry.WithPollInterval(20*time.Millisecond))...)
			})
		}
	}
}

// apart are paths of which each server has some, and the last one's is not the first one's.
func apart(t *testing.T, relay *kit.Relay) (paths []string) {
	t.Helper()
	for i := 0; len(paths) < 5 || relay.Home("orders:"+paths[0]) == relay.Home("orders:"+paths[len(paths)-1]); i++ {
		paths = append(paths, fmt.Sprint("path ", i))
	}
	return paths
}

// Behind a proxy that keeps paths on several servers, AcquireAll excludes other owners on each path.
func TestAcquireAll_BehindAProxy(t *testing.T) {
	behindProxies(t, func(t *testing.T, relay *kit.Relay, opts ...lockregistry.Option) {
		paths := apart(t, relay)
		var log kit.Journal
		all := []*lockregistry.Registry{
			relay.Registry(t, append(opts, log.Option())...), relay.Registry(t, opts...), relay.Registry(t, opts...),
		}
		hold, err := all[0].AcquireAll(t.Context(), paths)
		require.NoError(t, err)
		for _, path := range paths {
			require.Equal(t, "1", relay.Home("orders:"+path).Command(t, "EXISTS", "orders:"+path), "%s is where it belongs", path)
			_, err := all[1].Acquire(t.Context(), path, lockregistry.NoWait())
			require.ErrorIs(t, err, lockregistry.ErrTaken, path)
		}
		_, err = all[1].AcquireAll(t.Context(), paths[1:], lockregistry.NoWait())
		require.ErrorIs(t, err, lockregistry.ErrTaken)
		require.NoError(t, hold.Release(t.Context()))
		require.Len(t, log.Lines("a proxy keeps the paths"), 1)
		require.Len(t, log.Lines(), 1)

		refused := relay.Refused.Load()
		hold, err = all[0].AcquireAll(t.Context(), paths, lockregistry.NoWait())
		require.NoError(t, err)
		require.NoError(t, hold.Release(t.Context()))
		require.Equal(t, refused, relay.Refused.Load(), "it knows the proxy")

		inside := make([]atomic.Int32, len(paths))
		var each sync.WaitGroup
		for n := range 4 {
			each.Go(func() {
				these := []int{n % 5, (n + 2) % 5, (n + 3) % 5}
				for range 4 {
					hold, err := all[n%3].AcquireAll(t.Context(), []string{paths[these[0]], paths[these[1]], paths[these[2]]})
					if err != nil {
						t.Error(err)
						return
					}
					for _, i := range these {
						if inside[i].Add(1) != 1 {
							t.Errorf("two owners of %s", paths[i])
						}
					}
					for _, i := range these {
						inside[i].Add(-1)
					}
					if err := hold.Release(t.Context()); err != nil && !errors.Is(err, lockregistry.ErrUnavailable) { // a busy machine
						t.Error(err)
					}
				}
			})
		}
		each.Wait()
		for _, server := range relay.Servers {
			for _, path := range paths {
				require.True(t, redistest.Await(20*time.Second, func() bool {
					return server.Command(t, "EXISTS", "orders:"+path) == "0"
				}), "nothing is left of %s, also where it does not belong", path)
			}
		}
	})
}

// Paths that happen to be on one server are obtained at once, and say nothing about the next ones.
func TestAcquireAll_BehindAProxyByChance(t *testing.T) {
	behindProxies(t, func(t *testing.T, relay *kit.Relay, opts ...lockregistry.Option) {
		r := relay.Registry(t, opts...)
		other := relay.Registry(t, opts...)
		for range 3 {
			err := r.Do(t.Context(), "{one}a", func(context.Context) error { return nil })
			require.NoError(t, err)
			hold, err := r.AcquireAll(t.Context(), []string{"{one}a", "{one}b", "{one}c"}, lockregistry.NoWait())
			require.NoError(t, err)
			require.NoError(t, hold.Release(t.Context()))
		}
		paths := apart(t, relay)
		hold, err := r.AcquireAll(t.Context(), paths, lockregistry.NoWait())
		require.NoError(t, err)
		for _, path := range paths {
			_, err := other.Acquire(t.Context(), path, lockregistry.NoWait())
			require.ErrorIs(t, err, lockregistry.ErrTaken, path)
		}
		require.NoError(t, hold.Release(t.Context()))
	})
}
