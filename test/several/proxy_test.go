package several_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/lockregistry/lockregistry"
	"github.com/lockregistry/lockregistry/test/internal/kit"
)

// behindProxies runs a test in fake time, where no reply is late, with a relay that keeps paths on two servers. One relay sends
// scripts where their first key belongs, the other one refuses scripts for several servers.
func behindProxies(t *testing.T, test func(w *kit.World, relay *kit.Relay, opts ...lockregistry.Option)) {
	t.Helper()
	t.Parallel()
	for refuses, text := range map[string]string{"splits": "", "refuses": "CROSSSLOT Keys in request don't hash to the same slot"} {
		for name, opts := range map[string][]lockregistry.Option{
			"spring": nil, "redisson": {lockregistry.WithRedissonLayout()}, "fenced": {lockregistry.WithFencing()},
		} {
			t.Run(refuses+"/"+name, func(t *testing.T) {
				kit.FakeWorld(t, func(w *kit.World) {
					test(w, w.Relay(true, text), append(opts, lockregistry.WithPollInterval(20*time.Millisecond))...)
				})
			})
		}
	}
}

// apart returns paths such that each server has some, and the last path is not on the first one's server.
func apart(relay *kit.Relay) (paths []string) {
	for i := 0; len(paths) < 5 || relay.Home("orders:"+paths[0]) == relay.Home("orders:"+paths[len(paths)-1]); i++ {
		paths = append(paths, fmt.Sprint("path ", i))
	}
	return paths
}

// Behind a proxy that keeps paths on several servers, AcquireAll excludes other owners on each path.
func TestAcquireAll_BehindAProxy(t *testing.T) {
	behindProxies(t, func(w *kit.World, relay *kit.Relay, opts ...lockregistry.Option) {
		paths := apart(relay)
		var log kit.Journal
		all := []*lockregistry.Registry{
			relay.Registry(append(opts, log.Option())...), relay.Registry(opts...), relay.Registry(opts...),
		}
		hold, err := all[0].AcquireAll(w.Context(), paths)
		require.NoError(w, err)
		require.Len(w, log.Lines("a proxy keeps the paths"), 1)
		require.Len(w, log.Lines("level=WARN"), 1)
		for _, path := range paths {
			for _, server := range relay.Servers {
				require.Equal(w, server != relay.Home("orders:"+path), server.Free("orders:"+path), "%s is where it belongs", path)
			}
			_, err := all[1].Acquire(w.Context(), path, lockregistry.NoWait())
			require.ErrorIs(w, err, lockregistry.ErrTaken, path)
		}
		_, err = all[1].AcquireAll(w.Context(), paths[1:], lockregistry.NoWait())
		require.ErrorIs(w, err, lockregistry.ErrTaken)
		w.Released(hold.Release(w.Context()))

		refused := relay.Refused.Load()
		hold, err = all[0].AcquireAll(w.Context(), paths, lockregistry.NoWait())
		require.NoError(w, err)
		w.Released(hold.Release(w.Context()))
		require.Equal(w, refused, relay.Refused.Load(), "it knows the proxy")

		inside := make([]atomic.Int32, len(paths))
		var each sync.WaitGroup
		for n := range 4 {
			each.Go(func() {
				these := []int{n % 5, (n + 2) % 5, (n + 3) % 5}
				for range 4 {
					hold, err := all[n%3].AcquireAll(w.Context(), []string{paths[these[0]], paths[these[1]], paths[these[2]]})
					if err != nil {
						w.Error(err)
						return
					}
					for _, i := range these {
						if inside[i].Add(1) != 1 {
							w.Errorf("two owners of %s", paths[i])
						}
					}
					<-time.After(time.Millisecond)
					for _, i := range these {
						inside[i].Add(-1)
					}
					if err := w.UnlessLate(hold.Release(w.Context())); err != nil {
						w.Error(err)
					}
				}
			})
		}
		each.Wait()
		for _, server := range relay.Servers {
			for _, path := range paths {
				require.True(w, server.Free("orders:"+path), "nothing is left of %s, also where it does not belong", path)
			}
		}
	})
}

// Paths that happen to be on one server are obtained at once, which means nothing for later calls.
func TestAcquireAll_BehindAProxyByChance(t *testing.T) {
	behindProxies(t, func(w *kit.World, relay *kit.Relay, opts ...lockregistry.Option) {
		r := relay.Registry(opts...)
		other := relay.Registry(opts...)
		for range 3 {
			err := r.Do(w.Context(), "{one}a", func(context.Context) error { return nil })
			require.NoError(w, err)
			hold, err := r.AcquireAll(w.Context(), []string{"{one}a", "{one}b", "{one}c"}, lockregistry.NoWait())
			require.NoError(w, err)
			w.Released(hold.Release(w.Context()))
		}
		paths := apart(relay)
		hold, err := r.AcquireAll(w.Context(), paths, lockregistry.NoWait())
		require.NoError(w, err)
		for _, path := range paths {
			_, err := other.Acquire(w.Context(), path, lockregistry.NoWait())
			require.ErrorIs(w, err, lockregistry.ErrTaken, path)
		}
		w.Released(hold.Release(w.Context()))
	})
}

// A read-back of the keys reveals a proxy only if its reply is in time, and the hold is missing. Then the registry takes one
// path after another; otherwise the next call asks for all at once. Even such a read-back may be wrong, so after a while the
// registry tries again.
func TestAcquireAll_ReadBack(t *testing.T) {
	missing := kit.Fate{Lost: true, Reply: "$-1\r\n"}
	none := kit.Fate{Lost: true, Reply: ":0\r\n"}
	late, lateNone := missing, none
	late.Linger, lateNone.Linger = 1500*time.Millisecond, 1500*time.Millisecond
	for name, c := range map[string]struct {
		get, hexists kit.Fate
		proxy        bool
	}{
		"missing": {missing, none, true},
		"refused": {kit.Refused(kit.Loading), kit.Refused(kit.Loading), false},
		"late":    {late, lateNone, false},
	} {
		t.Run(name, func(t *testing.T) {
			fakePlainLayouts(t, func(w *kit.World, opts ...lockregistry.Option) {
				f := w.Flaky()
				var log kit.Journal
				r := f.Registry(append(opts, log.Option())...)
				w.Known(r)
				paths := []string{"a", "b", "c"}
				acquires := func() (together int) {
					before := f.Count("obtain_all")
					hold, err := r.AcquireAll(w.Context(), paths)
					require.NoError(w, err)
					taken(w, paths...)
					w.Released(hold.Release(w.Context()))
					allFree(w, paths...)
					return f.Count("obtain_all") - before
				}
				acquires() // from now on the server knows the script
				sees := func() {
					f.Fates("GET", kit.Delivered, c.get)
					f.Fates("HEXISTS", kit.Delivered, c.hexists)
					require.Equal(w, 1, acquires())
				}
				sees()
				if !c.proxy {
					require.Equal(w, 1, acquires())
					require.Empty(w, log.Lines("a proxy keeps"))
					return
				}
				require.Zero(w, acquires())
				w.Pass(time.Minute)
				sees()
				w.Pass(time.Minute)
				require.Zero(w, acquires(), "twice as long")
				w.Pass(time.Minute)
				require.Equal(w, 1, acquires())
				require.Len(w, log.Lines("a proxy keeps"), 1)
			})
		})
	}
}

// A registry that took a missing hold for a sign of a proxy lists locks with one script each. It does so until it has obtained
// several paths at once for as long as it had paused.
func TestAcquireAll_ReadBackAndLocks(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		f, paths := w.Flaky(), []string{"a", "b", "c"}
		r, other := f.Registry(), w.Registry()
		w.Known(r)
		acquires := func() {
			hold, err := r.AcquireAll(w.Context(), paths)
			require.NoError(w, err)
			w.Released(hold.Release(w.Context()))
		}
		shows := func() (scripts int) {
			hold, err := other.AcquireAll(w.Context(), paths)
			require.NoError(w, err)
			before := len(f.Sent(kit.Anything))
			require.Equal(w, paths, kit.PathsOf(w.T, r))
			for _, c := range f.Sent(kit.Anything)[before:] {
				if strings.HasPrefix(c.Args[0], "EVAL") && slices.Contains([]string{"orders:a", "orders:b", "orders:c"}, c.Args[3]) {
					scripts++
				}
			}
			w.Released(hold.Release(w.Context()))
			return scripts
		}
		shows() // from now on the server knows the script
		require.Equal(w, 1, shows())
		f.Fates("GET", kit.Delivered, kit.Fate{Lost: true, Reply: "$-1\r\n"})
		acquires()
		require.Equal(w, len(paths), shows())
		w.Pass(2 * time.Minute)
		require.Equal(w, len(paths), shows(), "no call has tried since")
		acquires()
		require.Equal(w, 1, shows())
	})
}

// What a script has obtained at the right server is released like any lock: others may wait for it.
func TestAcquireAll_BehindAProxyTellsWaiters(t *testing.T) {
	kit.FakeWorld(t, func(w *kit.World) {
		relay := w.Relay(true, "")
		paths := apart(relay)
		client := w.ClientWith(relay.Home("orders:" + paths[0]).Dial)
		heard, subscribed := make(chan string, 100), make(chan struct{})
		ctx := rueidis.WithOnSubscriptionHook(w.Context(), func(rueidis.PubSubSubscription) { close(subscribed) })
		go func() {
			channel := "orders-channel:orders:" + paths[0]
			_ = client.Receive(ctx, client.B().Subscribe().Channel(channel).Build(), func(m rueidis.PubSubMessage) { heard <- m.Message })
		}()
		<-subscribed
		hold, err := relay.Registry().AcquireAll(w.Context(), paths)
		require.NoError(w, err)
		require.Equal(w, "orders:"+paths[0], <-heard, "what the script has obtained was released")
		w.Released(hold.Release(w.Context()))
	})
}
